"""The stage between inserting Q/DQ and handing over: the float type of what is not quantized."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import onnx
from onnx import TensorProto

from onnxfq.data import Feed
from onnxfq.documents.cast_plan import FloatOptions, FloatPlan
from onnxfq.documents.plan import Placement, Plan
from onnxfq.errors import DataError
from onnxfq.graph.external.scratch_file import weights_in
from onnxfq.graph.model import Model
from onnxfq.numerics.float_types import HALF_TYPES
from onnxfq.numerics.spec import QuantSpec
from onnxfq.passes.cast_floats import cast_floats
from onnxfq.placement.float_casts import plan_floats
from onnxfq.stages.insert import with_float_type
from onnxfq.stages.observe import collect_statistics
from onnxfq.stages.observers import ObserveOptions
from onnxfq.stages.options import RunOptions
from onnxfq.stages.quantize_inputs import QuantizeInputs


@dataclass(frozen=True)
class CastModel:
    """A Q/DQ model whose non-quantized part has its float type.

    Attributes:
        qdq: the model to write.
        comparable: the same with inputs and outputs as the float model has them.
        floats: what stays in float32; None where everything does.
    """

    qdq: onnx.ModelProto
    comparable: onnx.ModelProto
    floats: FloatPlan | None = None


def cast_rest(
    inputs: QuantizeInputs, qdq: onnx.ModelProto, floats: FloatOptions, options: RunOptions
) -> CastModel:
    """Cast what `qdq` leaves in float to the type of `floats`, where its values fit in it.

    Args:
        inputs: the float model, and the feeds to observe every float tensor with.
        qdq: the same model with Q/DQ pairs.
        floats: the float type, and whether inputs and outputs get it too; "fp32" changes nothing.
        options: how the tensors are observed.

    Raises:
        DataError: without feeds.
    """
    if floats.name not in HALF_TYPES:
        return CastModel(qdq, qdq)
    with weights_in(inputs.scratch):
        kept = decide_floats(inputs.model, qdq, inputs.kept, floats, options.observing)
        comparable = cast_floats(qdq, kept.model_copy(update={"io": False}))
        return CastModel(with_float_type(cast_floats(qdq, kept), floats.name), comparable, kept)


def decide_floats(
    model: Model,
    qdq: onnx.ModelProto,
    feeds: Iterable[Feed],
    options: FloatOptions,
    observing: ObserveOptions | None = None,
) -> FloatPlan:
    """Observe every float32 tensor of `model` over `feeds` and decide which nodes of `qdq` stay in float32.

    Raises DataError without feeds: whether a tensor fits in 16 bits is only seen in data.
    """
    given = list(feeds)
    if not given:
        raise DataError(
            f"--float {options.name} needs data: whether a tensor fits in 16 bits is seen in its values; "
            "give data, or leave the remainder in fp32"
        )
    # Infinities are right here: masks have them, and a half type too.
    observing = replace(observing or ObserveOptions(), nonfinite="skip")
    statistics = collect_statistics(model, all_floats(model), given, observing)
    return plan_floats(qdq, statistics.tensors, options)


def all_floats(model: Model) -> Plan:
    """Return a plan of every float32 tensor that the main graph computes or is given, to observe them."""
    graph = model.proto.graph
    types = {v.name: v.type.tensor_type.elem_type for v in (*graph.input, *graph.output, *graph.value_info)}
    names = [value.name for value in graph.input] + [name for node in graph.node for name in node.output]
    spec = QuantSpec(qtype="int8")
    return Plan(
        model_sha256=model.sha256,
        recipe="all",
        target="simulation",
        placements=tuple(
            Placement(tensor=name, role="activation", spec=spec, uses=(), why="to observe it")
            for name in dict.fromkeys(names)
            if types.get(name) == TensorProto.FLOAT
        ),
        nodes=(),
        skipped=(),
    )
