"""`diff_models`: differences between two quantized models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from onnxfq.graph.external.tensor import tensor_array
from onnxfq.graph.index import GraphIndex
from onnxfq.graph.io.load import read_model
from onnxfq.graph.model import list_nodes
from onnxfq.graph.ops import QDQ_OPS
from onnxfq.interchange.genai_folder import find_decoder
from onnxfq.support.groups import group_pairs
from onnxfq.support.records import PrintedRecord, Record
from onnxfq.support.tables import table_lines
from onnxfq.tools.inspect import Inspection, QuantizedTensor, inspect_model

_FEW = 3
"""Most tensors with the same difference that have a line each in the text."""

_HAS_SCALE = QDQ_OPS | {"FakeQuantize"}


class Difference(Record):
    """One difference between two models.

    Attributes:
        tensor: its name; empty for the model as a whole.
        what: the property that differs.
        first: its value in the first model.
        second: its value in the second model.
    """

    tensor: str
    what: str
    first: str
    second: str


class Differences(PrintedRecord):
    """All differences between two models; `equal` if there are none."""

    first: str
    second: str
    tolerance: float
    found: tuple[Difference, ...]

    @property
    def equal(self) -> bool:
        """Whether nothing differs."""
        return not self.found

    def table(self) -> str:
        """Return the differences as plain text; many alike share a line."""
        if self.equal:
            return f"no difference between {self.first} and {self.second}"
        alike = group_pairs(((d.what, d.first, d.second), d.tensor or "(model)") for d in self.found)
        rows = [("tensor", "what", self.first, self.second)]
        for key, tensors in alike.items():
            shown = tensors if len(tensors) <= _FEW else [f"{len(tensors)} tensors, as {tensors[0]}"]
            rows += [(tensor, *key) for tensor in shown]
        return "\n".join(table_lines(rows, names=(0, 2, 3)))


def diff_models(
    first: str | Path | onnx.ModelProto, second: str | Path | onnx.ModelProto, tolerance: float = 0.0
) -> Differences:
    """Compare two models: opset, operators, placement, types, granularity, scales, zero points and constants.

    Constants of one name are compared value by value, nodes with the same outputs by inputs and attributes.

    Args:
        first: a path or a ModelProto.
        second: the model to compare with it.
        tolerance: relative difference that scales and other floats may have; if it is above 0, integers may
            differ by one step.

    Raises ModelError if a model cannot be read.
    """
    inspected = [inspect_model(model) for model in (first, second)]
    protos = [read_model(find_decoder(model))[0] for model in (first, second)]
    scales = [_scales(proto) for proto in protos]
    found = list(_diff_models(*inspected))
    left, right = ({q.tensor.removesuffix("/q"): q for q in one.quantized} for one in inspected)
    for tensor in sorted(left.keys() | right.keys()):
        a, b = left.get(tensor), right.get(tensor)
        if a is None or b is None:
            found.append(_differ(tensor, "placement", _describe_placement(a), _describe_placement(b)))
            continue
        for what in ("qtype", "granularity", "zero_points"):
            values = (str(getattr(a, what)), str(getattr(b, what)))
            if values[0] != values[1]:
                found.append(_differ(tensor, what.replace("_", " ").replace("qtype", "type"), *values))
        found += _diff_scales(
            tensor, [one.get(q.tensor) for one, q in zip(scales, (a, b), strict=True)], tolerance
        )
    found += [*_diff_nodes(*protos), *_diff_constants(protos, tolerance)]
    names = [one.source for one in inspected]
    return Differences(first=names[0], second=names[1], tolerance=tolerance, found=tuple(found))


def _diff_models(first: Inspection, second: Inspection) -> list[Difference]:
    rows = [
        ("opset", str(first.opset), str(second.opset)),
        ("IR version", str(first.ir_version), str(second.ir_version)),
    ]
    for what in ("inputs", "outputs"):
        rows.append((what, ", ".join(getattr(first, what)), ", ".join(getattr(second, what))))
    kinds = sorted(first.operators.keys() | second.operators.keys())
    rows += [(op, str(first.operators.get(op, 0)), str(second.operators.get(op, 0))) for op in kinds]
    return [_differ("", *row) for row in rows if row[1] != row[2]]


def _differ(tensor: str, what: str, first: str, second: str) -> Difference:
    return Difference(tensor=tensor, what=what, first=first, second=second)


def _describe_placement(quantized: QuantizedTensor | None) -> str:
    return "float" if quantized is None else f"{quantized.qtype} {quantized.granularity}"


def _scales(proto: onnx.ModelProto) -> dict[str, NDArray[Any]]:
    """Return the constant scales by the tensor that they quantize."""
    constants = GraphIndex.of_model(proto).constants
    return {
        node.input[0]: np.asarray(tensor_array(constants[node.input[1]]), np.float64)
        for node in _quantizers(proto)
        if node.input[1] in constants
    }


def _quantizers(proto: onnx.ModelProto) -> list[onnx.NodeProto]:
    return [node for node in list_nodes(proto.graph) if node.op_type in _HAS_SCALE]


def _diff_scales(tensor: str, pair: list[NDArray[Any] | None], tolerance: float) -> list[Difference]:
    first, second = pair
    if first is None or second is None:
        return []
    if first.shape != second.shape:
        return [_differ(tensor, "shape of scales", str([*first.shape]), str([*second.shape]))]
    apart = np.abs(first - second) > tolerance * np.maximum(np.abs(first), np.abs(second))
    if not apart.any():
        return []
    worst = np.unravel_index(int(np.argmax(np.abs(first - second))), first.shape)
    what = "scale" if first.ndim == 0 else f"scale ({int(apart.sum())} of {first.size}, the furthest apart)"
    return [_differ(tensor, what, f"{first[worst]:.6g}", f"{second[worst]:.6g}")]


def _diff_nodes(*protos: onnx.ModelProto) -> list[Difference]:
    """Return what differs between nodes of equal outputs: operator, attributes, inputs before pairs."""
    first, second = ({tuple(n.output): n for n in list_nodes(proto.graph)} for proto in protos)
    behind = [_quantized_tensors(proto) for proto in protos]
    found = []
    for outputs in [outputs for outputs in first if outputs in second]:
        pair = [_describe_node(nodes[outputs], of) for nodes, of in zip((first, second), behind, strict=True)]
        for what in dict.fromkeys([*pair[0], *pair[1]]):
            a, b = (parts.get(what, "none") for parts in pair)
            if a != b:
                found.append(_differ(outputs[0], what, a, b))
    return found


def _quantized_tensors(proto: onnx.ModelProto) -> dict[str, str]:
    """Return the tensor before the quantizers by the output of each, so that a new pair changes no reader."""
    behind: dict[str, str] = {}
    for node in _quantizers(proto):
        behind[node.output[0]] = behind.get(node.input[0], node.input[0]).removesuffix("/q")
    return behind


def _describe_node(node: onnx.NodeProto, behind: Mapping[str, str]) -> dict[str, str]:
    """Return operator, attributes and inputs of `node` by name; bodies are compared node by node."""
    kinds = (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS)
    printed = [onnx.helper.printable_attribute(a) for a in node.attribute if a.type not in kinds]
    attributes = {name: value for name, _, value in (text.partition(" = ") for text in printed)}
    inputs = {f"input {i}": behind.get(name, name) for i, name in enumerate(node.input)}
    return {"operator": node.op_type, **attributes, **inputs}


def _diff_constants(protos: Sequence[onnx.ModelProto], tolerance: float) -> list[Difference]:
    """Return the constants of one name with different values, except scales and zero points."""
    parameters = {name for proto in protos for node in _quantizers(proto) for name in node.input[1:]}
    first, second = (GraphIndex.of_model(proto).constants for proto in protos)
    found = []
    for name in sorted((first.keys() & second.keys()) - parameters):
        a, b = (tensor_array(constants[name]).reshape(-1) for constants in (first, second))
        given = [one[name] for one in (first, second)]
        kinds = [f"{onnx.TensorProto.DataType.Name(one.data_type).lower()} {[*one.dims]}" for one in given]
        if kinds[0] != kinds[1]:
            found.append(_differ(name, "constant", *kinds))
            continue
        apart = np.flatnonzero(_apart(a, b, tolerance))
        if apart.size:
            what = f"values ({apart.size} of {a.size}, the first)"
            found.append(_differ(name, what, str(a[apart[0]]), str(b[apart[0]])))
    return found


def _apart(a: NDArray[Any], b: NDArray[Any], tolerance: float) -> NDArray[np.bool_]:
    """Tell which values differ.

    With a tolerance integers may differ by one step, which an accepted difference of scales can cause.
    """
    if a.dtype.kind in "OSUb" or not tolerance:
        both_nan = (a != a) & (b != b)
        return np.asarray((a != b) & ~both_nan)
    wide = [one.astype(np.float64) for one in (a, b)]
    room = 1.0 if a.dtype.kind in "iu" else tolerance * np.maximum(*np.abs(wide))
    return np.asarray(np.abs(wide[0] - wide[1]) > room)
