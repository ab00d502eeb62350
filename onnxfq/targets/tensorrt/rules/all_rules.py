"""All TensorRT rules, verified on TensorRT for RTX 1.7.1, and the resulting coverage."""

from __future__ import annotations

from collections.abc import Iterable

from onnxfq.targets.findings import Coverage, Finding
from onnxfq.targets.tensorrt.rules import (
    attention,
    blocks,
    float4,
    number_types,
    operator_forms,
    placement,
    residual,
    scales_and_zero_points,
    structure,
)
from onnxfq.targets.tensorrt.rules.context import Reading, Rule
from onnxfq.targets.tensorrt.rules.operands import Promise

RULES: tuple[Rule, ...] = (
    *structure.RULES,
    *operator_forms.RULES,
    *number_types.RULES,
    *scales_and_zero_points.RULES,
    *blocks.RULES,
    *float4.RULES,
    *placement.RULES,
    *attention.RULES,
    *residual.RULES,
)


def apply_rules(reading: Reading) -> list[Finding]:
    """Return the findings of all rules."""
    return [found for rule in RULES for found in rule(reading)]


def find_broken(findings: Iterable[Finding], promises: Iterable[Promise]) -> set[str]:
    """Return the names of promised nodes that a finding, on them or on one of their pairs, makes float."""
    bad = {found.node for found in findings if found.severity in ("refused", "float")}
    broken = set()
    for promised in promises:
        involved = {promised.site.name}
        for q in (operand.pair for operand in promised.operands):
            maker = None if q is None else q.site.scope.maker(q.data)
            involved |= {site.name for site in (maker, None if q is None else q.site) if site is not None}
        if involved & bad:
            broken.add(promised.site.name)
    return broken


def coverage_of(promises: Iterable[Promise], broken: set[str]) -> tuple[Coverage, ...]:
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
        Coverage.model_validate({"op_type": op, "expects": expects, "kept": sum(kept), "promised": len(kept)})
        for (op, expects), kept in rows.items()
    )
