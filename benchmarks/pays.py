"""Times of trained networks in int8 with and without a table of times, on this processor.

    python benchmarks/pays.py FOLDER [--only TEXT,TEXT] [--clock processor] [--out benchmarks/results/pays.md]

FOLDER is the one of `real_models.py`. `scripts/gpu_times.py --device cpu` measures the sizes of all networks
first. The third way plans by all of them; the fourth by those that the network itself does not have, so that
each of its times is taken from others. All ways run in turn, with one thread.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from statistics import median

from real_cases import CASES, Case, Folder
from timing import machine, markdown_table, report

import onnxfq
from onnxfq.documents.product_times import ProductSize, ProductTimes, load_times
from onnxfq.execution.timing import Clock, compare_turns, time_in_turn
from onnxfq.graph.queries import nodes_by_graph
from onnxfq.placement.paying import size_product
from onnxfq.quantized.existing import load_existing
from onnxfq.runtime.plain_session import open_plain_session
from onnxfq.targets.recipes import load_recipe
from onnxfq.targets.target import prepare_model

SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "gpu_times.py"
RECIPE = "onnxruntime-int8"
PRODUCTS = ("Conv", "Gemm", "MatMul")
SECONDS = 8.0
"""Time for the runs of a network."""

HEADER = ["network", "products", "float ms", "all in int8", "by the table", "its sizes left out"]


def measure(path: Path, case: Case, table: ProductTimes, folder: Path, clock: Clock) -> list[str]:
    """Return the row of a network. Raises OnnxfqError if it is refused."""
    file, feeds = path / case.file, Folder(path).feeds(case)
    recipe, off = load_recipe(RECIPE), onnxfq.AccuracyTarget(repair=None)
    model = prepare_model(load_existing(file, "refuse"), recipe.target)
    own = {size_product(node) for node in nodes_by_graph(model.graph())}
    rows = [
        row for row in table.rows if ProductSize(**row.model_dump(exclude={"seconds", "crossing"})) not in own
    ]
    table.save(folder / "all.json")
    table.model_copy(update={"rows": tuple(rows)}).with_errors().save(folder / "others.json")
    runs, counts = [open_plain_session(file, 1)], list[int]()
    for way in ("", "all", "others"):
        chosen = recipe.override(pays=f"{folder / way}.json" if way else "")
        made = onnxfq.quantize(
            file,
            feeds[:8],
            folder / f"{way}.onnx",
            recipe=chosen,
            accuracy=off,
            options=onnxfq.QuantizeOptions(threads=1),
        )
        counts.append(sum(row.quantized for row in made.plan.coverage() if row.op_type in PRODUCTS))
        runs.append(open_plain_session(folder / f"{way}.onnx", 1))
    one = {name: value[:1] for name, value in feeds[0].items()}  # plans judge a sample
    times = time_in_turn([partial(run, one) for run in runs], clock, SECONDS)
    shares = [compare_turns(one, times[0]) for one in times[1:]]
    told = [
        f"{count}: {one.median:.3f} ({one.low:.3f} to {one.high:.3f})"
        for count, one in zip(counts, shares, strict=True)
    ]
    return [case.name, str(counts[0]), f"{median(times[0]) * 1e3:.2f}", *told]


def main() -> None:
    """Measure all networks and print the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--only", default="s02,s03,s04,s05,s08,s09,s10,s11", help="texts in the names of files"
    )
    parser.add_argument("--clock", choices=["wall", "processor"], default="wall")
    parser.add_argument("--table", type=Path, help="a table in place of a new one")
    parser.add_argument("--out")
    asked = parser.parse_args()
    cases = [
        one for one in CASES if not one.raised and any(text in one.file for text in asked.only.split(","))
    ]
    clock = time.process_time if asked.clock == "processor" else time.perf_counter
    with tempfile.TemporaryDirectory() as name:
        table = asked.table or Path(name, "measured.json")
        if asked.table is None:
            files = [str(asked.folder / one.file) for one in cases]
            words = [str(SCRIPT), str(table), *files, "--device", "cpu", "--clock", asked.clock]
            subprocess.run([sys.executable, *words], check=True)
        times = load_times(str(table))
        rows = [measure(asked.folder, one, times, Path(name), clock) for one in cases]
    (errors,) = times.errors.values()
    text = (
        f"Times by {asked.clock} clock as shares of float, with the interval of the median, behind "
        f"products in int8. Ratios of int8 to float of sizes left out are within {errors[0]:.0%}; "
        f"{errors[1]:.0%} for nine of ten.\n\n{markdown_table(HEADER, rows)}\n\n{machine()}."
    )
    report("Plans by measured times", text, asked.out)


if __name__ == "__main__":
    main()
