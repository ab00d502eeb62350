"""`score_models`: scores and accuracy of candidates on the same feeds."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from onnxfq.choices import DeviceChoice
from onnxfq.data import Feed
from onnxfq.data.labels import count_right, predict_classes, refuse_label_count
from onnxfq.data.outputs import EqualCounts, FlatOutput
from onnxfq.documents.scores import CandidateScore, EqualShare, Evaluation, OutputScore
from onnxfq.errors import ModelError
from onnxfq.execution.sides import LEAST_FEEDS, Outputs, Side, run_sides
from onnxfq.graph.index import GraphIndex
from onnxfq.graph.model import list_nodes
from onnxfq.graph.ops import QDQ_OPS
from onnxfq.graph.patterns.logits import NOTHING_KNOWN, JudgedTensors
from onnxfq.graph.patterns.parts import part_sums
from onnxfq.graph.signature import output_names
from onnxfq.numerics.metrics import ErrorSums, standard_error_db
from onnxfq.passes.equalize import with_restored_channels
from onnxfq.passes.insert_fake_quantize import ENABLED_INPUT
from onnxfq.runtime.float32_emulation import HALVES, holds_types
from onnxfq.runtime.session import Progress

log = logging.getLogger(__name__)

STABLE_DB = 1.0
"""Standard error of an SQNR over a few samples below which more samples are not worth their time."""


SURE_FEEDS = 16
"""Feeds from which STABLE_DB itself is enough; half as many must agree twice as well.

Fewer feeds easily miss rare large errors, which the standard error then does not show either.
"""


def score_models(
    reference: onnx.ModelProto,
    candidates: Mapping[str, onnx.ModelProto],
    feeds: Iterable[Feed],
    *,
    reference_name: str = "float",
    labels: NDArray[Any] | None = None,
    more_labels: bool = False,
    tensors: Sequence[str] = (),
    threads: int = 0,
    progress: Progress | None = None,
    device: DeviceChoice = "any",
    exact: bool = True,
    until_stable: bool = False,
    expected: Iterator[Outputs] | None = None,
    weights_alone: bool = False,
    judged: JudgedTensors = NOTHING_KNOWN,
) -> Evaluation:
    """Run the reference and every candidate on each feed, once, and return the scores.

    Floats have an SQNR, in maps and sequences too, by position and key. Integers, texts and booleans
    have the share of equal elements. Floats are left out for a feed on which they have another size along
    an axis that the reference leaves open, such as the boxes of a detector.

    Args:
        reference: the float model.
        candidates: models with the same outputs, by name.
        feeds: the data.
        reference_name: name of the reference in the result.
        labels: classes, one for each row of the first output in the order of the feeds.
        more_labels: whether the feeds are the first of more, and so are their labels.
        tensors: inner tensors of the reference to compare with the quantized ones of the candidates.
        threads: of a session, 0 for one per core.
        progress: called with the number of feeds done.
        device: of all sessions; "any" is a GPU if one works and has room.
        exact: run candidates without graph optimisation, so that equal models give equal bits; otherwise
            optimised where that is right.
        until_stable: stop before the end once the SQNR of every output has a standard error below STABLE_DB,
            or less by as much as the feeds are fewer than SURE_FEEDS.
        expected: the outputs, and the inner tensors of `judged`, of the reference on the feeds, if it has run
            already; `tensors` must be empty.
        weights_alone: run candidates from `switch_activations` on the first feeds with activations in float
            too.
        judged: of the reference; its inner tensors and parts of outputs are scored, and what decides nothing
            is marked.

    Raises:
        ModelError: if a candidate's outputs differ from the reference's.
        DataError: if labels and rows differ in number.
        RuntimeLibraryError: for a GPU that was requested by name and cannot be used.
        DeviceMemoryError: for a GPU that was requested by name and lacks memory.
    """
    names = output_names(reference)
    for name, proto in candidates.items():
        if output_names(proto) != names:
            raise ModelError(
                f"{name} has outputs {', '.join(output_names(proto))}, the reference {', '.join(names)}"
            )
    names = (*names, *judged.inner)
    tensors = [name for name in tensors if name not in names]
    sizes = _read_declared_sizes(reference)
    runs = [
        _Run(name, proto, names, tensors, sizes, exact, weights_alone, judged)
        for name, proto in candidates.items()
    ]
    sides = [run.side for run in runs]
    if expected is None:
        sides.insert(0, Side(reference, [*names, *tensors], exact=False))
    right, done, row = 0, 0, 0
    part = LEAST_FEEDS if until_stable else None
    with closing(run_sides(sides, feeds, threads, device, part)) as outputs:
        known = None if expected is None else ([first] for first in expected)
        rows = outputs if known is None else map(list.__add__, known, outputs)
        for wanted, *results in rows:
            truth = None
            if labels is not None:
                classes = predict_classes(wanted[0], names[0])
                truth = labels[row : row + classes.size]
                row += classes.size
                if row > labels.size:
                    raise refuse_label_count(labels, f"at least {row}", names[0])
                right += count_right(classes, truth, names[0])
            for run, got in zip(runs, results, strict=True):
                run.add(got, wanted, truth)
            done += 1
            if progress is not None:
                progress(done)
            if part and done % part == 0 and all(run.is_stable for run in runs):
                break
    if labels is not None and row != labels.size and not more_labels:
        raise refuse_label_count(labels, str(row), names[0])
    return Evaluation(
        reference=reference_name,
        feeds=done,
        accuracy=right / row if labels is not None else None,
        candidates=tuple(run.score(done, row if labels is not None else 0) for run in runs),
        notes=(
            *(
                f"output {name!r} is selected by values: its SQNR judges nothing"
                for name in sorted(judged.moved)
            ),
            *(
                f"output {name!r} counts as state that input {of!r} takes: its SQNR judges nothing"
                for name, of in judged.states.items()
            ),
            *(note for run in runs for note in run.notes(done)),
        ),
    )


@dataclass
class _Run:
    """One candidate and its sums over the feeds so far."""

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
    fetches: list[str] = field(init=False)
    sums: list[ErrorSums] = field(init=False)
    parts: dict[str, list[ErrorSums]] = field(default_factory=dict)
    powers: dict[tuple[str, int], list[tuple[float, float]]] = field(default_factory=dict)
    agreed: list[tuple[int, int]] = field(init=False)
    shares: dict[str, EqualCounts] = field(default_factory=dict)
    noises: list[tuple[float, float]] = field(init=False)
    unlike: dict[str, list[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        made = GraphIndex(self.proto.graph).makers
        # The quantized form of an inner tensor, if the candidate has one.
        outer = set(output_names(self.proto))
        names = [*self.outputs, *self.tensors]
        self.proto, restored = with_restored_channels(self.proto, [n for n in names if n not in outer])
        self.fetches = [
            name
            if name in outer
            else restored.get(name, next((n for n in (f"{name}/dq", f"{name}/fq") if n in made), name))
            for name in names
        ]
        # Optimised, onnxruntime drops roundings of float16 and changes Q/DQ models.
        fragile = holds_types(self.proto, HALVES) or any(
            node.op_type in QDQ_OPS for node in list_nodes(self.proto.graph)
        )
        switched = self.weights_alone and any(v.name == ENABLED_INPUT for v in self.proto.graph.input)
        off = {ENABLED_INPUT: np.asarray(False)} if switched else None
        self.side = Side(self.proto, self.fetches, exact=self.exact or fragile, again=off)
        self.sums = [ErrorSums()] * len(self.fetches)
        self.agreed = [(0, 0)] * len(self.fetches)
        self.noises = [(0.0, 0.0)] * len(self.outputs)

    def add(self, got: Outputs, expected: Outputs, truth: NDArray[Any] | None) -> None:
        got, alone = got[: len(self.fetches)], got[len(self.fetches) :]
        flat = (map(FlatOutput.of, values) for values in (expected, got))
        for i, (wanted, given) in enumerate(zip(*flat, strict=True)):
            name = [*self.outputs, *self.tensors][i]
            want, have = wanted.array, given.array
            if wanted.form != given.form:
                shapes = f"has shape {given}, the reference {wanted}"
                if (truth is not None and not i) or not self._is_open(name, want.shape, have.shape):
                    raise ModelError(f"{self.name}: {self.fetches[i]!r} {shapes}")
                if not wanted.is_discrete:
                    self.unlike.setdefault(name, []).append(shapes)
                    continue
            if wanted.is_discrete:
                counts = self.shares.get(name, EqualCounts())
                self.shares[name] = counts + wanted.count_equal(given)
                continue
            found = ErrorSums.from_arrays(want, have)
            self.sums[i] = self.sums[i] + found
            if i < len(self.outputs):
                self._add_parts(name, found, want, have)
                if alone and (other := FlatOutput.of(alone[i])).form == wanted.form:
                    whole, weights = self.noises[i]
                    part = ErrorSums.from_arrays(want, other.array).noise
                    self.noises[i] = whole + found.noise, weights + part
            same, rows = _agreement(want, have, name in self.judged.classes)
            self.agreed[i] = (self.agreed[i][0] + same, self.agreed[i][1] + rows)
        if truth is not None:
            self.right += count_right(predict_classes(got[0], self.outputs[0]), truth, self.outputs[0])

    def _add_parts(self, name: str, whole: ErrorSums, want: NDArray[Any], have: NDArray[Any]) -> None:
        parts = self.judged.parts.get(name, ())
        found = part_sums(parts, want, have) if parts else [whole]
        if parts:
            known = self.parts.get(name, [ErrorSums()] * len(found))
            self.parts[name] = [one + other for one, other in zip(known, found, strict=True)]
        for place, sums in enumerate(found):
            self.powers.setdefault((name, place), []).append((sums.signal, sums.noise))

    @property
    def is_stable(self) -> bool:
        """Whether more feeds would hardly change the SQNR of any output, or part of one."""
        return all(
            standard_error_db(*zip(*pairs, strict=True)) < STABLE_DB * min(1.0, len(pairs) / SURE_FEEDS)
            for (name, _), pairs in self.powers.items()
            if name not in self.judged.logits
        )

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
        judged, split = self.judged, len(self.outputs)
        deciding = set(judged.deciding or self.outputs) - self.parts.keys()
        names = [*self.outputs, *self.tensors]
        scores = {
            name: _score(
                name,
                sums,
                top1_agreement=same / count if count else None,
                decides=name in deciding,
                moved=name in judged.moved,
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
            shares=tuple(EqualShare.of(name, counts) for name, counts in self.shares.items()),
            accuracy=self.right / rows if rows else None,
            weight_shares={
                name: weights / whole
                for name, (whole, weights) in zip(self.outputs, self.noises, strict=True)
                if 0.0 < whole < math.inf and weights < math.inf and name not in judged.logits
            },
        )

    def _score_parts(self) -> Iterator[OutputScore]:
        """Yield the scores of the parts of outputs; one that is zero in the reference decides nothing."""
        for name, found in self.parts.items():
            decides = name in self.judged.deciding
            for number, (part, sums) in enumerate(zip(self.judged.parts[name], found, strict=True), 1):
                text = part.name(number, len(found))
                yield _score(name, sums, part=text, decides=decides and sums.signal > 0.0)

    def _score_logits(self, scores: Mapping[str, OutputScore]) -> Iterator[OutputScore]:
        """Yield the scores of logits, in the name of the outputs behind them."""
        for name, output in self.judged.logits.items():
            if name in scores:
                changes = {"output": output, "part": f"logits {name!r}", "decides": False}
                yield scores[name].model_copy(update={**changes, "top1_agreement": None})


def _score(name: str, sums: ErrorSums, **more: Any) -> OutputScore:
    return OutputScore(
        output=name, sqnr_db=sums.sqnr_db, cosine=sums.cosine, largest_error=sums.largest, **more
    )


def _read_declared_sizes(reference: onnx.ModelProto) -> dict[str, list[int | None]]:
    """Return the sizes of outputs and inner tensors as the model declares them; None for an open axis."""
    found = {}
    for value in (*reference.graph.output, *reference.graph.value_info):
        if value.type.tensor_type.HasField("shape"):
            dims = value.type.tensor_type.shape.dim
            found[value.name] = [d.dim_value if d.HasField("dim_value") else None for d in dims]
    return found


def _agreement(want: NDArray[Any], have: NDArray[Any], has_classes: bool) -> tuple[int, int]:
    # [rows, classes], or scores of classes by position; the last axis of boxes or an image holds none.
    if not (want.ndim == 2 or (want.ndim == 3 and has_classes)) or want.shape[-1] < 2 or want.size == 0:
        return 0, 0
    same = want.argmax(-1) == have.argmax(-1)
    return int(same.sum()), int(same.size)
