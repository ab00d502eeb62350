"""Page of `measures.py`: rank correlations of measures with tasks, and what choices by them gain."""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from timing import machine, markdown_table
from variants import VARIANTS

import onnxfq

TOOL = "worst part"
"""The measure that the tool uses."""

SETS = ("seen", "unseen")


class Scored(NamedTuple):
    """A variant: the figure of its task, and every measure by name on seen and on unseen samples."""

    variant: str
    figure: float
    seen: Mapping[str, float]
    unseen: Mapping[str, float]


class Network(NamedTuple):
    """A network: the metric of its task, a difference that matters, its variants.

    samples: seen and unseen ones. refused: reasons by variant.
    """

    name: str
    metric: str
    step: float
    exact: float
    samples: tuple[int, int]
    scored: tuple[Scored, ...]
    refused: Mapping[str, str]

    def good(self, figure: float) -> float:
        """Return the figure so that higher is better."""
        return -figure if "lower is better" in self.metric else figure

    @property
    def free(self) -> list[Scored]:
        """The variants that cost the same at run time, the base of gains first."""
        return [one for one in self.scored if VARIANTS[one.variant].is_free]


def rank(values: Sequence[float]) -> NDArray[np.float64]:
    """Return ranks from 1; equal values share the mean of theirs."""
    row = np.asarray(values, np.float64)
    below = (row < row[:, None]).sum(axis=1)
    return (below + (row <= row[:, None]).sum(axis=1) + 1) / 2


def correlate(first: Sequence[float], second: Sequence[float]) -> float:
    """Return Spearman's rank correlation; NaN if one side is constant or holds NaN."""
    if len({*first}) < 2 or len({*second}) < 2 or any(map(math.isnan, (*first, *second))):
        return math.nan
    return float(np.corrcoef(rank(first), rank(second))[0, 1])


def correlation(network: Network, scored: Sequence[Scored], which: str, measure: str) -> float:
    """Return the rank correlation of a measure with the figure of the task over variants.

    NaN if all figures are within a step: there is nothing to rank.
    """
    good = [network.good(one.figure) for one in scored]
    if max(good) - min(good) <= network.step:
        return math.nan
    return correlate([getattr(one, which)[measure] for one in scored], good)


def choose(network: Network, which: str, measure: str) -> tuple[float, float] | None:
    """Return how many steps the choice of a measure is below the best, and its share of the gain.

    It chooses the first of the variants of equal cost. The share is of the possible gain over the base, at
    least -1; NaN if that gain is at most a step. None if the measure measures nothing.
    """
    scored, good = network.free, network.good
    values = [getattr(one, which)[measure] for one in scored]
    if any(map(math.isnan, values)):
        return None
    base, best = good(scored[0].figure), max(good(one.figure) for one in scored)
    taken = good(scored[int(np.argmax(values))].figure)
    share = max(-1.0, (taken - base) / (best - base)) if best - base > network.step else math.nan
    return (best - taken) / network.step, share


def mean(values: Sequence[float]) -> float:
    """Return the mean of what is not NaN; NaN of nothing."""
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan


def text(value: float) -> str:
    """Return a number of two digits, or a dash."""
    return "-" if math.isnan(value) else f"{value:.2f}"


def against(networks: Sequence[Network], measure: str) -> tuple[float, float, int]:
    """Return the correlation less the tool's: mean, standard error, and on how many networks they differ.

    The variants cost the same, and the samples are unseen.
    """
    pairs = [[correlation(one, one.free, "unseen", name) for name in (measure, TOOL)] for one in networks]
    apart = [a - b for a, b in pairs if not math.isnan(a + b)]
    error = float(np.std(apart, ddof=1)) / math.sqrt(len(apart)) if len(apart) > 1 else math.nan
    return mean(apart), error, sum(abs(one) > 1e-9 for one in apart)


def summary(networks: Sequence[Network], measures: Sequence[str]) -> str:
    """Return the table over all networks."""
    rows = []
    for measure in measures:
        cells = [measure]
        for pick in (lambda one: one.scored, lambda one: one.free):
            cells += [text(mean([correlation(n, pick(n), w, measure) for n in networks])) for w in SETS]
        gain, error, differ = against(networks, measure)
        cells.append("-" if measure == TOOL else f"{gain:+.2f} ± {text(error)} ({differ})")
        for take in (worse, captured):
            cells += [take([choose(n, which, measure) for n in networks]) for which in SETS]
        rows.append(cells)
    header = ["measure", "all: seen", "unseen", "equal cost: seen", "unseen", "above the tool's"]
    return markdown_table([*header, "worse: seen", "unseen", "captured: seen", "unseen"], rows)


def worse(choices: Sequence[tuple[float, float] | None]) -> str:
    """Return on how many networks the first variant is more than a step worse than the best."""
    known = [one for one in choices if one is not None]
    return f"{sum(steps > 1 for steps, _ in known)} of {len(known)}"


def captured(choices: Sequence[tuple[float, float] | None]) -> str:
    """Return the mean share of the possible gain, and of how many networks."""
    shares = [one[1] for one in choices if one is not None and not math.isnan(one[1])]
    return f"{text(mean(shares))} ({len(shares)})"


def by_network(networks: Sequence[Network], measures: Sequence[str], which: str) -> str:
    """Return the correlations of each network: over all variants, and over the ones of equal cost."""
    rows = [
        [
            one.name,
            *(
                " / ".join(text(correlation(one, scored, which, name)) for scored in (one.scored, one.free))
                for name in measures
            ),
        ]
        for one in networks
    ]
    return markdown_table(["network", *measures], rows)


def spread(networks: Sequence[Network]) -> str:
    """Return what each task is, and how far the variants of equal cost reach."""
    rows = []
    for one in networks:
        figures = sorted((v.figure for v in one.free), key=one.good)
        chosen = max(one.free, key=lambda v: v.unseen[TOOL])
        ends = (one.exact, one.free[0].figure, figures[0], figures[-1], chosen.figure)
        best = max(one.free, key=lambda v: one.good(v.figure))
        rows.append(
            [one.name, one.metric, f"{one.step:g}", " + ".join(map(str, one.samples)), str(len(one.scored))]
            + [f"{value:.4f}" for value in ends]
            + [chosen.variant, best.variant]
        )
    header = ["network", "figure", "step", "samples seen + unseen", "variants", "float", "default", "worst"]
    return markdown_table([*header, "best", "by the tool's measure", "which is", "best is"], rows)


def figures(networks: Sequence[Network]) -> str:
    """Return the figure of the task and the tool's measure on unseen samples, for each variant."""
    rows = []
    for name, variant in VARIANTS.items():
        row = [name, "yes" if variant.is_free else ""]
        for one in networks:
            found = [v for v in one.scored if v.variant == name]
            row += [f"{v.figure:.4f} ({v.unseen[TOOL]:.1f})" for v in found] or ["refused"]
        rows.append(row)
    return markdown_table(["variant", "equal cost", *(one.name for one in networks)], rows)


def verdict(networks: Sequence[Network], measures: Sequence[str]) -> str:
    """Return which measure the tool uses, and what speaks for and against it."""
    lines = [
        f"The tool uses the *{TOOL}* on unseen samples: the SQNR of the worst part that decides, with "
        "probabilities where a final sigmoid or softmax makes them. Variants of equal cost:\n"
    ]
    for which in SETS:
        choices = [choose(one, which, TOOL) for one in networks]
        found = text(mean([correlation(one, one.free, which, TOOL) for one in networks]))
        lines.append(
            f"- On {which} samples its rank correlation is {found}. Its choice is more than a step below the "
            f"best variant on {worse(choices)} networks, and captures this share of the gain: "
            f"{captured(choices)}."
        )
    for measure in (name for name in measures if name != TOOL):
        gain, error, differ = against(networks, measure)
        if not differ:
            lines.append(f"- *{measure}* ranks these variants alike on unseen samples.")
            continue
        kind, sure = ("higher" if gain > 0 else "lower"), abs(gain) > 2 * error
        lines.append(
            f"- *{measure}* has a rank correlation that is {kind} by {abs(gain):.2f} on unseen samples, "
            f"{'more' if sure else 'less'} than two standard errors. The two differ on {differ} networks."
        )
    return "\n".join(lines)


INTRODUCTION = """\
# Which measure ranks as the task does

    python benchmarks/measures.py FOLDER --out benchmarks/results/measures.md

{date}; onnxfq {version}; {machine}; one thread.

{networks} trained networks are quantized in up to {variants} ways, the same for all, without tuning and
without repair. Every variant is a fake-quant model. It is measured on the calibration samples that gave its
ranges and moments (*seen*), and on a quarter of the calibration samples, by hash, that gave neither
(*unseen*). Then the figure of the task is measured on the data of the task.

- *pooled*: SQNR of all elements of all outputs together, a state that is fed back too. The other measures
  leave the state out.
- *worst output*: the lowest SQNR of an output.
- *worst part*: the same, with outputs that a last Concat joins divided into parts. `quantize` prints it.
- *worst part, logits*: the same, with logits in place of probabilities.
- *mean of parts*: the mean of the dB of all parts.
- *agreement*: the share of equal decisions: the first class of a row, or the side of 0.5 of a probability.

*Equal cost* are the variants that cost the same at run time: 8 bits, weights per output channel, nothing in
float. A choice is among these alone, because lower precision is worse by any measure.
"""

OVER_ALL = """\
Means over the networks that have a figure [below](#each-network). The columns *seen* and *unseen* are of
those samples.

- *all*, *equal cost*: rank correlation over all variants, and over those of equal cost.
- *above the tool's*: the rank correlation less that of the tool's measure, equal cost, unseen samples: mean,
  standard error, and in brackets on how many networks the two differ.
- *worse*: on how many networks the variant that is first is more than a step worse than the best one.
- *captured*: the share of the possible gain over the default, where that is more than a step; a loss counts
  down to -1. In brackets the number of networks.
"""

EACH = """\
Rank correlation (Spearman) with the task, over all variants / over those of equal cost. A dash: the figures
of the task are within a step, or the measure is the same for all variants.
"""

TASKS_TEXT = """\
A *step* is a difference that matters: half a point of a share, 0.05 dB of PSNR, half a percent of a
perplexity. The figures from *default* on are of the variants of equal cost.
"""

FIGURES_TEXT = """\
The figure of the task, and in brackets the tool's measure on unseen samples in dB.
"""


def page(networks: Sequence[Network]) -> str:
    """Return the whole page in Markdown."""
    measures = list(networks[0].scored[0].seen)
    parts = [
        INTRODUCTION.format(
            date=datetime.date.today().isoformat(),
            version=onnxfq.__version__,
            machine=machine(),
            networks=len(networks),
            variants=len(VARIANTS),
        ),
        "## Verdict\n",
        verdict(networks, measures),
        "\n## Over all networks\n",
        OVER_ALL,
        summary(networks, measures),
        "\n## Each network\n",
        EACH,
    ]
    for which in reversed(SETS):
        parts += [f"On {which} samples:\n", by_network(networks, measures, which), ""]
    parts += ["## Tasks\n", TASKS_TEXT, spread(networks), "\n## Variants\n", FIGURES_TEXT, figures(networks)]
    refused = [f"- {one.name}, {name}: {why}" for one in networks for name, why in one.refused.items()]
    return "\n".join([*parts, *(["\nRefused:\n"] + refused if refused else [])]) + "\n"
