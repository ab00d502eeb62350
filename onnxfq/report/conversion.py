"""Text summaries of `convert` and `cast`."""

from __future__ import annotations

from collections import Counter

from onnxfq.documents.scores import Evaluation
from onnxfq.report.text import float_lines, plan_summary, proof_lines
from onnxfq.support.groups import group_pairs
from onnxfq.targets.findings import CheckResult
from onnxfq.tools.cast import Casting
from onnxfq.tools.checkpoints.apply_checkpoint import AppliedCheckpoint
from onnxfq.tools.checkpoints.export_checkpoint import ExportedCheckpoint
from onnxfq.tools.convert import Conversion


def conversion_summary(result: Conversion) -> str:
    """Return notes, counted changes, coverage, scores against the source if it was run, and findings."""
    lines = proof_lines(result.evaluation)
    lines += [f"note       {note}" for note in result.notes]
    lines += [f"changed    {count} x {change}" for change, count in sorted(result.changes.items())]
    lines.append(plan_summary(result.plan))
    if result.evaluation is None:
        lines.append("not compared with the source: no data was given")
    else:
        lines += _compared_lines(f"the source, {result.evaluation.feeds} samples", result.evaluation)
    return "\n".join([*lines, *_checked_lines(result.check)])


def applied_summary(result: AppliedCheckpoint) -> str:
    """Return form, number formats, notes and coverage of a checkpoint on a graph."""
    lines = [f"checkpoint {result.form}: {count} matrices {text}" for text, count in result.formats.items()]
    lines += [f"note       {note}" for note in result.notes]
    return "\n".join([*lines, plan_summary(result.plan)])


def exported_summary(result: ExportedCheckpoint) -> str:
    """Return number formats, lost layers and notes of a written checkpoint."""
    lines = [f"checkpoint {result.to}: {count} layers {text}" for text, count in result.formats.items()]
    reasons = group_pairs((why, module) for module, why in result.lost.items())
    lines += [
        f"lost       {len(names)} layers are in float, as {names[0]!r}: {why}"
        for why, names in reasons.items()
    ]
    return "\n".join([*lines, *(f"note       {note}" for note in result.notes)])


def cast_summary(result: Casting) -> str:
    """Return counts, what stays in float32 or is bfloat16 and why, notes, scores and findings."""
    floats, wide = result.floats, len(result.wider)
    low = result.nodes - len(floats.nodes) - wide
    lines = proof_lines(result.evaluation)
    lines += [f"cast       {low} of {result.nodes} nodes to {floats.name}, {result.casts} Casts written"]
    lines += float_lines(floats)
    whys = Counter((node.op_type, node.why) for node in result.wider)
    lines += [f"bf16       {count} {op}: {why}" for (op, why), count in whys.most_common(6)]
    lines += [f"note       {note}" for note in result.notes]
    if result.evaluation is not None:
        lines += _compared_lines(f"the float model, {result.evaluation.feeds} samples", result.evaluation)
    return "\n".join([*lines, *_checked_lines(result.check)])


def _compared_lines(reference: str, evaluation: Evaluation) -> list[str]:
    return ["", f"against {reference}:", *("  " + line for line in evaluation.table().splitlines())]


def _checked_lines(check: CheckResult | None) -> list[str]:
    return [] if check is None else ["", f"checked for {check.target}:", *check.table().splitlines()]
