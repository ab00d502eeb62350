"""Reports as plain text for a terminal."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from onnxfq.documents.cast_plan import FloatPlan
from onnxfq.documents.layers import ChannelSizes, describe_channels
from onnxfq.documents.plan_text import plan_lines, reason_lines
from onnxfq.documents.scores import LOW_SQNR_DB, Evaluation, OutputScore
from onnxfq.documents.trial import Trial, trial_lines
from onnxfq.layers.channel_statistics import measure_channels
from onnxfq.quantizing.pipeline import QuantizeResult
from onnxfq.report.verdict import verdict
from onnxfq.support.plurals import name_first
from onnxfq.targets.recipes import find_wider


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


def _verdict_lines(result: QuantizeResult, sizes: tuple[int, int] | None) -> list[str]:
    """Return what came of it: SQNR, coverage, size, and next steps if outputs are far from the float model's.

    The last candidate counts: the written model if it was run, else its simulation.
    """
    evaluation = result.evaluation
    last = evaluation.candidates[-1:]
    outputs = [score for candidate in last for score in candidate.judging]
    kind = _kind_of(outputs)
    sqnr = f"SQNR       not compared with the float model: {', '.join(evaluation.notes)}"
    for _ in last:
        worst = evaluation.worst
        among = "" if len(outputs) == 1 else f", the worst of {len(outputs)} {kind}"
        sqnr = "SQNR       of no output: none comes from floats that are quantized"
        if worst is not None:
            about, where = ("about ", ", on unseen samples") if is_unseen(result) else ("", "")
            about = about if math.isfinite(worst.sqnr_db) else ""
            where = ", on drawn inputs, not on data" if evaluation.drawn else where
            sqnr = f"SQNR       {about}{worst}{among}{where}"
    shares = [f"same       {share.output!r}: {share}" for candidate in last for share in candidate.shares]
    proven = proof_lines(evaluation)
    first = 1 if evaluation.difference else 0
    promised = [f"promised   {trial.promised}" for trial in result.trials if trial.promised is not None]
    wider = find_wider(result.recipe)
    lines = [*proven[:first], *promised, sqnr, *proven[first:], *shares, *plan_lines(result.plan)]
    if sizes is not None:
        before, after = sizes
        lines.append(f"size       {before:,} -> {after:,} bytes ({after / before:.0%})")
    names = [placement.tensor for placement in result.plan.placements if placement.role == "activation"]
    measured = partial(measure_channels, result.model, result.samples, names, result.threads)
    return lines + advice_lines(evaluation, result.trials, measured, wider)


def proof_lines(evaluation: Evaluation | None) -> list[str]:
    """Return how the file differs, and what the runtime of the target made of it."""
    if evaluation is None:
        return []
    wrong = [f"differs    {evaluation.difference}; do not use the file"] if evaluation.difference else []
    return [*wrong, *([] if evaluation.proof is None else evaluation.proof.lines())]


def _kind_of(outputs: Sequence[OutputScore]) -> str:
    found = {score.kind for score in outputs}
    return " and ".join(kind for kind in ("outputs", "parts", "logits") if kind in found)


def advice_lines(
    evaluation: Evaluation,
    trials: Sequence[Trial],
    measure: Callable[[], Mapping[str, ChannelSizes]],
    wider: str = "",
) -> list[str]:
    """Return the guilty channels and the next steps if outputs are far from the float model's, else none.

    Args:
        evaluation: its last candidate counts.
        trials: remedies that were tried; without any, one line has the command that tries them.
        measure: returns the sizes of the channels of quantized activations; called if an output is low.
        wider: name of a recipe with a format for layers that lose too much.
    """
    outputs = [score for candidate in evaluation.candidates[-1:] for score in candidate.judging]
    low = [score for score in outputs if score.sqnr_db < LOW_SQNR_DB]
    if not low:
        return []
    cure = [
        "cure       quantize again with --repair auto: it evens out channels where that gains, then tries "
        "other ranges, and keeps in float what that does not help"
    ]
    broken = [repr(name) for candidate in evaluation.candidates[-1:] for name in candidate.broken]
    told = (
        f"not finite {name_first(broken, 3)}: infinity or NaN, unlike the float model; do not use the "
        "quantized model before the layers that make it stay in float"
    )
    return [
        *([told] if broken else []),
        *describe_channels(measure()),
        *([] if any(trial.is_needed for trial in trials) else cure),
        f"low SQNR   {len(low)} of {len(outputs)} {_kind_of(outputs)} below {LOW_SQNR_DB} dB: measure the "
        "accuracy; `onnxfq sensitivity` names the layers that cost most, and --max-drop or --min-sqnr "
        "promises an accuracy and keeps in float what that takes"
        + (f", or in 8 bits with --fallback {wider}" if wider else ""),
    ]


def list_lines(*parts: Any) -> list[str]:
    """Return the lines of what was done, part by part; None stands for a part that was not."""
    return [line for part in parts if part is not None for line in part.lines()]


def is_unseen(result: QuantizeResult) -> bool:
    """Tell whether the compared samples gave neither ranges nor moments; of folds, no ranges."""
    feeds = None if result.candidate is None else result.candidate.session.feeds
    unseen = feeds is not None and bool(feeds.unseen) and result.matched is None
    return unseen or bool(result.evaluation.folds)


def describe_samples(result: QuantizeResult) -> str:
    """Return the samples of the comparison, as `16 of 64 samples, unseen`; "" without a comparison."""
    evaluation, known = result.evaluation, result.statistics.data.samples
    if not evaluation.candidates:
        return ""
    kind = "drawn, not data" if evaluation.drawn else "unseen" if is_unseen(result) else "seen"
    kind += f", in {evaluation.folds} folds" if evaluation.folds else ""
    return f"{evaluation.feeds}{f' of {known}' if known else ''} samples, {kind}"


def quantize_summary(result: QuantizeResult, sizes: tuple[int, int] | None = None, reasons: int = 6) -> str:
    """Return the summary after `quantize`: verdict, scores, what was done to get there, reasons for float.

    Args:
        result: of `quantize`.
        sizes: bytes of the files of the float model and of the written model; None if none was written.
        reasons: number of reasons for float.
    """
    evaluation = result.evaluation
    lines = _verdict_lines(result, sizes)
    if evaluation.candidates:
        lines += ["", f"against the float model, {describe_samples(result)}:"]
        lines += [f"  {line}".rstrip() for line in evaluation.table().splitlines()]
    lines.append("")
    trials = trial_lines(result.trials)
    lines += [*trials, ""] if trials else []
    lines += list_lines(result.equalization, result.matched, result.rounding)
    lines += reason_lines(result.plan.skipped, reasons)
    lines += float_lines(result.floats) if result.floats is not None else []
    lines += [f"note       {note}" for note in result.staged.notes]
    is_float = not result.plan.placements and result.floats is None
    found = verdict(evaluation, result.trials, find_wider(result.recipe), is_float=is_float)
    lines.append(f"verdict    {found}")
    lines.append(
        "time       " + ", ".join(f"{stage} {s:.2f} s" for stage, s in result.seconds.items() if s >= 0.005)
    )
    return "\n".join(lines)
