"""Declarations of options in a line each, by the panels of `--help` that they stand in."""

from __future__ import annotations

import re
from typing import Any

import typer

from onnxfq.cli.known_names import complete

ACCURACY = "Accuracy"
RECIPE = "Changes of the recipe"
KNOWN = "Known values"
DATA = "How data is read"
RUNNING = "How models run"
BUILDING = "The runtime of the target"
PRINTED = "What is printed and kept"
"""Panels behind the first one, which has what a first day needs."""


def option(
    metavar: str | None, text: str, *names: str, panel: str | None = None, kind: str = "", **more: Any
) -> Any:
    """Return an option of one value.

    Args:
        metavar: its value in `--help`; None for the choices of its type.
        text: its help; `{calibrators}` and the like stand for names, see `known_names`.
        names: its spellings, unless the name of the parameter gives the only one.
        panel: None for the first.
        kind: of the names that a shell completes, in `known_names`; without one those in `text`, if any.
        more: as of `typer.Option`.
    """
    kind = kind or next(iter(re.findall(r"\{(\w+)\}", text)), "")
    if kind:
        more["autocompletion"] = complete(kind)
    return typer.Option(*names, metavar=metavar, help=text, rich_help_panel=panel, **more)


def flag(text: str, *names: str, panel: str | None = None, **more: Any) -> Any:
    """Return an option without a value."""
    return option(None, text, *names, panel=panel, **more)


def refuse(is_odd: object, why: str) -> None:
    """Raise BadParameter, wrong usage, with `why` if `is_odd`."""
    if is_odd:
        raise typer.BadParameter(why)


def argument(metavar: str, text: str) -> Any:
    """Return an argument, which has a place and no name."""
    return typer.Argument(metavar=metavar, help=text)
