"""`WIDEN_SUMS`: the wide format for single tensors between operators that take both formats at once.

Sums of a residual stream and the norms behind them lose most in 8 bits and multiply nothing. They need no
conversion in a wide format, since all their neighbours read and write either.
"""

from __future__ import annotations

from collections.abc import Iterator

from onnxfq.choices import RANKING_FEEDS
from onnxfq.documents.override import Override
from onnxfq.judging.candidate import Candidate
from onnxfq.judging.judge import Judge, Proposal, Refusal, Remedy, explain_gain
from onnxfq.layers.quantizer_toggles import first_feeds
from onnxfq.remedies.rounding_search import round_again, unround
from onnxfq.remedies.widen_activations import (
    asks_for_all,
    describe,
    explain_fixed_formats,
    tell_price,
    widen,
)
from onnxfq.targets.target import target_by_name


def explain_unneeded(candidate: Candidate, judge: Judge) -> str:
    """Return why single tensors keep their format; empty if outputs are low."""
    if asks_for_all(candidate, judge):
        return "all activations take the wide format at once"
    return explain_fixed_formats(candidate, judge) or judge.explain_sound(candidate)


def find_between(candidate: Candidate) -> list[str]:
    """Return the narrow activations that only operators make and read which take both formats."""
    target = target_by_name(candidate.recipe.target)
    index, plan = candidate.session.model.index, candidate.plan
    apart = {name for bridge in plan.bridges for name in bridge.tensors}

    def is_between(tensor: str) -> bool:
        maker, readers = index.makers.get(tensor), index.readers.get(tensor, [])
        known = maker is not None and bool(readers) and tensor not in index.outputs and tensor not in apart
        return known and all(node is not None and node.op_type in target.mixing for node in (maker, *readers))

    narrow = [p.tensor for p in plan.activations if p.spec.qtype.name != target.wide]
    return [tensor for tensor in narrow if is_between(tensor)]


def propose(candidate: Candidate, judge: Judge) -> Proposal | Refusal:
    """Return the candidate with the fewest such tensors in the wide format that gain what all of them do."""
    wide, between = target_by_name(candidate.recipe.target).wide, find_between(candidate)
    if not between:
        return Refusal("no tensor lies between operators that take both formats")
    judge.budget.spend(estimate(candidate, judge))
    start = unround(candidate)
    toggles = start.open_toggles(judge.options)
    feeds = first_feeds(judge.choosing, RANKING_FEEDS)
    noises = toggles.noise(feeds, [toggles.enable([group]) for group in toggles.single(between)])
    order = [name for _, name in sorted(zip(noises, between, strict=True), reverse=True)]
    (before_db,) = judge.choose([candidate])
    counts = [1 << at for at in range(len(order).bit_length()) if 1 << at < len(order)] + [len(order)]
    made = [_widen(start, order[:count], wide, judge) for count in counts]
    found = judge.choose(made)
    count, _, chosen = next(
        one for one in zip(counts, found, made, strict=True) if explain_gain(one[1], max(found))
    )
    chosen = round_again(chosen, judge)
    (score_db,) = judge.choose([chosen])
    refusal = explain_gain(before_db, score_db)
    if refusal:
        return Refusal(f"{len(order)} tensors in {wide}: {refusal}")
    return _propose(chosen, count, wide)._replace(is_sure=True)


def list_wider(candidate: Candidate, judge: Judge) -> Iterator[Proposal]:
    """Yield the candidate with all such tensors in the wide format, then with all activations."""
    wide, between = target_by_name(candidate.recipe.target).wide, find_between(candidate)
    if between:
        made = round_again(_widen(unround(candidate), between, wide, judge), judge)
        yield _propose(made, len(between), wide)
    yield Proposal(widen(candidate, judge), [describe(candidate)], price=tell_price(candidate))


def _propose(made: Candidate, count: int, wide: str) -> Proposal:
    return Proposal(made, [f"{count} sums and norms in {wide}"], price=f"{count} tensors in {wide}")


def _widen(candidate: Candidate, tensors: list[str], wide: str, judge: Judge) -> Candidate:
    override = Override(tensors=tuple(tensors), activations={"qtype": wide})
    return candidate.with_overrides((override,), None, judge.options)


def estimate(candidate: Candidate, judge: Judge) -> float:
    """Return the runs of a rank, of ranges from known statistics, and of comparisons."""
    count = len(find_between(candidate))
    return RANKING_FEEDS * count / 2 + count.bit_length() * (judge.work.calibrate + judge.compare_choosing(1))


WIDEN_SUMS = Remedy("sums widened", explain_unneeded, propose, estimate=estimate)
