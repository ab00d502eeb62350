"""Console command `onnxfq`: subcommands and one-line errors."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Sequence
from typing import Annotated

import typer

from onnxfq.cli.calibrate import calibrate
from onnxfq.cli.check import check
from onnxfq.cli.compare import compare
from onnxfq.cli.console import show_notes
from onnxfq.cli.convert import convert
from onnxfq.cli.demo import demo
from onnxfq.cli.diff import diff
from onnxfq.cli.doctor import doctor
from onnxfq.cli.evaluate import evaluate
from onnxfq.cli.export_encodings import export_encodings
from onnxfq.cli.handoff import handoff
from onnxfq.cli.insert import insert
from onnxfq.cli.inspect import inspect
from onnxfq.cli.merge_statistics import merge_statistics
from onnxfq.cli.observe import observe
from onnxfq.cli.plan import plan
from onnxfq.cli.quantize import quantize
from onnxfq.errors import OnnxfqError
from onnxfq.support.records import one_line
from onnxfq.version import VERSION

# The class of wrong usage: click's own under older releases of typer, typer's under newer ones.
_UsageFault: type[Exception] = typer.BadParameter.__mro__[2]

_INTERRUPTED = 130
"""Exit code after Ctrl-C: 128 plus the signal number, as in shells."""

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Quantize ONNX models with QuantizeLinear/DequantizeLinear, evaluate them, hand them over.",
)
for _command in (
    quantize,
    evaluate,
    plan,
    observe,
    merge_statistics,
    calibrate,
    export_encodings,
    insert,
    check,
    convert,
    handoff,
    compare,
    inspect,
    diff,
    demo,
    doctor,
):
    app.command()(_command)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"onnxfq {VERSION}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    show_notes()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return 0, 1 for an error, 2 for wrong usage, 3 for a difference, 130: Ctrl-C."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, _interrupted)
        code = app(args=given or ["--help"], standalone_mode=False)
        if code == _INTERRUPTED:  # newer releases of typer end so on Ctrl-C, without a message
            return _fail("interrupted", _INTERRUPTED)
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
        return _fail("interrupted", _INTERRUPTED)


def _interrupted(number: int, frame: object) -> None:
    """Handle SIGTERM like Ctrl-C, so that temporary files are removed."""
    raise KeyboardInterrupt


def _fail(message: str, code: int) -> int:
    print(f"onnxfq: error: {one_line(message)}", file=sys.stderr)
    return code
