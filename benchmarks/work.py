"""Costs that the budget of repair counts, next to processor time.

    python benchmarks/work.py [--samples 32] [--networks NAME ...] [--out PAGE.md]

Every job of a network takes processor time on one thread, and is counted by `onnxfq.judging.work` in
multiply-adds. All of a network's times are relative to its runs of the float model. The constants are fitted
to all networks but one in turn; the page has what is counted for the one that is left out.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from shapes import NETWORKS
from timing import machine, markdown_table, report

import onnxfq
from onnxfq.judging import work
from onnxfq.judging.accuracy_target import AccuracyTarget
from onnxfq.judging.candidate import Sources, build_candidate
from onnxfq.judging.work import Work
from onnxfq.layers.round_weights import round_given
from onnxfq.runtime.session import Session
from onnxfq.stages.inputs import open_inputs
from onnxfq.stages.observe import collect_statistics
from onnxfq.stages.options import QuantizeOptions
from onnxfq.targets.recipes import load_recipe

CONSTANTS = ("ELEMENT", "NODE", "HANDLED", "SEARCHED", "LINEAR")
"""Names of the constants in `onnxfq.judging.work`."""


class Job(NamedTuple):
    """A job with its processor seconds, and the multiply-adds that are counted, by constant and without."""

    network: str
    name: str
    seconds: float
    counted: tuple[float, ...]


def count(measure: Callable[[Work], float], costs: Work) -> tuple[float, ...]:
    """Return the multiply-adds of a job without the constants, and for one of each."""
    known = {name: getattr(work, name) for name in CONSTANTS}
    found = []
    try:
        for one in ("", *CONSTANTS):
            for name in CONSTANTS:
                setattr(work, name, float(name == one))
            found.append(measure(costs) * costs.size)
    finally:
        for name, value in known.items():
            setattr(work, name, value)
    return (found[0], *(value - found[0] for value in found[1:]))


def measure_network(name: str, samples: int) -> list[Job]:
    """Return the jobs of one network with random weights."""
    proto = NETWORKS[name](1)
    source = proto.graph.input[0]
    shape = [samples, *(dim.dim_value for dim in source.type.tensor_type.shape.dim[1:])]
    data = {source.name: np.random.default_rng(0).standard_normal(shape).astype(np.float32)}
    options, recipe = QuantizeOptions(threads=1), load_recipe("tensorrt-int8")
    session = open_inputs(proto, data, recipe, options)
    start = build_candidate(session, recipe, Sources(), options)
    costs, jobs = Work.of(start), []

    def add(job: str, call: Callable[[], object], measure: Callable[[Work], float]) -> None:
        begun = time.process_time()
        call()
        jobs.append(Job(name, job, time.process_time() - begun, count(measure, costs)))

    plain, feeds = Session(session.compared, 1), list(session.feeds.source)
    plain.run(feeds[0])
    add("run", lambda: [plain.run(feed) for feed in feeds], lambda one: float(len(feeds)))
    add(
        "observe",
        lambda: collect_statistics(session.model, start.plan, feeds, options.observing),
        lambda one: one.observe(len(feeds)),
    )
    simulated = Session(start.simulate(), 1, exact=True)
    add(
        "simulate",
        lambda: [simulated.run(feed) for feed in feeds],
        lambda one: len(feeds) * one.quantized,
    )
    add("open", lambda: Session(start.simulate(), 1, exact=True), lambda one: one.opening)
    add("calibrate", lambda: start.with_recipe(recipe), lambda one: one.calibrate)
    for method in ("gptq", "qronos"):
        rounded = recipe.override(weights={"rounding": method})
        made = start.with_recipe(rounded, keep_rounding=False)
        add(
            method,
            lambda made=made: round_given(session, made.plan, made.encodings, options),
            (lambda one: one.round_in_turn(start))
            if method == "qronos"
            else (lambda one: one.observe() + one.round(start)),
        )
    add(
        "whole, repair off",
        lambda: onnxfq.quantize(proto, data, accuracy=AccuracyTarget(repair=None), options=options),
        lambda one: one.base,
    )
    return jobs


def fit(jobs: list[Job]) -> list[float]:
    """Return the constants of least relative error for `jobs`; none is below 0.

    The seconds of a multiply-add are fitted too, and divide the others: a machine's speed cancels.
    """
    rows = np.asarray([one.counted for one in jobs]) / np.asarray([[one.seconds] for one in jobs])
    scale = rows.max(axis=0)
    free = list(range(rows.shape[1]))
    while True:
        values, *_ = np.linalg.lstsq(rows[:, free] / scale[free], np.ones(len(rows)), rcond=None)
        if (values >= 0).all():
            break
        free = [one for one, value in zip(free, values, strict=True) if value >= 0 or one == 0]
    found = np.zeros(rows.shape[1])
    found[free] = values / scale[free]
    return [float(value / found[0]) for value in found[1:]]


def predict(jobs: list[Job], constants: list[float]) -> list[float]:
    """Return counted over measured for the jobs of one network, both relative to its float runs."""
    counted = [one.counted[0] + sum(map(float.__mul__, one.counted[1:], constants)) for one in jobs]
    return [
        (value / counted[0]) / (one.seconds / jobs[0].seconds)
        for value, one in zip(counted[1:], jobs[1:], strict=True)
    ]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=32)
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS))
    parser.add_argument("--out")
    asked = parser.parse_args()
    networks = {name: measure_network(name, asked.samples) for name in asked.networks}
    here = [float(getattr(work, name)) for name in CONSTANTS]
    rows, errors = [], []
    for name, jobs in networks.items():
        others = [one for other, known in networks.items() if other != name for one in known]
        fitted, used = predict(jobs, fit(others)), predict(jobs, here)
        errors += [abs(math.log2(one)) for one in used]
        for one, left_out, now in zip(jobs[1:], fitted, used, strict=True):
            ratio = one.seconds / jobs[0].seconds * asked.samples
            rows.append([name, one.name, f"{ratio:,.0f}", f"{left_out:.2f}", f"{now:.2f}"])
    together = fit([one for jobs in networks.values() for one in jobs])
    lines = [
        f"- `{name}`: {value:.3g} fitted, {kept:.3g} used"
        for name, value, kept in zip(CONSTANTS, together, here, strict=True)
    ]
    text = (
        f"{asked.samples} samples, recipe tensorrt-int8, one thread. {machine()}. Measured is processor "
        "time, as runs of the float model on one sample. The next columns are what is counted, as a "
        "multiple of it.\n\n"
        + markdown_table(
            ["network", "job", "measured, runs", "fitted without it", "as the budget counts"], rows
        )
        + f"\n\nHalf of the counts are within a factor of {2 ** statistics.median(errors):.2f}, all within "
        f"{2 ** max(errors):.1f}. The constants, in multiply-adds:\n\n" + "\n".join(lines)
    )
    report("Costs that the budget counts", text, asked.out)


if __name__ == "__main__":
    main()
