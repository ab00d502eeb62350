"""Cast stage: float type of the non-quantized part."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace

import onnx
from onnx import TensorProto

from onnxfq.calibration.statistics import TensorStatistics
from onnxfq.data import Feed
from onnxfq.documents.cast_plan import FloatOptions, FloatPlan
from onnxfq.documents.plan import Placement, Plan
from onnxfq.documents.scores import Evaluation
from onnxfq.errors import DataError
from onnxfq.graph.external.scratch_file import weights_stored_in
from onnxfq.graph.external.sizes import weight_bytes
from onnxfq.graph.model import Model
from onnxfq.numerics.float_types import HALF_TYPES
from onnxfq.numerics.qtypes import qtype_by_name
from onnxfq.numerics.spec import QuantSpec
from onnxfq.passes.cast_floats import cast_floats
from onnxfq.placement.float_casts import plan_floats
from onnxfq.runtime.type_inference import with_all_types
from onnxfq.stages.inputs import QuantizeSession
from onnxfq.stages.insert import TARGET_KEY, find_target, with_float_type
from onnxfq.stages.observe import collect_statistics
from onnxfq.stages.observers import ObserveOptions
from onnxfq.stages.options import RunOptions
from onnxfq.targets.target import target_by_name


@dataclass(frozen=True)
class CastModel:
    """A Q/DQ model whose non-quantized part has its float type.

    Attributes:
        qdq: the model to write.
        comparable: the same with inputs and outputs in the types of the float model.
        floats: the exceptions that stay in float32; None if everything does.
    """

    qdq: onnx.ModelProto
    comparable: onnx.ModelProto
    floats: FloatPlan | None = None


def cast_rest(
    inputs: QuantizeSession, qdq: onnx.ModelProto, floats: FloatOptions, options: RunOptions
) -> CastModel:
    """Cast the float part of `qdq` to the type of `floats`, where its values fit in it.

    Args:
        inputs: the float model, and the feeds to observe every float tensor with.
        qdq: the same model with Q/DQ pairs; types that ONNX cannot infer come from ONNX Runtime.
        floats: the float type, and whether inputs and outputs are cast too; "fp32" changes nothing.
        options: how the tensors are observed.

    Raises:
        DataError: without feeds.
    """
    if floats.name not in HALF_TYPES:
        return CastModel(qdq, qdq)
    with weights_stored_in(inputs.scratch):
        qdq = with_all_types(qdq)
        samples = () if inputs.feeds is None else inputs.feeds.feeds
        kept = decide_floats(inputs.model, qdq, samples, floats, options.observing)
        comparable = cast_floats(qdq, kept.model_copy(update={"io": False}))
        return CastModel(with_float_type(cast_floats(qdq, kept), floats.name), comparable, kept)


def compare_half(inputs: QuantizeSession, options: RunOptions) -> tuple[int, Evaluation]:
    """Return the bytes of the float model with its float part in float16, and its scores on the kept samples.

    Nodes whose values do not fit in float16 stay in float32, by the rules of the target.
    Raises DataError without feeds.
    """
    proto = deepcopy(inputs.model.proto)
    proto.metadata_props.add(key=TARGET_KEY, value=inputs.model.target)
    cast = cast_rest(inputs, proto, FloatOptions("fp16"), options)
    evaluation = inputs.score({"float16": cast.comparable}, inputs.kept, options)
    return max(cast.qdq.ByteSize(), weight_bytes(cast.qdq)), evaluation


def decide_floats(
    model: Model,
    qdq: onnx.ModelProto,
    feeds: Iterable[Feed] | None,
    options: FloatOptions,
    observing: ObserveOptions | None = None,
    drawn: Iterable[Feed] | None = None,
) -> FloatPlan:
    """Observe every float32 tensor of `model` over `feeds` and decide which nodes of `qdq` stay in float32.

    The target named in the metadata of `qdq` may keep more nodes in float32. None in place of feeds decides
    by the rules that need no values, and by what overflows with the feeds `drawn`. Raises DataError for no
    feeds: only data show whether a tensor fits.
    """
    ranges = None if feeds is None else _observe_floats(model, feeds, options, observing)
    random = None if drawn is None else _observe_floats(model, drawn, options, observing)
    target = find_target(qdq)
    if not target:
        return plan_floats(qdq, ranges, options, drawn=random)
    rules = target_by_name(target)
    return plan_floats(qdq, ranges, options, rules.keeps_float32, rules.cast_free, random)


def _observe_floats(
    model: Model, feeds: Iterable[Feed], options: FloatOptions, observing: ObserveOptions | None
) -> Mapping[str, TensorStatistics]:
    if isinstance(feeds, Sequence) and not feeds:
        raise DataError(
            f"--float {options.name} needs data: only values show whether a tensor fits in 16 bits; give "
            "data, or use fp32"
        )
    # Infinities are valid here: masks hold them, and half types represent them.
    observing = replace(observing or ObserveOptions(), nonfinite="skip")
    return collect_statistics(model, plan_all_floats(model), feeds, observing).tensors


def plan_all_floats(model: Model) -> Plan:
    """Return a plan to observe every float32 input and computed tensor of the main graph."""
    graph = model.proto.graph
    types = {v.name: v.type.tensor_type.elem_type for v in (*graph.input, *graph.output, *graph.value_info)}
    names = [value.name for value in graph.input] + [name for node in graph.node for name in node.output]
    spec = QuantSpec(qtype=qtype_by_name("int8"))
    placed = tuple(
        Placement(tensor=name, role="activation", spec=spec, uses=(), why="to observe it")
        for name in dict.fromkeys(names)
        if types.get(name) == TensorProto.FLOAT
    )
    return Plan(
        model_sha256=model.sha256, recipe="all", target="simulation", placements=placed, nodes=(), skipped=()
    )
