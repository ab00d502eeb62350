"""Statistics for a plan: given ones after a check, or observed ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from onnxfq.calibration.statistics import Statistics
from onnxfq.data import sample_digest
from onnxfq.data.replay import KeptFeeds
from onnxfq.documents.plan import Plan
from onnxfq.errors import DataError
from onnxfq.stages.observe import collect_statistics
from onnxfq.stages.options import RunOptions
from onnxfq.stages.quantize_inputs import QuantizeInputs
from onnxfq.support.digests import DATA_MODULUS


def gather_statistics(
    inputs: QuantizeInputs, plan: Plan, given: str | Path | Statistics | None, options: RunOptions
) -> Statistics:
    """Return the statistics `given`, or observe the activations of `plan`.

    Feeds to compare with later are kept in any case. Raises StatisticsError for given ones of another model
    or of other data, DataError when activations are to be observed and there is no data.
    """
    model, feeds = inputs.model, inputs.feeds
    if given is not None:
        found = given if isinstance(given, Statistics) else Statistics.load(given)
        found.check_model(model.sha256)
        if feeds is not None:
            found.check_data(*_count(feeds))
        return found
    if feeds is None and plan.activations:
        raise DataError(
            f"recipe {plan.recipe} needs data: {len(plan.activations)} activations are to be observed; give "
            "data, or statistics from `onnxfq observe`"
        )
    if feeds is None or not plan.activations:
        digest, samples = (0, 0) if feeds is None else _count(feeds)  # no run tells anything here
        return Statistics(model.sha256, samples, {}, data=digest)
    observing = replace(
        options.observing,
        nonfinite=options.data.nonfinite,
        feed_ranges=any(p.calibrator.is_ordered for p in plan.activations),
        progress=options.stage("observe", inputs.runs),
    )
    return collect_statistics(model, plan, feeds, observing)


def _count(feeds: KeptFeeds) -> tuple[int, int]:
    """Return (the sum of the hashes of all feeds, their number)."""
    digests = [sample_digest(feed) for feed in feeds]
    return sum(digests) % DATA_MODULUS, len(digests)
