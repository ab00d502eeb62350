"""Rules that hold for every target."""

from __future__ import annotations

from collections.abc import Iterator

from onnxfq.graph.ops import FAKE_QUANTIZE_OPS, WEIGHTED_INPUTS
from onnxfq.targets.findings import Finding
from onnxfq.targets.reading.context import CheckContext, make_finding


def check_quantized(reading: CheckContext) -> Iterator[Finding]:
    """Warn of a model that multiplies in float only: it may be the model before quantization."""
    weighted = [site for site in reading.sites if site.op in WEIGHTED_INPUTS]
    simulated = any(site.op in FAKE_QUANTIZE_OPS for site in reading.sites)
    if weighted and not reading.quantizers and not simulated:
        message = "it is in float, like the whole model; check the file that `onnxfq quantize` wrote"
        yield make_finding("not-quantized", "warning", weighted[0], message)
