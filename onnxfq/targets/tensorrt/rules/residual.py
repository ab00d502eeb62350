"""Rule about residual sums: a pair on the skip branch."""

from __future__ import annotations

from collections.abc import Iterator

from onnxfq.graph.model import Model
from onnxfq.placement.residual_adds import residual_skip
from onnxfq.targets.findings import Finding
from onnxfq.targets.tensorrt.rules.context import Reading, Rule, make_finding
from onnxfq.targets.tensorrt.rules.operands import operand
from onnxfq.targets.tensorrt.rules.quantizer_reader import DEQUANTIZE_OPS, QUANTIZE_OPS


def skip_branches(reading: Reading) -> Iterator[Finding]:
    """Warn of residual sums in the main graph without a pair on the skip branch (`placement.residual_adds`).

    Source: NVIDIA/TensorRT issue 1992. TensorRT for RTX builds both; without the pair the sum keeps a float
    copy.
    """
    sums = {site.name: site for site in reading.main.sites if site.op == "Add" and site.node.name}
    quantized = {p.site.name for p in reading.promises if p.expects == "low"}
    if not sums or not quantized:
        return
    graph = Model(reading.proto, "", "").graph()
    low = quantized | {node.name for node in graph.nodes if node.op in QUANTIZE_OPS}
    for node in graph.nodes:
        skip = residual_skip(node, low) if node.name in sums else None
        if skip is None or skip.why_float:
            continue
        site = sums[node.name]
        tensor = site.input(skip.slot)
        maker = site.scope.maker(tensor)
        if operand(site, skip.slot).pair is None and (maker is None or maker.op not in DEQUANTIZE_OPS):
            message = (
                f"its skip branch {tensor!r} has no pair, so the sum stays in float and fuses into no "
                "convolution; put a pair on it"
            )
            yield make_finding("skip-branch", "warning", site, message, tensor)


RULES: tuple[Rule, ...] = (skip_branches,)
