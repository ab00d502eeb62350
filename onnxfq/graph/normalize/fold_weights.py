"""Constant folding of computed weights, such as weight normalisation, and of scales, at loading."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from math import prod

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper

from onnxfq.errors import ModelError
from onnxfq.graph.external.tensor import is_external, tensor_array
from onnxfq.graph.index import GraphIndex
from onnxfq.graph.model import bodies
from onnxfq.graph.normalize.shapes import with_shapes
from onnxfq.graph.normalize.steps import evaluate_node
from onnxfq.graph.ops import QUANTIZED_OPS, RANDOM_OPS, STANDARD_DOMAINS, TRANSPOSES, WEIGHTED_INPUTS
from onnxfq.graph.prune import remove_unread

log = logging.getLogger(__name__)

MOST_ELEMENTS = 1 << 26
"""Largest result, in elements, that is computed to fold constants into one."""

_PARAMETERS = {op: (*slots, 2) for op, slots in WEIGHTED_INPUTS.items()}
_PARAMETERS["BatchNormalization"] = (1, 2, 3, 4)
"""Positions of weights, biases and other parameters by operator; MatMul has no bias."""

# Operators that must stay visible, or whose results are random.
_NEVER = QUANTIZED_OPS | RANDOM_OPS


def fold_computed_weights(proto: onnx.ModelProto) -> str:
    """Fold, in place, operands of weighted and quantized operators that depend on constants; return a note.

    Weighted operators with only constant operands, such as a table of positions, are folded too: an engine
    computes them once, so fewer bits gain nothing. ONNX's reference evaluates them in float. Weights that
    stay in a file, and quantized ones, are left unchanged.
    """
    index = GraphIndex(proto.graph)
    constants = {n: t for n, t in index.constants.items() if not is_external(t)}
    outputs = GraphIndex.of_model(proto).outputs
    wanted = [name for name in _find_foldable(index, proto, constants) if name not in outputs]
    counts = _count_elements(proto) if wanted else {}
    folded = 0
    for name in wanted:
        value = _evaluate_tensor(name, index, proto, constants, counts)
        if value is None:
            continue
        constants[name] = numpy_helper.from_array(value, name)
        proto.graph.initializer.append(constants[name])
        node = index.makers[name]
        node.output[list(node.output).index(name)] = ""
        folded += 1
    if not folded:
        return ""
    remove_unread(proto, [proto.graph])
    return f"{folded} weight(s) that the graph computes from constants evaluated"


def find_constant_tensors(proto: onnx.ModelProto, constants: Iterable[str]) -> set[str]:
    """Return `constants` and the names of main-graph tensors that depend on constants alone."""
    fixed = set(constants)
    for node in proto.graph.node:
        usable = node.domain in STANDARD_DOMAINS and node.op_type not in _NEVER and not bodies(node)
        if usable and node.input and all(name in fixed or not name for name in node.input):
            fixed.update(name for name in node.output if name)
    return fixed


def _find_foldable(
    index: GraphIndex, proto: onnx.ModelProto, constants: Mapping[str, TensorProto]
) -> list[str]:
    """Return the tensors to evaluate, in the order of the graph."""
    found: dict[str, None] = {}
    fixed = find_constant_tensors(proto, constants)
    for node in proto.graph.node:
        if node.op_type in QUANTIZED_OPS or node.op_type.startswith("QLinear"):
            found |= {name: None for name in node.input if name in fixed and name not in constants}
            continue
        slots = _PARAMETERS.get(node.op_type, ()) if node.domain in STANDARD_DOMAINS else ()
        read = [node.input[slot] for slot in slots if slot < len(node.input)]
        if read and node.output[0] in fixed:
            found[node.output[0]] = None
            continue
        # A constant, or a transposed one, is quantized as it is stored.
        computed = (
            name for name in read if name in fixed and index.origin(name, TRANSPOSES) not in constants
        )
        found |= dict.fromkeys(computed)
    return list(found)


def _evaluate_tensor(
    name: str,
    index: GraphIndex,
    proto: onnx.ModelProto,
    constants: Mapping[str, TensorProto],
    counts: Mapping[str, int],
) -> NDArray[np.generic] | None:
    """Return the value of `name`; None if ONNX's reference cannot compute it, or only in too much memory."""
    needed, nodes, makers = [name], dict[int, onnx.NodeProto](), index.makers
    values: dict[str, NDArray[np.generic] | None] = {}
    while needed:
        one = needed.pop()
        if one in constants:
            values[one] = tensor_array(constants[one])
        elif one and id(makers[one]) not in nodes:
            nodes[id(makers[one])] = makers[one]
            needed += makers[one].input
    order = [node for node in proto.graph.node if id(node) in nodes]
    made = (one for node in order for one in node.output if one)
    if any(counts.get(one, MOST_ELEMENTS + 1) > MOST_ELEMENTS for one in made):
        return None
    try:
        for node in order:
            given = {one: values[one] for one in node.input if one}
            values |= zip(filter(None, node.output), evaluate_node(node, given, proto), strict=True)
    except ModelError as fault:  # an unknown operator, or a damaged model
        log.debug("%s is not evaluated: %s", name, fault)
    return values.get(name)


def _count_elements(proto: onnx.ModelProto) -> dict[str, int]:
    """Return the number of elements of the tensors whose whole shape ONNX infers."""
    try:
        index = GraphIndex(with_shapes(proto).graph)
    except ModelError:
        return {}
    shapes = {name: index.shape(name) for name in index.values}
    return {name: prod(shape) for name, shape in shapes.items() if shape is not None and None not in shape}  # type: ignore[arg-type]
