"""Selection of Q/DQ-model nodes that stay in float32 when the rest is cast to a half type.

A node stays if an operand or a result does not fit in the type, if it sums over many elements or magnifies
small values, if it is part of arithmetic on shapes and other integers, or if ONNX has no such operator for
the type. NVIDIA advises float32 statistics for strongly typed networks. Kernels keep the sums of MatMul and
Conv in float32 themselves, and LayerNormalization declares it in its attribute stash_type.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto

from onnxfq.calibration.statistics import TensorStatistics
from onnxfq.documents.cast_plan import FloatOptions, FloatPlan
from onnxfq.documents.plan import Skipped
from onnxfq.graph.index import GraphIndex
from onnxfq.graph.model import default_opset
from onnxfq.graph.normalize.shapes import with_shapes
from onnxfq.graph.ops import (
    CONVOLUTIONS,
    MOVES,
    QDQ_OPS,
    RECURRENT_OPS,
    REPEATS,
    SCALES,
    SPLITS,
    STANDARD_DOMAINS,
    WEIGHTED_INPUTS,
)
from onnxfq.graph.patterns.whole_numbers import find_whole_numbers
from onnxfq.graph.queries import half_slots
from onnxfq.numerics.float_types import HALF_TYPES, FloatInfo
from onnxfq.numerics.qtypes import QTYPES
from onnxfq.placement.half_range import find_overflow, masks, unfit
from onnxfq.placement.magnified import explain_magnified
from onnxfq.support.reasons import Reason

SUMS = {
    **dict.fromkeys(
        """CumSum LpNormalization LRN MeanVarianceNormalization ReduceL1 ReduceL2 ReduceLogSum
            ReduceLogSumExp ReduceMean ReduceProd ReduceSum ReduceSumSquare""".split(),
        "it sums over many elements",
    ),
    **dict.fromkeys(("InstanceNormalization", "GroupNormalization"), "its statistics are sums over a plane"),
    **dict.fromkeys(RECURRENT_OPS, "its state is summed over all steps"),
}
"""Op type -> reason for float32."""

# Cheap operators that would only round: between float32 and float32 they stay.
_CHEAP = MOVES | SPLITS | SCALES
_CHEAP |= set("Abs Add Ceil Clip Concat Expand Floor Max Min Neg Pow Reciprocal Round Sqrt Sub Where".split())

CastRule = Callable[[onnx.NodeProto, FloatInfo], str | None]
"""Returns why a target wants a node in float32; empty if it may be cast, None to leave it to other rules."""


CastFreeRule = Callable[[onnx.NodeProto, "Shapes"], str]
"""Returns why a target wants no Cast in front of the first input of a float32 node; empty if it takes one."""

Shapes = Callable[[str], Sequence[int | None] | None]
"""Returns the shape of a tensor, with None for open dimensions; None if the rank is unknown."""


def plan_floats(
    proto: onnx.ModelProto,
    observed: Mapping[str, TensorStatistics] | None,
    options: FloatOptions,
    rule: CastRule = lambda node, half: None,
    cast_free: CastFreeRule = lambda node, shapes: "",
    drawn: Mapping[str, TensorStatistics] | None = None,
) -> FloatPlan:
    """Choose the float type of each node of a Q/DQ model.

    Args:
        proto: the Q/DQ model.
        observed: statistics of the float model's tensors, by name; None if no data was given. Operators whose
            results may leave the range of the type then stay in float32.
        options: the half type, and whether inputs and outputs have it too.
        rule: rule of the target, applied before the rules for all targets.
        cast_free: rule of the target on Casts in front of float32 nodes. What computes the input of such a
            node stays in float32 too.
        drawn: statistics of inputs that were drawn at random, which show only what overflows with any data.
    """
    half, statistics = HALF_TYPES[options.name], observed or {}
    graph = _Graph(proto, half, rule)
    tensors = _unfit_tensors(graph, statistics)
    for name, found in (drawn or {}).items():
        why = find_overflow(found, half)
        tensors |= {name: f"{why}, with inputs drawn at random"} if why else {}
    sources = _find_cast_free(graph, cast_free)
    if options.io:
        inputs = {value.name for value in proto.graph.input}
        tensors |= {name: why for name, why in sources.items() if name in inputs}
    nodes = dict(_find_kept_nodes(graph, tensors, observed))
    makers = {name: graph.makers[name].name for name in sources if name in graph.makers}
    nodes |= {makers[name]: sources[name] for name in makers if makers[name] not in nodes}
    _keep_between(graph, nodes)
    _keep_quantizers(graph, nodes, tensors)
    if options.io:
        ends = [value.name for value in (*proto.graph.input, *proto.graph.output)]
        bodies = (name for name in graph.floats(ends) if name in graph.captured)
        tensors |= dict.fromkeys(bodies, "bodies read it, and their types are left as they are")
    ops = {node.name: node.op_type for node in graph.nodes}
    return FloatPlan(
        name=options.name,
        io=options.io,
        nodes=tuple(
            Skipped(name=name, kind="node", op_type=ops[name], why=why) for name, why in nodes.items()
        ),
        tensors=tuple(
            Skipped(name=name, kind="tensor", op_type=graph.maker_op(name), why=why)
            for name, why in tensors.items()
        ),
        clipped=tuple(
            name for name, found in statistics.items() if name not in tensors and masks(found, half)
        ),
    )


class _Graph(GraphIndex):
    """Main graph of a model with the queries of the rules."""

    def __init__(self, proto: onnx.ModelProto, half: FloatInfo, rule: CastRule) -> None:
        super().__init__(with_shapes(proto).graph)
        self.half, self.opset, self.rule = half, default_opset(proto), rule
        kinds = {name: value.type.WhichOneof("value") for name, value in self.values.items()}
        known = {name for name, kind in kinds.items() if kind} | set(self.constants)
        self.untyped = {name for node in self.nodes for name in (*node.input, *node.output) if name} - known
        self.no_tensors = {name for name, kind in kinds.items() if kind not in (None, "tensor_type")}

    def floats(self, names: object) -> list[str]:
        """Return the names in `names` that hold float32."""
        return [name for name in names if self.types.get(name) == TensorProto.FLOAT]  # type: ignore[attr-defined]

    def maker_op(self, name: str) -> str:
        maker = self.makers.get(name)
        return maker.op_type if maker is not None else "constant" if name in self.constants else "model input"


def _unfit_tensors(graph: _Graph, statistics: Mapping[str, TensorStatistics]) -> dict[str, str]:
    found = {name: unfit(one, graph.half) for name, one in statistics.items()}
    for name in graph.floats(graph.constants):
        if any(node.op_type not in QDQ_OPS for node in graph.readers.get(name, ())):
            values = graph.array(name)
            assert values is not None
            found[name] = unfit(TensorStatistics.from_array(values), graph.half)
    for node in graph.nodes:
        if node.op_type == "DequantizeLinear":
            found[node.output[0]] = _reach(graph, node)
    return {name: why for name, why in found.items() if why}


def _reach(graph: _Graph, node: onnx.NodeProto) -> str:
    """Return why outputs of a DequantizeLinear may not fit: its grid can be wider than the data."""
    scale, base = graph.array(node.input[1]), QTYPES.get(_type_name(graph.types.get(node.input[0], 0)))
    if scale is None or base is None or not scale.size:
        return ""
    far = float(np.abs(scale).max()) * max(base.qmax, -base.qmin)
    return f"its grid reaches {far:.6g}, beyond {graph.half.largest:.6g}" if far > graph.half.largest else ""


def _find_cast_free(graph: _Graph, rule: CastFreeRule) -> dict[str, str]:
    """Return the reasons of tensors that reach a node without Casts, through operators that only move."""
    found: dict[str, str] = {}
    for node in graph.nodes:
        why = rule(node, graph.shape) if graph.floats(node.input[:1]) else ""
        name = node.input[0] if why else ""
        while name and name not in found:
            found[name] = why
            maker = graph.makers.get(name)
            name = maker.input[0] if maker is not None and maker.op_type in MOVES else ""
    return found


def _type_name(onnx_type: int) -> str:
    return str(TensorProto.DataType.Name(onnx_type)).lower() if onnx_type else ""


def _find_kept_nodes(
    graph: _Graph, tensors: Mapping[str, str], observed: Mapping[str, TensorStatistics] | None
) -> Iterator[tuple[str, str]]:
    whole = find_whole_numbers(graph)
    for node in graph.nodes:
        if node.op_type not in QDQ_OPS:
            why = _explain_float(graph, node, tensors)
            why = why or (whole.explain(node.name) if graph.floats((*node.input, *node.output)) else "")
            if not why and graph.floats(node.output):
                why = explain_magnified(node, graph.half, graph.array, observed)
            if why:
                yield node.name, why


def _explain_float(graph: _Graph, node: onnx.NodeProto, tensors: Mapping[str, str]) -> str:
    inputs, outputs = graph.floats(node.input), graph.floats(node.output)
    if any(a.type in (AttributeProto.GRAPH, AttributeProto.GRAPHS) for a in node.attribute):
        return "it holds a body, whose types are left as they are"
    if not graph.no_tensors.isdisjoint((*node.input, *node.output)):
        return "it takes or gives a sequence or an optional, whose type is left as it is"
    unknown = next((name for name in (*node.input, *node.output) if name in graph.untyped), None)
    if unknown is not None:
        return f"the type of {unknown!r} is unknown"
    if not inputs and not outputs:
        return ""
    said = graph.rule(node, graph.half)
    if said is not None:
        return said
    if node.domain not in STANDARD_DOMAINS:
        return f"types of domain {node.domain} are unknown"
    if node.op_type in SUMS:
        return SUMS[node.op_type]
    if not inputs:
        return "it makes float32 from another type"
    for name in (*inputs, *outputs):
        if name in tensors:
            verb = "reads" if name in inputs else "gives"
            return Reason("unfit-tensor", f"{verb} {name!r}: {tensors[name]}")
    if node.op_type == "BitCast":
        return "it reads the bits of float32"
    if 0 not in half_slots(node, graph.opset, graph.half) and node.op_type != "Where":
        return f"ONNX has no {node.op_type} of this type at opset {graph.opset}"
    return _int4_reason(graph, node)


def _int4_reason(graph: _Graph, node: onnx.NodeProto) -> str:
    """Return why a reader of int4 weights stays: their scales have the type that it computes in."""
    for name in node.input:
        maker = graph.makers.get(name)
        if maker is None or maker.op_type != "DequantizeLinear":
            continue
        if graph.types.get(maker.input[0]) == TensorProto.INT4 and not _scale_fits(graph, maker):
            return f"scales of its int4 weight {maker.input[0]!r} are below {graph.half.smallest:.2g}"
    return ""


def _keep_between(graph: _Graph, nodes: dict[str, str]) -> None:
    """Keep cheap nodes if all their float operands come from kept nodes: arithmetic on shapes, statistics."""
    for node in graph.nodes:
        if node.name in nodes or node.op_type not in _CHEAP or node.domain not in STANDARD_DOMAINS:
            continue
        made = [name for name in graph.floats(node.input) if name not in graph.constants]
        makers = [graph.makers.get(name) for name in made]
        if made and all(maker is not None and maker.name in nodes for maker in makers):
            nodes[node.name] = "all its operands are float32 already"


def _keep_quantizers(graph: _Graph, nodes: dict[str, str], tensors: Mapping[str, str]) -> None:
    """Keep a Q with a float32 input, a DQ with float32 readers only, and either if its scale does not fit."""
    for node in graph.nodes:
        if node.op_type == "QuantizeLinear" and node.input[0] in graph.untyped:
            nodes[node.name] = f"the type of {node.input[0]!r} is unknown"
        elif node.op_type == "QuantizeLinear" and graph.floats(node.input[:1]):
            maker = graph.makers.get(node.input[0])
            stays = maker.name in nodes if maker is not None else True
            if stays:
                nodes[node.name] = "its input is float32"
    for node in reversed(graph.nodes):  # readers first: of what makes scales, they are Q and DQ
        if node.op_type == "DequantizeLinear" and graph.floats(node.output):
            readers = graph.readers.get(node.output[0], [])
            if node.output[0] in tensors:
                nodes[node.name] = tensors[node.output[0]]
            elif readers and all(reader.name in nodes for reader in readers):
                nodes[node.name] = "its readers are float32"
        if node.op_type in QDQ_OPS and node.name not in nodes and not _scale_fits(graph, node):
            nodes[node.name] = "its scales do not fit in the type, and Q/DQ in float32 costs nothing"
    _keep_whole_products(graph, nodes)


def _keep_whole_products(graph: _Graph, nodes: dict[str, str]) -> None:
    """Keep all pairs of a product if one DQ of it stays: builders take operands with scales of one type."""
    products = [node for node in graph.nodes if node.op_type in WEIGHTED_INPUTS]
    pairs = {
        node.name: [dq for name in node.input[:2] if (dq := _find_dequantizer(graph, name)) is not None]
        for node in products
        if node.op_type not in CONVOLUTIONS
    }
    count = -1
    while count != len(nodes):  # a pair that several products read takes theirs along
        count = len(nodes)
        for product, found in pairs.items():
            if not any(dq.name in nodes for dq in found):
                continue
            why = f"a scale of another operand of {product!r} is float32, and a product takes one type"
            for dq in found:
                q = graph.makers.get(dq.input[0])
                for node in (dq, *([q] if q is not None and q.op_type == "QuantizeLinear" else [])):
                    nodes.setdefault(node.name, why)


def _find_dequantizer(graph: _Graph, name: str) -> onnx.NodeProto | None:
    """Return the DequantizeLinear of `name`, or behind operators that move or scale its values."""
    maker = graph.makers.get(name)
    while maker is not None and maker.op_type in MOVES | SPLITS | SCALES | REPEATS | {"Cast"}:
        maker = graph.makers.get(maker.input[0])
    return maker if maker is not None and maker.op_type == "DequantizeLinear" else None


def _scale_fits(graph: _Graph, node: onnx.NodeProto) -> bool:
    """Tell whether the scale is a constant that the half type represents exactly, without subnormals."""
    scale = graph.array(node.input[1])
    if scale is None or graph.types.get(node.input[1]) != TensorProto.FLOAT:
        return False
    with np.errstate(over="ignore"):
        rounded = scale.astype(graph.half.dtype).astype(np.float32)
    return bool(np.all(rounded == scale) and np.all(scale >= graph.half.smallest))
