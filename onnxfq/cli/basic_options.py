"""Options and arguments of every subcommand, importable without any stage."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

ModelArgument = Annotated[Path, typer.Argument(metavar="MODEL", help="The ONNX model.")]

DIFFERENT = 3
"""Exit code of `diff` and `compare` when something differs: 1 is an error, 2 wrong usage."""
