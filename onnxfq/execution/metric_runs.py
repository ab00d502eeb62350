"""`run_metric`: the metric of a task on a model, run on each sample by itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

from numpy.typing import NDArray

from onnxfq.choices import DeviceChoice
from onnxfq.data import Feed, Feeds
from onnxfq.data.inputs import read_only, samples
from onnxfq.execution.sides import Side, run_sides
from onnxfq.metrics import TAKES, Metric, name_metric, read_value
from onnxfq.support.user_code import faults_of


def run_metric(
    metric: Metric,
    side: Side,
    device: DeviceChoice,
    *,
    feeds: Feeds,
    labels: NDArray[Any] | None = None,
    threads: int = 0,
) -> float:
    """Return the metric of a model.

    Args:
        metric: takes the outputs of each sample in order, and the labels or, without labels, the samples.
        side: the model and its outputs.
        device: of the session.
        feeds: the data, which is read twice.
        labels: of all rows.
        threads: of a session, 0 for one per core.

    Raises DataError if the metric fails or returns no finite number.
    """

    def every() -> Iterator[Feed]:
        return (sample for feed in feeds for sample in samples(feed, feeds.inputs))

    name = f"metric {name_metric(metric)}"
    with closing(run_sides([side], every(), threads, device)) as runs:
        outputs = (read_only(dict(zip(side.fetches, arrays, strict=True))) for (arrays,) in runs)
        with faults_of(name, takes=TAKES):
            return read_value(metric(outputs, map(read_only, every()) if labels is None else labels), name)
