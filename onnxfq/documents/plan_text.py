"""A `Plan` as plain text: coverage, counts, and the reasons for float. It is below plans, which print it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from onnxfq.documents.recipe import SMALL_RULES
from onnxfq.support.groups import group_pairs


def coverage_line(plan: Any) -> str:
    """Return the coverage as `Conv 52/52, Gemm 1/1`."""
    return ", ".join(str(row) for row in plan.coverage())


def plan_summary(plan: Any, reasons: int = 6) -> str:
    """Return coverage, counts, and the most frequent reasons for float."""
    return "\n".join([*plan_lines(plan), *reason_lines(plan.skipped, reasons)])


def plan_lines(plan: Any) -> list[str]:
    """Return coverage and counts, and that nothing pays in a plan without placements."""
    lines = [
        f"quantized  {coverage_line(plan)}",
        f"tensors    {_activations(plan)}, {len(plan.weights)} weights",
    ]
    if not plan.placements:
        rules = [one.rule for one in plan.skipped if one.rule in SMALL_RULES]
        remedy = "leave out pays" if set(rules) == {"times"} else "set small_shapes: quantize in the recipe"
        lines.append(
            f"no pair    nothing pays for its kernels, and {len(rules)} nodes stay in float; to quantize "
            f"them nevertheless, {remedy}"
        )
    return lines


def _activations(plan: Any) -> str:
    dynamic = [placement.spec.dynamic for placement in plan.placements if placement.role == "activation"]
    return f"{len(dynamic)} activations{f' ({sum(dynamic)} dynamic)' if any(dynamic) else ''}"


_DETAILS = re.compile(r"\(read by .*?\)|'[^']*'|\d+")
"""Readers, names and numbers: the parts in which sentences of one reason differ."""


def reason_lines(skipped: Sequence[Any], most: int) -> list[str]:
    """Return a line for each of the most frequent reasons for float, first for nodes, then for tensors.

    Reasons that differ in readers, names and numbers only share a line, which has the most frequent one.
    """
    groups = group_pairs((_DETAILS.sub("", one.why), one) for one in skipped)
    ordered = sorted(groups.values(), key=lambda alike: (all(x.kind == "tensor" for x in alike), -len(alike)))
    lines = [f"float      {_reason(alike)}" for alike in ordered[:most]]
    left = Counter(one.kind for alike in ordered[most:] for one in alike)
    if left:
        more = ", ".join(f"{count} more {kind}{'s' * (count > 1)}" for kind, count in sorted(left.items()))
        lines.append(f"           and {more}; the plan file and the report list all")
    return lines


def _reason(alike: Sequence[Any]) -> str:
    """Return the tensors and nodes of one reason by number and operator, and the reason."""
    counts = Counter(one.op_type if one.kind == "node" else "tensor" for one in alike)
    whys = Counter(one.why for one in alike)
    why = whys.most_common(1)[0][0]
    first = next(one.name for one in alike if one.why == why)
    if len(alike) == 1:
        return f"{next(iter(counts))} {first!r}: {why}"
    # "Adds (residual)", not "Add (residual)s".
    kinds = [(count, *what.partition(" (")) for what, count in counts.most_common()]
    named = ", ".join(f"{count} {what}{'s' * (count > 1)}{sign}{rest}" for count, what, sign, rest in kinds)
    return f"{named}{f', such as {first!r}' if len(whys) > 1 else ''}: {why}"
