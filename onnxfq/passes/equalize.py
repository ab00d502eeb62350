"""Channel factors in a model: Mul nodes before Q/DQ pairs, or factors folded into constants."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_graphsurgeon as gs
from numpy.typing import NDArray

from onnxfq.documents.encodings import Encoding, Encodings
from onnxfq.documents.plan import Plan
from onnxfq.graph.channels import Analysis, Fold
from onnxfq.graph.channels.ties import FIXED
from onnxfq.graph.constants import make_tensor
from onnxfq.graph.edit import Editor
from onnxfq.graph.external.tensor import tensor_array
from onnxfq.graph.index import GraphIndex
from onnxfq.graph.model import Model, replace_nodes
from onnxfq.numerics.granularity import PER_TENSOR
from onnxfq.numerics.metrics import ErrorSums, ratio_db

_EQUALIZED, _FACTORS = "/equalized", "/channel_factors"


def channel_factors(encoding: Encoding) -> NDArray[np.float32]:
    """Return the scale of each equalized channel divided by the largest: powers of two up to 1, [C]."""
    scale = encoding.scale
    return np.asarray(scale / scale.max(initial=0.0), np.float32)


def common_encoding(encoding: Encoding) -> Encoding:
    """Return the per-tensor encoding of equalized channels after division by their factors."""
    spec = encoding.spec.model_copy(update={"granularity": PER_TENSOR, "equalized": False})
    zero_point = encoding.zero_point[:1].reshape(())
    scale = np.max(encoding.scale, keepdims=True)[0:1].reshape(())
    return Encoding.of(encoding.tensor, spec, scale, zero_point)


def to_common_scale(editor: Editor, tensor: gs.Tensor, encoding: Encoding) -> list[gs.Node]:
    """Return the node that divides the channels of `tensor` by their factors; none if all are 1.

    The factors are powers of two, so no bit of a float's fraction is lost, and the rounded values equal the
    ones of FakeQuantize.
    """
    factors = channel_factors(encoding)
    if (factors == 1.0).all():
        return []
    shape = [-1 if axis == encoding.spec.granularity.axis else 1 for axis in range(len(tensor.shape))]
    values = (np.float32(1.0) / factors).reshape(shape)
    name = f"{tensor.name}{_EQUALIZED}"
    constant = editor.constant(f"{tensor.name}{_FACTORS}", values)
    return [gs.Node("Mul", name, {}, [tensor, constant], [editor.variable(name, tensor)])]


def factors_of_weights(plan: Plan, encodings: Encodings) -> dict[str, NDArray[np.float32]]:
    """Return {weight: factors of its scales}, one factor for each output channel: [outputs].

    An output channel of a depthwise convolution reads one input channel; m consecutive ones read the same.
    """
    weights = {use: p.tensor for p in plan.weights for use in p.uses}
    found = {}
    for placement in plan.activations:
        if not placement.spec.equalized:
            continue
        factors = channel_factors(encodings[placement.tensor])
        for use in placement.uses:
            weight = weights[use._replace(input=1)]
            outputs = encodings[weight].scale.size
            found[weight] = np.repeat(factors, outputs // factors.size)
    return found


def with_restored_channels(
    proto: onnx.ModelProto, tensors: Iterable[str]
) -> tuple[onnx.ModelProto, dict[str, str]]:
    """Return (`proto`, names): the name of the quantized form with original channel scales, by tensor.

    Covers only `tensors` whose pair is behind a Mul; a model without them is returned unchanged.
    """
    made = GraphIndex(proto.graph).makers
    found = [name for name in tensors if f"{name}{_EQUALIZED}/dq" in made]
    if not found:
        return proto, {}
    copy = deepcopy(proto)
    restored = {name: f"{name}{_EQUALIZED}/restored" for name in found}
    for name, output in restored.items():
        inputs = [f"{name}{_EQUALIZED}/dq", f"{name}{_FACTORS}"]
        copy.graph.node.append(onnx.helper.make_node("Div", inputs, [output], output))
    return copy, restored


EQUALIZED_KEY = "onnxfq.equalized"
"""Key in the metadata of a model whose channels have factors or shifts that a float model lacks."""

SCALED = "/scaled"
"""Ending of the name of a tensor that a new Mul scales, and of its node."""


def fold_factors(model: Model, analysis: Analysis, exponents: NDArray[np.int64]) -> Model:
    """Return `model` with channels scaled by powers of two; its outputs stay what they were.

    Factors go into weights, biases and vectors under their old names; a vector that others read too is
    copied. Only `analysis.outside` gets a new Mul.

    Args:
        model: the analysed model, which is not changed.
        analysis: the constants that take factors up.
        exponents: log2 of the factor of every variable, [analysis.count]; 0 for the first.
    """
    proto = deepcopy(model.proto)
    graph, index = proto.graph, GraphIndex(proto.graph)
    names, nodes = index.names, {node.name: node for node in graph.node}
    own = _own_constants(analysis, index)
    made: dict[str, onnx.TensorProto] = {}
    for fold in analysis.folds:
        by = exponents[fold.plus] - exponents[fold.minus]
        if not by.any():
            continue
        values = np.asarray(tensor_array(index.constants[fold.constant]))
        scaled = scale_exactly(values, by)
        if fold.constant in own:
            made[fold.constant] = make_tensor(fold.constant, scaled)
            continue
        name = names.claim(f"{fold.constant}{SCALED}")
        made[name] = make_tensor(name, scaled)
        inputs = nodes[fold.node].input
        inputs[:] = [name if one == fold.constant else one for one in inputs]
    kept = [made.pop(tensor.name, tensor) for tensor in graph.initializer]
    initializers = onnx.GraphProto(initializer=[*kept, *made.values()])
    del graph.initializer[:]
    graph.initializer.extend(initializers.initializer)
    _insert_products(proto, analysis, exponents, index)
    if exponents.any():
        mark_equalized(proto, "powers of two")
    return replace(model, proto=proto)


def mark_equalized(proto: onnx.ModelProto, how: str) -> None:
    """Note on a model, in place, that its channels were scaled or shifted."""
    if not is_equalized(proto):
        proto.metadata_props.add(key=EQUALIZED_KEY, value=how)


def is_equalized(proto: onnx.ModelProto) -> bool:
    """Tell whether channels of a model are scaled or shifted; inner tensors differ from the source then."""
    return any(entry.key == EQUALIZED_KEY for entry in proto.metadata_props)


def scale_exactly(values: NDArray[np.generic], by: NDArray[np.int64]) -> NDArray[np.generic]:
    """Return `values` times 2 to the power of `by`, in their own type."""
    return np.asarray(np.ldexp(values, by)).astype(values.dtype)


LEAST_SQNR_DB = 100.0
"""Signal to noise of a scaled constant that still counts as the same: fractions of float16 end at 2^-24."""


def inexact_folds(model: Model, analysis: Analysis, exponents: NDArray[np.int64]) -> list[Fold]:
    """Return the folds whose constant overflows, or loses more than LEAST_SQNR_DB when it is scaled."""
    constants, found = model.constants, []
    for fold in analysis.folds:
        by = exponents[fold.plus] - exponents[fold.minus]
        values = np.asarray(tensor_array(constants[fold.constant]))
        if by.any() and not _scaling_db(values, by) >= LEAST_SQNR_DB:
            found.append(fold)
    return found


def _scaling_db(values: NDArray[Any], by: NDArray[np.int64]) -> float:
    """Return signal to noise in dB of `values` times 2 to the power of `by`; ends of their type lose bits."""
    values = np.broadcast_to(values, np.broadcast_shapes(values.shape, by.shape))
    limits = ml_dtypes.finfo(values.dtype)
    wide = values if values.itemsize > 2 else values.astype(np.float32)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        sizes = np.abs(wide) * np.ldexp(np.ones((), wide.dtype), by)
        ends = ~((sizes >= float(limits.tiny)) & (sizes <= float(limits.max)))  # zeros too
        if not wide[ends].any():
            return math.inf
        lost, steps = values[ends], np.broadcast_to(by, values.shape)[ends]
        back = np.ldexp(scale_exactly(lost, steps).astype(np.float64), -steps)
        noise = ErrorSums.from_arrays(lost, back).noise
    return ratio_db(float(np.square(wide, dtype=np.float64).sum()), noise)


def _own_constants(analysis: Analysis, index: GraphIndex) -> set[str]:
    """Return the constants that keep their name: all their readers fold the same factors."""
    folds: defaultdict[str, int] = defaultdict(int)
    weights = set()
    for fold in analysis.folds:
        folds[fold.constant] += 1
        if fold.summed:
            weights.add(fold.constant)
    return weights | {name for name, n in folds.items() if n == 1 and len(index.readers[name]) == 1}


def _insert_products(
    proto: onnx.ModelProto, analysis: Analysis, exponents: NDArray[np.int64], index: GraphIndex
) -> None:
    """Put a Mul in front of the operators that read the tensors of `analysis.outside`."""
    graph, names, values = proto.graph, index.names, index.values
    nodes: Sequence[onnx.NodeProto] = list(graph.node)
    for tensor, ids in analysis.outside.items():
        factors = exponents[np.where(ids == FIXED, FIXED, ids)]
        folds = [fold for fold in analysis.folds if fold.summed == tensor]
        if not factors.any() or not folds:
            continue
        dtype = onnx.helper.tensor_dtype_to_np_dtype(index.types[folds[0].constant])
        constant = make_tensor(names.claim(f"{tensor}{SCALED}/factors"), np.ldexp(np.ones(1, dtype), factors))
        graph.initializer.append(constant)
        output = names.claim(f"{tensor}{SCALED}")
        product = onnx.helper.make_node("Mul", [tensor, constant.name], [output], names.claim(output))
        readers = {fold.node for fold in folds}
        first = next(place for place, node in enumerate(nodes) if node.name in readers)
        for node in nodes:
            if node.name in readers:
                node.input[0] = output
        nodes = [*nodes[:first], product, *nodes[first:]]
        if tensor in values:
            value = deepcopy(values[tensor])
            value.name = output
            graph.value_info.append(value)
    if len(nodes) != len(graph.node):
        replace_nodes(graph, nodes)
