"""Console command `onnxfq`: subcommands and one-line errors."""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from typing import Annotated, Any

import typer
import typer.core

from onnxfq.cli.command_line import keep_arguments
from onnxfq.cli.former_words import explain_former
from onnxfq.cli.interrupted import INTERRUPTED
from onnxfq.cli.notes import show_notes
from onnxfq.cli.option_groups import expand_groups
from onnxfq.cli.streams import hold_results
from onnxfq.errors import OnnxfqError, join_lines
from onnxfq.support.interrupts import was_raised
from onnxfq.version import VERSION

PANELS = {
    "Commands": ("quantize", "sensitivity", "evaluate", "check", "diagnose", "handoff"),
    "Stages of quantize": ("plan", "observe", "calibrate", "insert"),
    "Tools": (
        "recipes",
        "inspect",
        "compare",
        "convert",
        "cast",
        "report",
        "demo",
        "doctor",
    ),
}
"""Subcommands by the panel of `--help`, each a function in the module of its name."""

COMMANDS = tuple(name for names in PANELS.values() for name in names)

# The class of wrong usage: click's in older releases of typer, typer's in newer ones.
_UsageFault: type[Exception] = typer.BadParameter.__mro__[2]

_LONGEST_WORD, _LONGEST_LINE = 300, 900
"""Most characters of a name and of a line of an error."""


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"onnxfq {VERSION}")
        raise typer.Exit


def build_app(names: Sequence[str]) -> typer.Typer:
    """Return the command line with the subcommands of these names; each costs the imports of its stage.

    Without names all subcommands are listed for --help and for wrong names, and none can run.
    """
    app = typer.Typer(
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        help="Quantize ONNX models with QuantizeLinear/DequantizeLinear, evaluate them, hand them over.",
    )
    app.callback(cls=_CommandGroup)(_root)
    for name in names:
        function = name.replace("-", "_")
        command = expand_groups(getattr(import_module(f"onnxfq.cli.{function}"), function))
        # Imported with the first command, because it reads models and --version does not.
        guarded = import_module("onnxfq.cli.guard").guard_files(command)
        text = _unwrap(command.__doc__ or "")
        app.command(name, cls=_Command, help=text, rich_help_panel=_panel(name))(guarded)
    for name in () if names else COMMANDS:
        app.command(name, help=_read_help(name), rich_help_panel=_panel(name))(lambda: None)
    return app


class _CommandGroup(typer.core.TyperGroup):
    def get_params(self, ctx: Any) -> list[Any]:
        return _hide_types_of_flags(super().get_params(ctx))


class _Command(typer.core.TyperCommand):
    def format_help(self, ctx: Any, formatter: Any) -> None:
        import_module("onnxfq.cli.known_names").fill_names(self)
        super().format_help(ctx, formatter)

    def get_params(self, ctx: Any) -> list[Any]:
        return _hide_types_of_flags(super().get_params(ctx))


def _hide_types_of_flags(parameters: list[Any]) -> list[Any]:
    """Let `--help` show flags without a type: they take no value."""
    for parameter in parameters:
        if getattr(parameter, "is_flag", False):
            parameter.metavar = ""
    return parameters


def _unwrap(docstring: str) -> str:
    """Return the paragraphs of a docstring without its line breaks: `--help` has its own."""
    return "\n\n".join(" ".join(part.split()) for part in docstring.split("\n\n"))


def _panel(name: str) -> str:
    return next(title for title, held in PANELS.items() if name in held)


def _read_help(name: str) -> str:
    """Return the docstring of the function of a subcommand, from its source: an import would take longer."""
    function = name.replace("-", "_")
    loader: Any = getattr(find_spec(f"onnxfq.cli.{function}"), "loader", None)
    tree = ast.parse(loader.get_source(f"onnxfq.cli.{function}"))
    found = next(n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == function)
    return _unwrap(ast.get_docstring(found) or "")


def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    show_notes()


def _find_commands(arguments: Sequence[str]) -> Sequence[str]:
    """Return the subcommand that `arguments` begin with; none for --help and wrong names.

    A shell that asks for completions gives the words of the line in a variable.
    """
    typed = os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS") or ""
    words = [*typed.split()[1:2], *arguments]
    first = next((word for word in words if word != "--"), "")
    return [first] if first in COMMANDS else []


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return 0, 1 for an error, 2 for wrong usage, 3 for a difference, 130: Ctrl-C."""
    given = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    keep_arguments(given)
    gone = explain_former(given)
    if gone is not None:
        return _fail(gone, 2)
    try:
        with hold_results():
            code = build_app(_find_commands(given))(args=given, standalone_mode=False)
        if code == INTERRUPTED:  # newer releases of typer exit with this code on Ctrl-C, without a message
            return _fail("interrupted", INTERRUPTED)
        return code if isinstance(code, int) else 0
    except OnnxfqError as error:
        return _fail(str(error), 1)
    except _UsageFault as error:
        # The validation library puts "Value error, " before typer's own message.
        return _fail(error.format_message().replace("Value error, ", ""), 2)  # type: ignore[attr-defined]
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        return _fail(f"{place}{error.strerror or error}; check the path", 1)
    except (typer.Abort, KeyboardInterrupt):
        return _fail("interrupted", INTERRUPTED)


def _cut(line: str) -> str:
    """Return `line` with long names and lists cut in the middle; the thing and the remedy are at its ends."""
    words = (
        w if len(w) <= _LONGEST_WORD else f"{w[: _LONGEST_WORD // 2]}..{w[-40:]}" for w in line.split(" ")
    )
    line = " ".join(words)
    return line if len(line) <= _LONGEST_LINE else f"{line[: _LONGEST_LINE - 304]} ... {line[-299:]}"


def _fail(message: str, code: int) -> int:
    if was_raised():
        message, code = "interrupted", INTERRUPTED
    with suppress(OSError, ValueError):  # nobody reads it
        if sys.stderr is not None:
            print(f"onnxfq: error: {_cut(join_lines(message))}", file=sys.stderr, flush=True)
    return code
