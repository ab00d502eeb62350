"""Clip and Relu that quantizers of a source left: the ends that no value of the data passes."""

from __future__ import annotations

from onnxfq.calibration.statistics import Statistics
from onnxfq.documents.encodings import Encodings
from onnxfq.documents.plan import Placement, Plan
from onnxfq.graph.model import Model
from onnxfq.graph.saturation import Ends
from onnxfq.numerics.qtypes import qtype_by_name
from onnxfq.numerics.spec import QuantSpec


def with_limits(plan: Plan, model: Model) -> Plan:
    """Return `plan` for observing, with the tensors in front of the limits of `model` too."""
    known = {placement.tensor for placement in plan.placements}
    tensors = dict.fromkeys(limit.tensor for limit in model.limits.values() if limit.tensor not in known)
    spec = QuantSpec(qtype=qtype_by_name("int8"))
    more = [
        Placement(tensor=tensor, uses=(), role="activation", spec=spec, why="limited") for tensor in tensors
    ]
    return plan.model_copy(update={"placements": (*plan.placements, *more)})


def describe_limits(model: Model, encodings: Encodings) -> str:
    """Return in one line how many limits of `model` values of the data pass, and how many lose an end."""
    count, whole = len(encodings.unreached), [*encodings.unreached.values()].count("both")
    if not model.limits:
        return ""
    kept = len(model.limits) - whole
    return (
        f"of {len(model.limits)} Relu and Clip that quantizers left, {kept} limit values of the data, "
        f"{count - whole} of them at one end; {whole} are left out"
    )


def find_unreached(model: Model, statistics: Statistics) -> dict[str, Ends]:
    """Return the ends of limits that no observed value passes, by the tensor behind the limit."""
    found = {}
    for name, limit in model.limits.items():
        observed = statistics.tensors.get(limit.tensor)
        if observed is not None and observed.finite:
            ends = limit.find_unreached(observed.rmin, observed.rmax)
            if ends is not None:
                found[name] = ends
    return found
