"""Accuracy of networks under the plans for TensorRT's engines, and under the plans without these rules.

    python benchmarks/plans.py FOLDER [--only TEXT] [--out benchmarks/results/plans.md]

FOLDER is the one of `real_models.py`. The plan before quantizes attention that TensorRT fuses in a half type
only, short runs of float8 convolutions and products of small weights. Models are quantized without repair and
run with FakeQuantize nodes. A network whose plan is the same under both is counted, not measured.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from unittest.mock import patch

from real_cases import CASES, Case, Folder
from timing import markdown_table, write_section

import onnxfq
from onnxfq.errors import OnnxfqError
from onnxfq.stages import plan as stages_plan
from onnxfq.targets.target import prepare_model

RECIPES = ("tensorrt-int8", "tensorrt-fp8", "tensorrt-nvfp4")


def make_plans(model: onnxfq.Model, recipe: onnxfq.Recipe) -> tuple[onnxfq.Plan, onnxfq.Plan]:
    """Return the plan before and the plan."""
    without = recipe.override(unfused_attention="quantize", least_weight_bytes=0)
    with patch.object(stages_plan, "leave_out_short_runs", lambda decisions, nodes, op_types: decisions):
        before = onnxfq.make_plan(model, without)
    return before, onnxfq.make_plan(model, recipe)


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
    feeds, figures, counts = folder.feeds(case), [folder.measure(case, {})], []
    for plan in plans:
        encodings = onnxfq.calibrate(model, plan, onnxfq.collect_statistics(model, plan, feeds))
        counts.append(str(sum(row.quantized for row in plan.coverage())))
        with tempfile.TemporaryDirectory() as work:
            file = Path(work) / "m.onnx"
            onnxfq.save(onnxfq.insert_fake_quantize(model, plan, encodings), file)
            figures.append(folder.measure(case, {case.file: file}))
    shown = [" / ".join(f"{value:.4f}" for value in one) for one in figures]
    return [case.name, name, ", ".join(case.metrics), *counts, *shown]


HEADER = ["network", "recipe", "figure", "nodes before", "nodes", "float", "plan before", "plan"]


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
    write_section(arguments.out, "Accuracy by plan", "TensorRT", text)


if __name__ == "__main__":
    main()
