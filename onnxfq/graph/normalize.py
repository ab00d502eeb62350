"""Normalising a model at loading: each step makes one kind of model like all others.

The steps edit a ModelProto in place (their caller owns the copy) and return a note, or an empty
string when there was nothing to do.
"""

from __future__ import annotations

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import inliner, numpy_helper
from onnx.reference import ReferenceEvaluator

from onnxfq.graph.model import all_nodes
from onnxfq.graph.ops import QUANTIZED_OPS

# Ops that move, relabel or convert values, one to one: folded, a constant has as many as before.
# Transpose is not here: a weight under it may have other readers, and a DQ before it is as good.
_MOVES = frozenset({"Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Cast"})


def inline_functions(proto: onnx.ModelProto) -> str:
    """Replace calls of local functions by their bodies, so that the operators inside are seen.

    But for those that quantize: their names say what their bodies only compute.
    """
    kept = [(f.domain, f.name) for f in proto.functions if f.name in QUANTIZED_OPS]
    count = len(proto.functions) - len(kept)
    if not count:
        return ""
    proto.CopyFrom(inliner.inline_selected_functions(proto, kept, exclude=True))
    return f"{count} local function(s) inlined, so that their operators can be quantized"


def name_negative_dims(proto: onnx.ModelProto) -> str:
    """Give names to dimensions written as -1, which ONNX does not allow (Paddle2ONNX does it)."""
    named = 0
    for value in (*proto.graph.input, *proto.graph.output, *proto.graph.value_info):
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if dim.HasField("dim_value") and dim.dim_value < 0:
                dim.dim_param = f"{value.name}_{axis}"
                named += 1
    return f"{named} dimension(s) of -1 named as open dimensions" if named else ""


def drop_initializer_inputs(proto: onnx.ModelProto) -> str:
    """Remove initializers from the graph inputs: they are constants, not something a caller feeds."""
    constants = {tensor.name for tensor in proto.graph.initializer}
    kept = [value for value in proto.graph.input if value.name not in constants]
    dropped = len(proto.graph.input) - len(kept)
    if not dropped:
        return ""
    del proto.graph.input[:]
    proto.graph.input.extend(kept)
    # Before IR version 4 every initializer had to be an input.
    proto.ir_version = max(proto.ir_version, 4)
    return f"{dropped} initializer(s) that were also graph inputs are constants now"


def sparse_to_dense(proto: onnx.ModelProto) -> str:
    """Write sparse initializers out: graphsurgeon loses them, and a sparse weight is quantized like any."""
    count = len(proto.graph.sparse_initializer)
    proto.graph.initializer.extend(_dense(s, s.values.name) for s in proto.graph.sparse_initializer)
    del proto.graph.sparse_initializer[:]
    return f"{count} sparse initializer(s) made dense" if count else ""


def constants_to_initializers(proto: onnx.ModelProto) -> str:
    """Turn Constant nodes into initializers, so that weights look alike whatever the exporter."""
    kept, moved = [], 0
    for node in proto.graph.node:
        tensor = _constant_value(node)
        if tensor is None:
            kept.append(node)
        else:
            tensor.name = node.output[0]
            proto.graph.initializer.append(tensor)
            moved += 1
    if not moved:
        return ""
    _replace_nodes(proto, kept)
    proto.ir_version = max(proto.ir_version, 4)
    return f"{moved} Constant node(s) made initializers"


def fold_moves(proto: onnx.ModelProto) -> str:
    """Evaluate Reshape, Cast and the like of constants, so that a weight is the constant its reader sees."""
    constants: dict[str, onnx.TensorProto] = {t.name: t for t in proto.graph.initializer}
    outputs = {value.name for value in proto.graph.output}
    kept, folded = [], []
    for node in proto.graph.node:
        foldable = (
            node.op_type in _MOVES
            and node.domain in ("", "ai.onnx")
            and all(name in constants for name in node.input)
            and node.output[0] not in outputs
        )
        if not foldable:
            kept.append(node)
            continue
        inputs = {name: numpy_helper.to_array(constants[name]) for name in node.input}
        value = _evaluate(node, inputs, proto)
        constants[node.output[0]] = numpy_helper.from_array(value, node.output[0])
        folded.append(node.output[0])
    if not folded:
        return ""
    _replace_nodes(proto, kept)
    used = {name for node in all_nodes(proto.graph) for name in node.input} | outputs
    before = {t.name for t in proto.graph.initializer}
    kept_tensors = [t for t in proto.graph.initializer if t.name in used]
    added = [constants[name] for name in folded if name in used and name not in before]
    del proto.graph.initializer[:]
    proto.graph.initializer.extend(kept_tensors + added)
    return f"{len(folded)} Reshape, Cast or similar of constants folded"


def name_nodes(proto: onnx.ModelProto) -> str:
    """Give every node of the main graph a name of its own; plans and overrides refer to nodes by name."""
    taken: set[str] = {node.name for node in proto.graph.node if node.name}
    seen: set[str] = set()
    renamed = 0
    for index, node in enumerate(proto.graph.node):
        if not node.name or node.name in seen:
            base = node.name or f"{node.op_type}_{index}"
            name, suffix = base, 1
            while name in taken:
                suffix += 1
                name = f"{base}_{suffix}"
            node.name = name
            taken.add(name)
            renamed += 1
        seen.add(node.name)
    return f"{renamed} node(s) without a name of their own got one" if renamed else ""


def _constant_value(node: onnx.NodeProto) -> onnx.TensorProto | None:
    """Return the tensor of a Constant node in whichever attribute it stands; None for other nodes."""
    if node.op_type != "Constant" or node.domain not in ("", "ai.onnx"):
        return None
    attribute = node.attribute[0]
    if attribute.name == "value":
        tensor = onnx.TensorProto()
        tensor.CopyFrom(attribute.t)
        return tensor
    if attribute.name == "sparse_value":
        return _dense(attribute.sparse_tensor, node.output[0])
    makers: dict[str, NDArray[np.generic]] = {
        "value_float": np.asarray(attribute.f, np.float32),
        "value_floats": np.asarray(list(attribute.floats), np.float32),
        "value_int": np.asarray(attribute.i, np.int64),
        "value_ints": np.asarray(list(attribute.ints), np.int64),
        "value_string": np.asarray(attribute.s, object),
        "value_strings": np.asarray(list(attribute.strings), object),
    }
    value = makers.get(attribute.name)
    return None if value is None else numpy_helper.from_array(value)


def _dense(sparse: onnx.SparseTensorProto, name: str) -> onnx.TensorProto:
    """Return the dense form; indices are flat [values] or coordinates [values, rank]."""
    values, indices = numpy_helper.to_array(sparse.values), numpy_helper.to_array(sparse.indices)
    dense = np.zeros(tuple(sparse.dims), values.dtype)
    if indices.ndim == 1:
        dense.reshape(-1)[indices] = values
    else:
        dense[tuple(indices.T)] = values
    return numpy_helper.from_array(dense, name)


def _evaluate(
    node: onnx.NodeProto, inputs: dict[str, NDArray[np.generic]], proto: onnx.ModelProto
) -> NDArray[np.generic]:
    values = [onnx.helper.make_empty_tensor_value_info(name) for name in (*node.input, *node.output)]
    graph = onnx.helper.make_graph([node], "fold", values[: len(node.input)], values[len(node.input) :])
    model = onnx.helper.make_model(graph, opset_imports=list(proto.opset_import))
    return np.asarray(ReferenceEvaluator(model).run(None, inputs)[0])


def _replace_nodes(proto: onnx.ModelProto, nodes: list[onnx.NodeProto]) -> None:
    copies = []
    for node in nodes:
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        copies.append(copy)
    del proto.graph.node[:]
    proto.graph.node.extend(copies)
