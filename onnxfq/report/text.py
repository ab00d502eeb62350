"""Reports as plain text for a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from onnxfq.documents.cast_plan import FloatPlan
from onnxfq.documents.plan import Plan, Skipped
from onnxfq.documents.scores import LOW_SQNR_DB, Evaluation
from onnxfq.documents.sensitivity import GroupNoise, Sensitivity
from onnxfq.pipeline import QuantizeResult


def coverage_line(plan: Plan) -> str:
    """Return the coverage as `Conv 52/52, Gemm 1/1`."""
    return ", ".join(str(row) for row in plan.coverage())


def plan_summary(plan: Plan, reasons: int = 6) -> str:
    """Return coverage, counts, and the most frequent reasons for float."""
    lines = [
        f"quantized  {coverage_line(plan)}",
        f"tensors    {_activations(plan)}, {len(plan.weights)} weights",
    ]
    for kind in ("node", "tensor"):
        lines += _float_lines([skipped for skipped in plan.skipped if skipped.kind == kind], reasons)
    return "\n".join(lines)


def float_lines(floats: FloatPlan, reasons: int = 6) -> list[str]:
    """Return the float32 exceptions of the float part: tensors that do not fit, then nodes by reason."""
    tensors = [f"fp32       tensor {one.name!r}: {one.why}" for one in floats.tensors[:reasons]]
    left = len(floats.tensors) - reasons
    if left > 0:
        tensors.append(f"           and {left} more tensors; the report lists all")
    own = [node for node in floats.nodes if node.rule != "unfit-tensor"]
    counts = Counter((node.op_type, node.why) for node in own).most_common(reasons)
    nodes = [f"fp32       {count} {op}: {why}" for (op, why), count in counts]
    return [f"float part {floats.name}, {len(floats.nodes)} nodes stay in fp32", *tensors, *nodes]


def _activations(plan: Plan) -> str:
    dynamic = [placement.spec.dynamic for placement in plan.placements if placement.role == "activation"]
    return f"{len(dynamic)} activations{f' ({sum(dynamic)} dynamic)' if any(dynamic) else ''}"


def _float_lines(skipped: Sequence[Skipped], reasons: int) -> list[str]:
    """Return a line for each of the most frequent reasons, with the name if it has one tensor or node."""
    by_reason: dict[tuple[str, str], list[str]] = {}
    for one in skipped:
        what = one.op_type if one.kind == "node" else "tensor"
        by_reason.setdefault((what, one.why), []).append(one.name)
    ordered = sorted(by_reason.items(), key=lambda item: -len(item[1]))
    lines = [
        f"float      {what} {names[0]!r}: {why}"
        if len(names) == 1
        else f"float      {len(names)} {what}s: {why}"
        for (what, why), names in ordered[:reasons]
    ]
    left = sum(len(names) for _, names in ordered[reasons:])
    if left:
        lines.append(f"           and {left} more {skipped[0].kind}s; the plan file and the report list all")
    return lines


def _low_lines(evaluation: Evaluation) -> list[str]:
    """Return next steps if outputs of the last candidate are far from the float model's."""
    outputs = [score for candidate in evaluation.candidates[-1:] for score in candidate.outputs]
    low = [score for score in outputs if score.sqnr_db < LOW_SQNR_DB]
    if not low:
        return []
    worst = min(low, key=lambda score: score.sqnr_db)
    return [
        f"low SQNR   {len(low)} of {len(outputs)} output(s) below {LOW_SQNR_DB} dB, worst {worst.output!r}:",
        "           measure the accuracy; `onnxfq sensitivity` names the layers that cost most, and",
        "           --max-drop or --min-sqnr promises an accuracy and keeps in float what that takes",
    ]


def _protection_lines(found: Sensitivity, shown: int = 6) -> list[str]:
    """Return the layers that were left in float, one line each, the worst first; or that none helps."""
    remedy = found.remedy
    assert remedy is not None
    if not remedy.kept:
        worst = found.groups[0]
        return [
            f"protected  none: {remedy.reached:.4g} {remedy.measure}, and few layers in float would not",
            f"           change that; the worst, {_layers(worst)}, alone leaves {worst.alone_db:.1f} dB",
        ]
    kept = [found.groups[at] for at in remedy.kept]
    lines = [f"protected  {found.remedy_text()}"]
    lines += [f"           {_layers(one)}: alone it leaves {one.alone_db:.1f} dB" for one in kept[:shown]]
    return [*lines, *([f"           and {len(kept) - shown} more"] if len(kept) > shown else [])]


def _layers(group: GroupNoise) -> str:
    names = group.modules or group.nodes
    named = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
    return f"{', '.join(group.op_types)} {named}"


def quantize_summary(result: QuantizeResult) -> str:
    """Return the summary after `quantize`: notes, coverage, scores, time."""
    lines = [f"note       {note}" for note in result.model.notes]
    lines.append(plan_summary(result.plan))
    lines += result.plan.equalization.lines() if result.plan.equalization is not None else []
    lines += result.fitted.lines() if result.fitted is not None else []
    lines += _protection_lines(result.sensitivity) if result.sensitivity is not None else []
    lines += result.rounding.lines() if result.rounding is not None else []
    lines += result.bias_correction.lines() if result.bias_correction is not None else []
    lines += float_lines(result.floats) if result.floats is not None else []
    lines.append("")
    evaluation = result.evaluation
    if evaluation.candidates:
        lines.append(f"against the float model, {evaluation.feeds} of {result.statistics.feeds} feeds:")
        lines += ["  " + line for line in evaluation.table().splitlines()]
    else:
        lines.append(f"not compared with the float model: {', '.join(evaluation.notes)}")
    lines += _low_lines(evaluation)
    lines.append("")
    lines.append(
        "time       " + ", ".join(f"{stage} {s:.2f} s" for stage, s in result.seconds.items() if s >= 0.005)
    )
    return "\n".join(lines)
