"""Check of one Q/DQ model by rules and builder: refusals, float nodes, and wrong results."""

from __future__ import annotations

import onnx

from onnxfq.targets.build_options import BuildOptions
from onnxfq.targets.findings import CheckResult, EngineNode, Finding, worst_first
from onnxfq.targets.tensorrt.builder.build import Built, build_model
from onnxfq.targets.tensorrt.rules.all_rules import apply_rules, coverage_of, find_broken
from onnxfq.targets.tensorrt.rules.context import Reading, read
from onnxfq.targets.tensorrt.rules.structure import EXTRA

# A rule reports them: this builder has no low-precision kernel, others may have one.
_TOLD_BY_RULE = frozenset({"ConvTranspose"})


def check_model(proto: onnx.ModelProto, source: str, build: BuildOptions | None) -> CheckResult:
    """Return the deviations of TensorRT from a Q/DQ model; the rules need nothing installed.

    Args:
        proto: the model.
        source: its name for messages.
        build: options to also parse and build with TensorRT for RTX (extra `tensorrt`; no GPU), which gives
            the precision of each node; None for the rules alone.

    Raises RuntimeLibraryError and DataError as `build_model` does.
    """
    reading = read(proto, EXTRA)
    findings = apply_rules(reading)
    broken = find_broken(findings, reading.promises)
    built = Built("", (), ())
    if build is not None:
        built = build_model(reading, build)
        findings += _unsaid(built, findings, broken)
        broken = _find_broken(reading, built)
    return CheckResult(
        source=source,
        target="tensorrt",
        findings=worst_first(findings),
        coverage=coverage_of(reading.promises, broken),
        builder=built.version and f"TensorRT for RTX {built.version}",
        engine=built.nodes,
    )


def _unsaid(built: Built, findings: list[Finding], broken: set[str]) -> list[Finding]:
    """Return builder results that no rule reported; rules name the cause and the remedy."""
    new = [] if any(found.severity == "refused" for found in findings) else list(built.findings)
    lost: dict[str, list[EngineNode]] = {}
    for node in built.nodes:
        if node.verdict != node.expects and node.node not in broken and node.op_type not in _TOLD_BY_RULE:
            lost.setdefault(node.node, []).append(node)
    return new + [_lost(nodes) for nodes in lost.values()]


def _lost(nodes: list[EngineNode]) -> Finding:
    first = nodes[0]
    seen = ", ".join(f"{node.verdict} on {node.capability}" for node in nodes)
    message = (
        f"the graph promises {first.expects}, and the engine has {seen}; leave the node in float, or look at "
        "what is fused with it"
    )
    return Finding(rule="engine", severity="float", node=first.node, op_type=first.op_type, message=message)


def _find_broken(reading: Reading, built: Built) -> set[str]:
    """Return the promised nodes that some engine does not keep; all if there is no engine."""
    if built.findings:
        return {promised.site.name for promised in reading.promises}
    return {node.node for node in built.nodes if node.verdict != node.expects}
