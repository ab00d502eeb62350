"""Page of `measures.py`: verdict and tables."""

from __future__ import annotations

import datetime
import math
from collections.abc import Sequence

import numpy as np
from measures_rank import SETS, TASK, TOOL, Network, against, choose, correlation, mean
from timing import machine, markdown_table
from variants import VARIANTS

import onnxfq


def text(value: float) -> str:
    """Return a number of two digits, or a dash."""
    return "-" if math.isnan(value) else f"{value:.2f}"


def describe(gain: tuple[float, float, int]) -> str:
    """Return what `against` returns as text."""
    return f"{gain[0]:+.2f} ± {text(gain[1])}, {gain[2]}"


def summary(networks: Sequence[Network], measures: Sequence[str]) -> str:
    """Return the table over all networks."""
    rows = []
    for measure in measures:
        cells = [measure]
        for pick in (lambda one: one.scored, lambda one: one.free):
            cells += [text(mean([correlation(n, pick(n), w, measure) for n in networks])) for w in SETS]
        for take in (worse, captured):
            cells += [take([choose(n, which, measure) for n in networks]) for which in SETS]
        rows.append(cells)
    titles = ("all", "equal cost", "worse", "captured")
    header = ["measure", *(text for title in titles for text in (f"{title}: seen", "unseen"))]
    return markdown_table(header, rows)


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
    means = [text(mean([correlation(one, one.free, which, name) for one in networks])) for name in measures]
    gains = ["" if name == TOOL else f" ({describe(against(networks, which, name))})" for name in measures]
    last = ["mean, equal cost", *map(str.__add__, means, gains)]
    return markdown_table(["network", *measures], [*rows, last])


def distances(networks: Sequence[Network], measures: Sequence[str]) -> str:
    """Return how far measures in dB on unseen samples are from those on samples of the task."""
    rows = []
    for measure in measures:
        found = [
            [one.values["unseen"][measure] - one.values[TASK][measure] for one in network.scored]
            for network in networks
        ]
        gaps = np.concatenate([np.asarray(one)[np.isfinite(one)] for one in found])
        most = [max(one) for one in found]
        rows.append([measure, f"{np.median(np.abs(gaps)):.1f}", f"{gaps.max():.1f}"])
        rows[-1].append(f"{sum(gap > TOO_GOOD for gap in most)} of {len(networks)}")
    header = ["measure", "median distance, dB", "most too good, dB", f"networks with over {TOO_GOOD:g} dB"]
    return markdown_table(header, rows)


TOO_GOOD = 5.0
"""An estimate so many dB above the truth misleads."""


def spread(networks: Sequence[Network]) -> str:
    """Return what each task is, and how far the variants of equal cost reach."""
    rows = []
    for one in networks:
        figures = sorted((v.figure for v in one.free), key=one.good)
        chosen = max(one.free, key=lambda v: v.values["unseen"][TOOL])
        ends = (one.exact, one.free[0].figure, figures[0], figures[-1], chosen.figure)
        best = max(one.free, key=lambda v: one.good(v.figure))
        rows.append(
            [one.name, one.metric, f"{one.step:g}", " + ".join(map(str, one.samples)), str(len(one.scored))]
            + [f"{value:.4f}" for value in ends]
            + [chosen.variant, best.variant]
        )
    header = ["network", "figure", "step", "samples", "variants", "float", "default", "worst"]
    return markdown_table([*header, "best", "by the tool's measure", "which is", "best is"], rows)


def figures(networks: Sequence[Network]) -> str:
    """Return the figure of the task and the tool's measure on unseen samples, for each variant."""
    rows = []
    for name, variant in VARIANTS.items():
        row = [name, "yes" if variant.is_free else ""]
        for one in networks:
            found = [v for v in one.scored if v.variant == name]
            row += [f"{v.figure:.4f} ({v.values['unseen'][TOOL]:.1f})" for v in found] or ["refused"]
        rows.append(row)
    return markdown_table(["variant", "equal cost", *(one.name for one in networks)], rows)


def verdict(networks: Sequence[Network], measures: Sequence[str]) -> str:
    """Return which measure the tool uses, and what speaks for and against it."""
    lines = [
        f"The tool uses the *{TOOL}* on unseen samples: the SQNR of the worst part that decides,\n"
        "probabilities or their logits. For variants of equal cost:\n"
    ]
    for which in SETS:
        choices = [choose(one, which, TOOL) for one in networks]
        found = text(mean([correlation(one, one.free, which, TOOL) for one in networks]))
        lines.append(
            f"- On {which} samples its rank correlation is {found}. Its choice is more than a step below the "
            f"best variant on {worse(choices)} networks, and captures this share of the gain: "
            f"{captured(choices)}."
        )
    apart = {
        f"*{measure}* on {which} samples": against(networks, which, measure)
        for measure in measures
        for which in (*SETS, TASK)
    }
    for side, sign in (("above", 1), ("below", -1)):
        clear = [
            name for name, (gain, error, differ) in apart.items() if differ > 1 and sign * gain > 2 * error
        ]
        lines.append(
            f"- Rank correlation {side} that measure's by more than two standard errors, on more than one "
            f"network: {', '.join(clear) or 'no measure'}."
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
- *worst part*: the same, with outputs that a last Concat joins divided into parts.
- *worst part, logits*: the same, with logits in place of probabilities.
- *worst part, both*: the lower of these two. `quantize` prints it, with logits of whole outputs.
- *mean of parts*: the mean of the dB of all parts.
- *agreement*: the share of equal decisions: the first class of a row, or the side of 0.5 of a probability.

*Equal cost* are the variants that cost the same at run time: 8 bits, weights per output channel, nothing in
float. A choice is among these alone, because lower precision is worse by any measure.
"""

OVER_ALL = """\
Means over the networks that have a figure [below](#each-network). The columns *seen* and *unseen*
are of those samples.

- *all*, *equal cost*: rank correlation over all variants, and over variants of equal cost.
- *worse*: on how many networks the variant that is first is more than a step worse than the best one.
- *captured*: the share of the possible gain over the default, where that is more than a step; a loss counts
  down to -1. In brackets the number of networks.
"""

EACH = """\
Rank correlation (Spearman) with the task, over all variants / over variants of equal cost. A dash: the
figures of the task are within a step, or the measure is the same for all variants. In brackets the mean
difference from the tool's measure, its standard error, and on how many networks the two differ.
"""

TASK_TEXT = """\
On up to 64 samples of the task, for the networks on which measures in dB differ: what is left of a measure's
faults if samples are enough, and of the right kind.
Agreement is nearly the figure itself there, where a task compares decisions with the float model's.
"""

TRUTH_TEXT = """\
The value on unseen samples of the calibration set less the value on samples of the task, over all variants.
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
    measures = list(networks[0].scored[0].values["unseen"])
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
    apart = [one for one in networks if TASK in one.scored[0].values]
    parts += [TASK_TEXT, by_network(apart, measures, TASK), ""]
    told = [measure for measure in measures if measure != "agreement"]
    if apart:
        parts += ["## Unseen and true dB\n", TRUTH_TEXT, distances(apart, told), ""]
    parts += ["## Tasks\n", TASKS_TEXT, spread(networks), "\n## Variants\n", FIGURES_TEXT, figures(networks)]
    refused = [f"- {one.name}, {name}: {why}" for one in networks for name, why in one.refused.items()]
    return "\n".join([*parts, *(["\nRefused:\n"] + refused if refused else [])]) + "\n"
