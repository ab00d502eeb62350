"""Accuracy of networks under the plans for TensorRT's engines, and under the plans without these rules.

    python benchmarks/plans.py FOLDER [--only TEXT] [--out benchmarks/results/plans.md]

FOLDER is the one of `real_models.py`. The plan before quantizes attention that TensorRT fuses in a half type
only, short runs of float8 convolutions and products of small weights. Models are quantized without repair and
run with FakeQuantize nodes. A network whose plan is the same under both is counted, not measured.

One set of scales is one draw of rounding errors. Each plan is also measured with `DRAWS` other sets, the same
for both: each scale of an activation, times a factor between 1 and 1.6. "Others" is their mean, and "+-" the
standard error of the mean of the differences. SQNR counts all outputs on the samples of the task, against the
float model.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from unittest.mock import patch

import numpy as np
from real_cases import CASES, Case, Folder, open_model
from timing import markdown_table, write_section

import onnxfq
from onnxfq.errors import OnnxfqError
from onnxfq.stages import plan as stages_plan
from onnxfq.targets.target import prepare_model

RECIPES = ("tensorrt-int8", "tensorrt-fp8", "tensorrt-nvfp4")
DRAWS = 8
"""Other sets of scales."""

WIDEST = 0.7
"""Logarithm to the base 2 of the largest factor: a float8 repeats its steps with each factor of 2."""


def make_plans(model: onnxfq.Model, recipe: onnxfq.Recipe) -> tuple[onnxfq.Plan, onnxfq.Plan]:
    """Return the plan before and the plan."""
    without = recipe.override(unfused_attention="quantize")
    kept = {"leave_out_costly": lambda decisions, *_: decisions}
    with patch.multiple(stages_plan, **kept):
        before = onnxfq.make_plan(model, without)
    return before, onnxfq.make_plan(model, recipe)


def vary_scales(encodings: onnxfq.Encodings, plan: onnxfq.Plan, seed: int) -> onnxfq.Encodings:
    """Return `encodings` with each static scale of an activation enlarged; its factor depends on its name."""
    wider = {place.tensor for place in plan.activations if not place.spec.dynamic}
    changed = []
    for one in encodings.encodings:
        if one.tensor in wider:
            drawn = np.random.default_rng([seed, *one.tensor.encode()]).uniform(0, WIDEST)
            one = one.model_copy(update={"scale": (one.scale * 2**drawn).astype(np.float32)})
        changed.append(one)
    return encodings.model_copy(update={"encodings": tuple(changed)})


class Measure:
    """Measures models of a case: the figures of its task, and the SQNR in dB of the outputs, to the float."""

    def __init__(self, folder: Folder, path: Path, case: Case) -> None:
        self.folder, self.case = folder, case
        self.feeds, run = folder.task_feeds(case), open_model(path / case.file)
        self.wanted = [run(feed) for feed in self.feeds]

    def __call__(self, model: onnxfq.Model) -> tuple[float, ...]:
        """Return the figures, the SQNR last."""
        with tempfile.TemporaryDirectory() as work:
            file = Path(work) / "m.onnx"
            onnxfq.save(model, file)
            figures = self.folder.measure(self.case, {self.case.file: file})
            run = open_model(file, "ORT_ENABLE_BASIC")
            noise = power = 0.0
            for feed, wanted in zip(self.feeds, self.wanted, strict=True):
                for real, found in zip(wanted, run(feed), strict=True):
                    noise += float(np.square(np.float64(real) - np.float64(found)).sum())
                    power += float(np.square(np.float64(real)).sum())
        return (*figures, float(10 * np.log10(power / noise)))


def compare(folder: Folder, path: Path, case: Case, name: str) -> list[str] | None:
    """Return a row of the table; None if both plans quantize the same."""
    recipe = onnxfq.load_recipe(name)
    model = prepare_model(onnxfq.load(path / case.file), recipe.target)
    try:
        plans = make_plans(model, recipe)
    except OnnxfqError:  # it has nothing of this format
        return None
    before, now = ({(p.tensor, p.uses, p.spec) for p in plan.placements} for plan in plans)
    if before == now:
        return None
    feeds, measure = folder.feeds(case), Measure(folder, path, case)
    counts, found = list[str](), []
    for plan in plans:
        encodings = onnxfq.calibrate(model, plan, onnxfq.collect_statistics(model, plan, feeds))
        counts.append(str(sum(row.quantized for row in plan.coverage())))
        sets = [encodings] + [vary_scales(encodings, plan, seed) for seed in range(DRAWS)]
        sets = sets if any(not place.spec.dynamic for place in plan.activations) else sets[:1]
        made = (onnxfq.insert_fake_quantize(model, plan, one) for one in sets)
        found.append(np.asarray([measure(one) for one in made]))
    own, others = [one[0] for one in found], [one[1:] for one in found]
    shown = [_join(folder.measure(case, {}))] + [_join(one) for one in own]
    if len(others[0]) != len(others[1]) or not len(others[0]):  # dynamic scales
        return [case.name, name, ", ".join(case.metrics), *counts, *shown, "", "", ""]
    gains = others[1] - others[0]
    error = gains.std(axis=0, ddof=1) / len(gains) ** 0.5
    means = [_join(one.mean(axis=0)) for one in (*others, gains)]
    means[-1] += " +- " + _join(error)
    return [case.name, name, ", ".join(case.metrics), *counts, *shown, *means]


def _join(figures: Sequence[float]) -> str:
    return " / ".join(f"{value:.4f}" for value in figures)


HEADER = [
    "network",
    "recipe",
    "figures",
    "nodes before",
    "nodes",
    "float",
    "before, and SQNR",
    "plan, and SQNR",
]
HEADER += ["others before", "others", "gain +- error"]


def main() -> None:
    """Measure the networks whose plans differ, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    folder, rows, same = Folder(arguments.folder), list[list[str]](), 0
    for case in CASES:
        if case.raised or arguments.only not in case.file:
            continue
        for name in RECIPES:
            row = compare(folder, arguments.folder, case, name)
            if row is None:
                same += 1
                continue
            rows.append(row)
            print(*row, sep=" | ", flush=True)
    text = markdown_table(HEADER, rows) + f"\n\n{same} other pairs of network and recipe have the same plan."
    section = f"TensorRT, {arguments.only}" if arguments.only else "TensorRT"
    write_section(arguments.out, "Accuracy by plan", section, text)


if __name__ == "__main__":
    main()
