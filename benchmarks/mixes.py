"""How well the noises of groups alone predict the noise of mixes of formats, on trained networks.

    python benchmarks/mixes.py FOLDER [--only TEXT,TEXT] [--mixes 40] [--out benchmarks/results/mixes.md]

FOLDER is the one of `real_models.py`. Groups and mixes are measured on the same samples, those that choose.
Mixes are drawn with a fixed seed: each group has the other format with a probability from .03 to .9.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from real_cases import CASES, Case, Feed, Folder
from timing import machine, markdown_table, write_section

from onnxfq.documents.scores import Evaluation
from onnxfq.documents.sensitivity import FLOAT
from onnxfq.errors import OnnxfqError
from onnxfq.judging.accuracy_target import AccuracyTarget
from onnxfq.judging.candidate import Candidate, Sources, build_candidate
from onnxfq.judging.judge import Judge
from onnxfq.layers.quantizer_toggles import first_feeds
from onnxfq.numerics.metrics import ratio_db
from onnxfq.remedies.mixes import Mixes, apply, switch_off
from onnxfq.remedies.sensitivity import rank_groups
from onnxfq.stages.inputs import open_inputs
from onnxfq.stages.options import QuantizeOptions
from onnxfq.targets.recipes import load_recipe

FORMATS = (
    ("tensorrt-int8", FLOAT),
    ("tensorrt-int8", "float8e4m3fn"),
    ("tensorrt-fp8", FLOAT),
    ("onnxruntime-int8", "int16"),
    ("tensorrt-int4", "tensorrt-int8-weights"),
    ("tensorrt-nvfp4", "tensorrt-fp8"),
)
"""Recipes, and the other format of their groups."""

SAMPLES = 8
"""Most samples that measure groups and mixes."""

HEADER = [
    "model",
    "recipe, other format",
    "groups",
    "all in the first, second: dB",
    "error of a mix: median, 90% dB",
    "bias dB",
]


def measure(path: Path, case: Case, name: str, fallback: str, count: int) -> list[str]:
    """Return the row of a network with a recipe and another format. Raises OnnxfqError if it is refused."""
    recipe, options = load_recipe(name), QuantizeOptions(threads=1)
    session = open_inputs(path / case.file, Folder(path).feeds(case), recipe, options, observed=False)
    candidate = build_candidate(session, recipe, Sources(), options)
    nothing = Evaluation(reference="float", feeds=0, candidates=())
    judge = Judge.of(candidate, options, Sources(), nothing, AccuracyTarget(repair=None)).trying
    feeds = first_feeds(judge.choosing, SAMPLES)
    ranking = rank_groups(candidate.open_toggles(options), feeds, recipe)
    mixes = Mixes.measure(candidate, judge, ranking, feeds, [fallback])
    random = np.random.default_rng(0)
    drawn = random.random((count, len(ranking.groups))) < np.linspace(0.03, 0.9, count)[:, None]
    drawn = drawn[drawn.any(axis=1)]
    predicted = mixes.predict(drawn.astype(np.int64))
    errors = [
        ratio_db(1.0, float(noise)) - found
        for noise, found in zip(predicted, run_mixes(candidate, judge, mixes, feeds, drawn), strict=True)
        if noise and np.isfinite(found)
    ] or [np.nan]  # a group alone makes no mix
    ends = [ratio_db(1.0, float(noise)) for noise in mixes.whole]
    return [
        case.name,
        f"{name}, {fallback}",
        str(len(ranking.groups)),
        ", ".join(f"{end:.1f}" if np.isfinite(end) else "-" for end in ends),
        f"{np.median(np.abs(errors)):.2f}, {np.quantile(np.abs(errors), 0.9):.2f}",
        f"{np.median(errors):+.2f}",
    ]


def run_mixes(
    candidate: Candidate, judge: Judge, mixes: Mixes, feeds: Sequence[Feed], drawn: NDArray[np.bool_]
) -> list[float]:
    """Return the SQNR in dB of each mix: by the switches for float, else of the candidate that has it."""
    found = []
    toggles = candidate.open_toggles(judge.options)
    for mix in drawn:
        places = np.flatnonzero(mix).tolist()
        if mixes.formats == (FLOAT,):
            board, state = toggles, switch_off(toggles, mixes.ranking, places)
        else:
            formats = dict.fromkeys(places, mixes.formats[0])
            board = apply(candidate, judge, mixes.ranking, formats).open_toggles(judge.options)
            state = board.everything
        found.append(ratio_db(1.0, board.noise(feeds, [state])[0]))
    return found


def main() -> None:
    """Measure all networks and print the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="texts in the names of files")
    parser.add_argument("--mixes", type=int, default=40)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    rows = []
    for case in CASES:
        if case.raised or not any(text in case.file for text in given.only.split(",")):
            continue
        for recipe, fallback in FORMATS:
            try:
                row = measure(given.folder, case, recipe, fallback, given.mixes)
                rows += [row] * (int(row[2]) > 1)
            except OnnxfqError as error:
                print(case.name, recipe, fallback, str(error)[:100], flush=True)
    text = (
        f"Error in dB of the SQNR that noises of groups alone predict, over {given.mixes} random mixes of "
        f"two formats. Groups and mixes are measured on the same samples, at most {SAMPLES}. Bias is the "
        "median of predicted minus measured. A network whose layers one of the formats does not take, or of "
        f"one group, has no row.\n\n{markdown_table(HEADER, rows)}\n\n"
        f"{machine()}."
    )
    write_section(given.out, "Noise of mixes", "Mixes of two formats", text)


if __name__ == "__main__":
    main()
