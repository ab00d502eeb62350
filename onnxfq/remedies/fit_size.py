"""`fit_size`: wider formats for the layers that gain most, as many as a promised size has room for.

`answer_promise`: what the written file has of it, or of a promised accuracy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import onnx

from onnxfq.choices import RANKING_FEEDS
from onnxfq.documents.promise import Promised
from onnxfq.documents.sensitivity import FLOAT, WEIGHTS
from onnxfq.documents.trial import Trial
from onnxfq.errors import ModelError, RecipeError
from onnxfq.graph.external.sizes import element_bytes, file_bytes
from onnxfq.judging.accuracy_target import AccuracyTarget, SqnrAim
from onnxfq.judging.candidate import Candidate
from onnxfq.judging.judge import Judge, Proposal
from onnxfq.layers.quantizer_toggles import first_feeds
from onnxfq.numerics.qtypes import qtype_by_name
from onnxfq.remedies.forms import Forms, Models
from onnxfq.remedies.mixes import Mixes, apply, with_remedy
from onnxfq.remedies.rounding_search import round_again, unround
from onnxfq.remedies.sensitivity import rank_groups
from onnxfq.support.clock import Clock
from onnxfq.targets.recipes import RECIPES

MEGABYTE = 1e6
"""Unit of a promised file in words."""


def fit_size(candidate: Candidate, judge: Judge, target: AccuracyTarget) -> Proposal:
    """Return the candidate with wider formats for the groups that gain most for their bits, as many as fit.

    Other weights are then rounded again, see `unround`.
    Raises RecipeError if the candidate itself is larger than promised.
    """

    def measure(one: Candidate) -> float:
        return _count_bits(one, target, lambda: Models(one, judge.options, Clock()).qdq)

    sizes, used = _weight_sizes(candidate, judge.options.floats.name), measure(candidate)
    total = sum(size.elements for size in sizes.values())
    limit = 8.0 * (target.max_bytes or 0) if target.weight_bits is None else target.weight_bits * total
    if used > limit:
        answer = _answer(target, used, total)
        raise RecipeError(
            f"recipe {candidate.recipe.name} gives {_tell(answer)}, and at most {answer.allowed:g} were "
            "promised; take a recipe with fewer bits"
        )
    aim = SqnrAim(math.inf, *judge.split[:2])
    feeds = first_feeds(aim.choosing, RANKING_FEEDS)
    start = unround(candidate)
    ranking = rank_groups(start.open_toggles(judge.options), feeds, candidate.recipe)
    mixes = Mixes.measure(start, judge, ranking, feeds, target.fallbacks)
    costs = np.zeros_like(mixes.costs)
    for at, group in enumerate(ranking.groups):
        known = [sizes[name] for name in group.tensors if name in sizes]
        costs[at, 1:] = [sum(size.add(name) for size in known) for name in mixes.formats]
    mixes, room = replace(mixes, costs=costs), limit - used
    while True:
        best = mixes.find_best(room)
        chosen = mixes.list_formats(best)
        formats = {at: name for at, name in chosen.items() if costs[at, 1 + mixes.formats.index(name)]}
        try:
            made = apply(start, judge, ranking, formats) if formats else candidate
        except ModelError:  # nothing would be quantized
            room = mixes.choices.weights[best] - 1
            continue
        bits = measure(made)
        if bits <= limit:
            break
        room -= bits - limit  # scales have bits too
    made = round_again(made, judge) if formats else made
    before_db, reached_db = judge.score([candidate, made], aim.proving)
    answer = _answer(target, bits, total)
    fields: dict[str, Any] = {"measure": aim.measure, "wanted": 0.0, "before": before_db}
    choice = with_remedy(ranking, formats, mixes, **fields, reached=reached_db, size=_tell(answer))
    return Proposal(made, choice.remedy_lines(), choice, answer=answer)


def answer_promise(
    judge: Judge, trials: Sequence[Trial], candidate: Candidate, forms: Forms
) -> tuple[Trial, ...]:
    """Return `trials` with the figures of what is written.

    Raises RecipeError for a file that is larger than promised: its runtime computes operators otherwise, and
    they were left in float.
    """
    size, target = None, judge.accuracy
    if target is not None and target.fits_size:
        total = sum(size.elements for size in _weight_sizes(candidate).values())
        size = _answer(target, _count_bits(candidate, target, lambda: forms.models.qdq), total)
        if size.value > size.allowed:
            raise RecipeError(
                f"recipe {candidate.recipe.name} with the operators in float that its runtime needs so gives "
                f"{_tell(size)}, and {size.allowed:g} were promised; promise more"
            )
    return tuple(judge.answer(trial, forms.evaluation, size) for trial in trials)


def _answer(target: AccuracyTarget, bits: float, weights: int) -> Promised:
    """Return the answer to a promised size: of so many bits in all, or of so many elements of weights."""
    if target.max_bytes is not None:
        allowed, value = (size / MEGABYTE for size in (target.max_bytes, bits / 8))
        return Promised(measure="file", unit=" MB", allowed=allowed, value=value, samples=0)
    assert target.weight_bits is not None
    value = bits / max(weights, 1)
    return Promised(measure="bits of a weight", allowed=target.weight_bits, value=value, samples=0)


def _tell(answer: Promised) -> str:
    """Return a size in words."""
    return (
        f"a file of {answer.value:.4g} MB" if answer.unit else f"weights {answer.value:.4g} bits on average"
    )


def _count_bits(candidate: Candidate, target: AccuracyTarget, build: Callable[[], onnx.ModelProto]) -> float:
    """Return the bits of the quantized weights, or of the whole file, whichever is promised.

    `build` returns the file, which bits of weights do without.
    """
    if target.max_bytes is None:
        return sum(size.elements * size.bits for size in _weight_sizes(candidate).values())
    return 8 * file_bytes(build())


class _WeightBits(NamedTuple):
    """A quantized weight: its elements, the bits of each, and those that it would have in float."""

    elements: int
    bits: int
    plain: int

    def add(self, name: str) -> int:
        """Return the bits that another format adds; none for one that leaves weights as they are."""
        if name == WEIGHTS:
            return 0
        qtype = RECIPES[name].weights.qtype if name in RECIPES else None
        bits = self.plain if name == FLOAT else (qtype or qtype_by_name(name)).bits
        return self.elements * max(bits - self.bits, 0)


def _weight_sizes(candidate: Candidate, floats: str = "fp32") -> dict[str, _WeightBits]:
    """Return the sizes of quantized weights; `floats` is the type of what is not quantized."""
    constants = candidate.session.model.constants
    most = 32 if floats == "fp32" else 16
    return {
        one.tensor: _WeightBits(
            math.prod(constants[one.tensor].dims),
            one.spec.qtype.bits,
            min(most, 8 * (element_bytes(constants[one.tensor].data_type) or 4)),
        )
        for one in candidate.plan.weights
        if one.tensor in constants
    }
