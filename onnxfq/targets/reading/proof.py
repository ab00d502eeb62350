"""Proof of a check: what rules say of a Q/DQ model, and what a runtime makes of its promises."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace

import onnx

from onnxfq.documents.proof import CheckCoverage
from onnxfq.support.groups import group_pairs
from onnxfq.targets.engine_figures import EngineComparison
from onnxfq.targets.findings import CheckResult, EngineNode, Finding, Verdict, worst_first
from onnxfq.targets.reading.context import CheckContext, Rule, read
from onnxfq.targets.reading.operands import ExpectedPrecision, Units
from onnxfq.targets.target import BuildOptions, Check


@dataclass(frozen=True)
class Built:
    """Results of the engines of one model: version of the builder, refusals, and each promised node.

    Attributes:
        against: the engines beside those without pairs, if these were asked for.
    """

    builder: str = ""
    findings: tuple[Finding, ...] = ()
    nodes: tuple[EngineNode, ...] = ()
    against: tuple[EngineComparison, ...] = ()


def describe_node(promised: ExpectedPrecision, device: str, verdict: Verdict, why: str = "") -> EngineNode:
    """Return the record of a promised node in an engine for `device`."""
    return EngineNode(
        device=device,
        node=promised.site.name,
        op_type=promised.counts_as,
        expects=promised.expects,
        verdict=verdict,
        why=why,
    )


def make_check(
    target: str,
    rules: Iterable[Rule],
    units: Units,
    build: Callable[[CheckContext, BuildOptions], Built],
    fuses: Callable[[ExpectedPrecision], bool] = lambda promised: True,
    *,
    inlines: bool = True,
) -> Check:
    """Return the check of a Q/DQ model for a target, which raises the errors of `build`.

    Args:
        target: name.
        rules: of the target; they need nothing installed.
        units: operators beside products that the target runs in low precision between pairs, see `read`.
        build: opens the model in the runtime, for a check with options for a build.
        fuses: tells whether the target fuses a promised node with its pairs; others do not count.
        inlines: whether the target takes local functions of a model; others stay for a rule.
    """

    def check(proto: onnx.ModelProto, source: str, options: BuildOptions | None) -> CheckResult:
        known = frozenset() if inlines else frozenset(one.name for one in proto.functions)
        reading = read(proto, known, units)
        fused = replace(reading, promises=tuple(filter(fuses, reading.promises)))
        building = None if options is None else lambda given: build(given, options)
        return prove(fused, source, target, rules, building)

    return check


def prove(
    reading: CheckContext,
    source: str,
    target: str,
    rules: Iterable[Rule],
    build: Callable[[CheckContext], Built] | None,
    told_by_rule: Collection[str] = (),
) -> CheckResult:
    """Return the findings of all rules, and with `build` also what the target's runtime says.

    Args:
        reading: the model.
        source: its name for messages.
        target: name of the target.
        rules: of the target; they need nothing installed.
        build: opens the model in the runtime; None for the rules alone.
        told_by_rule: operators without a finding of the runtime, since a rule speaks of them.
    """
    findings = [found for rule in rules for found in rule(reading)]
    broken = find_broken(findings, reading.counted)
    built = Built()
    if build is not None:
        built = build(reading)
        in_float = {node.node for node in built.nodes if node.verdict == "float"}
        findings = [_relieve(found) if found.node in in_float else found for found in findings]
        findings += _unsaid(built, findings, broken, told_by_rule)
        broken = _find_broken(reading, built)
    return CheckResult(
        source=source,
        target=target,
        findings=worst_first(findings),
        coverage=coverage_of(reading.counted, broken),
        builder=built.builder,
        engine=built.nodes,
        against=built.against,
    )


def _relieve(found: Finding) -> Finding:
    """Return a refusal of a node that the runtime has in float as the loss of speed that it is."""
    return found.model_copy(update={"severity": "float"}) if found.severity == "refused" else found


def _unsaid(
    built: Built, findings: list[Finding], broken: set[str], told_by_rule: Collection[str]
) -> list[Finding]:
    """Return builder results that no rule reported; rules name the cause and the remedy."""
    new = [] if any(found.severity == "refused" for found in findings) else list(built.findings)
    lost: dict[str, list[EngineNode]] = {}
    for node in built.nodes:
        told = node.node in broken or node.op_type in told_by_rule or node.expects == "MXFP8"
        if not node.is_kept and not told:
            lost.setdefault(node.node, []).append(node)
    return new + [_lost(nodes) for nodes in lost.values()]


def _lost(nodes: list[EngineNode]) -> Finding:
    """Return the finding of a node that the runtime runs in another precision than its pairs promise."""
    first = nodes[0]
    seen = ", ".join(f"{node.verdict} on {node.device}" for node in nodes)
    why = first.why or "leave the node in float, or look at what is fused with it"
    message = f"the graph promises {first.expects}, and the engine has {seen}; {why}"
    return Finding(rule="engine", severity="float", node=first.node, op_type=first.op_type, message=message)


def _find_broken(reading: CheckContext, built: Built) -> set[str]:
    """Return the promised nodes that some engine does not keep; all if there is no engine."""
    if any(found.severity == "refused" for found in built.findings):
        return {promised.site.name for promised in reading.counted}
    return {node.node for node in built.nodes if not node.is_kept}


def find_broken(findings: Iterable[Finding], promises: Iterable[ExpectedPrecision]) -> set[str]:
    """Return the names of promised nodes that a finding, on them or on one of their pairs, makes float."""
    bad = {found.node for found in findings if found.severity in ("refused", "float")}
    broken = set()
    for promised in promises:
        makers = [q.site.index.maker(q.data) for q in promised.pairs]
        involved = (promised.site, *(q.site for q in promised.pairs), *makers)
        if any(site is not None and site.name in bad for site in involved):
            broken.add(promised.site.name)
    return broken


def coverage_of(promises: Iterable[ExpectedPrecision], broken: set[str]) -> tuple[CheckCoverage, ...]:
    """Return the coverage by operator.

    Args:
        promises: nodes with their expected precision.
        broken: names of the nodes that do not keep it.
    """
    rows = group_pairs(((one.counts_as, one.expects), one.site.name not in broken) for one in promises)
    return tuple(
        CheckCoverage.model_validate(
            {"op_type": op, "expects": expects, "kept": sum(kept), "promised": len(kept)}
        )
        for (op, expects), kept in rows.items()
    )
