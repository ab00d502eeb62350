"""What the command line prints: results to standard output, progress and notes to standard error."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from onnxfq.feeds import DataOptions
from onnxfq.pipeline import RunOptions


def say(text: str, quiet: bool = False) -> None:
    """Print a result, as it is: no markup, no wrapping."""
    if not quiet:
        typer.echo(text)


@contextmanager
def running(batch: int, threads: int, quiet: bool, data: DataOptions) -> Iterator[RunOptions]:
    """Give RunOptions that show stage and feeds done while a terminal is watching."""
    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield RunOptions(batch, threads, data=data)
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("loading")
        yield RunOptions(
            batch,
            threads,
            lambda stage, done: progress.update(task, description=f"{stage}: {done} feeds"),
            data,
        )


def show_notes() -> None:
    """Print what the library logs as warnings in lines that begin with `onnxfq: note:`."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("onnxfq: note: %(message)s"))
    logger = logging.getLogger("onnxfq")
    logger.handlers[:] = [handler]
    logger.propagate = False
