"""Constants of the judge and of its budget, each chosen by all networks but one.

    ONNXFQ_MODELS=FOLDER PYTHONPATH=. python benchmarks/judge_constants.py [--only TEXT ...]
        [--recipe RECIPE] [--out benchmarks/results/judge_constants.md]

Each network of the tuning set is quantized once with every constant as it is, and with one of them changed.
The figure is the SQNR of the worst part on samples that judge the comparison, which chose nothing, less the
figure of the constants as they are. The cost is what the budget has counted, in runs of the float model: the
same on every machine. A network that is left out gets the value that has the best mean of all others; of
values within NEAR_DB the cheapest.
"""

from __future__ import annotations

import argparse
import importlib
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

from comparison_networks import NETWORKS
from comparison_rows import REPORTING
from inputs import find
from timing import markdown_table, write_section

import onnxfq
from onnxfq.judging.work import Budget

JUDGED = 256
"""Most samples that judge a network."""

NEAR_DB = 0.05
"""Difference of means that is none."""

HOMES = {
    "ALLOWED": "onnxfq.judging.work",
    "BEAM": "onnxfq.judging.combinations",
    "PROVEN": "onnxfq.judging.combinations",
    "CHOOSING": "onnxfq.judging.samples",
    "PROVING": "onnxfq.judging.samples",
    "LEAST_GAIN_DB": "onnxfq.judging.judge",
    "COVERAGE": "onnxfq.numerics.intervals",
}
"""Module of each constant."""

READERS = {
    "PROVING": ("onnxfq.judging.judge", "onnxfq.judging.combinations"),
    "LEAST_GAIN_DB": ("onnxfq.remedies.equalize_search",),
}
"""Modules that have it under the same name."""

CONSTANTS: dict[str, tuple[float, ...]] = {
    "ALLOWED": (1.25e11, 2e12),
    "BEAM": (1, 3),
    "PROVEN": (1, 6),
    "CHOOSING": (4, 16),
    "PROVING": (8, 32),
    "LEAST_GAIN_DB": (0.25, 1.0),
    "COVERAGE": (0.8, 0.95),
}
"""Other values of each constant."""

AS_IT_IS = "as they are"


class Outcome(NamedTuple):
    """SQNR in dB on samples that judge, and the runs that repair has taken."""

    sqnr_db: float
    runs: float


@contextmanager
def changed(name: str, value: float) -> Iterator[None]:
    """Give a constant another value wherever it is known."""
    with ExitStack() as stack:
        for module in (HOMES[name], *READERS.get(name, ())):
            stack.enter_context(patch.object(importlib.import_module(module), name, value))
        yield


@contextmanager
def counted() -> Iterator[list[float]]:
    """Collect the runs that budgets spend."""
    runs: list[float] = []
    spend = Budget.spend

    def note(self: Budget, taken: float) -> None:
        runs.append(taken)
        spend(self, taken)

    with patch.object(Budget, "spend", note):
        yield runs


def measure(model: Path, calibrating: Sequence[Any], judging: Sequence[Any], recipe: str) -> Outcome:
    """Return what `quantize` makes of a network by default, and what it costs."""
    with counted() as runs:
        made = onnxfq.quantize(model, calibrating, recipe=recipe)
    score = onnxfq.evaluate(model, made.qdq, judging[:JUDGED]).candidates[0]
    return Outcome(score.lowest_db, math.fsum(runs))


def measure_all(name: str, recipe: str) -> dict[tuple[str, float], Outcome]:
    """Return the outcome of a network with each value of each constant."""
    samples, model = NETWORKS[name].samples(), find(NETWORKS[name].model)[0]
    given = model, samples.calibrating, samples.judging, recipe
    found = {(AS_IT_IS, 0.0): measure(*given)}
    for constant, values in CONSTANTS.items():
        for value in values:
            with changed(constant, value):
                found[constant, value] = measure(*given)
    return found


def choose_value(gains: Mapping[float, Sequence[float]], costs: Mapping[float, Sequence[float]]) -> float:
    """Return the value of the best mean gain; of those within NEAR_DB the one of least mean cost."""
    means = {value: math.fsum(own) / len(own) for value, own in gains.items()}
    near = [value for value, mean in means.items() if mean >= max(means.values()) - NEAR_DB]
    return min(near, key=lambda value: math.fsum(costs[value]))


def leave_out(found: Mapping[str, Mapping[tuple[str, float], Outcome]], constant: str) -> list[str]:
    """Return the row of a constant: its value, what others choose, and what that makes of those left out."""
    shipped = getattr(importlib.import_module(HOMES[constant]), constant)
    outcomes = {
        name: {
            shipped: own[AS_IT_IS, 0.0],
            **{value: own[constant, value] for value in CONSTANTS[constant]},
        }
        for name, own in found.items()
    }
    chosen, lost = [], []
    for name, own in outcomes.items():
        others = [one for other, one in outcomes.items() if other != name]
        gains = {v: [one[v].sqnr_db - one[shipped].sqnr_db for one in others] for v in own}
        costs = {v: [one[v].runs / max(one[shipped].runs, 1.0) for one in others] for v in own}
        chosen.append(choose_value(gains, costs))
        lost.append(own[chosen[-1]].sqnr_db - own[shipped].sqnr_db)
    told = ", ".join(f"{value:g}: {chosen.count(value)}" for value in sorted(set(chosen)))
    return [constant, f"{shipped:g}", told, f"{math.fsum(lost) / len(lost):+.2f}", f"{min(lost):+.2f}"]


def main() -> None:
    """Measure all networks, and write both tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", default=[""], metavar="TEXT", help="parts of names")
    parser.add_argument("--recipe", default="tensorrt-int8")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    names = [
        name
        for name, network in NETWORKS.items()
        if not network.damaged and name not in REPORTING and any(text in name for text in asked.only)
    ]
    found = {}
    for name in names:
        found[name] = measure_all(name, asked.recipe)
        print(name, {f"{k} {v:g}": (round(o.sqnr_db, 2), round(o.runs)) for (k, v), o in found[name].items()})
    heads = ["network", "dB, runs", *(f"{name} {value:g}" for name in CONSTANTS for value in CONSTANTS[name])]
    rows = []
    for name, own in found.items():
        base = own[AS_IT_IS, 0.0]
        cells = (
            f"{one.sqnr_db - base.sqnr_db:+.1f}, {one.runs / max(base.runs, 1.0):.1f}"
            for key, one in own.items()
            if key[0] in CONSTANTS
        )
        rows.append([name, f"{base.sqnr_db:.1f}, {base.runs:.0f}", *cells])
    left = [leave_out(found, constant) for constant in CONSTANTS if len(found) > 1]
    text = [
        f"Recipe {asked.recipe}. First the SQNR in dB and the runs of repair with the constants as they are; "
        "then, with one of them changed, the dB more and the share of the runs.",
        markdown_table(heads, rows),
        "Chosen by all networks but one: how often which value, and the dB that those left out gain by it "
        "over the constant as it is, in the mean and at worst.",
        markdown_table(["constant", "as it is", "chosen by the others", "mean dB", "worst dB"], left),
    ]
    write_section(asked.out, "Constants of the judge", asked.recipe, "\n\n".join(text))


if __name__ == "__main__":
    main()
