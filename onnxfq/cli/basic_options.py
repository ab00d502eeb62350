"""Options and arguments of every subcommand, importable without any stage."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

ModelArgument = Annotated[Path, typer.Argument(metavar="MODEL", help="The ONNX model.", show_default=False)]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")]

DIFFERENT = 3
"""Exit code of `diff` and `compare` when something differs: 1 is an error, 2 wrong usage."""
