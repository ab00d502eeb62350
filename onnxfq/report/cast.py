"""Text summary of `cast`."""

from __future__ import annotations

from collections import Counter

from onnxfq.report.text import float_lines
from onnxfq.tools.cast import Casting


def cast_summary(result: Casting) -> str:
    """Return counts, what stays in float32 or is bfloat16 and why, notes, scores and findings."""
    floats, wide = result.floats, len(result.wider)
    low = result.nodes - len(floats.nodes) - wide
    lines = [f"cast       {low} of {result.nodes} nodes to {floats.name}, {result.casts} Casts written"]
    lines += float_lines(floats)
    whys = Counter((node.op_type, node.why) for node in result.wider)
    lines += [f"bf16       {count} {op}: {why}" for (op, why), count in whys.most_common(6)]
    lines += [f"note       {note}" for note in result.notes]
    if result.evaluation is None:
        lines.append("note       no data was given: rules alone decided, and nothing was compared")
    else:
        lines += ["", f"against the float model, {result.evaluation.feeds} samples:"]
        lines += ["  " + line for line in result.evaluation.table().splitlines()]
    lines += ["", f"checked for {result.check.target}:", *result.check.table().splitlines()]
    return "\n".join(lines)
