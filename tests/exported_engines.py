"""Listings of the builder in the form that TensorRT's inspector exports, and classic ones written by hand."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx

from onnxfq.targets.profiles import profiles
from onnxfq.targets.tensorrt.builder.build import Job, run_jobs

_TENSOR = re.compile(r"\{ (.*?) \}")


def export_listing(path: Path, capability: str = "SM89") -> dict[str, Any]:
    """Return the layers that the builder logs for the model at `path`, as its inspector's JSON.

    The log and the JSON have the same fields; the JSON needs a GPU.
    """
    report = run_jobs([Job(path, capability, profiles(onnx.load(path), {}))], 600)[0]
    assert report.built, report.errors
    lines = [line for line in report.layers.splitlines()[1:] if line.startswith("Name: ")]
    return {"Layers": [_parse(line) for line in lines], "I/O Tensors": [], "Engine Metadata": {}}


def _parse(line: str) -> dict[str, Any]:
    fields = dict(re.findall(r"(Name|LayerType|TacticName|StreamId): ([^,]*), ", line))
    tensors = {key: _tensors(line, key) for key in ("Inputs", "Constants", "Outputs")}
    return {**fields, **tensors, "Metadata": line.partition("Metadata: ")[2].replace("][", "]\x1e[")}


def _tensors(line: str, key: str) -> list[dict[str, Any]]:
    text = line.partition(f"{key}: [")[2]
    text = re.split(r"\], (?:Constants|Outputs|TacticName)", text)[0]
    found = []
    for one in _TENSOR.findall(text):
        name, dims, kind = (
            re.search(pattern, one)
            for pattern in (r"Name: ([^,]*)", r"Dimensions: \[([^\]]*)\]", r"Datatype: (\w+)")
        )
        assert name and dims and kind
        sizes = [int(size) for size in dims[1].split(",") if size]
        found.append({"Name": name[1], "Dimensions": sizes, "Datatype": kind[1], "Format": "Linear"})
    return found


def classic_layer(
    name: str,
    kind: str,
    inputs: Sequence[str],
    output: str,
    nodes: Sequence[str],
    weights: tuple[str, int] | None = None,
) -> dict[str, Any]:
    """Return a layer as TensorRT 10's inspector writes it; types as in its formats, `Int8` or `FP16`."""
    layer: dict[str, Any] = {
        "Name": name,
        "LayerType": kind,
        "Inputs": [_classic_tensor(f"in{number}", kind) for number, kind in enumerate(inputs)],
        "Outputs": [_classic_tensor("out", output)],
        "TacticValue": "0x0",
        "StreamId": 0,
        "Metadata": "\x1e".join(f"[ONNX Layer: {node}]" for node in nodes),
    }
    if weights is not None:
        layer["Weights"] = {"Type": weights[0], "Count": weights[1]}
    return layer


def _classic_tensor(name: str, kind: str) -> dict[str, Any]:
    formats = {
        "Int8": "Thirty-two wide channel vectorized row major Int8 format",
        "FP16": "Row major linear FP16",
    }
    text = formats.get(kind, f"Row major linear {kind} format")
    return {"Name": name, "Location": "Device", "Dimensions": [1, 4, 6, 6], "Format/Datatype": text}


def profile_of(layers: Mapping[str, Any], times: Sequence[float], runs: int = 50) -> list[dict[str, Any]]:
    """Return a profile as trtexec exports it, with a time for each layer."""
    rows: list[dict[str, Any]] = [{"count": runs}]
    for layer, ms in zip(layers["Layers"], times, strict=True):
        share = 100 * ms / sum(times)
        row = {
            "name": layer["Name"],
            "timeMs": ms * runs,
            "averageMs": ms,
            "medianMs": ms,
            "percentage": share,
        }
        rows.append(row)
    return rows
