"""Rules that hold for several targets."""

from __future__ import annotations

from collections.abc import Iterator

from onnxfq.graph.ops import FAKE_QUANTIZE_OPS, WEIGHTED_INPUTS
from onnxfq.targets.findings import Finding
from onnxfq.targets.reading.context import CheckContext, Rule, make_finding


def check_quantized(reading: CheckContext) -> Iterator[Finding]:
    """Warn of a model that multiplies in float only: before quantization, or with pairs in other places."""
    weighted = [site for site in reading.sites if site.op in WEIGHTED_INPUTS]
    simulated = any(site.op in FAKE_QUANTIZE_OPS for site in reading.sites)
    if weighted and not reading.promises and not simulated:
        message = "it is in float, like the whole model; check the file that `onnxfq quantize` wrote"
        if reading.quantizers:
            message = (
                "no pair stands in front of a product, and all run in float; quantize the inputs of products"
            )
        yield make_finding("not-quantized", "warning", weighted[0], message)


def refuse_simulated(runtime: str) -> Rule:
    """Return the rule that refuses operators of onnxfq and of the model itself for a runtime without them."""

    def rule(reading: CheckContext) -> Iterator[Finding]:
        local = {(one.domain, one.name) for one in reading.proto.functions}
        for site in reading.sites:
            if site.op in FAKE_QUANTIZE_OPS or (site.node.domain, site.op) in local:
                message = (
                    f"{runtime} has no operator {site.op}; quantize with a recipe that writes Q/DQ pairs"
                )
                yield make_finding("operator", "refused", site, message)

    return rule
