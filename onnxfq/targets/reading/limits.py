"""`TargetLimit`: a format that a target does not multiply in, stated once for planner and check."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from onnxfq.documents.plan import Placement
from onnxfq.graph.index import Shape
from onnxfq.graph.ops import CONVOLUTIONS, WEIGHTED_INPUTS
from onnxfq.numerics.float_types import find_storage_qtype
from onnxfq.numerics.granularity import PER_TENSOR
from onnxfq.placement.target_policy import Operands
from onnxfq.targets.findings import Finding, Severity
from onnxfq.targets.reading.context import CheckContext, Rule, make_finding
from onnxfq.targets.reading.operands import ExpectedPrecision, QuantizedOperand
from onnxfq.targets.reading.quantizer_reader import Quantizer


@dataclass(frozen=True)
class Product:
    """A node with quantized operands, planned or read from a file, seen from one of them.

    Attributes:
        op: the operator.
        groups: groups of a convolution.
        kernel: shape of the quantized constant of the node; None without one.
        weight_only: whether constants alone are meant to be quantized.
        others: types of the other quantized operands.
        beside_blocks: whether one of these has scales of blocks.
        is_weight: whether the operand is a stored constant; one that is computed is an activation.
        slot: its place among the inputs of the node.
        numbers: name of the type that stores its numbers, `mxfp8` for MXFP8.
        zeros: how many zero points other than 0 it has.
        scales: how many scales it has.
        axis: axis of several scales.
    """

    op: str
    groups: int
    kernel: Shape | None
    weight_only: bool
    others: frozenset[str]
    beside_blocks: bool
    is_weight: bool
    slot: int
    numbers: str
    zeros: Literal["none", "one", "several"]
    scales: Literal["one", "several", "blocks"]
    axis: int | None

    @staticmethod
    def planned(placement: Placement, operands: Operands) -> Product:
        """Return the node of `operands`, seen from `placement`."""
        spec, is_weight = placement.spec, placement.role == "weight"
        alike = (spec.granularity if is_weight else spec.observed_granularity) == PER_TENSOR
        weights = [other.tensor for other in operands.placements if other.role == "weight"]
        others = [other for other in operands.placements if other is not placement]
        return Product(
            operands.node.op,
            operands.node.attrs.get("group", 1),
            operands.weight_shapes.get(weights[0], ()) if weights else None,
            operands.weight_only,
            frozenset(map(stored_type, others)),
            any(one.spec.granularity.is_blocked for one in others),
            is_weight,
            next((use.input for use in placement.uses if use.node == operands.node.name), 0),
            stored_type(placement),
            "none" if spec.symmetric else "one" if alike else "several",
            "blocks" if spec.granularity.is_blocked else "one" if alike else "several",
            spec.granularity.axis,
        )

    @staticmethod
    def read(promised: ExpectedPrecision, operand: QuantizedOperand, pair: Quantizer) -> Product:
        """Return a node of a file, seen from its operand behind `pair`."""
        site, weight = promised.site, promised.weight
        others = [other for other in promised.pairs if other is not pair]
        zeros = np.unique(np.asarray(0 if pair.zero_point is None else pair.zero_point, np.float64))
        several = pair.scale is not None and pair.scale.size > 1
        return Product(
            site.op,
            site.attrs.get("group", 1),
            None if weight is None else site.index.shape(weight.tensor) or (),
            promised.expects == "weight-only",
            frozenset(one.type_name for one in others),
            any(one.is_blocked for one in others),
            pair.is_stored,
            operand.slot,
            "mxfp8" if "MXFP8" in pair.site.op else pair.type_name,
            "none" if not zeros.any() else "several" if len(zeros) > 1 else "one",
            "blocks" if pair.is_blocked else "several" if several else "one",
            pair.axis,
        )

    @property
    def multiplies(self) -> bool:
        """Tell whether the node sums products."""
        return self.op in WEIGHTED_INPUTS

    @property
    def depthwise(self) -> Shape:
        """Shape of the weight of a depthwise convolution; () for other nodes."""
        kernel = self.kernel or ()
        return kernel if self.op == "Conv" and len(kernel) > 2 and kernel[1] == 1 < self.groups else ()


def stored_type(placement: Placement) -> str:
    """Return the name of the type that stores numbers: int5 is stored as int8 with a Clip."""
    qtype = placement.spec.qtype
    return (find_storage_qtype(qtype) or qtype).name


@dataclass(frozen=True)
class TargetLimit:
    """A format that a target does not multiply in.

    Attributes:
        rule: its name in findings.
        verdict: what the target makes of it.
        explain: returns why for an operand beyond the limit; an empty string for others.
        remedy: what to do with a file, where `explain` does not say it.
    """

    rule: str
    verdict: Severity
    explain: Callable[[Product], str]
    remedy: str = ""


def explain(limits: tuple[TargetLimit, ...], placement: Placement, operands: Operands) -> str:
    """Return the first of `limits` that a placement is beyond; an empty string for none."""
    product = Product.planned(placement, operands)
    return next(filter(None, (limit.explain(product) for limit in limits)), "")


def check_limits(*limits: TargetLimit) -> Rule:
    """Return the rule of `check` about operands beyond `limits`."""

    def rule(reading: CheckContext) -> Iterator[Finding]:
        pairs = (*reading.activations(), *reading.weights())
        for promised, operand, pair in pairs:
            for limit in limits:
                if why := limit.explain(Product.read(promised, operand, pair)):
                    what = "weight" if pair.is_stored else "input"
                    message = f"its {what} {operand.tensor!r}: {why}{limit.remedy}"
                    yield make_finding(limit.rule, limit.verdict, promised.site, message, operand.tensor)

    return rule


def refuse(runtime: str, *limits: TargetLimit) -> Callable[[Placement, Operands], str]:
    """Return the rule of a policy that refuses placements beyond `limits`, and scales of other kinds.

    Most runtimes take scales that are constant float32 numbers, and integer zero points.
    """

    def refuses(placement: Placement, operands: Operands) -> str:
        spec = placement.spec
        if spec.dynamic or spec.scale_type != "float32":
            return f"{runtime} takes constant float32 scales only; use dynamic: false"
        if spec.zero_point == "fractional":
            return f"{runtime} takes integer zero points only; use zero_point: integer"
        return explain(limits, placement, operands)

    return refuses


NEEDS_BOTH = "Report convolutions of which the weight alone is quantized: they are multiplied in float."
"""Text of such a rule."""


def needs_both(runtime: str, rule: str) -> TargetLimit:
    """Return the limit of a runtime that multiplies a quantized weight with floats in products alone."""

    def explain_alone(product: Product) -> str:
        if not product.weight_only or product.op not in CONVOLUTIONS:
            return ""
        return f"{runtime} multiplies in float where only the weight of a {product.op} is quantized"

    return TargetLimit(rule, "float", explain_alone, "; quantize its input as well, or nothing")
