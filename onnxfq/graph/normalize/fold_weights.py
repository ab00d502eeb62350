"""Weights that a graph computes from constants, as weight normalisation does, evaluated at loading."""

from __future__ import annotations

import logging

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper
from onnx.reference import ReferenceEvaluator

from onnxfq.graph.external.tensor import is_external
from onnxfq.graph.index import GraphIndex
from onnxfq.graph.model import bodies, replace_nodes
from onnxfq.graph.ops import QUANTIZED_OPS, STANDARD_DOMAINS, TRANSPOSES, WEIGHTED_INPUTS
from onnxfq.support.records import one_line

log = logging.getLogger(__name__)

MOST_ELEMENTS = 1 << 26
"""Of what is made into one constant."""

# What one has no use for as a constant, or what gives other numbers each time.
_NEVER = QUANTIZED_OPS | {"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike"}
_NEVER |= {"RandomUniform", "RandomUniformLike"}


def fold_computed_weights(proto: onnx.ModelProto) -> str:
    """Evaluate what weighted operators read and no input has a part in, in place; return what was done.

    So are weighted operators with nothing but constants to multiply, as those of a table of positions: what
    is computed once, when an engine is built, gains nothing from fewer bits. In float, by ONNX's reference.
    Weights that stay in a file, and quantized ones, are left as they are.
    """
    constants = {t.name: t for t in proto.graph.initializer if not is_external(t)}
    makers = GraphIndex(proto.graph).makers
    fixed = _fixed(proto, constants)
    outputs = GraphIndex.of_model(proto).outputs
    wanted = [name for name in _wanted(proto, constants, makers, fixed) if name not in outputs]
    folded = 0
    for name in wanted:
        value = _evaluated(name, proto, constants, makers)
        if value is None or value.size > MOST_ELEMENTS or value.dtype.kind != "f":
            continue
        constants[name] = numpy_helper.from_array(value, name)
        proto.graph.initializer.append(constants[name])
        node = makers[name]
        node.output[list(node.output).index(name)] = ""
        folded += 1
    if not folded:
        return ""
    _drop_unused(proto)
    return f"{folded} weight(s) that the graph computes from constants evaluated"


def _fixed(proto: onnx.ModelProto, constants: dict[str, TensorProto]) -> set[str]:
    """Return the names of tensors of the main graph that depend on constants alone, them included."""
    fixed = set(constants)
    for node in proto.graph.node:
        usable = node.domain in STANDARD_DOMAINS and node.op_type not in _NEVER and not bodies(node)
        if usable and node.input and all(name in fixed or not name for name in node.input):
            fixed.update(name for name in node.output if name)
    return fixed


def _wanted(
    proto: onnx.ModelProto,
    constants: dict[str, TensorProto],
    makers: dict[str, onnx.NodeProto],
    fixed: set[str],
) -> list[str]:
    """Return the tensors to evaluate, in the order of the graph."""
    found: dict[str, None] = {}
    for node in proto.graph.node:
        slots = WEIGHTED_INPUTS.get(node.op_type, ()) if node.domain in STANDARD_DOMAINS else ()
        read = [node.input[slot] for slot in slots if slot < len(node.input)]
        if read and node.output[0] in fixed:
            found[node.output[0]] = None
            continue
        found |= {name: None for name in read if name in fixed and not _is_plain(name, constants, makers)}
    return list(found)


def _is_plain(name: str, constants: dict[str, TensorProto], makers: dict[str, onnx.NodeProto]) -> bool:
    """Tell whether `name` is a constant, or a transposed one, which is quantized as it is stored."""
    while name not in constants and name in makers and makers[name].op_type in TRANSPOSES:
        name = makers[name].input[0]
    return name in constants


def _evaluated(
    name: str,
    proto: onnx.ModelProto,
    constants: dict[str, TensorProto],
    makers: dict[str, onnx.NodeProto],
) -> NDArray[np.generic] | None:
    """Return the value of `name`; None where ONNX's reference cannot compute it."""
    needed: list[str] = [name]
    nodes: dict[int, onnx.NodeProto] = {}
    inputs: dict[str, TensorProto] = {}
    while needed:
        one = needed.pop()
        if one in constants:
            inputs[one] = constants[one]
        elif one and id(makers[one]) not in nodes:
            nodes[id(makers[one])] = makers[one]
            needed += makers[one].input
    order = [node for node in proto.graph.node if id(node) in nodes]
    result = onnx.helper.make_empty_tensor_value_info(name)
    graph = onnx.helper.make_graph(order, "weight", [], [result], list(inputs.values()))
    model = onnx.helper.make_model(graph, opset_imports=list(proto.opset_import))
    try:
        return np.asarray(ReferenceEvaluator(model).run(None, {})[0])
    except Exception as fault:  # no such operator, or whatever NumPy raises for a model that is not sound
        log.debug("%s is not evaluated: %s", name, one_line(fault))
        return None


def _drop_unused(proto: onnx.ModelProto) -> None:
    """Remove nodes of the main graph, and constants, that nothing reads any more."""
    while True:
        used = GraphIndex.of_model(proto).used
        kept = [node for node in proto.graph.node if any(name in used for name in node.output)]
        if len(kept) == len(proto.graph.node):
            break
        replace_nodes(proto.graph, kept)
    tensors = [tensor for tensor in proto.graph.initializer if tensor.name in used]
    if len(tensors) < len(proto.graph.initializer):
        del proto.graph.initializer[:]
        proto.graph.initializer.extend(tensors)
