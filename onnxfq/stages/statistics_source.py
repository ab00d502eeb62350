"""Statistics for a plan: given ones after a check, or observed with and without the unseen samples."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from onnxfq.calibration.statistics import Statistics, TensorStatistics
from onnxfq.data import DataDigest, digest_feed
from onnxfq.data.model_inputs import input_specs
from onnxfq.documents.plan import Plan
from onnxfq.errors import DataError, StatisticsError
from onnxfq.stages.inputs import QuantizeSession
from onnxfq.stages.limits import with_limits
from onnxfq.stages.observe import Observation
from onnxfq.stages.options import RunOptions
from onnxfq.support.progress import counting
from onnxfq.targets.recipes import name_dataless

GROWTH = 0.05
"""Share of its width by which a range grows from which on it counts as grown."""

GROWN_SHARE = 0.1
"""Share of grown ranges for which more samples are advised."""


class GatheredStatistics(NamedTuple):
    """Statistics without the unseen samples, and of all samples; the same if no sample is unseen."""

    seen: Statistics
    whole: Statistics

    def with_more(self, more: GatheredStatistics) -> GatheredStatistics:
        """Return these with the tensors of `more`, of the same samples."""
        seen, whole = (
            replace(old, values={**old.values, **new.values}) for old, new in zip(self, more, strict=True)
        )
        return GatheredStatistics(seen, whole)

    def describe_growth(self) -> str:
        """Return a note if the unseen samples widen many ranges; empty if they do not, or none is unseen.

        Each sample is as likely to hold an end as any other: new samples leave the ranges as often as a
        quarter of the known ones widens them.
        """
        if self.seen is self.whole or not self.seen.tensors:
            return ""
        grown = 0
        for name, whole in self.whole.tensors.items():
            seen = self.seen.tensors.get(name)
            if seen is not None and _width(whole) > _width(seen) * (1 + GROWTH):
                grown += 1
        count = len(self.whole.tensors)
        if grown < GROWN_SHARE * count:
            return ""
        samples = self.whole.data.samples - self.seen.data.samples
        return (
            f"the {samples} unseen samples widened {grown} of {count} ranges by over {GROWTH:.0%}: "
            "take more samples"
        )


def _width(one: TensorStatistics) -> float:
    return max(one.rmax, 0.0) - min(one.rmin, 0.0)


def gather_statistics(
    inputs: QuantizeSession,
    plan: Plan,
    given: str | Path | Statistics | None,
    options: RunOptions,
    ray: str | None = None,
) -> GatheredStatistics:
    """Return the statistics `given`, or observe the activations of `plan`, on the Ray cluster `ray` if given.

    In both cases feeds for the comparison are kept. Raises StatisticsError if `given` is for another model
    or other data, DataError if activations have to be observed without data.
    """
    model, feeds = inputs.ranked, inputs.feeds  # groups need the ranks that the plan has
    if given is not None:
        found = given if isinstance(given, Statistics) else Statistics.load(given)
        found.check_model(model.sha256)
        if feeds is not None:
            found.check_data(_digest(inputs))
        return GatheredStatistics(found, found)
    if feeds is None and plan.activations:
        raise DataError(
            f"recipe {plan.recipe} needs data to observe {len(plan.activations)} activations; give data, "
            f"statistics from `onnxfq observe`, or a recipe that needs neither{name_dataless(plan.target)}"
        )
    plan = plan if feeds is None else with_limits(plan, model)
    if feeds is None or not plan.activations:
        nothing = Statistics(model.sha256, 0, {}, data=_digest(inputs))
        if feeds is not None:
            feeds.hold_out()
        return GatheredStatistics(nothing, nothing)
    in_order = any(p.calibrator.is_ordered for p in plan.activations)
    progress = counting("observe", inputs.runs)
    observing = replace(options.observing, feed_ranges=in_order, progress=progress)
    with Observation(model, plan, observing, ray) as observation:
        if observing.feed_ranges:  # the calibrator needs every feed in its place
            whole = observation.collect(feeds)
            return GatheredStatistics(whole, whole)
        try:
            seen = observation.collect(feeds.rest())
        except StatisticsError:
            if feeds.source.repeats:  # so that the error counts the feeds as they are given
                observation.collect(feeds.source)
            raise
        unseen = feeds.held_out()
        if not unseen:
            return GatheredStatistics(seen, seen)
        return GatheredStatistics(seen, seen.join(observation.collect(unseen, is_told=False)))


def _digest(inputs: QuantizeSession) -> DataDigest:
    """Return the digest of all samples; the pass also keeps feeds for the comparison."""
    specs = input_specs(inputs.model.proto)
    return sum((digest_feed(feed, specs) for feed in inputs.feeds or ()), DataDigest())
