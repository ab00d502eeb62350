"""Forms that TensorRT refuses or runs in float: pools, shared constants, guards of attention, casts.

TensorRT for RTX 1.7.1 runs an AveragePool without padding in float, unless its attribute count_include_pad is
1. Without padding the attribute changes no number.

It builds no quantized constant that several graphs dequantize. Tried with both branches of an If, and with a
branch and the main graph. Builder: "Quantized constant is only allowed before DQ". One graph alone may read a
constant from outside.

It builds no Cast in front of a recurrent operator of several steps. Measured for LSTM, GRU and RNN, with and
without operators between that only move: the builder ends with "Error during shape inference". It builds a
single step, an open number of steps, and any operator that computes between the Cast and the loop; so it does
loops all in float32 or in a half type.

Guards of masked rows move behind their attention, to allow fusion. It does not fuse an attention with a guard
between its products, and fuses one with the guard behind them. torch's exporters write such guards, which
replace the NaN of a Softmax over fully masked keys by 0: Softmax, IsNaN, Where, MatMul.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter

import numpy as np
import onnx
from onnx import helper, numpy_helper

from onnxfq.graph.external.tensor import tensor_array
from onnxfq.graph.index import GraphIndex
from onnxfq.graph.model import bodies, default_opset, list_graphs, list_nodes, replace_nodes
from onnxfq.graph.names import Names
from onnxfq.graph.node_fields import attributes_of
from onnxfq.graph.normalize.decompose_attention import Parts
from onnxfq.graph.ops import STANDARD_DOMAINS, WEIGHTED_INPUTS
from onnxfq.graph.patterns.attention import PRODUCTS, Attention, AttentionForm, match_attention


def count_padding(proto: onnx.ModelProto) -> str:
    """Set count_include_pad of every AveragePool without padding, in place; return a note, empty without one.

    Nodes of bodies do not change. With ceil_mode the last window may reach beyond the input, and such a
    node does not change either.
    """
    found = [node for node in proto.graph.node if node.op_type == "AveragePool" and _has_no_padding(node)]
    for node in found:
        kept = [a for a in node.attribute if a.name not in ("auto_pad", "count_include_pad")]
        del node.attribute[:]
        node.attribute.extend([*kept, helper.make_attribute("count_include_pad", 1)])
    if not found:
        return ""
    return (
        f"count_include_pad set for {len(found)} AveragePool without padding: TensorRT has int8 for it only"
    )


def _has_no_padding(node: onnx.NodeProto) -> bool:
    if node.domain not in STANDARD_DOMAINS:
        return False
    attrs = attributes_of(node)
    if attrs.get("auto_pad", b"NOTSET") not in (b"NOTSET", b"VALID") or attrs.get("ceil_mode", 0):
        return False
    return not any(attrs.get("pads", ())) and not attrs.get("count_include_pad", 0)


_DEQUANTIZERS = ("DequantizeLinear", "TRT_MXFP8DequantizeLinear")


def part_results(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Put an Identity behind each product that a Loop carries to its next step, in place; return `proto`.

    TensorRT for RTX 1.7.1 multiplies such a product in float, and in low precision behind an Identity.
    """
    loops = [body for node in list_nodes(proto.graph) if node.op_type == "Loop" for body in bodies(node)]
    index = GraphIndex.of_model(proto) if loops else None
    for body in loops:
        for value in body.output:
            maker = next((node for node in body.node if value.name in node.output), None)
            if index is not None and maker is not None and maker.op_type in WEIGHTED_INPUTS:
                maker.output[0] = index.names.claim(value.name)
                body.node.append(helper.make_node("Identity", [maker.output[0]], [value.name]))
    return proto


def separate_constants(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Copy, in place, each constant that DequantizeLinear nodes of several graphs read; return `proto`."""
    graphs = list_graphs(proto.graph)
    if len(graphs) == 1:
        return proto
    index = GraphIndex.of_model(proto)
    copies: dict[str, dict[int, str]] = {}
    for number, graph in enumerate(graphs):
        for node in graph.node:
            name = node.input[0] if node.op_type in _DEQUANTIZERS else ""
            if name not in index.constants:
                continue
            known = copies.setdefault(name, {number: name})
            if number not in known:
                known[number] = index.names.claim(name)
                proto.graph.initializer.add().CopyFrom(index.constants[name])
                proto.graph.initializer[-1].name = known[number]
            node.input[0] = known[number]
    return proto


# Operators of the scale, between the product of queries and keys and the mask.
_SCALES = ("Cast", "Div", "Identity", "Mul")
_STEPS = 4
_AXES_ARE_AN_INPUT = 18


@dataclass(frozen=True)
class _Guarded:
    """Masked attention with its guard.

    Attributes:
        slot: the input of `add` that is the mask.
    """

    add: onnx.NodeProto
    slot: int
    softmax: onnx.NodeProto
    nan: onnx.NodeProto
    where: onnx.NodeProto
    mix: onnx.NodeProto


def move_guards(proto: onnx.ModelProto) -> str:
    """Detect masked rows in the mask instead of by NaN, in place; return a note, empty without a change.

    Rows of the mask that are minus infinity throughout are added as 0, and their results are replaced by 0
    after the second product: the results are equal to the bit.

    Args:
        proto: model at opset 13 or above with unique names.
    """
    index = GraphIndex.of_model(proto)
    constants, taken = index.constants, index.names
    moved = 0
    for graph in list_graphs(proto.graph):
        found = _find_guarded(graph, constants)
        for one in found:
            _move(one, graph, proto, taken)
        moved += len(found)
    if not moved:
        return ""
    return f"moved {moved} masked-row guard(s) after their attention, to allow its fusion; results unchanged"


def _find_guarded(graph: onnx.GraphProto, constants: dict[str, onnx.TensorProto]) -> list[_Guarded]:
    """Return the guarded attentions of `graph`, without its bodies."""
    index = GraphIndex(graph)
    makers, readers = index.makers, index.readers
    kept = index.outputs | index.captured
    form = AttentionForm(lambda node: [makers.get(name) for name in node.input], attrgetter("op_type"))
    found = []
    for node in graph.node:
        attention = match_attention(node, form)
        one = None if attention is None else _match_guard(attention, form)
        if one is None or not _is_zero(constants.get(one.where.input[1])):
            continue
        inner = [made.output[0] for made in (one.add, one.nan, one.where, one.softmax)]
        if [len(readers[name]) for name in inner] == [1, 1, 1, 2] and not kept.intersection(inner):
            found.append(one)
    return found


def _match_guard(found: Attention[onnx.NodeProto], form: AttentionForm[onnx.NodeProto]) -> _Guarded | None:
    """Return the guard between the Softmax and the mix of `found`; None if there is none."""
    softmax, where, add = found.softmax, form.makers(found.mix)[0], form.makers(found.softmax)[0]
    nan = None if where is None else form.makers(where)[0]
    if where is None or nan is None or add is None:
        return None
    if [node.op_type for node in (nan, where, add)] != ["IsNaN", "Where", "Add"]:
        return None
    if any(node.domain not in STANDARD_DOMAINS for node in (nan, softmax, add)):
        return None
    # The mask is the input of the Add that is not a scaled product.
    scores = [form.find_above([maker], PRODUCTS, _SCALES, _STEPS) for maker in form.makers(add)]
    masks = [slot for slot, product in enumerate(scores) if product is None]
    if len(masks) != 1 or {nan.input[0], where.input[2]} != {softmax.output[0]}:
        return None
    return _Guarded(add, masks[0], softmax, nan, where, found.mix)


def _is_zero(tensor: onnx.TensorProto | None) -> bool:
    if tensor is None or any(size != 1 for size in tensor.dims):
        return False
    return not np.any(tensor_array(tensor))


def _move(one: _Guarded, graph: onnx.GraphProto, proto: onnx.ModelProto, taken: Names) -> None:
    """Move the guard of `one` after the second product."""
    zero, mask = one.where.input[1], one.add.input[one.slot]
    parts = Parts(mask, taken)
    kind = next(t.data_type for t in proto.graph.initializer if t.name == zero)
    never = parts.constant("never", [-np.inf], kind)
    if default_opset(proto) >= _AXES_ARE_AN_INPUT:
        parts.constants.append(numpy_helper.from_array(np.array([-1]), parts.free("axis")))
        most = parts.add("most", "ReduceMax", [mask, parts.constants[-1].name])
    else:
        most = parts.add("most", "ReduceMax", [mask], axes=[-1])
    masked = parts.add("masked", "Equal", [most, never])
    shown = parts.add("shown", "Where", [masked, zero, mask])
    mixed = parts.free("mix")
    parts.add("guard", "Where", [masked, zero, mixed], one.mix.output[0])
    proto.graph.initializer.extend(parts.constants)

    nodes = []
    for node in graph.node:
        if node.name in (one.nan.name, one.where.name):
            continue
        if node.name == one.add.name:
            node.input[one.slot] = shown
            nodes += parts.nodes[:-1]
        nodes.append(node)
        if node.name == one.mix.name:
            node.input[0], node.output[0] = one.softmax.output[0], mixed
            nodes.append(parts.nodes[-1])
    replace_nodes(graph, nodes)
