"""Words of the command line that are gone, each with what to type instead."""

from __future__ import annotations

from collections.abc import Sequence

FORMER_COMMANDS = {
    "diff": "type `onnxfq inspect A B`",
    "export-encodings": "type `onnxfq calibrate MODEL --plan PLAN --encodings FILE --format NAME -o OUT`",
    "merge-statistics": "type `onnxfq observe --merge A B -o C`",
    "moments": "type `onnxfq observe --moments MODEL --data DATA -o OUT`",
    "run": "keep the words of `onnxfq quantize` in a shell script",
}
"""Commands that are gone, and what to type instead."""

FORMER_OPTIONS = {
    ("quantize", "--node-data"): "type `onnxfq report RESULT --node-data FILE`; --artifacts writes RESULT",
    ("quantize", "--protect"): "type --repair off, auto, thorough or DB",
    ("quantize", "--missing"): "type --uncalibrated error or float",
    ("insert", "--as"): "type --format qdq or fakequant",
    ("observe", "--feed-ranges"): "type --per-batch-ranges",
    ("compare", "--a"): "type --reference",
    ("compare", "--b"): "type --candidate",
    ("quantize", "--write-job"): "keep the words of the command in a shell script",
}
"""Options that are gone, by their command, and what to type instead."""

FORMER_VALUES = {
    ("--calibrator", "auto"): "best_error",
    ("--device", "auto"): "any",
}
"""Values of options that are gone, and the value to type instead."""


def explain_former(arguments: Sequence[str]) -> str | None:
    """Return the line on the first word that is gone; None if `arguments` have none.

    Args:
        arguments: the words behind `onnxfq`.
    """
    command = next((word for word in arguments if word != "--"), "")
    if command in FORMER_COMMANDS:
        return f"onnxfq {command} is gone; {FORMER_COMMANDS[command]}"
    for word, following in zip(arguments, [*arguments[1:], ""], strict=True):
        if word == "--":  # paths and names follow
            break
        option, equals, value = word.partition("=")
        value = value if equals else following
        if (option, value) in FORMER_VALUES:
            return f"{option} {value} is gone; type {option} {FORMER_VALUES[option, value]}"
        if (command, option) in FORMER_OPTIONS:
            return f"onnxfq {command} {option} is gone; {FORMER_OPTIONS[command, option]}"
    return None
