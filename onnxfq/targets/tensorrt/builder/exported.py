"""Files that TensorRT's tools export of an engine: its layers, and their times.

Layers are IEngineInspector's JSON, as `trtexec --exportLayerInfo --profilingVerbosity=detailed` writes it:
`Layers`, with `Bindings` up to TensorRT 10 and `I/O Tensors` from 11 on and in TensorRT for RTX. A tensor has
its type in `Format/Datatype` ("Row major linear Int8 format", "Half") or in `Datatype`. With open shapes an
inspector without an execution context knows no types, and such a file is refused. A convolution of classic
TensorRT has its weight in `Weights`, other layers in `Constants`. `Metadata` names the ONNX nodes; without it
the name of the layer does, joined by " + ".

Times are the list that `trtexec --exportProfile` writes: {"count": n}, then {"name", "timeMs", "averageMs",
"medianMs", "percentage"} for each layer.

Sources: NVIDIA's page about IEngineInspector from TensorRT 10 to 11, its developer guide's example of a
detailed layer, and `Profiler::exportJSONProfile` in the samples of TensorRT 11.1.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

from onnxfq.errors import DataError
from onnxfq.support.records import read_content
from onnxfq.targets.tensorrt.builder.layers import EngineLayer, EngineOperand

REMEDY = "give what `trtexec --exportLayerInfo --profilingVerbosity=detailed` or `layers.py` of handoff wrote"

_TYPES = {
    "FP4": "FP4|E2M1",
    "FP8": "FP8|E4M3",
    "Int4": "Int4",
    "UInt8": "UInt8",
    "Int8": "Int8",
    "BFloat16": "BF16|BFloat16",
    "Half": "FP16|Half",
    "Int32": "Int32",
    "Int64": "Int64",
    "Bool": "Bool",
    "Float": "FP32|Float",
}
"""Type of the builder's log by what the exported text has; the first that fits counts."""

_NODE = re.compile(r"\[ONNX Layer: ([^\]]*)\]")
_WRAPPED = re.compile(r"^(?:PWN|Reformatting CopyNode.*)\((.*)\)$")
_FOREIGN = "ForeignNode["


def describe_types(layer: EngineLayer) -> str:
    """Return the types of operands and results as `Int8, Int8 -> Half`."""
    read = [operand.dtype for operand in (*layer.inputs, *layer.constants) if operand.is_data]
    return f"{', '.join(read)} -> {', '.join(operand.dtype for operand in layer.outputs)}"


def read_layers(path: str | Path) -> tuple[EngineLayer, ...]:
    """Return the layers of an exported file. Raises DataError in one line for any other file."""
    content = read_content(path, DataError)
    layers = content.get("Layers") if isinstance(content, dict) else None
    if not isinstance(layers, list) or not layers:
        raise DataError(f"{path} holds no layers of an engine: it has no list 'Layers'; {REMEDY}")
    if all(isinstance(layer, str) for layer in layers):
        raise DataError(
            f"{path} holds names of layers only, without types; build the engine with "
            "--profilingVerbosity=detailed"
        )
    wrong = next((number for number, layer in enumerate(layers) if not _is_layer(layer)), None)
    if wrong is not None:
        raise DataError(
            f"{path} holds no layers of an engine: layer {wrong} has no Name, LayerType, Inputs and Outputs; "
            f"{REMEDY}"
        )
    unknown = next((one["Name"] for one in layers if "N/A" in str([one["Inputs"], one["Outputs"]])), None)
    if unknown is not None:
        raise DataError(
            f"{path} has no types of layer {unknown!r:.60}, because its shapes are open; {REMEDY}, which "
            "export them for the shapes of a run"
        )
    return tuple(map(_read_layer, layers))


def read_times(path: str | Path, layers: Sequence[str]) -> list[float | None]:
    """Return the milliseconds of a run of each of `layers`; None for a layer that the file lacks.

    Args:
        path: of an exported profile.
        layers: names in the order of execution; equal names take the times in their order.

    Raises DataError in one line for any other file, and for the profile of another engine.
    """
    content = read_content(path, DataError)
    rows = [row for row in content if isinstance(row, dict)] if isinstance(content, list) else []
    runs = next((row["count"] for row in rows if isinstance(row.get("count"), int)), 0)
    times: dict[str, list[float]] = {}
    for row in rows:
        ms = _milliseconds(row, runs)
        if isinstance(row.get("name"), str) and ms is not None:
            times.setdefault(row["name"], []).append(ms)
    if not times:
        raise DataError(
            f"{path} holds no times of layers; give what `trtexec --dumpProfile --exportProfile` wrote"
        )
    found = [times[name].pop(0) if times.get(name) else None for name in layers]
    if all(ms is None for ms in found):
        raise DataError(
            f"{path} names none of the engine's layers; give the profile that was exported with these layers"
        )
    return found


def _milliseconds(row: Mapping[str, Any], runs: int) -> float | None:
    known = [
        row.get("medianMs"),
        row.get("averageMs"),
        row["timeMs"] / runs if runs and _is_time(row) else None,
    ]
    numbers = [value for value in known if isinstance(value, (int, float)) and 0 <= value < float("inf")]
    return float(numbers[0]) if numbers else None


def _is_time(row: Mapping[str, Any]) -> bool:
    return isinstance(row.get("timeMs"), (int, float))


def _is_layer(layer: Any) -> bool:
    if not isinstance(layer, dict) or not all(
        isinstance(layer.get(key), str) for key in ("Name", "LayerType")
    ):
        return False
    return all(
        isinstance(layer.get(key), list) and all(isinstance(one, dict) for one in layer[key])
        for key in ("Inputs", "Outputs")
    )


def _read_layer(layer: Mapping[str, Any]) -> EngineLayer:
    inputs = tuple(map(_read_tensor, layer["Inputs"]))
    weights = layer.get("Weights")
    added: tuple[EngineOperand, ...] = ()
    constants = [_read_tensor(one) for one in layer.get("Constants", ()) if isinstance(one, dict)]
    count = weights.get("Count") if isinstance(weights, dict) else None
    if isinstance(weights, dict) and isinstance(count, int) and count > 0:
        # An input that is added to the sums may have any type.
        inputs, added = inputs[:1], inputs[1:]
        constants.append(EngineOperand(count, _read_type(str(weights.get("Type", "")))))
    nodes = _read_nodes(layer["Name"], str(layer.get("Metadata") or ""))
    outputs = tuple(map(_read_tensor, layer["Outputs"]))
    return EngineLayer(layer["Name"], layer["LayerType"], inputs, tuple(constants), outputs, nodes, added)


def _read_tensor(tensor: Mapping[str, Any]) -> EngineOperand:
    text = tensor.get("Datatype") or tensor.get("Format/Datatype") or tensor.get("Format") or ""
    sizes = tensor.get("Dimensions")
    known = isinstance(sizes, list) and all(isinstance(size, int) and size >= 0 for size in sizes)
    return EngineOperand(prod(sizes) if known and sizes is not None else None, _read_type(str(text)))


def _read_type(text: str) -> str:
    known = (name for name, words in _TYPES.items() if re.search(rf"(?i)\b(?:{words})", text))
    return next(known, text or "unknown")


def _read_nodes(name: str, metadata: str) -> tuple[str, ...]:
    nodes = _NODE.findall(metadata)
    if not nodes:
        nodes = [_WRAPPED.sub(r"\1", part.strip()) for part in name.split(" + ")]
        nodes = [end for node in nodes for end in _split_foreign(node)]
    # Nodes of a body read `node | branch (then_branch) | if (If)`.
    return tuple(dict.fromkeys(node.split(" | ")[0] for node in nodes))


def _split_foreign(name: str) -> list[str]:
    """Return the ends of `{ForeignNode[first...last]}`: it names no other node of its block."""
    if _FOREIGN not in name:
        return [name]
    return name.partition(_FOREIGN)[2].rstrip("]}").split("...")
