"""The table of docs/torch.md: what of torch works with quantized modules, what is refused in a line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("torch.nn")
pytest.importorskip("onnxscript")

import torch
from ecosystem import CHECKS, INTERFACES

from onnxfq.errors import OnnxfqError

PAGE = Path(__file__).parents[2] / "docs" / "torch.md"
CHECKED = ("core", "horizon", "aimet", "nvidia")
"""Columns of the table that are tested."""


def table() -> dict[str, dict[str, str]]:
    """Return the cells of the table by row and interface."""
    rows = [
        [cell.strip().replace("`", "") for cell in line.strip("|\n").split("|")]
        for line in PAGE.read_text(encoding="utf-8").splitlines()
        if re.match(r"\| .*\| (yes|no)\b", line)
    ]
    return {row[0]: dict(zip(INTERFACES, row[1:], strict=True)) for row in rows}


@pytest.mark.sample
def test_the_table_has_every_row() -> None:
    """Each check has a row, each row a check, and each cell a yes or no."""
    found = table()
    assert list(found) == list(CHECKS)
    assert {cell for row in found.values() for cell in row.values()} <= {"yes", "no"}


@pytest.mark.grid
@pytest.mark.filterwarnings("ignore:.*deprecated:DeprecationWarning", "ignore:.*should not be instantiated")
@pytest.mark.parametrize("interface", CHECKED)
@pytest.mark.parametrize("row", CHECKS)
def test_cells(row: str, interface: str, tmp_path: Path) -> None:
    """A yes works, a no is an error of one line."""
    torch._dynamo.reset()
    if table()[row][interface] == "yes":
        CHECKS[row](INTERFACES[interface], tmp_path)
    else:
        with pytest.raises(OnnxfqError):
            CHECKS[row](INTERFACES[interface], tmp_path)
