"""Check of one Q/DQ model by all rules and the builder: refusals, float nodes, wrong results."""

from __future__ import annotations

from collections.abc import Iterable

import onnx

from onnxfq.targets.findings import CheckCoverage, CheckResult, EngineNode, Finding, worst_first
from onnxfq.targets.target import BuildOptions
from onnxfq.targets.tensorrt.builder.build import Built, build_model
from onnxfq.targets.tensorrt.rules import (
    attention,
    blocks,
    float4,
    number_types,
    operator_forms,
    placement,
    scales_and_zero_points,
    structure,
)
from onnxfq.targets.tensorrt.rules.context import CheckContext, Rule, read
from onnxfq.targets.tensorrt.rules.operands import ExpectedPrecision
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
    findings = [found for rule in RULES for found in rule(reading)]
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


def _find_broken(reading: CheckContext, built: Built) -> set[str]:
    """Return the promised nodes that some engine does not keep; all if there is no engine."""
    if built.findings:
        return {promised.site.name for promised in reading.promises}
    return {node.node for node in built.nodes if node.verdict != node.expects}


RULES: tuple[Rule, ...] = (
    *structure.RULES,
    *operator_forms.RULES,
    *number_types.RULES,
    *scales_and_zero_points.RULES,
    *blocks.RULES,
    *float4.RULES,
    *placement.RULES,
    *attention.RULES,
    structure.skip_branches,
)


def find_broken(findings: Iterable[Finding], promises: Iterable[ExpectedPrecision]) -> set[str]:
    """Return the names of promised nodes that a finding, on them or on one of their pairs, makes float."""
    bad = {found.node for found in findings if found.severity in ("refused", "float")}
    broken = set()
    for promised in promises:
        involved = {promised.site.name}
        for q in (operand.pair for operand in promised.operands):
            maker = None if q is None else q.site.index.maker(q.data)
            involved |= {site.name for site in (maker, None if q is None else q.site) if site is not None}
        if involved & bad:
            broken.add(promised.site.name)
    return broken


def coverage_of(promises: Iterable[ExpectedPrecision], broken: set[str]) -> tuple[CheckCoverage, ...]:
    """Return the coverage by operator.

    Args:
        promises: nodes with their expected precision.
        broken: names of the nodes that do not keep it.
    """
    rows: dict[tuple[str, str], list[bool]] = {}
    for promised in promises:
        kept = promised.site.name not in broken
        rows.setdefault((promised.site.op, promised.expects), []).append(kept)
    return tuple(
        CheckCoverage.model_validate(
            {"op_type": op, "expects": expects, "kept": sum(kept), "promised": len(kept)}
        )
        for (op, expects), kept in rows.items()
    )
