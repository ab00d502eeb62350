"""Statistics for a plan: given ones after a check, or observed ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from onnxfq.calibration.statistics import Statistics
from onnxfq.data import DataDigest, digest_feed
from onnxfq.data.model_inputs import input_specs
from onnxfq.documents.plan import Plan
from onnxfq.errors import DataError
from onnxfq.stages.inputs import QuantizeSession
from onnxfq.stages.limits import with_limits
from onnxfq.stages.observe import collect_statistics
from onnxfq.stages.options import RunOptions


def gather_statistics(
    inputs: QuantizeSession,
    plan: Plan,
    given: str | Path | Statistics | None,
    options: RunOptions,
    ray: str | None = None,
) -> Statistics:
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
        return found
    if feeds is None and plan.activations:
        raise DataError(
            f"recipe {plan.recipe} needs data to observe {len(plan.activations)} activations; give data, or "
            "statistics from `onnxfq observe`"
        )
    plan = plan if feeds is None else with_limits(plan, model)
    if feeds is None or not plan.activations:
        return Statistics(model.sha256, 0, {}, data=_digest(inputs))  # nothing has to be observed
    observing = replace(
        options.observing,
        nonfinite=options.data.nonfinite,
        feed_ranges=any(p.calibrator.is_ordered for p in plan.activations),
        progress=options.stage("observe", inputs.runs),
    )
    return collect_statistics(model, plan, feeds, observing, ray=ray)


def _digest(inputs: QuantizeSession) -> DataDigest:
    """Return the digest of all samples; the pass also keeps feeds for the comparison."""
    specs = input_specs(inputs.model.proto)
    return sum((digest_feed(feed, specs) for feed in inputs.feeds or ()), DataDigest())
