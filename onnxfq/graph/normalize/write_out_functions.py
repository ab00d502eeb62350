"""Operators of opset 23 and later written out by ONNX's own definition, and the opset lowered after that.

No runtime here has kernels for these: TensorRT for RTX 1.7.1 refuses SwiGLU, LinearAttention and
CausalConvWithState, an Attention in float32, and one with a precision for its Softmax or several outputs;
onnxruntime 1.31.1 refuses opset 27, windows of Attention and Swish. ONNX defines each by a function of other
operators.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from copy import deepcopy
from functools import partial

import onnx
from onnx import TensorProto, TypeProto, helper

from onnxfq.graph.external.weightless import change_without_weights
from onnxfq.graph.index import GraphIndex
from onnxfq.graph.model import default_opset, list_graphs, list_nodes, remove_domain
from onnxfq.graph.normalize.inline_functions import inline_model
from onnxfq.graph.normalize.opset import lowest_ir
from onnxfq.graph.normalize.shapes import add_shapes
from onnxfq.graph.normalize.steps import constants_to_initializers, name_nodes
from onnxfq.graph.ops import STANDARD_DOMAINS
from onnxfq.graph.queries import find_schema
from onnxfq.support.attempts import attempt

WRITTEN_OUT = frozenset({"Attention", "CausalConvWithState", "LinearAttention", "SwiGLU", "Swish"})
"""Operators of ONNX that are written out. An Attention that has a simpler form in products has it already."""

WIDEST_OPSET = 25
"""Last opset that TensorRT 11 documents."""

_FIRST_OPSET = 24
"""First opset with an operator that onnxruntime 1.31.1 lacks: Swish."""

_DOMAIN = "onnxfq.written"


def write_out_functions(proto: onnx.ModelProto) -> str:
    """Replace, in place, each operator of `WRITTEN_OUT` by ONNX's function for it; return a note.

    `proto` has shapes and unique names. An operator on dequantized values stays, and so does one without a
    definition for its types.
    """
    kinds: Counter[str] = Counter()
    while calls := _find_calls(proto):  # a SwiGLU is made of a Swish
        written = attempt("writing out operators", partial(_inline, proto, calls), lambda: None)
        if written is None:
            break
        kinds.update(node.op_type for node, _ in calls)
        proto.CopyFrom(written)
        for step in (constants_to_initializers, name_nodes):
            step(proto)
        add_shapes(proto)
        _declare_bodies(proto)
    if not kinds:
        return ""
    return f"{kinds.total()} {', '.join(sorted(kinds))} written out by ONNX's definition"


def _declare_bodies(proto: onnx.ModelProto) -> None:
    """Give outputs of bodies their shapes, in place: a runtime cannot infer them behind other domains' nodes.

    ONNX's inference reads no constant from outside of a body; a copy of the model has them inside.
    """
    constants = GraphIndex(proto.graph).constants
    small = {n: t for n, t in constants.items() if len(t.dims) < 2 and t.data_type == TensorProto.INT64}
    filled = deepcopy(proto)
    for body in list_graphs(filled.graph)[1:]:
        read = {name for node in body.node for name in node.input} & small.keys()
        body.initializer.extend(small[name] for name in sorted(read))
    add_shapes(filled)
    for body, other in zip(list_graphs(proto.graph)[1:], list_graphs(filled.graph)[1:], strict=True):
        known = {value.name: value for value in (*other.value_info, *other.output)}
        for output in body.output:
            if output.name in known and known[output.name].type.tensor_type.HasField("shape"):
                output.type.CopyFrom(known[output.name].type)


def make_runnable(proto: onnx.ModelProto) -> None:
    """Write out, in place, operators that onnxruntime lacks, in a model of an opset that has them."""
    if default_opset(proto) < _FIRST_OPSET:
        return
    nodes = list_nodes(proto.graph)
    if any(node.op_type in WRITTEN_OUT and node.domain in STANDARD_DOMAINS for node in nodes):
        add_shapes(proto)
        write_out_functions(proto)
    lower_opset(proto)


def _find_calls(proto: onnx.ModelProto) -> list[tuple[onnx.NodeProto, onnx.FunctionProto]]:
    """Return the nodes to write out, with their bodies."""
    index = GraphIndex.of_model(proto)
    dequantized = {name for name, node in index.makers.items() if node.op_type == "DequantizeLinear"}
    calls: list[tuple[onnx.NodeProto, onnx.FunctionProto]] = []
    for node in list_nodes(proto.graph):
        if node.op_type not in WRITTEN_OUT or node.domain not in STANDARD_DOMAINS:
            continue
        if dequantized.intersection(node.input):
            continue
        what = f"writing out {node.op_type} {node.name!r}"
        body = attempt(what, partial(_define, node, index, default_opset(proto)), lambda: None)
        if body is not None:
            body.domain, body.name = _DOMAIN, f"{node.op_type}_{len(calls)}"
            calls.append((node, body))
    return calls


def lower_opset(proto: onnx.ModelProto) -> str:
    """Lower, in place, an opset above WIDEST_OPSET if no operator is newer than that; return a note."""
    have = default_opset(proto)
    nodes = [node for node in list_nodes(proto.graph) if node.domain in STANDARD_DOMAINS]
    schemas = [find_schema(node, have) for node in nodes]
    if have <= WIDEST_OPSET or any(one is None or one.since_version > WIDEST_OPSET for one in schemas):
        return ""
    for entry in proto.opset_import:
        if entry.domain in STANDARD_DOMAINS:
            entry.version = WIDEST_OPSET
    proto.ir_version = min(proto.ir_version, lowest_ir(WIDEST_OPSET))
    return f"opset lowered from {have} to {WIDEST_OPSET}: no operator is newer, and runtimes take it"


def _define(node: onnx.NodeProto, index: GraphIndex, opset: int) -> onnx.FunctionProto | None:
    """Return ONNX's function for `node`, at the model's opset; None if it has none for these types."""
    schema = onnx.defs.get_schema(node.op_type, opset, "")
    versions = [
        version
        for version in (*schema.context_dependent_function_opset_versions, *schema.function_opset_versions)
        if version <= opset
    ]
    if not versions:
        return None
    if schema.has_context_dependent_function:
        types = [_type_of(name, index) for name in node.input]
        define = schema.get_context_dependent_function_with_opset_version
        text = bytes(define(max(versions), node.SerializeToString(), types))
    else:
        text = schema.get_function_with_opset_version(max(versions))
    body = onnx.FunctionProto.FromString(text)
    if not body.node:
        return None
    for entry in body.opset_import:
        entry.version = opset
    return body


def _type_of(name: str, index: GraphIndex) -> bytes:
    """Return the type of a tensor, empty for an input that is left out."""
    if not name:
        return bytes(TypeProto().SerializeToString())
    return bytes(helper.make_tensor_type_proto(index.types[name], index.shape(name)).SerializeToString())


def _inline(
    proto: onnx.ModelProto, calls: Sequence[tuple[onnx.NodeProto, onnx.FunctionProto]]
) -> onnx.ModelProto:
    """Return a copy of the model with the bodies in the places of the calls."""
    names = {node.name: body.name for node, body in calls}
    called = deepcopy(proto)
    for node in list_nodes(called.graph):
        if node.name in names:
            _write_defaults(node, default_opset(proto))
            node.domain, node.op_type = _DOMAIN, names[node.name]
    called.functions.extend(body for _, body in calls)
    called.opset_import.append(helper.make_opsetid(_DOMAIN, 1))
    inlined = change_without_weights(called, inline_model)
    remove_domain(inlined, _DOMAIN)
    return inlined


def _write_defaults(node: onnx.NodeProto, opset: int) -> None:
    """Write the defaults of the operator's attributes into `node`: its function refers to them."""
    given = {attribute.name for attribute in node.attribute}
    for name, attribute in onnx.defs.get_schema(node.op_type, opset, "").attributes.items():
        if name not in given and attribute.default_value.name:
            node.attribute.append(attribute.default_value)
