"""`Candidate`: a recipe with its plan, encodings and rounded weights, which remedies replace."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar, cast

import onnx

from onnxfq.calibration.statistics import Statistics
from onnxfq.calibration.weights import Moments
from onnxfq.choices import Uncalibrated
from onnxfq.documents.encodings import Encoding, Encodings
from onnxfq.documents.equalization import Equalization
from onnxfq.documents.override import Override
from onnxfq.documents.plan import Placement, Plan
from onnxfq.documents.recipe import Recipe
from onnxfq.errors import DataError
from onnxfq.graph.model import Model
from onnxfq.interchange import ExternalEncodingsFile
from onnxfq.layers.quantizer_toggles import QuantizerToggles
from onnxfq.layers.round_weights import Rounding, is_shared, round_given
from onnxfq.numerics.granularity import PER_TENSOR
from onnxfq.stages.calibrate import encode_weights
from onnxfq.stages.inputs import QuantizeSession
from onnxfq.stages.insert import insert_fake_quantize
from onnxfq.stages.options import QuantizeOptions, RunOptions
from onnxfq.stages.planned_encodings import PlannedEncodings, plan_encodings
from onnxfq.stages.statistics_source import GatheredStatistics, gather_statistics
from onnxfq.support.clock import Clock
from onnxfq.support.progress import announce, counting

Found = TypeVar("Found")


@dataclass(frozen=True)
class Sources:
    """Inputs of `quantize` next to model and data.

    Attributes:
        statistics: recorded earlier, so that nothing is observed; they must be of the data, if both are
            given.
        moments: of the inputs of layers, recorded earlier: weights are rounded by them, not by the data.
        encodings: scales of another tool, a file or a dictionary of onnxruntime's overrides. They are kept
            exactly, and their formats override the recipe; entries with only a range get the recipe's format.
            Only tensors without an entry are observed.
        uncalibrated: treatment of activations without an entry if there are neither data nor statistics.
    """

    statistics: str | Path | Statistics | None = None
    moments: str | Path | Moments | None = None
    encodings: ExternalEncodingsFile | None = None
    uncalibrated: Uncalibrated = "error"

    def load_moments(self) -> Moments | None:
        """Return the moments, read from their file if they are in one."""
        moments = self.moments
        return Moments.load(moments) if isinstance(moments, (str, Path)) else moments


@dataclass(frozen=True, eq=False)
class Candidate:
    """A quantized form of a model, before nodes are inserted; equal to itself alone.

    Attributes:
        session: the prepared model, with the channel factors of `equalization`, and its data.
        recipe: what is quantized and how.
        planned: its plan, and the external encodings that match it.
        statistics: of all activations of the plan; remedies choose by those without the unseen samples.
        plan: the part of it that is encoded.
        encodings: of `plan`.
        rounding: of its weights by moments; None before they are rounded.
        equalization: what was done to the channels of the model; None if nothing was.
        corrected: the float model with rounded weights and corrected biases; None if no bias was corrected.
        memory: what was found out about it so far, by what it is; another candidate has its own.
    """

    session: QuantizeSession
    recipe: Recipe
    planned: PlannedEncodings
    statistics: GatheredStatistics
    plan: Plan
    encodings: Encodings
    rounding: Rounding | None = None
    equalization: Equalization | None = None
    corrected: Model | None = None
    memory: dict[Hashable, object] = field(init=False, repr=False, default_factory=dict)

    def recall(self, key: Hashable, find: Callable[[], Found]) -> Found:
        """Return what `find` returned for `key` the first time."""
        if key not in self.memory:
            self.memory[key] = find()
        return cast(Found, self.memory[key])

    @staticmethod
    def of(
        session: QuantizeSession,
        recipe: Recipe,
        planned: PlannedEncodings,
        statistics: GatheredStatistics,
        weights: Sequence[Encoding] | None = None,
    ) -> Candidate:
        """Return the candidate of a plan, with all weights at nearest; `weights` has known encodings."""
        plan, encodings = planned.encode(session.model, statistics.seen, weights=weights)
        return Candidate(session, recipe, planned, statistics, plan, encodings)

    @property
    def model(self) -> Model:
        """The float model with rounded weights and corrected biases, into which nodes are inserted."""
        if self.corrected is not None:
            return self.corrected
        return self.session.model if self.rounding is None else self.rounding.model

    def simulate(self) -> onnx.ModelProto:
        """Return the model with FakeQuantize nodes."""
        return insert_fake_quantize(self.model, self.plan, self.encodings)

    def open_toggles(self, options: RunOptions) -> QuantizerToggles:
        """Return the model with switched quantizers. Raises ModelError without an output of numbers."""
        tensors = None if self.rounding is None else self.rounding.tensors
        return QuantizerToggles.open(self.session, self.plan, self.encodings, options, tensors)

    def rounded(self, rounding: Rounding) -> Candidate:
        """Return this with rounded weights."""
        return replace(self, rounding=rounding, encodings=rounding.encodings)

    def with_recipe(self, recipe: Recipe, keep_rounding: bool = True) -> Candidate:
        """Return the candidate of another recipe for the same statistics and weights."""
        # Rounded weights may have other scales than those of the nearest values.
        is_rounded = keep_rounding and self.rounding is not None and bool(self.rounding.tensors)
        planned = plan_encodings(self.session.ranked, recipe)
        weights = None if is_rounded else self._weights_of(planned.plan)
        made = Candidate.of(self.session, recipe, planned, self.statistics, weights)
        return (made.rounded_as(self) if keep_rounding else made)._equalized_as(self)

    def with_overrides(
        self, overrides: Sequence[Override], encodings: ExternalEncodingsFile | None, options: RunOptions
    ) -> Candidate:
        """Return the candidate of the recipe with more `overrides`, with all statistics that it needs.

        Args:
            overrides: layers in float, or in another format.
            encodings: external ones, as for `plan_encodings`.
            options: for observing tensors that only this plan quantizes.
        """
        session, statistics = self.session, self.statistics
        recipe = self.recipe.with_overrides(overrides)
        planned = plan_encodings(session.ranked, recipe, encodings)
        unknown = planned.unknown
        missing = tuple(p for p in unknown.activations if not _is_observed(p, statistics.seen))
        if missing and session.feeds is not None and session.feeds.source.repeats:
            # Another input of a sum may be quantized now.
            part = unknown.model_copy(update={"placements": missing})
            statistics = statistics.with_more(gather_statistics(session, part, None, options))
        elif missing:
            why = "the data can be read only once, and nothing was observed here"
            planned = replace(planned, plan=planned.plan.without([p.tensor for p in missing], why))
        return Candidate.of(session, recipe, planned, statistics).rounded_as(self)._equalized_as(self)

    def with_all_samples(self, options: RunOptions, round_again: bool) -> Candidate:
        """Return the candidate with the ranges of all samples, which include the unseen samples.

        Rounded weights and corrected biases stay as they were judged. If the samples are few, all of them
        round the weights, with `round_again`.
        """
        statistics, rounding, feeds = self.statistics, self.rounding, self.session.feeds
        is_rounded = rounding is not None and bool(rounding.tensors)
        if statistics.whole is statistics.seen and not (is_rounded and round_again):
            return self
        if is_rounded and round_again and self.corrected is None and feeds is not None and feeds.is_few:
            made = self._with_ranges(statistics.whole)
            again = round_given(self.session, made.plan, made.encodings, options, with_unseen=True)
            return made.rounded(again)._equalized_as(self)
        return self.with_all_ranges()

    def with_all_ranges(self) -> Candidate:
        """Return the candidate with the ranges of all samples, and the same rounded weights and biases."""
        return self.recall(Candidate.with_all_ranges, lambda: self.with_statistics(self.statistics.whole))

    def with_statistics(self, statistics: Statistics) -> Candidate:
        """Return the candidate with ranges from `statistics`, and the same rounded weights and biases."""
        made = self._with_ranges(statistics).rounded_as(self)._equalized_as(self)
        return replace(made, corrected=self.corrected)

    def _with_ranges(self, statistics: Statistics) -> Candidate:
        is_rounded = self.rounding is not None and bool(self.rounding.tensors)
        gathered = GatheredStatistics(statistics, statistics)
        # A branch that only these samples take has weights without encodings until now.
        weights = None if is_rounded else self._weights_of(self.planned.plan)
        return Candidate.of(self.session, self.recipe, self.planned, gathered, weights)

    def _weights_of(self, plan: Plan) -> Sequence[Encoding] | None:
        """Return known encodings, if all weights of `plan` have theirs."""
        known = {one.tensor: (one.spec, one.calibrator) for one in self.encodings.encodings}
        is_whole = all(known.get(p.tensor) == (p.spec, p.calibrator) for p in plan.weights)
        return self.encodings.encodings if is_whole else None

    def rounded_as(self, other: Candidate) -> Candidate:
        """Return this with the rounded weights of `other` that kept their format."""
        if other.rounding is None:
            return self
        return self.rounded(other.rounding.for_plan(self.session.model, self.plan, self.encodings))

    def _equalized_as(self, other: Candidate) -> Candidate:
        return replace(self, equalization=other.equalization)


def _is_observed(placement: Placement, statistics: Statistics) -> bool:
    """Tell whether statistics have what a placement wants of its tensor: another plan may want more."""
    tensor, granularity = placement.tensor, placement.observed_granularity
    if placement.observes_channels:
        return tensor in statistics.channels
    if granularity != PER_TENSOR:
        return tensor in statistics.groups and statistics.groups[tensor].granularity == granularity
    return tensor in statistics


def build_candidate(
    session: QuantizeSession,
    recipe: Recipe,
    sources: Sources,
    options: QuantizeOptions,
    equalization: Equalization | None = None,
    clock: Clock | None = None,
    gathered: GatheredStatistics | None = None,
) -> Candidate:
    """Plan, observe, calibrate, and round the weights for which the recipe names a method.

    Args:
        session: the model, and the data.
        recipe: what is quantized and how.
        sources: statistics, moments and encodings in place of the data.
        options: threads, device and progress.
        equalization: what was done to the channels of the model.
        clock: of the stages.
        gathered: statistics of the activations of its plan from a pass for several recipes.

    Raises PlanError for activations without a source, DataError for a cluster that has nothing to share, and
    the errors of the stages.
    """
    clock = clock or Clock()
    announce("plan")
    planned = plan_encodings(session.ranked, recipe, sources.encodings)
    if session.feeds is None and sources.statistics is None:
        planned = planned.without_uncalibrated(sources.uncalibrated)
    clock.lap("plan")
    is_observed = session.feeds is not None and sources.statistics is None and planned.unknown.activations
    if options.ray is not None and not is_observed and not is_shared(planned.plan):
        raise DataError(
            f"Ray cluster {options.ray!r} has nothing to share: no activation is observed, and recipe "
            f"{recipe.name} rounds no weight by gptq; leave it out"
        )
    statistics = gathered or gather_statistics(
        session, planned.unknown, sources.statistics, options, options.ray
    )
    clock.lap("observe")
    if session.floats is not None:  # in the background, next to the stages that take one core
        session.floats.start(session.kept)
    weights = None
    if planned.matched is None:
        weights = encode_weights(
            session.model, planned.plan, counting("calibrate", len(planned.plan.weights))
        )
    candidate = Candidate.of(session, recipe, planned, statistics, weights)
    clock.lap("calibrate")
    rounding = round_given(
        session, candidate.plan, candidate.encodings, options, sources.load_moments(), options.ray
    )
    clock.lap("round")
    session = session.with_columns(options)
    return replace(candidate.rounded(rounding), session=session, equalization=equalization)
