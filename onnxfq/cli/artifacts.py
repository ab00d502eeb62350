"""Files of `quantize --artifacts` and `report --node-data`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onnxfq.quantizing.result import QuantizeResult
    from onnxfq.report.record import ResultRecord

ENDINGS = {
    "plan": "plan.json",
    "statistics": "stats.npz",
    "encodings": "encodings.json",
    "evaluation": "evaluation.json",
    "floats": "floats.json",
    "result": "result.json",
    "simulation": "fakequant.onnx",
    "equalized": "equalized.onnx",
}
"""Ending of each file by its content."""


def artifact_paths(folder: Path, model: Path) -> dict[str, Path]:
    """Return the files that `quantize` writes into `folder` for `model`, by content."""
    return {kind: folder / f"{model.stem}.{ending}" for kind, ending in ENDINGS.items()}


def write_artifacts(folder: Path, results: Sequence[tuple[Path, QuantizeResult, ResultRecord]]) -> None:
    """Write the artifacts of each result, named by the path before it: a new folder appears as a whole."""
    from onnxfq.graph.io.save import save
    from onnxfq.support.files import replace_folder
    from onnxfq.support.records import write_document

    with nullcontext(folder) if folder.exists() else replace_folder(folder) as place:
        for model, result, record in results:
            paths = artifact_paths(place, model)
            for kind in ("plan", "statistics", "encodings", "evaluation"):
                getattr(result, kind).save(paths[kind])
            if result.floats is not None:
                write_document(paths["floats"], result.floats)
            save(result.simulation, paths["simulation"])
            if result.equalization is not None and result.equalization.changed:
                save(result.model.proto, paths["equalized"])
            write_document(paths["result"], record)


def node_data_paths(path: Path) -> dict[str, Path]:
    """Return the files that `--node-data` writes, by figure: `path`, and others next to it."""
    return {
        "sqnr_db": path,
        "sensitivity_db": path.with_suffix(f".sensitivity{path.suffix}"),
        "bits": path.with_suffix(f".bits{path.suffix}"),
    }
