"""Console command `onnxfq`: subcommands and one-line errors."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import ContextVar
from importlib import import_module
from typing import Annotated, Any

import typer
import typer.core
import typer.main

from onnxfq.cli.console import arguments as arguments_of_run
from onnxfq.cli.console import show_notes
from onnxfq.cli.known_names import fill_names
from onnxfq.cli.option import flag
from onnxfq.cli.streams import hold_results
from onnxfq.cli.usage import explain_extra, explain_usage, refuse_other_bytes, refuse_repeated
from onnxfq.errors import OnnxfqError, join_lines
from onnxfq.support.interrupts import INTERRUPTED, was_raised
from onnxfq.support.plurals import agree_numbers
from onnxfq.version import VERSION

PANELS = {
    "Quantize and measure": {
        "quantize": "Make a quantized model of a float MODEL, and measure what it loses.",
        "evaluate": "Score quantized models against their float model on the same data, labels or metric.",
        "sensitivity": "Rank the layers of a float MODEL by the noise that quantizing each one adds.",
        "diagnose": "Name what is wrong with a quantized MODEL of any tool, ranked by cost, and repair it.",
        "check": "Tell what a target rejects in a quantized MODEL or runs in float; no data is run.",
        "handoff": "Pack a quantized MODEL for the machine that runs it: shapes, commands and samples.",
    },
    "Models and results": {
        "convert": "Rewrite a MODEL that another tool quantized, so that TensorRT takes it; its scales stay.",
        "cast": "Write a float MODEL in 16 bits, for strongly typed TensorRT; nothing is quantized.",
        "compare": "Run one quantized MODEL in two runtimes and name the first tensor that differs.",
        "inspect": "Print what a model file holds, or how two files differ: operators, quantizers, scales.",
        "report": "Show saved results side by side on one HTML page: verdicts, noise and layers.",
    },
    "Stages of quantize, one by one": {
        "plan": "Stage 1: choose the tensors of a float MODEL to quantize and their formats.",
        "observe": "Stage 2: run the float MODEL on the data and write statistics of its activations.",
        "calibrate": "Stage 3: compute scales and zero points from statistics; nothing is run.",
        "insert": "Stage 4: put the planned quantizers into the float MODEL and write it.",
    },
    "About onnxfq": {
        "recipes": "List the built-in recipes, or print one as YAML.",
        "doctor": "Tell what is installed and works here: versions, devices, a test of every kernel.",
        "demo": "Quantize a trained digit network and measure it on 1,500 unseen digits.",
    },
}
"""Sentences on all subcommands by the panel of `--help`, which so imports none of them.

Each is a function in the module of its name; its docstring has the rest of its help.
"""

COMMANDS = tuple(name for names in PANELS.values() for name in names)

_LONGEST_WORD, _LONGEST_LINE = 300, 900
"""Most characters of a name and of a line of an error."""


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"onnxfq {VERSION}")
        raise typer.Exit


_VERSION = flag("Print the version.", "--version", callback=_print_version, is_eager=True)


def _root(version: Annotated[bool, _VERSION] = False) -> None:
    show_notes()


class _Flags:
    """Part of a command whose `--help` shows flags without the word `bool`: they take no value."""

    def get_params(self, ctx: Any) -> list[Any]:
        parameters: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for parameter in parameters:
            if getattr(parameter, "is_flag", False):
                parameter.metavar = ""
        return parameters


class _Group(_Flags, typer.core.TyperGroup):
    pass


HELP_ALL = "--help-all"
_whole: ContextVar[bool] = ContextVar("whole", default=False)
"""Whether help has every option, or the ones for a first day."""


class _Command(_Flags, typer.core.TyperCommand):
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if ctx.resilient_parsing:  # a shell that completes a line repeats what it will
            return super().parse_args(ctx, args)
        refuse_repeated(self.params, args)
        refuse_other_bytes(args)
        ctx.allow_extra_args = True
        extra = super().parse_args(ctx, args)
        if extra:
            ctx.fail(f"{' '.join(extra)}: {explain_extra(ctx, extra)}")
        return extra

    def format_help(self, ctx: Any, formatter: Any) -> None:
        fill_names(self)
        folded = [] if _whole.get() else self._fold_panels()
        super().format_help(ctx, formatter)
        width = shutil.get_terminal_size().columns - 1
        for line in folded:
            typer.echo(
                textwrap.fill(
                    line, width, initial_indent=" ", subsequent_indent="   ", break_on_hyphens=False
                )
            )

    def _fold_panels(self) -> list[str]:
        """Hide the panels behind the first, and return a line for each with its heading and options."""
        folded: dict[str, list[str]] = {}
        for parameter in self.params:
            panel = getattr(parameter, "rich_help_panel", None)
            if panel is not None and not getattr(parameter, "hidden", False):
                folded.setdefault(panel, []).append(max(parameter.opts, key=len))
                parameter.hidden = True  # type: ignore[attr-defined]
        lines = [f"{panel}: {' '.join(names)}" for panel, names in folded.items()]
        return [f"More, explained by {HELP_ALL}:", *lines] if lines else []


def build_app(names: Sequence[str]) -> typer.Typer:
    """Return the command line with the subcommands of these names.

    Without names all subcommands are listed for --help and for wrong names, and none can run.
    """
    settings = {"help_option_names": ["-h", "--help"]}
    app = typer.Typer(
        pretty_exceptions_enable=False,
        context_settings=settings,
        help="Quantize ONNX models with QuantizeLinear/DequantizeLinear, evaluate them, hand them over.",
    )
    app.callback(cls=_Group)(_root)
    for panel, sentences in PANELS.items():
        for name, sentence in sentences.items():
            if not names:
                app.command(name, help=sentence, rich_help_panel=panel)(lambda: None)
            elif name in names:
                command = _load(name)
                # Docstrings have line breaks, and `--help` its own.
                rest = [" ".join(part.split()) for part in (command.__doc__ or "").split("\n\n")]
                text = "\n\n".join([sentence, *rest])
                make = app.command(
                    name, cls=_Command, help=text, rich_help_panel=panel, context_settings=settings
                )
                make(command)
    return app


def _load(name: str) -> Callable[..., None]:
    """Return the function of a subcommand, with the options of its groups and its files guarded."""
    from onnxfq.cli.guard import guard_files
    from onnxfq.cli.option_groups import expand_groups

    return guard_files(expand_groups(getattr(import_module(f"onnxfq.cli.{name}"), name)))


def _find_commands(words: Sequence[str]) -> Sequence[str]:
    """Return the subcommand that `words` begin with; none for --help and wrong names.

    A shell that asks for completions gives the words of the line in a variable.
    """
    typed = os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS") or ""
    first = next((word for word in [*typed.split()[1:2], *words] if word != "--"), "")
    return [first] if first in COMMANDS else []


def _find_takers(option: str) -> list[str]:
    """Return the subcommands that take an option."""
    known: Any = typer.main.get_command(build_app(COMMANDS))
    return [name for name, one in known.commands.items() if any(option in p.opts for p in one.params)]


def _call(given: Sequence[str]) -> object:
    """Run the command line; a subcommand is called alone, because the options before it load a library."""
    names = _find_commands(given)
    _whole.set(HELP_ALL in given)
    given = ["--help" if word == HELP_ALL else word for word in given]
    command: Any = typer.main.get_command(build_app(names))
    if given[:1] != names[:1]:
        return command(args=given, standalone_mode=False)
    show_notes()
    return command.commands[given[0]](args=given[1:], prog_name=f"onnxfq {given[0]}", standalone_mode=False)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return 0, 1 for an error, 2 for wrong usage, 3 for a difference, 130: Ctrl-C."""
    given = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    arguments_of_run.set(given)
    try:
        with hold_results():
            code = _call(given)
        if code == INTERRUPTED:  # newer releases of typer exit with this code on Ctrl-C, without a message
            return _fail("interrupted", INTERRUPTED)
        return code if isinstance(code, int) else 0
    except OnnxfqError as error:
        return _fail(str(error), 1)
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        return _fail(f"{place}{error.strerror or error}; check the path", 1)
    except (typer.Abort, KeyboardInterrupt):
        return _fail("interrupted", INTERRUPTED)
    except Exception as error:
        # Wrong usage is of a class of click's in older releases of typer, of typer's own in newer ones.
        if not hasattr(error, "format_message"):
            raise
        return _fail(explain_usage(error, _find_takers), 2)


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
            print(f"onnxfq: error: {_cut(agree_numbers(join_lines(message)))}", file=sys.stderr, flush=True)
    return code
