"""Printing of commands: results to standard output, notes to standard error."""

from __future__ import annotations

import logging
import shlex
import sys
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol, TextIO

import typer

from onnxfq.cli.option import PRINTED, flag, refuse
from onnxfq.cli.option_groups import OptionGroup
from onnxfq.cli.streams import show
from onnxfq.support.plurals import agree_numbers
from onnxfq.support.readings import READING
from onnxfq.support.tables import wrap_lines

if TYPE_CHECKING:
    from onnxfq.documents.proof import Proof
    from onnxfq.documents.scores import Evaluation

    _Handler = logging.StreamHandler[TextIO]
else:
    _Handler = logging.StreamHandler  # Python 3.10 takes no type there

arguments: ContextVar[Sequence[str]] = ContextVar("arguments", default=())
"""The words of the command that runs now, behind `onnxfq`."""


def command_line() -> str:
    """Return the command that runs now with its arguments, as a shell takes it."""
    return shlex.join(["onnxfq", *arguments.get()])


def _polish(text: str) -> str:
    """Return `text` as a reader of the terminal sees it."""
    return wrap_lines(agree_numbers(text))


class _Notes(_Handler):
    """Handler that writes to the current standard error, which a live progress bar may replace.

    Every note is written once: stages that try several plans say the same of each.
    """

    def __init__(self) -> None:
        super().__init__()
        self._written: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        record.msg, record.args = agree_numbers(record.getMessage()), ()
        text = self.format(record)
        if text not in self._written:
            self._written.add(text)
            super().emit(record)


class _Readings(logging.Handler):
    """Handler that keeps what readers took and left, by what they read."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, dict[str, list[str]]] = {}

    def emit(self, record: logging.LogRecord) -> None:
        if READING in vars(record):
            source, found = vars(record)[READING]
            said = self.found.setdefault(source, {"took": [], "left": []})
            for field, text in found.items():
                said[field] += {agree_numbers(text)} - {*said[field]}


_readings = _Readings()


def show_notes(level: int = logging.WARNING) -> None:
    """Print what the library logs at this level or above, in lines that begin with `onnxfq: note:`."""
    handler = _Notes()
    handler.setFormatter(logging.Formatter("onnxfq: note: %(message)s"))
    handler.setLevel(level)
    _readings.found.clear()
    logger = logging.getLogger("onnxfq")
    logger.handlers[:] = [handler, _readings]
    logger.setLevel(logging.INFO)
    logger.propagate = False


def _show_json(text: str) -> None:
    """Print a JSON object with the field `reading`, if files or data were read."""
    if _readings.found and text.startswith("{"):
        from onnxfq.support.records import to_json

        said = to_json(_readings.found).replace("\n", "\n  ")
        text = f'{text[: text.rindex("}")].rstrip()},\n  "reading": {said}\n}}'
    show(text)


class Shown(Protocol):
    """Result that is printed as a table or as JSON."""

    def table(self) -> str:
        """Return the text."""

    def model_dump_json(self, *, indent: int) -> str:
        """Return the JSON."""


_JSON = flag("Print JSON instead of text.", "--json", panel=PRINTED)
_VERBOSE = flag("Also print what the library logs at level INFO.", "--verbose", "-v", panel=PRINTED)
_QUIET = flag("Print errors only.", "--quiet", "-q", panel=PRINTED)


@dataclass(frozen=True)
class Printer:
    """Output of a command, without markup and wrapping."""

    as_json: Annotated[bool, _JSON] = False
    verbose: Annotated[bool, _VERBOSE] = False
    quiet: Annotated[bool, _QUIET] = False

    def __post_init__(self) -> None:
        """Let the library log what `verbose` asks for."""
        refuse(self.verbose and self.quiet, "--verbose and --quiet exclude each other; give one")
        if self.verbose:
            show_notes(logging.INFO)

    @property
    def silent(self) -> bool:
        """Whether nothing is printed but errors and JSON."""
        return self.quiet or self.as_json

    def say(self, text: str) -> None:
        """Print a line of a result in text."""
        if not self.silent:
            show(_polish(text))

    def wrote(self, *files: Path | None) -> None:
        """Name the written files; None is a file that was not asked for."""
        for file in files:
            if file is not None:
                self.say(f"wrote      {file}")

    def note(self, text: str) -> None:
        """Print a line of text, next to JSON as a note to standard error."""
        if self.as_json and not self.quiet:
            words = " ".join(text.split()).removeprefix("note ")
            typer.echo(f"onnxfq: note: {agree_numbers(words)}", err=True)
        elif not self.quiet:
            show(_polish(text))

    def report(self, record: object, *lines: str) -> None:
        """Print a result as JSON, or in lines of text."""
        if self.as_json:
            from onnxfq.support.records import to_json

            _show_json(to_json(record))
        for line in lines:
            self.say(line)

    def show(self, result: Shown, hidden: bool = False) -> None:
        """Print a result as JSON or, unless `hidden`, as a table."""
        if self.as_json:
            _show_json(result.model_dump_json(indent=2))
        elif not hidden:
            show(_polish(result.table()))


def write_page(path: Path | None, label: str, record: Any) -> None:
    """Write the HTML page of one result to `path`, if there is one."""
    if path is not None:
        from onnxfq.report.html import render_page  # with jinja2, which only pages need
        from onnxfq.support.files import write_text

        write_text(path, render_page([(label, record)]))


Printing = Annotated[Printer, OptionGroup(Printer)]
PrintingAll = Annotated[Printer, OptionGroup(Printer, quiet=False)]
"""Printers of commands that write files, and of commands that only print."""


DIFFERENT = 3
"""Exit code where something differs: two models, two runtimes, or a file and its simulation.

1 is an error, 2 wrong usage.
"""


def exit_differing(*found: Evaluation | Proof | None) -> None:
    """Exit with DIFFERENT if outputs have other sizes, or a runtime computes other values than are meant."""
    if any(one is not None and one.difference for one in found):
        raise typer.Exit(DIFFERENT)
