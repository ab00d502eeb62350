"""Wrong usage in words that say what to give in its place."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from onnxfq.cli.console import arguments
from onnxfq.cli.option import refuse
from onnxfq.support.other_words import COMMANDS, OPTIONS

_NUMBERS = {
    "float_parsing": "a number, such as 0.5",
    **dict.fromkeys(("int_parsing", "int_from_float"), "a whole number"),
}
"""The value to give, by the kind of the validation library's fault."""


def refuse_repeated(parameters: Iterable[Any], words: Sequence[str]) -> None:
    """Raise BadParameter for an option of one value that `words` give twice: the first would be lost."""
    given = [word.partition("=")[0] for word in words]
    for one in parameters:
        count = sum(given.count(name) for name in one.opts if name.startswith("-"))
        is_single = not (getattr(one, "is_flag", False) or getattr(one, "multiple", False))
        refuse(count > 1 and is_single, f"{max(one.opts, key=len)} is given {count} times; give it once")


def refuse_other_bytes(words: Sequence[str]) -> None:
    """Raise BadParameter for bytes that UTF-8 does not have, which no result could name."""
    for word in words:
        is_foreign = any("\ud800" <= letter <= "\udfff" for letter in word)
        refuse(is_foreign, f"{ascii(word):.80} holds bytes that UTF-8 does not have; rename the file")


def explain_usage(fault: Any, find_takers: Callable[[str], Sequence[str]]) -> str:
    """Return what a parser says of wrong usage, and the remedy where it has none.

    Args:
        fault: of the parser.
        find_takers: returns the commands that take an option.
    """
    words, parameter = arguments.get(), getattr(fault, "param", None)
    option = getattr(fault, "option_name", "")
    errors: list[Any] = getattr(fault.__cause__, "errors", list)()
    asked = _NUMBERS.get(errors[0]["type"]) if errors else None
    if asked and parameter is not None:
        value = next((value for name, value in _pairs(words) if name in parameter.opts), "")
        return f"{max(parameter.opts, key=len)} is {value!r:.40}; give {asked}"
    if option in OPTIONS:
        return f"no option {option} here: {OPTIONS[option]}"
    if takers := find_takers(option) if option else ():
        return f"no option {option} here, but of {', '.join(f'`onnxfq {name}`' for name in takers)}"
    if not (option or parameter) and words[0] in COMMANDS:
        return f"no command {words[0]!r}: {COMMANDS[words[0]]}"
    text = str(fault.format_message()).replace("Value error, ", "")  # the validation library's own words
    meaning = getattr(parameter, "help", None) or ""
    is_missing = type(fault).__name__ == "MissingParameter"  # older versions of typer raise click's
    return f"{text.rstrip('.')}: {meaning}" if is_missing and meaning and "{" not in meaning else text


def _pairs(words: Sequence[str]) -> Iterable[tuple[str, str]]:
    """Yield each word of a command with the value that may belong to it."""
    for word, follower in zip(words, [*words[1:], ""], strict=True):
        name, is_joined, value = word.partition("=")
        yield name, value if is_joined else follower


def explain_extra(context: Any, words: Sequence[str]) -> str:
    """Return why a command takes no more of these words, by their form, and where they belong."""
    from onnxfq.data.images import SUFFIXES

    folder, ending = os.path.dirname(words[0]), os.path.splitext(words[0])[1]
    if all(re.fullmatch(r"-?[\d.]+", word) for word in words):
        return "too many words; commas join the numbers of one option, as in --mean 0.5,0.4,0.3"
    if not any(one.param_type_name == "argument" for one in context.command.params):
        return f"`{context.command_path}` takes no file; `onnxfq quantize` takes a model"
    if ending == ".onnx":
        return "one model too many; `onnxfq evaluate` and `onnxfq inspect` take several"
    if ending in SUFFIXES:
        return f"too many files; give the folder of the images, as in --data {folder or '.'}"
    return f"too many words; what is no model stands behind its option, as in --data {words[0]}"
