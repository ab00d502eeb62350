"""Rules that hold for several targets."""

from __future__ import annotations

from collections.abc import Iterator

from onnxfq.graph.ops import FAKE_QUANTIZE_OPS, WEIGHTED_INPUTS
from onnxfq.quantized.forms import is_quantized
from onnxfq.quantized.qonnx import is_quantizer
from onnxfq.targets.findings import Finding
from onnxfq.targets.reading.context import CheckContext, Rule, make_finding


def check_quantized(reading: CheckContext) -> Iterator[Finding]:
    """Refuse quantizers of QONNX; warn of a model that multiplies in float only, or with pairs elsewhere."""
    foreign = [site for site in reading.sites if is_quantizer(site.node)]
    for site in foreign:
        message = (
            "no runtime has quantizers of QONNX; export with Brevitas' export_onnx_qcdq, or `onnxfq convert`"
        )
        yield make_finding("qonnx", "refused", site, message)
    weighted = [site for site in reading.sites if site.op in WEIGHTED_INPUTS]
    if not weighted or reading.promises:
        return
    if reading.quantizers:
        message = (
            "no pair stands in front of a product, and all run in float; quantize the inputs of products"
        )
        yield make_finding("not-quantized", "warning", weighted[0], message)
    elif not foreign and not is_quantized(reading.proto):
        message = "it is in float, like the whole model; check the file that `onnxfq quantize` wrote"
        yield make_finding("not-quantized", "warning", weighted[0], message)


def refuse_simulated(runtime: str) -> Rule:
    """Return the rule that refuses operators of onnxfq and of the model itself for a runtime without them."""

    def rule(reading: CheckContext) -> Iterator[Finding]:
        """Refuse operators that the runtime lacks: fake quantizers, and functions of the model."""
        local = {(one.domain, one.name) for one in reading.proto.functions}
        for site in reading.sites:
            if site.op in FAKE_QUANTIZE_OPS or (site.node.domain, site.op) in local:
                message = (
                    f"{runtime} has no operator {site.op}; quantize with a recipe that writes Q/DQ pairs"
                )
                yield make_finding("operator", "refused", site, message)

    return rule
