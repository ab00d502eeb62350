"""Files that TensorRT's tools export of an engine: its layers, and their times.

Layers are IEngineInspector's JSON, as `trtexec --exportLayerInfo --profilingVerbosity=detailed` writes it:
`Layers`, with `Bindings` up to TensorRT 10 and `I/O Tensors` from 11 on and in TensorRT for RTX. A tensor has
its type in `Format/Datatype` ("Row major linear Int8 format", "Half"), or in `Datatype` or `DataType` next to
a `Format` that may name another type ("Row major linear FP32 format"). With open shapes an inspector
without an execution context knows no types, and such a file is refused. A convolution of classic
TensorRT has its weight in `Weights`, other layers in `Constants`. `Metadata` names the ONNX nodes; without it
the name of the layer does, joined by " + ".

Times are the list that `trtexec --exportProfile` writes: {"count": n}, then {"name", "timeMs", "averageMs",
"medianMs", "percentage"} for each layer.

Sources: NVIDIA's page about IEngineInspector from TensorRT 10 to 11.3, its developer guide's example of a
detailed layer, and `Profiler::exportJSONProfile` in the samples of TensorRT 11.1.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Annotated

import pydantic

from onnxfq.errors import DataError
from onnxfq.support.records import Count, ForeignRecord, parse, read_content
from onnxfq.targets.tensorrt.builder.layers import EngineLayer, EngineOperand, node_names

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

_FOREIGN = "ForeignNode["

_Time = Annotated[float, pydantic.Field(ge=0, allow_inf_nan=False)]
_Axis = Annotated[int, pydantic.Field(strict=True, lt=1 << 31)]


class _Tensor(ForeignRecord):
    datatype: str | None = pydantic.Field(
        None, validation_alias=pydantic.AliasChoices("Datatype", "DataType")
    )
    form: str | None = pydantic.Field(
        None, validation_alias=pydantic.AliasChoices("Format/Datatype", "Format/DataType", "Format")
    )
    dimensions: tuple[_Axis, ...] | None = pydantic.Field(None, alias="Dimensions", max_length=64)

    @property
    def is_open(self) -> bool:
        return "N/A" in f"{self.datatype} {self.form}"


class _Weights(ForeignRecord):
    kind: str = pydantic.Field("", alias="Type")
    count: Count = pydantic.Field(0, alias="Count", strict=True)


class _Layer(ForeignRecord):
    name: str = pydantic.Field(alias="Name")
    kind: str = pydantic.Field(alias="LayerType")
    inputs: tuple[_Tensor, ...] = pydantic.Field(alias="Inputs")
    outputs: tuple[_Tensor, ...] = pydantic.Field(alias="Outputs")
    constants: tuple[_Tensor, ...] | None = pydantic.Field(None, alias="Constants")
    weights: _Weights | None = pydantic.Field(None, alias="Weights")
    metadata: str | None = pydantic.Field(None, alias="Metadata")


class _Engine(ForeignRecord):
    layers: tuple[_Layer, ...] = pydantic.Field(alias="Layers", min_length=1)


class _Row(ForeignRecord):
    """A row of times: the number of runs, or a layer with its times in milliseconds."""

    count: Count | None = None
    name: str | None = None
    total: _Time | None = pydantic.Field(None, alias="timeMs")
    average: _Time | None = pydantic.Field(None, alias="averageMs")
    median: _Time | None = pydantic.Field(None, alias="medianMs")


class _Profile(ForeignRecord):
    rows: tuple[_Row, ...]


def describe_types(layer: EngineLayer) -> str:
    """Return the types of operands and results as `Int8, Int8 -> Half`."""
    read = [operand.dtype for operand in (*layer.inputs, *layer.constants) if operand.is_data]
    return f"{', '.join(read)} -> {', '.join(operand.dtype for operand in layer.outputs)}"


def read_layers(path: str | Path) -> tuple[EngineLayer, ...]:
    """Return the layers of an exported file. Raises DataError in one line for any other file."""
    content = read_content(path, DataError)
    layers = content.get("Layers") if isinstance(content, dict) else None
    if isinstance(layers, list) and layers and all(isinstance(layer, str) for layer in layers):
        raise DataError(
            f"{path} holds names of layers only, without types; build the engine with "
            "--profilingVerbosity=detailed"
        )
    try:
        engine = parse(content, _Engine, DataError, str(path))
    except DataError as fault:
        raise DataError(f"{fault}: no layers of an engine; {REMEDY}") from None
    unknown = [one.name for one in engine.layers for tensor in (*one.inputs, *one.outputs) if tensor.is_open]
    if unknown:
        raise DataError(
            f"{path} has no types of layer {unknown[0]!r:.60}, because its shapes are open; {REMEDY}, which "
            "export them for the shapes of a run"
        )
    return tuple(map(_read_layer, engine.layers))


def read_times(path: str | Path, layers: Sequence[str]) -> list[float | None]:
    """Return the milliseconds of a run of each of `layers`; None for a layer that the file lacks.

    Args:
        path: of an exported profile.
        layers: names in the order of execution; equal names take the times in their order.

    Raises DataError in one line for any other file, and for the profile of another engine.
    """
    content = read_content(path, DataError)
    rows = parse({"rows": content}, _Profile, DataError, str(path)).rows
    runs = next((row.count for row in rows if row.count is not None), 0)
    times: dict[str, list[float]] = {}
    for row in rows:
        ms = next((ms for ms in (row.median, row.average) if ms is not None), None)
        if ms is None and row.total is not None and runs:
            ms = row.total / runs
        if row.name is not None and ms is not None:
            times.setdefault(row.name, []).append(ms)
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


def _read_layer(layer: _Layer) -> EngineLayer:
    inputs = tuple(map(_read_tensor, layer.inputs))
    added: tuple[EngineOperand, ...] = ()
    constants = [_read_tensor(one) for one in layer.constants or ()]
    if layer.weights is not None and layer.weights.count:
        # An input that is added to the sums may have any type.
        inputs, added = inputs[:1], inputs[1:]
        constants.append(EngineOperand(layer.weights.count, _read_type(layer.weights.kind)))
    nodes = _read_nodes(layer.name, layer.metadata or "")
    outputs = tuple(map(_read_tensor, layer.outputs))
    return EngineLayer(layer.name, layer.kind, inputs, tuple(constants), outputs, nodes, added)


def _read_tensor(tensor: _Tensor) -> EngineOperand:
    sizes = tensor.dimensions
    known = sizes is not None and all(size >= 0 for size in sizes)
    return EngineOperand(
        prod(sizes or ()) if known else None, _read_type(tensor.datatype or tensor.form or "")
    )


def _read_type(text: str) -> str:
    known = (name for name, words in _TYPES.items() if re.search(rf"(?i)\b(?:{words})", text))
    return next(known, text or "unknown")


def _read_nodes(name: str, metadata: str) -> tuple[str, ...]:
    nodes = node_names(metadata)
    return tuple(
        nodes or dict.fromkeys(end for part in name.split(" + ") for end in _split_layer(part.strip()))
    )


def _split_layer(name: str) -> list[str]:
    """Return the nodes of one layer without metadata: what its name wraps, such as `PWN(name)`."""
    if name.endswith(")") and name.startswith("PWN("):
        name = name[len("PWN(") : -1]
    elif name.endswith(")") and name.startswith("Reformatting CopyNode"):
        name = name[name.rfind("(") + 1 : -1]
    return [end.split(" | ")[0] for end in _split_foreign(name)]


def _split_foreign(name: str) -> list[str]:
    """Return the ends of `{ForeignNode[first...last]}`: it names no other node of its block."""
    if _FOREIGN not in name:
        return [name]
    return name.partition(_FOREIGN)[2].rstrip("]}").split("...")
