"""Normalisation steps at loading; each removes one difference between equivalent models.

The steps edit a ModelProto in place (their caller owns the copy) and return a note, or an empty string when
nothing changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper
from onnx.reference import ReferenceEvaluator

from onnxfq.errors import ModelError, join_lines
from onnxfq.graph.external.tensor import tensor_array
from onnxfq.graph.external.weightless import change_without_weights
from onnxfq.graph.index import GraphIndex
from onnxfq.graph.model import list_graphs, list_nodes, replace_nodes
from onnxfq.graph.names import Names
from onnxfq.graph.node_fields import attributes_of, dense_values
from onnxfq.graph.node_fields import constant_value as constant_value
from onnxfq.graph.normalize.inline_functions import inline_model
from onnxfq.graph.ops import QUANTIZED_OPS, RESHAPES, STANDARD_DOMAINS
from onnxfq.graph.prune import keep_constants, leave_out
from onnxfq.graph.walk import rename_tensors
from onnxfq.numerics.float_types import FLOAT_CODES
from onnxfq.support.reasons import Reason

# Folding keeps the number of values of a constant.
# Transpose is excluded: a weight under it may have other readers, and a DQ before it works as well.
_FOLDABLE = RESHAPES | {"Cast"}

_FLOATS = FLOAT_CODES | {TensorProto.DOUBLE}


def inline_functions(proto: onnx.ModelProto) -> str:
    """Replace calls of local functions by their bodies, so that the operators inside are visible.

    Functions that quantize stay: their names state what their bodies only compute.
    """
    kept = {f.name for f in proto.functions} & QUANTIZED_OPS
    count = sum(f.name not in kept for f in proto.functions)
    if not count:
        return ""
    proto.CopyFrom(change_without_weights(proto, lambda bare: inline_model(bare, kept)))
    return f"{count} local function(s) inlined, so that their operators can be quantized"


def drop_training(proto: onnx.ModelProto) -> str:
    """Remove the training description: quantized weights replace the weights that it trains."""
    count = len(proto.training_info)
    proto.ClearField("training_info")
    return f"{count} training_info left out: it trains float weights, not quantized ones" if count else ""


def note_batch_statistics(proto: onnx.ModelProto) -> str:
    """Return a note on BatchNormalization in training mode; change nothing."""
    found = [
        node
        for node in list_nodes(proto.graph)
        if node.op_type == "BatchNormalization" and attributes_of(node).get("training_mode")
    ]
    if not found:
        return ""
    return (
        f"{len(found)} BatchNormalization in training mode, first {found[0].name!r}: it normalizes by the "
        "batch, and TensorRT refuses it; export the model in evaluation mode"
    )


def separate_depthwise_weights(proto: onnx.ModelProto) -> str:
    """Copy each weight that several depthwise convolutions read: each may scale its channels differently."""
    graph = proto.graph
    index = GraphIndex.of_model(proto)
    copied = dict[str, int]()
    for name, readers in index.readers.items():
        tensor = index.constants.get(name)
        if len(readers) < 2 or tensor is None or len(tensor.dims) < 3 or tensor.dims[1] != 1:
            continue
        convolutions = [n for n in readers if n.op_type == "Conv" and n.domain in STANDARD_DOMAINS]
        found = [n for n in convolutions if attributes_of(n).get("group", 1) > 1 and n.input[1] == name]
        others = len(found) < len(readers) or name in index.outputs
        for node in found if others else found[1:]:
            graph.initializer.add().CopyFrom(tensor)
            graph.initializer[-1].name = node.input[1] = index.names.claim(name)
            copied[name] = copied.get(name, 0) + 1
    if not copied:
        return ""
    return (
        f"{len(copied)} weight(s) that several depthwise convolutions read, first {next(iter(copied))!r}, "
        f"copied {sum(copied.values())} time(s), because each reader may scale its channels"
    )


def name_negative_dims(proto: onnx.ModelProto) -> str:
    """Name dimensions written as -1, which ONNX does not allow but Paddle2ONNX writes."""
    named = 0
    for value in (*proto.graph.input, *proto.graph.output, *proto.graph.value_info):
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if dim.HasField("dim_value") and dim.dim_value < 0:
                dim.dim_param = f"{value.name}_{axis}"
                named += 1
    return f"{named} dimension(s) of -1 named as open dimensions" if named else ""


def drop_initializer_inputs(proto: onnx.ModelProto) -> str:
    """Remove initializers from the graph inputs: they are constants and callers do not feed them."""
    constants = GraphIndex(proto.graph).constants
    kept = [value for value in proto.graph.input if value.name not in constants]
    dropped = len(proto.graph.input) - len(kept)
    if not dropped:
        return ""
    del proto.graph.input[:]
    proto.graph.input.extend(kept)
    # Before IR version 4 every initializer had to be an input.
    proto.ir_version = max(proto.ir_version, 4)
    return f"{dropped} initializer(s) that were also graph inputs are constants now"


def name_tensors(proto: onnx.ModelProto) -> str:
    """Rename tensors in bodies to unique names: branches of an If often share names."""
    graphs = list_graphs(proto.graph)
    known = Names(name for graph in graphs for name in _list_defined_names(graph))
    taken: set[str] = set()
    renamed = 0
    for graph in graphs:
        own = list(dict.fromkeys(_list_defined_names(graph)))
        changes = {name: known.claim(name) for name in own if name in taken}
        if changes:
            rename_defined(graph, changes)
        taken.update(own)
        renamed += len(changes)
    return f"{renamed} tensor(s) in bodies had names of others and got new ones" if renamed else ""


def sparse_to_dense(proto: onnx.ModelProto) -> str:
    """Make sparse initializers dense: graphsurgeon loses them, and they are quantized like other weights."""
    count = 0
    for graph in list_graphs(proto.graph):
        count += len(graph.sparse_initializer)
        graph.initializer.extend(dense_values(s, s.values.name) for s in graph.sparse_initializer)
        del graph.sparse_initializer[:]
    return f"{count} sparse initializer(s) made dense" if count else ""


def constants_to_initializers(proto: onnx.ModelProto) -> str:
    """Turn Constant nodes into initializers of the main graph, so that all weights look alike.

    Only float constants leave bodies, because ONNX infers shapes from integers in place. Outputs of a body
    stay in it.
    """
    moved, hoisted = 0, 0
    graphs = list_graphs(proto.graph)
    for depth, graph in reversed(list(enumerate(graphs))):  # bodies first: a node is copied with its bodies
        inputs, outputs = ({value.name for value in values} for values in (graph.input, graph.output))
        kept = []
        for tensor in [one for one in graph.initializer if depth and one.name not in inputs]:
            if tensor.data_type in _FLOATS and tensor.name not in outputs:
                proto.graph.initializer.append(tensor)
                hoisted += 1
            else:
                kept.append(onnx.helper.make_node("Constant", [], [tensor.name], value=tensor))
        is_changed = bool(kept)
        if depth:
            del graph.initializer[:]
        for node in graph.node:
            value = constant_value(node)
            if value is None or (depth and (value.data_type not in _FLOATS or node.output[0] in outputs)):
                kept.append(node)
                continue
            value.name = node.output[0]
            proto.graph.initializer.append(value)
            moved, is_changed = moved + 1, True
        if is_changed:
            replace_nodes(graph, kept)
    if not moved + hoisted:
        return ""
    proto.ir_version = max(proto.ir_version, 4)
    notes = [f"{moved} Constant node(s) made initializers"] if moved else []
    return ", ".join([*notes, *([f"{hoisted} initializer(s) taken out of bodies"] if hoisted else [])])


def fold_moves(proto: onnx.ModelProto) -> str:
    """Evaluate Reshape, Cast and similar operators on constants, so that each reader sees a plain constant.

    A Transpose is folded too if its reader is in another body: a pair before it would also be outside.
    """
    constants, folded = GraphIndex.of_model(proto).stored, list[str]()
    for depth, graph in enumerate(list_graphs(proto.graph)):
        folded += _fold_moves(graph, constants, proto, inside=depth > 0)
    if not folded:
        return ""
    used = GraphIndex.of_model(proto).used
    notes = [note for graph in list_graphs(proto.graph) for note in graph.quantization_annotation]
    used = used | {entry.value for note in notes for entry in note.quant_parameter_tensor_names}
    before = GraphIndex(proto.graph).constants
    proto.graph.initializer.extend(constants[name] for name in folded if name not in before)
    keep_constants(proto.graph, used)
    return f"{len(folded)} Reshape, Cast or similar of constants folded"


def _fold_moves(
    graph: onnx.GraphProto, constants: dict[str, onnx.TensorProto], proto: onnx.ModelProto, *, inside: bool
) -> list[str]:
    """Fold in one graph, or inside a body; return the tensors that become constants."""
    outputs = {value.name for value in graph.output}
    read_here = {name for node in graph.node for name in node.input}
    gone, folded = [], []
    for number, node in enumerate(graph.node):
        foldable = (
            (node.op_type in _FOLDABLE or (node.op_type == "Transpose" and node.output[0] not in read_here))
            and node.domain in STANDARD_DOMAINS
            and all(name in constants for name in node.input)
            and node.output[0] not in outputs
        )
        if not foldable:
            continue
        inputs = {name: tensor_array(constants[name]) for name in node.input}
        value = numpy_helper.from_array(evaluate_node(node, inputs, proto)[0], node.output[0])
        if inside and value.data_type not in _FLOATS:
            continue
        constants[node.output[0]] = value
        gone.append(number)
        folded.append(node.output[0])
    for number in reversed(gone):
        del graph.node[number]
    return folded


def drop_same_reshapes(proto: onnx.ModelProto) -> str:
    """Leave out each Reshape to the shape that its input has; inferred shapes must be there.

    Exporters write them for views, and a format for every tensor would give one two pairs.
    """
    graph, sources = proto.graph, dict[str, str]()
    index = GraphIndex(graph)
    for node in graph.node:
        if node.op_type == "Reshape" and node.domain in STANDARD_DOMAINS and _keeps_shape(node, index):
            if node.output[0] not in index.outputs | index.captured:
                sources[node.output[0]] = node.input[0]
    if not sources:
        return ""
    leave_out(graph, sources)
    return f"{len(sources)} Reshape to the shape of its input left out"


def _keeps_shape(node: onnx.NodeProto, index: GraphIndex) -> bool:
    """Tell whether every size but one is written as it is; the last follows from the count of elements."""
    shape, asked = index.shape(node.input[0]), index.array(node.input[1])
    if shape is None or asked is None or len(shape) != asked.size:
        return False
    copies = () if attributes_of(node).get("allowzero") else (0,)
    other = [size for size, now in zip(asked.tolist(), shape, strict=True) if size not in (now, *copies)]
    return other in ([], [-1])


def name_nodes(proto: onnx.ModelProto) -> str:
    """Give every node a unique name, in bodies too; plans and overrides refer to nodes by name.

    A node without one gets the name of its first output, which the user's file has.
    Names are unique within a local function too: ONNX Runtime refuses two nodes of one name.
    """
    renamed = sum(_name_nodes(list_nodes(owner)) for owner in (proto.graph, *proto.functions))
    return Reason("unnamed", f"{renamed} node(s) without a unique name got one" if renamed else "")


def _name_nodes(nodes: list[onnx.NodeProto]) -> int:
    taken = Names(node.name for node in nodes if node.name)
    seen: set[str] = set()
    renamed = 0
    for node in nodes:
        if not node.name or node.name in seen:
            node.name = taken.claim(node.name or next(filter(None, node.output), node.op_type))
            renamed += 1
        seen.add(node.name)
    return renamed


def _list_defined_names(graph: onnx.GraphProto) -> Iterator[str]:
    """Yield the names of the tensors that `graph` itself defines, without omitted optional outputs."""
    yield from (value.name for value in graph.input)
    yield from (tensor.name for tensor in graph.initializer)
    yield from (sparse.values.name for sparse in graph.sparse_initializer)
    yield from (name for node in graph.node for name in node.output if name)


def rename_defined(graph: onnx.GraphProto, changes: dict[str, str]) -> None:
    """Rename tensors of `graph` in it and in the bodies below it."""
    for value in (*graph.input, *graph.output, *graph.value_info, *graph.initializer):
        value.name = changes.get(value.name, value.name)
    for sparse in graph.sparse_initializer:
        sparse.values.name = changes.get(sparse.values.name, sparse.values.name)
    rename_tensors(graph.node, changes)
    rename_tensors(list_nodes(graph), changes, made=False)


def evaluate_node(
    node: onnx.NodeProto, inputs: Mapping[str, NDArray[Any] | None], proto: onnx.ModelProto
) -> list[NDArray[Any]]:
    """Return the outputs of `node` by ONNX's reference, at the opsets of `proto`, or raise ModelError."""
    names = ([name for name in dict.fromkeys(names) if name] for names in (node.input, node.output))
    function = onnx.helper.make_function("onnxfq", "fold", *names, [node], list(proto.opset_import))
    try:
        return [np.asarray(values) for values in ReferenceEvaluator(function).run(None, inputs, {})]
    except Exception as fault:  # any NumPy error of a damaged model
        raise ModelError(
            f"{node.op_type} {node.name!r} does not fit its inputs: {join_lines(fault)[:200]}; export the "
            "model again"
        ) from None
