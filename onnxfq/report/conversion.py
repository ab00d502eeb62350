"""Text summary of `convert`."""

from __future__ import annotations

from onnxfq.report.text import plan_summary
from onnxfq.tools.convert import Conversion


def conversion_summary(result: Conversion) -> str:
    """Return notes, counted changes, coverage, scores against the source if it was run, and findings."""
    lines = [f"note       {note}" for note in result.notes]
    lines += [f"changed    {count} x {change}" for change, count in sorted(result.changes.items())]
    lines.append(plan_summary(result.plan))
    if result.evaluation is None:
        lines.append("not compared with the source: no data was given")
    else:
        lines += ["", f"against the source, {result.evaluation.feeds} feeds:"]
        lines += ["  " + line for line in result.evaluation.table().splitlines()]
    if result.check is not None:
        lines += ["", f"checked for {result.check.target}:", *result.check.table().splitlines()]
    return "\n".join(lines)
