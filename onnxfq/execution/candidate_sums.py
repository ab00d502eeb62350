"""`CandidateSums`: errors of one candidate against the reference, summed over the feeds so far."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from onnxfq.documents.scores import LOGITS, CandidateScore, Drift, EqualShare, OutputScore, SampleScore
from onnxfq.errors import ModelError
from onnxfq.execution.sides import Outputs, Side
from onnxfq.graph.index import GraphIndex
from onnxfq.graph.model import list_nodes
from onnxfq.graph.ops import QDQ_OPS
from onnxfq.graph.patterns.logits import NOTHING_KNOWN, JudgedTensors
from onnxfq.graph.patterns.parts import part_sums
from onnxfq.graph.signature import output_names, sized_by_values
from onnxfq.metrics.classes import count_right, predict_classes
from onnxfq.metrics.outputs import EqualCounts, FlatOutput
from onnxfq.numerics.intervals import NARROW_DB, interval_db
from onnxfq.numerics.metrics import ErrorSums, ratio_db
from onnxfq.numerics.windows import divide_windows, fit_loss, window_ratios
from onnxfq.passes.equalize import with_restored_channels
from onnxfq.passes.give_choices import with_given_choices
from onnxfq.passes.insert_fake_quantize import ENABLED_INPUT
from onnxfq.runtime.float32_emulation import HALVES, holds_types

WORST_SAMPLES = 6
"""Samples that a score names."""


@dataclass
class CandidateSums:
    """One candidate and its sums over the feeds so far.

    Attributes:
        name: of the candidate.
        proto: the candidate.
        outputs: outputs of the reference, and inner tensors that are scored as outputs are.
        tensors: inner tensors to compare.
        sizes: declared sizes of outputs and inner tensors of the reference; None for an open axis.
        exact: whether the candidate runs without graph optimisation.
        weights_alone: whether the first feeds also run with activations in float.
        judged: of the reference.
        right: rows whose class is the label.
        side: of the runs.
        own: of runs with its own choices.
        fetches: what stands for `outputs` and `tensors` in the candidate.
        sums: by output and tensor.
        parts: sums of the parts, by output.
        powers: signal and noise of each feed, by output and number of its part, and by number of the feed.
        agreed: rows of the same class, and all rows, by output and tensor.
        shares: counts of equal elements, by discrete output.
        places: the place of each feed among the samples; None for one that only leads to the state of others.
        steps: number of each feed in its sequence, where candidates took their own state.
        lowest: lowest SQNR in dB of what judges, by place.
        noises: of everything and of weights alone on the first feeds, by output.
        unlike: shapes that were not compared, by output.
    """

    name: str
    proto: onnx.ModelProto
    outputs: Sequence[str]
    tensors: Sequence[str]
    sizes: Mapping[str, Sequence[int | None]]
    exact: bool
    weights_alone: bool = False
    judged: JudgedTensors = NOTHING_KNOWN
    right: int = 0
    side: Side = field(init=False)
    own: Side = field(init=False)
    fetches: list[str] = field(init=False)
    sums: list[ErrorSums] = field(init=False)
    parts: dict[str, list[ErrorSums]] = field(default_factory=dict)
    powers: dict[tuple[str, int], dict[int, tuple[float, float]]] = field(default_factory=dict)
    places: list[int | None] = field(default_factory=list)
    steps: Sequence[int] = ()
    lowest: dict[int, float] = field(default_factory=dict)
    agreed: list[tuple[int, int]] = field(init=False)
    shares: dict[str, EqualCounts] = field(default_factory=dict)
    noises: list[tuple[float, float]] = field(init=False)
    unlike: dict[str, list[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        made = GraphIndex(self.proto.graph).makers
        # The quantized form of an inner tensor, if the candidate has one.
        outer = set(output_names(self.proto))
        names = [*self.outputs, *self.tensors]
        own, self.proto = self.proto, with_given_choices(self.proto, self.judged.choices)
        self.proto, restored = with_restored_channels(self.proto, [n for n in names if n not in outer])
        self.fetches = [
            name
            if name in outer or name in self.judged.choices
            else restored.get(name, next((n for n in (f"{name}/dq", f"{name}/fq") if n in made), name))
            for name in names
        ]
        # Optimised, onnxruntime drops roundings of float16 and changes Q/DQ models.
        fragile = holds_types(self.proto, HALVES) or any(
            node.op_type in QDQ_OPS for node in list_nodes(self.proto.graph)
        )
        switched = self.weights_alone and any(v.name == ENABLED_INPUT for v in self.proto.graph.input)
        off = {ENABLED_INPUT: np.asarray(False)} if switched else None
        exact, takes_choices = self.exact or fragile, bool(self.judged.choices)
        self.side = Side(self.proto, self.fetches, exact, again=off, takes_choices=takes_choices)
        self.own = Side(own, output_names(own), exact)
        self.sums = [ErrorSums()] * len(self.fetches)
        self.agreed = [(0, 0)] * len(self.fetches)
        self.noises = [(0.0, 0.0)] * len(self.outputs)

    def add(
        self,
        got: Outputs,
        expected: Outputs,
        truth: NDArray[Any] | None,
        own: Outputs,
        place: int | None,
    ) -> None:
        """Add the outputs of one feed.

        Args:
            got: the candidate's.
            expected: the reference's.
            truth: labels of the rows.
            own: outputs of the candidate with its own choices, whose classes count.
            place: of the feed, see `places`.
        """
        self.places.append(place)
        if place is not None:
            self.lowest[place] = math.inf
        got, alone = got[: len(self.fetches)], got[len(self.fetches) :]
        flat = (map(FlatOutput.of, values) for values in (expected, got))
        for i, (wanted, given) in enumerate(zip(*flat, strict=True)):
            name = [*self.outputs, *self.tensors][i]
            want, have = wanted.array, given.array
            is_choice = name in self.judged.choices
            if wanted.form != given.form and not is_choice:
                shapes = f"has shape {given}, the reference {wanted}"
                if (truth is not None and not i) or not self._is_open(name, want.shape, have.shape):
                    raise ModelError(f"{self.name}: {self.fetches[i]!r} {shapes}")
                if not wanted.is_discrete:
                    self.unlike.setdefault(name, []).append(shapes)
                    continue
            if (wanted.is_discrete or is_choice) and place is None:
                continue
            if wanted.is_discrete or is_choice:
                counts = self.shares.get(name, EqualCounts())
                self.shares[name] = counts + wanted.count_equal(given)
                continue
            found = ErrorSums.from_arrays(want, have)
            if place is not None:
                self.sums[i] = self.sums[i] + found
            if i < len(self.outputs):
                self._add_parts(name, found, want, have)
                if alone and (other := FlatOutput.of(alone[i])).form == wanted.form:
                    whole, weights = self.noises[i]
                    part = ErrorSums.from_arrays(want, other.array).noise
                    self.noises[i] = whole + found.noise, weights + part
            if place is None:
                continue
            classes = (name in self.judged.classes and name not in self.judged.parts) or bool(wanted.keys)
            same, rows = _agreement(want, have, classes or (truth is not None and not i))
            self.agreed[i] = (self.agreed[i][0] + same, self.agreed[i][1] + rows)
        if truth is not None:
            self.right += count_right(predict_classes(own[0], self.outputs[0]), truth, self.outputs[0])

    def _add_parts(self, name: str, whole: ErrorSums, want: NDArray[Any], have: NDArray[Any]) -> None:
        parts = self.judged.parts.get(name, ())
        found = part_sums(parts, want, have) if parts else [whole]
        place = self.places[-1]
        if parts and place is not None:
            known = self.parts.get(name, [ErrorSums()] * len(found))
            self.parts[name] = [one + other for one, other in zip(known, found, strict=True)]
        for number, sums in enumerate(found):
            known_powers = self.powers.setdefault((name, number), {})
            known_powers[len(self.places) - 1] = sums.signal, sums.noise
            if name not in self.judged.moved and name in (self.judged.deciding or self.outputs):
                if place is not None:
                    self.lowest[place] = min(self.lowest[place], sums.sqnr_db)

    @property
    def is_narrow(self) -> bool:
        """Whether the intervals of what decides are narrower than NARROW_DB; without noise they are."""
        deciding = set(self.judged.deciding or self.outputs) - set(self.judged.moved)
        return all(self._width(place) < NARROW_DB for place in self.powers if place[0] in deciding)

    def _width(self, place: tuple[str, int]) -> float:
        signals, noises = zip(*self.powers[place].values(), strict=True)
        found = interval_db(signals, noises)
        if found is None:  # a part of zeros decides nothing
            return math.inf if any(noises) and any(signals) else 0.0
        return found[1] - found[0]

    def _is_open(self, name: str, want: Sequence[int], have: Sequence[int]) -> bool:
        """Tell whether two shapes of `name` differ only along axes that the reference leaves open."""
        if len(want) != len(have):
            return False
        sizes = self.sizes.get(name, [None] * len(want))
        return all(a == b or size is None for a, b, size in zip(want, have, sizes, strict=True))

    def notes(self, feeds: int) -> Iterator[str]:
        """Yield what was not compared, and why."""
        for name, shapes in self.unlike.items():
            yield (
                f"{self.name}: {name!r} not compared on {len(shapes)} of {feeds} feeds, because its size "
                f"depends on the values: first it {shapes[0]}"
            )

    def score(self, feeds: int, rows: int) -> CandidateScore:
        """Return the scores after so many feeds, and so many labelled rows."""
        judged, split = self.judged, len(self.outputs)
        selected = sized_by_values(self.proto.graph)
        deciding = set(judged.deciding or self.outputs) - self.parts.keys()
        names = [*self.outputs, *self.tensors]
        scores = {
            name: self._score(
                name,
                sums,
                top1_agreement=same / count if count else None,
                decides=name in deciding,
                moved=name in judged.moved,
                made_by=judged.makers.get(name, ""),
                stands_for=judged.sources.get(name, ()),
            )
            for name, sums, (same, count) in zip(names, self.sums, self.agreed, strict=True)
            if len(self.unlike.get(name, ())) < feeds and name not in self.shares
        }
        return CandidateScore(
            candidate=self.name,
            outputs=tuple(scores[n] for n in names[:split] if n in scores and n not in judged.logits),
            parts=(*self._score_parts(), *self._score_logits(scores)),
            tensors=tuple(
                scores[name].model_copy(update={"top1_agreement": None})
                for name in names[split:]
                if name in scores
            ),
            shares=tuple(
                EqualShare.of(name, counts) for name, counts in self.shares.items() if self._is_told(name)
            ),
            accuracy=self.right / rows if rows else None,
            weight_shares={
                name: weights / whole
                for name, (whole, weights) in zip(self.outputs, self.noises, strict=True)
                if 0.0 < whole < math.inf and weights < math.inf and name not in judged.logits
            },
            worst_samples=self._worst_samples(),
            unlike=tuple(
                f"{name!r} {shapes[0]} on {len(shapes)} of {feeds} feeds"
                for name, shapes in self.unlike.items()
                if name not in {*selected, *judged.inner}
            ),
        )

    def _is_told(self, name: str) -> bool:
        """Tell whether equal elements are counted: not for an inner choice that follows from others."""
        choice = self.judged.choices.get(name)
        return choice is None or not choice.follows or name in output_names(self.proto)

    def _worst_samples(self) -> tuple[SampleScore, ...]:
        order = sorted(self.lowest, key=self.lowest.__getitem__)[:WORST_SAMPLES]
        return tuple(
            SampleScore(sample=at, sqnr_db=self.lowest[at]) for at in order if self.lowest[at] < math.inf
        )

    def _score_parts(self) -> Iterator[OutputScore]:
        """Yield the scores of the parts of outputs; one that is zero in the reference decides nothing."""
        for name, found in self.parts.items():
            decides = name in self.judged.deciding
            for place, (part, sums) in enumerate(zip(self.judged.parts[name], found, strict=True)):
                more = {"part": part.name, "decides": decides and sums.signal > 0.0}
                yield self._score(name, sums, place, **more)

    def _score(self, name: str, sums: ErrorSums, place: int = 0, **more: Any) -> OutputScore:
        powers = self.powers.get((name, place), {})
        signals, noises = [one for one, _ in powers.values()], [one for _, one in powers.values()]
        sqnr_db, drift = sums.sqnr_db, None
        if powers and any(self.steps):
            # A window is a sample: neighbours are alike, and the worst one counts.
            steps = [self.steps[number] for number in powers]
            windows = divide_windows(steps, [self.places[number] is not None for number in powers])
            loss_db = fit_loss(steps, signals, noises)
            drift = Drift(loss_db=loss_db, feeds=max(steps) + 1) if loss_db else None
            noises = window_ratios(windows, signals, noises)
            sqnr_db, signals = ratio_db(1.0, max(noises)), [1.0] * len(noises)
        total = sum(signals) or 1.0
        found = interval_db(signals, noises)
        return OutputScore(
            output=name,
            sqnr_db=sqnr_db,
            # Noise as large as the signal is all that a few samples can tell at worst.
            interval=None if found is None else (min(max(found[0], 0.0), sqnr_db), max(found[1], sqnr_db)),
            cosine=sums.cosine,
            largest_error=sums.largest,
            noises=tuple(noise / total for noise in noises),
            drift=drift,
            **more,
        )

    def _score_logits(self, scores: Mapping[str, OutputScore]) -> Iterator[OutputScore]:
        """Yield the scores of logits, in the name of the outputs behind them."""
        for name, output in self.judged.logits.items():
            if name in scores:
                part = f"{LOGITS}{self.judged.makers.get(name, repr(name))}"
                changes = {"output": output, "part": part, "top1_agreement": None, "made_by": ""}
                yield scores[name].model_copy(update=changes)


def _agreement(want: NDArray[Any], have: NDArray[Any], has_classes: bool) -> tuple[int, int]:
    """Return the rows of the same class, and all rows; none for what has no classes."""
    if want.ndim < 2 or want.shape[-1] < 2 or not want.size or not (has_classes or _are_shares(want)):
        return 0, 0
    same = want.argmax(-1) == have.argmax(-1)
    return int(same.sum()), int(same.size)


def _are_shares(values: NDArray[Any]) -> bool:
    """Tell whether rows [rows, classes] are probabilities of classes, whatever computes them."""
    # The rounding of bfloat16 moves a sum by less than 1%.
    return values.ndim == 2 and bool(
        (values >= 0).all() and (abs(values.sum(-1, np.float64) - 1) < 0.01).all()
    )
