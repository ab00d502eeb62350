"""Overlays: figures of layers for viewers of graphs, Model Explorer and Netron."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path

from onnxfq.documents.layers import LayerRow, LayerTable
from onnxfq.pipeline import QuantizeResult
from onnxfq.report.layer_table import layer_table
from onnxfq.support.files import write_text

_NOTES = "onnxfq."

_GRADIENTS = {
    "sqnr_db": ("#d73027", "#fee08b", "#1a9850"),
    "sensitivity_db": ("#d73027", "#fee08b", "#1a9850"),
    "bits": ("#4393c3", "#f7f7f7", "#d6604d"),
}
"""Colours by figure: of the lowest value, the middle and the highest."""


def layer_figures(table: LayerTable) -> dict[str, dict[str, float]]:
    """Return the known finite figures by name and node.

    Names: sqnr_db, of the output in the running model; sensitivity_db, the SQNR of the outputs of the model
    with only the layer's group quantized; bits, of its widest quantized input, 32 in float.
    """
    bits = {row.tensor: row.bits for row in table.tensors}
    choices: dict[str, Callable[[LayerRow], float | None]] = {
        "sqnr_db": lambda row: row.output_db,
        "sensitivity_db": lambda row: row.alone_db,
        "bits": lambda row: max((bits[t] for t in row.tensors), default=32) if row.quantized else 32,
    }
    found: dict[str, dict[str, float]] = {}
    for name, choose in choices.items():
        known = {row.node: choose(row) for row in table.layers}
        finite = {node: v for node, v in known.items() if v is not None and math.isfinite(v)}
        if finite:
            found[name] = finite
    return found


def node_data(table: LayerTable) -> dict[str, str]:
    """Return the node data of Model Explorer as JSON, by figure.

    A node is known by its output tensor. Source: `GraphNodeData` in node_data_builder.py of
    google-ai-edge/model-explorer: `results` with a value by key, and the stops of a gradient.
    """
    outputs = {row.node: row.output for row in table.layers}
    return {
        name: json.dumps(
            {
                "results": {outputs[node]: {"value": round(value, 2)} for node, value in figures.items()},
                "gradient": [
                    {"stop": stop, "bgColor": colour}
                    for stop, colour in zip((0, 0.5, 1), _GRADIENTS[name], strict=True)
                ],
            },
            indent=2,
        )
        for name, figures in layer_figures(table).items()
    }


def write_node_data(table: LayerTable, paths: Mapping[str, Path]) -> list[Path]:
    """Write the JSON of each known figure to its path, each whole or not at all; return the written ones."""
    found = node_data(table)
    for name, text in found.items():
        write_text(paths[name], text + "\n")
    return [paths[name] for name in found]


def node_notes(result: QuantizeResult) -> dict[str, dict[str, str]]:
    """Return the same figures as metadata of nodes, by node and key, for `quantize(notes=...)`."""
    notes: dict[str, dict[str, str]] = {}
    for name, figures in layer_figures(layer_table(result)).items():
        for node, value in figures.items():
            notes.setdefault(node, {})[f"{_NOTES}{name}"] = f"{value:.4g}"
    return notes
