"""Residual sums of a Q/DQ model, found as planning finds them (`placement.residual_adds`)."""

from __future__ import annotations

from dataclasses import replace

from onnxfq.graph.model import Model
from onnxfq.placement.residual_adds import residual_skip
from onnxfq.targets.reading.context import CheckContext
from onnxfq.targets.reading.operands import ExpectedPrecision, operand
from onnxfq.targets.reading.quantizer_reader import QUANTIZE_OPS


def with_sums(reading: CheckContext) -> CheckContext:
    """Return `reading` with the residual sums of its main graph, with a pair on their skip branch or without.

    A target that fuses a sum into the product before it wants a pair on the other branch.
    """
    sums = {site.name: site for site in reading.sites if site.op == "Add" and site.node.name}
    quantized = {promised.site.name for promised in reading.promises if promised.expects == "low"}
    if not sums or not quantized:
        return reading
    graph = Model(reading.proto, "", "").graph()
    low = quantized | {node.name for node in graph.nodes if node.op in QUANTIZE_OPS}
    found = []
    for node in graph.nodes:
        skip = residual_skip(node, low) if node.name in sums else None
        if skip is not None and not skip.why_float:
            site = sums[node.name]
            found.append(ExpectedPrecision(site, (operand(site, skip.slot),), is_sum=True))
    return replace(reading, sums=tuple(found))
