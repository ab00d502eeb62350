"""`insert_qdq`, `insert_fake_quantize`: the quantized model, its metadata telling what it was made with."""

from __future__ import annotations

import onnx

from onnxfq.documents.cast_plan import FloatOptions
from onnxfq.documents.encodings import Encodings
from onnxfq.documents.plan import Plan
from onnxfq.graph.external.scratch_file import weights_in
from onnxfq.graph.io.load import MIN_OPSET
from onnxfq.graph.model import Model
from onnxfq.numerics.float_types import FloatName
from onnxfq.numerics.storage_types import deployed_qtype
from onnxfq.passes.insert_fake_quantize import InsertFakeQuantize
from onnxfq.passes.insert_qdq import InsertQdq
from onnxfq.stages.calibrate import calibrated_part
from onnxfq.stages.inspect import FORMAT_KEY
from onnxfq.stages.quantize_inputs import QuantizeInputs
from onnxfq.version import VERSION


def insert_qdq(model: Model, plan: Plan, encodings: Encodings, *, lowest_opset: int = 0) -> onnx.ModelProto:
    """Return `model` with Q/DQ on every placed tensor, ready to hand over, at `lowest_opset` or above.

    Standard operators; for target tensorrt MXFP8 and NVFP4 are written with those of its parser.
    """
    plan = calibrated_part(plan, encodings.without_values)
    made = InsertQdq(plan, encodings, max(lowest_opset, MIN_OPSET)).run(model)
    proto = with_provenance(made.model.proto, plan, encodings)
    for placement in plan.placements:
        qtype = placement.spec.qtype
        if deployed_qtype(qtype) is not qtype:
            proto.metadata_props.add(key=FORMAT_KEY + placement.tensor, value=qtype.name)
    return proto


def insert_fake_quantize(
    model: Model, plan: Plan, encodings: Encodings, *, switchable: bool = False
) -> onnx.ModelProto:
    """Return `model` with FakeQuantize nodes, to evaluate in ONNX Runtime with the custom-op library.

    switchable: all nodes read the optional input `onnxfq/enabled`; fed with false the model is float.
    """
    plan = calibrated_part(plan, encodings.without_values)
    return with_provenance(
        InsertFakeQuantize(plan, encodings, switchable).run(model).model.proto, plan, encodings
    )


def insert_forms(
    inputs: QuantizeInputs, plan: Plan, encodings: Encodings, floats: FloatOptions
) -> tuple[onnx.ModelProto, onnx.ModelProto]:
    """Return the model with FakeQuantize nodes, and with Q/DQ pairs at an opset that has `floats`."""
    with weights_in(inputs.scratch):
        simulation = insert_fake_quantize(inputs.model, plan, encodings)
        return simulation, insert_qdq(inputs.model, plan, encodings, lowest_opset=floats.min_opset)


def with_provenance(proto: onnx.ModelProto, plan: Plan, encodings: Encodings) -> onnx.ModelProto:
    """Return `proto` with what it was made with and from in its metadata.

    Version, recipe, target, calibrators of activations, hashes of the float model, of
    the data and of the statistics, the kind of file that gave encodings. No time and no path: equal inputs
    give equal files.
    """
    activations = {placement.tensor for placement in plan.activations}
    methods = {str(e.calibrator) for e in encodings.encodings if e.tensor in activations}
    given, proto = proto, onnx.ModelProto()
    proto.CopyFrom(given)
    for key, value in (
        ("version", VERSION),
        ("recipe", plan.recipe),
        ("calibrator", ", ".join(sorted(methods))),
        ("statistics_sha256", encodings.statistics_sha256),
        ("data_sha256", encodings.data_sha256),
        ("encodings_from", encodings.source),
        ("target", plan.target),
        ("source_sha256", plan.model_sha256),
    ):
        name = f"onnxfq.{key}"
        for entry in [p for p in proto.metadata_props if p.key == name]:
            proto.metadata_props.remove(entry)
        if value:
            proto.metadata_props.add(key=name, value=value)
    return proto


def with_float_type(proto: onnx.ModelProto, name: FloatName) -> onnx.ModelProto:
    """Return `proto`, the caller's to lose, with the type of its non-quantized part in its metadata."""
    proto.metadata_props.add(key="onnxfq.float", value=name)
    return proto
