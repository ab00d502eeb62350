"""Models that tools make from one float model, side by side in a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
from job import Case, Folder, job_folder, output_db, run, score, unseen_feeds

Candidate = tuple[str, str, dict[str, Any]]
"""Label, tool, and the options of its task `quantize`."""

Figures = Callable[[Path, Path], list[str]]
"""Cells for the float model and a model made from it."""


def compare(
    folder: Folder,
    case: Case,
    model: onnx.ModelProto,
    candidates: Sequence[Candidate],
    pythons: Mapping[str, str | None],
    figures: Figures,
) -> list[list[str]]:
    """Return a row for the float model and each candidate whose python is known.

    Its cells: label, figure of the task, what `figures` returns, processor seconds, sessions. A tool that
    fails has its error there.
    """
    with job_folder(model, folder.feeds(case)) as work:
        reference = work / "model.onnx"
        empty = [""] * (len(figures(reference, reference)) + 2)
        rows = [["float", f"{score(folder, case, reference)[0]:.4f}", *empty]]
        for label, tool, options in candidates:
            if tool != "onnxfq" and not pythons.get(tool):
                continue
            result = run(pythons.get(tool), tool, "quantize", work, **options)
            if "error" in result:
                rows.append([label, result["error"], *empty])
                continue
            made = work / result["model"]
            costs = [f"{result['processor']:.1f}", str(result["sessions"])]
            cells = [f"{score(folder, case, made)[0]:.4f}", *figures(reference, made), *costs]
            rows.append([label, *cells])
    return rows


def noise(folder: Folder, case: Case) -> Figures:
    """Return the figure of the SQNR of the first output in dB, on data that no tool has seen."""
    feeds = unseen_feeds(folder, case)
    return lambda reference, made: [f"{output_db(reference, made, feeds):.1f}"]
