"""Console output: results to standard output, notes next to JSON to standard error."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Protocol

import typer

from onnxfq.cli.notes import show_notes
from onnxfq.cli.option_groups import OptionGroup
from onnxfq.cli.streams import show


class Shown(Protocol):
    """Result that is printed as a table or as JSON."""

    def table(self) -> str:
        """Return the text."""

    def model_dump_json(self, *, indent: int) -> str:
        """Return the JSON."""


@dataclass(frozen=True)
class Printer:
    """Output of a command, without markup and wrapping."""

    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Also print what the library logs at level INFO.")
    ] = False
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")] = False

    def __post_init__(self) -> None:
        """Let the library log what `verbose` asks for."""
        if self.verbose and self.quiet:
            raise typer.BadParameter("--verbose and --quiet exclude each other; give one")
        if self.verbose:
            show_notes(logging.INFO)

    @property
    def silent(self) -> bool:
        """Whether nothing is printed but errors and JSON."""
        return self.quiet or self.as_json

    def say(self, text: str) -> None:
        """Print a line of a result in text."""
        if not self.silent:
            show(text)

    def wrote(self, *files: Path | None) -> None:
        """Name the written files; None is a file that was not asked for."""
        for file in files:
            if file is not None:
                self.say(f"wrote      {file}")

    def note(self, text: str) -> None:
        """Print a line of text, next to JSON to standard error."""
        if not self.quiet:
            typer.echo(text, err=True) if self.as_json else show(text)

    def report(self, record: object, *lines: str) -> None:
        """Print a result as JSON, or in lines of text."""
        if self.as_json:
            from onnxfq.support.records import to_json

            show(to_json(record))
        for line in lines:
            self.say(line)

    def show(self, result: Shown, hidden: bool = False) -> None:
        """Print a result as JSON or, unless `hidden`, as a table."""
        if self.as_json:
            show(result.model_dump_json(indent=2))
        elif not hidden:
            show(result.table())


Printing = Annotated[Printer, OptionGroup(Printer)]
PrintingAll = Annotated[Printer, OptionGroup(Printer, quiet=False)]
"""Printers of commands that write files, and of commands that only print."""
