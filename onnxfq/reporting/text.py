"""Reports as plain text for a terminal."""

from __future__ import annotations

from collections import Counter

from onnxfq.pipeline import QuantizeResult
from onnxfq.plan import Plan


def coverage_line(plan: Plan) -> str:
    """Return the coverage as `Conv 52/52, Gemm 1/1`."""
    return ", ".join(str(row) for row in plan.coverage())


def plan_summary(plan: Plan, reasons: int = 6) -> str:
    """Return coverage, counts, and the most frequent reasons for float."""
    lines = [
        f"quantized  {coverage_line(plan)}",
        f"tensors    {len(plan.activations)} activations, {len(plan.weights)} weights",
    ]
    nodes = [skipped for skipped in plan.skipped if skipped.kind == "node"]
    lines += [f"float      {s.op_type} {s.name!r}: {s.why}" for s in nodes[:reasons]]
    if len(nodes) > reasons:
        lines.append(f"           and {len(nodes) - reasons} more nodes; the plan file lists all")
    tensors = Counter(skipped.why for skipped in plan.skipped if skipped.kind == "tensor")
    for why, count in tensors.most_common(reasons):
        lines.append(f"float      {count} tensor{'s' if count > 1 else ''}: {why}")
    left = sum(tensors.values()) - sum(count for _, count in tensors.most_common(reasons))
    if left:
        lines.append(f"           and {left} more tensors; the plan file and the report list all")
    return "\n".join(lines)


def quantize_summary(result: QuantizeResult) -> str:
    """Return what a person wants to see after `quantize`: notes, coverage, scores, time."""
    lines = [f"note       {note}" for note in result.model.notes]
    lines.append(plan_summary(result.plan))
    lines.append("")
    lines.append(
        f"against the float model, first {result.evaluation.feeds} of {result.statistics.feeds} feeds:"
    )
    lines += ["  " + line for line in result.evaluation.table().splitlines()]
    lines.append("")
    lines.append("time       " + ", ".join(f"{stage} {s:.2f} s" for stage, s in result.seconds.items()))
    return "\n".join(lines)
