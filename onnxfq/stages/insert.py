"""`insert_qdq`, `insert_fake_quantize`: the quantized model with its metadata."""

from __future__ import annotations

import json

import onnx

from onnxfq.documents.encodings import Encodings
from onnxfq.documents.plan import Plan
from onnxfq.documents.scores import FORMAT_KEY
from onnxfq.graph.io.load import MIN_OPSET
from onnxfq.graph.limits import remove_ends
from onnxfq.graph.model import Model
from onnxfq.numerics.float_types import FloatName, find_storage_qtype
from onnxfq.passes.insert_fake_quantize import Switches, switched_tensors, with_fake_quantize
from onnxfq.passes.insert_qdq import with_qdq
from onnxfq.stages.calibrate import Calibrated
from onnxfq.targets.target import prepare_model, target_by_name
from onnxfq.version import VERSION

_KEYS = "onnxfq."
SWITCHES_KEY = f"{_KEYS}switches"
"""Metadata of a model with a switch for each tensor: their names in order."""
TARGET_KEY = f"{_KEYS}target"
"""Metadata of a written model: the name of its target."""
FLOAT_KEY = f"{_KEYS}float"
"""Metadata of a written model: the type of its non-quantized part."""


def find_target(proto: onnx.ModelProto) -> str:
    """Return the target that a model was written for; empty for models of other tools."""
    return next((entry.value for entry in proto.metadata_props if entry.key == TARGET_KEY), "")


def insert_qdq(model: Model, plan: Plan, encodings: Encodings, *, lowest_opset: int = 0) -> onnx.ModelProto:
    """Return `model` with Q/DQ on every placed tensor, ready to hand over, at `lowest_opset` or above.

    Operators are standard, except for formats that the target writes with its own operators. Raises
    PlanError if model, plan and encodings do not belong together, RecipeError for an unregistered target.
    """
    plan = Calibrated.of(plan, encodings).plan
    bare = _without_unreached(model, plan, encodings)
    written = with_target_qdq(bare, plan, encodings, max(lowest_opset, MIN_OPSET))
    proto = with_provenance(written.proto, plan, encodings)
    for placement in plan.placements:
        qtype = placement.spec.qtype
        if find_storage_qtype(qtype) is not qtype:
            proto.metadata_props.add(key=FORMAT_KEY + placement.tensor, value=qtype.name)
    return proto


def with_target_qdq(model: Model, plan: Plan, encodings: Encodings, lowest_opset: int = MIN_OPSET) -> Model:
    """Return `model` with the pairs of `plan` in the form of its target.

    Raises RecipeError for an unknown target.
    """
    return with_qdq(model, plan, encodings, lowest_opset, target_by_name(plan.target).form)


def insert_fake_quantize(
    model: Model,
    plan: Plan,
    encodings: Encodings,
    *,
    switches: Switches = "none",
) -> onnx.ModelProto:
    """Return `model` with FakeQuantize nodes, to evaluate in ONNX Runtime with the custom-op library.

    Args:
        model: the float model that the plan was made for.
        plan: the tensors to quantize, and the rounding mode and arithmetic of weights and nodes.
        encodings: of these tensors.
        switches: with "one" all nodes read the optional input `onnxfq/enabled`; with false the model computes
            in float. With "each" that input has an element for each tensor, in the order of the list in the
            metadata `onnxfq.switches`, a JSON list.
    """
    plan = Calibrated.of(plan, encodings).plan
    simulated = with_fake_quantize(_without_unreached(model, plan, encodings), plan, encodings, switches)
    proto = with_provenance(simulated.proto, plan, encodings)
    if switches == "each":
        proto.metadata_props.add(key=SWITCHES_KEY, value=json.dumps(switched_tensors(plan)))
    return proto


def _without_unreached(model: Model, plan: Plan, encodings: Encodings) -> Model:
    """Return `model` as its target prepares it, without the ends of limits that no data passes."""
    return remove_ends(prepare_model(model, plan.target), encodings.unreached)


def with_provenance(proto: onnx.ModelProto, plan: Plan, encodings: Encodings) -> onnx.ModelProto:
    """Return `proto` with its origin in the metadata.

    Entries: version, recipe, target, calibrators of activations, rounding of weights, device and date of a
    table of times, hashes of the float model, of the data and of the statistics, and the kind of file that
    gave encodings. They hold no time of the run and no path: equal inputs give equal files.
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
        ("rounding", encodings.rounding),
        ("pays", plan.pays),
        ("target", plan.target),
        ("source_sha256", plan.model_sha256),
    ):
        name = f"{_KEYS}{key}"
        for entry in [p for p in proto.metadata_props if p.key == name]:
            proto.metadata_props.remove(entry)
        if value:
            proto.metadata_props.add(key=name, value=value)
    return proto


def with_float_type(proto: onnx.ModelProto, name: FloatName) -> onnx.ModelProto:
    """Return `proto`, changed in place, with the type of its non-quantized part in its metadata."""
    proto.metadata_props.add(key=FLOAT_KEY, value=name)
    return proto
