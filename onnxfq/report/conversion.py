"""Text summaries of `convert`."""

from __future__ import annotations

from onnxfq.report.text import plan_summary
from onnxfq.tools.apply_checkpoint import AppliedCheckpoint
from onnxfq.tools.convert import Conversion
from onnxfq.tools.export_checkpoint import ExportedCheckpoint


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


def applied_summary(result: AppliedCheckpoint) -> str:
    """Return form, number formats, notes and coverage of a checkpoint on a graph."""
    lines = [f"checkpoint {result.form}: {count} matrices {text}" for text, count in result.formats.items()]
    lines += [f"note       {note}" for note in result.notes]
    return "\n".join([*lines, plan_summary(result.plan)])


def exported_summary(result: ExportedCheckpoint) -> str:
    """Return number formats, lost layers and notes of a written checkpoint."""
    lines = [f"checkpoint {result.to}: {count} layers {text}" for text, count in result.formats.items()]
    reasons: dict[str, list[str]] = {}
    for module, why in result.lost.items():
        reasons.setdefault(why, []).append(module)
    lines += [
        f"lost       {len(names)} layers are in float, as {names[0]!r}: {why}"
        for why, names in reasons.items()
    ]
    return "\n".join([*lines, *(f"note       {note}" for note in result.notes)])
