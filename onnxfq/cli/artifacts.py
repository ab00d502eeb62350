"""Files of `quantize --artifacts` and `report --node-data`."""

from __future__ import annotations

from pathlib import Path

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


def node_data_paths(path: Path) -> dict[str, Path]:
    """Return the files that `--node-data` writes, by figure: `path`, and others next to it."""
    return {
        "sqnr_db": path,
        "sensitivity_db": path.with_suffix(f".sensitivity{path.suffix}"),
        "bits": path.with_suffix(f".bits{path.suffix}"),
    }
