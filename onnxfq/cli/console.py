"""Console output: results to standard output, progress and notes to standard error."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from onnxfq.data import DataOptions
    from onnxfq.runtime.device_choice import DeviceChoice
    from onnxfq.stages.options import RunOptions


def say(text: str, quiet: bool = False, err: bool = False) -> None:
    """Print a result without markup and wrapping; with `err` to standard error, next to JSON."""
    if not quiet:
        typer.echo(text, err=err)


@contextmanager
def show_progress(
    batch: int, threads: int, quiet: bool, data: DataOptions, device: DeviceChoice
) -> Iterator[RunOptions]:
    """Yield RunOptions that show progress on standard error, unless quiet."""
    from rich.console import Console  # these imports cost as much as a small command that needs none

    from onnxfq.cli.progress import Bar, Lines
    from onnxfq.stages.options import RunOptions

    console = Console(stderr=True)
    if quiet:
        yield RunOptions(batch, threads, None, data, device)
    elif console.is_terminal:
        bar = Bar(console)
        with bar.progress:
            yield RunOptions(batch, threads, bar, data, device)
    else:
        lines = Lines(lambda line: typer.echo(f"onnxfq: {line}", err=True))
        yield RunOptions(batch, threads, lines, data, device)
