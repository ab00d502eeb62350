"""Intervals of an SQNR: how often they hold the figure of all samples, and promises on samples of any size.

    python benchmarks/intervals.py [--folder FOLDER] [--only TEXT,TEXT] [--out PAGE.md]

Draws of a few samples from many: noise of lognormal size, and with `--folder`, the one of `real_models.py`,
the outputs of trained networks. Promises of 30 dB on samples of lognormal size, and what the kept ones have
on 200 others. With `--folder`, the printed interval of trained networks, and what the data of their task
give.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from real_cases import CASES, DTLN, SILERO, Case, Feed, Folder, open_model
from timing import machine, markdown_table, write_section

import onnxfq
from onnxfq.numerics.intervals import interval_db

COUNTS = (4, 8, 16, 32, 64)
DRAWS = 400
DRAWN = ("mnist", "resnet20_op13", "stories260k_ts")
"""Networks whose samples are drawn from."""

PROMISED_DB = 30.0
SAMPLES, OTHERS = 96, 200
SPREAD = 1.0
"""Standard deviation of the logarithm of the size of a sample."""

WIDTH = 24
BODIES = {
    "one product": "y = MatMul (x, w0)",
    "two products": "a = MatMul (x, w0) b = Relu (a) y = MatMul (b, w1)",
    "four products": "a = MatMul (x, w0) b = Relu (a) c = MatMul (b, w1) d = Relu (c) "
    "e = MatMul (d, w2) f = Relu (e) y = MatMul (f, w3)",
    "sigmoid gate": "a = MatMul (x, w0) s = Sigmoid (a) g = Mul (a, s) y = MatMul (g, w1)",
    "residual": "a = MatMul (x, w0) b = Relu (a) c = MatMul (b, w1) s = Add (x, c) y = MatMul (s, w2)",
    "two branches": "a = MatMul (x, w0) b = Relu (a) c = MatMul (x, w1) d = Tanh (c) s = Add (b, d) "
    "y = MatMul (s, w2)",
    "norm": "a = LayerNormalization <axis = -1> (x, ones) b = MatMul (a, w0) c = Relu (b) y = MatMul (c, w1)",
}
"""Seven networks; the last one makes samples alike."""

Powers = tuple[NDArray[np.float64], NDArray[np.float64]]


def hold(draw: Callable[[np.random.Generator, int], Powers], truth_db: float) -> Iterator[str]:
    """Yield for each number of samples the shares of intervals that hold the truth, and are not above it."""
    for count in COUNTS:
        rng = np.random.default_rng(count)
        ends = np.asarray([interval_db(*draw(rng, count)) for _ in range(DRAWS)])
        below, holds = ends[:, 0] <= truth_db, (ends[:, 0] <= truth_db) & (truth_db <= ends[:, 1])
        yield f"{holds.mean():.2f} / {below.mean():.2f}, {np.median(np.diff(ends)):.1f} dB"


def draw_lognormal(spread: float) -> Iterator[str]:
    """Yield the shares of noise of lognormal size."""

    def draw(rng: np.random.Generator, count: int) -> Powers:
        return np.exp(0.3 * rng.normal(size=count)), np.exp(spread * rng.normal(size=count))

    return hold(draw, 10 / math.log(10) * (0.3**2 - spread**2) / 2)


def draw_samples(folder: Folder, case: Case) -> Iterator[str]:
    """Yield the shares of the first output of a trained network, over the data of its task."""
    model = folder.path / case.file
    off = onnxfq.AccuracyTarget(repair=None)
    made = onnxfq.quantize(model, folder.feeds(case), recipe="tensorrt-int8", accuracy=off).simulation
    with tempfile.TemporaryDirectory() as work:
        file = Path(work) / "simulated.onnx"
        onnxfq.save(made, file)
        runs = open_model(model), open_model(file, "ORT_ENABLE_BASIC")
    powers = []
    for feed in folder.task_feeds(case):
        want, got = (run(feed)[0].astype(np.float64) for run in runs)
        rows = want.reshape(len(want), -1), (want - got).reshape(len(want), -1)
        powers += list(zip(*(np.square(array).sum(1) for array in rows), strict=True))
    signals, noises = np.asarray(powers).T

    def draw(rng: np.random.Generator, count: int) -> Powers:
        chosen = rng.choice(len(signals), count, replace=False)
        return signals[chosen], noises[chosen]

    return hold(draw, 10 * math.log10(signals.sum() / noises.sum()))


def network(body: str, seed: int) -> onnx.ModelProto:
    """Return a network of `body` with random weights."""
    text = f"g (float[N,{WIDTH}] x) => (float[N,{WIDTH}] y) {{ {body} }}"
    model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 17]> {text}')
    rng = np.random.default_rng(seed)
    arrays = {f"w{n}": rng.normal(size=(WIDTH, WIDTH)) / math.sqrt(WIDTH) for n in range(4)}
    arrays["ones"] = np.ones(WIDTH)
    used = {name for node in model.graph.node for name in node.input}
    model.graph.initializer.extend(
        onnx.numpy_helper.from_array(array.astype(np.float32), name)
        for name, array in arrays.items()
        if name in used
    )
    return model


def draw_sizes(count: int, seed: int) -> NDArray[np.float32]:
    """Return samples whose size is lognormal."""
    rng = np.random.default_rng([seed, count])
    sizes = np.exp(SPREAD * rng.normal(size=(count, 1)))
    return (rng.normal(size=(count, WIDTH)) * sizes).astype(np.float32)


def promise(name: str, seed: int, wanted_db: float = PROMISED_DB) -> float | None:
    """Return what a kept promise has on other samples, in dB; None for one that is refused."""
    model = network(BODIES[name], seed)
    accuracy = onnxfq.AccuracyTarget(min_sqnr=wanted_db)
    try:
        made = onnxfq.quantize(model, {"x": draw_sizes(SAMPLES, seed)}, accuracy=accuracy).simulation
    except onnxfq.OnnxfqError:
        return None
    return onnxfq.evaluate(model, made, {"x": draw_sizes(OTHERS, seed)}).lowest_db


def list_promises(seeds: int) -> tuple[list[list[str]], str]:
    """Return a row for each network, and how many promises are broken."""
    found = {name: [promise(name, seed) for seed in range(seeds)] for name in BODIES}
    texts = {name: ["refused" if db is None else f"{db:.1f}" for db in own] for name, own in found.items()}
    rows = [[name, ", ".join(own)] for name, own in texts.items()]
    kept = [db for own in found.values() for db in own if db is not None]
    broken = [PROMISED_DB - db for db in kept if db < PROMISED_DB]
    total = seeds * len(BODIES)
    line = f"{len(kept)} of {total} are kept, {len(broken)} of them broken"
    return rows, line + (f", by at most {max(broken):.1f} dB." if broken else ".")


def compare_printed(
    name: str, model: onnx.ModelProto | Path, feeds: list[Feed], others: list[Feed]
) -> list[str]:
    """Return the printed figure with its interval, the one of other samples, and if it is inside."""
    off = onnxfq.AccuracyTarget(repair=None)
    result = onnxfq.quantize(model, feeds, recipe="tensorrt-int8", accuracy=off)
    worst = result.evaluation.candidates[-1].worst
    truth_db = onnxfq.evaluate(model, result.simulation, others).lowest_db
    if worst is None or worst.interval is None:
        return [name, "none", f"{truth_db:.1f}", ""]
    low, high = worst.interval
    inside = "yes" if low <= truth_db <= high else f"{max(low - truth_db, truth_db - high):.1f} dB off"
    return [name, worst.figure, f"{truth_db:.1f}", inside]


def list_printed(folder: Folder, cases: list[Case]) -> Iterator[list[str]]:
    """Yield a row for each trained network; streams are taken whole."""
    for case in cases:
        if not case.raised:
            others = folder.task_feeds(case)
            others = others if case.file in (SILERO, *DTLN) else thin(others)
            yield compare_printed(case.name, folder.path / case.file, folder.feeds(case), others)


def thin(feeds: list[Feed]) -> list[Feed]:
    """Return up to 64 feeds at equal distances."""
    return feeds[:: -(-len(feeds) // 64)]


def main() -> None:
    """Write the sections."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--only", default="", help="networks whose path holds one of these texts, by commas")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    folder = None if asked.folder is None else Folder(asked.folder.resolve())
    cases = [case for case in CASES if any(text in case.file for text in asked.only.split(","))]
    rows = [[f"lognormal noise, {spread:g}", *draw_lognormal(spread)] for spread in (0.3, 1.0, 2.0, 3.0)]
    if folder is not None:
        drawn = [case for case in cases if any(name in case.file for name in DRAWN)]
        rows += [[case.name, *draw_samples(folder, case)] for case in drawn]
    head = ["noise", *(f"{count} samples" for count in COUNTS)]
    text = (
        f"Share of {DRAWS} draws whose interval holds the figure of all samples (wanted is 0.90), share\n"
        f"whose lower end is below it (0.95), and the median width.\n\n{markdown_table(head, rows)}"
    )
    write_section(asked.out, "Intervals of an SQNR", "How often they hold", text)
    rows, line = list_promises(asked.seeds)
    text = (
        f"Promises of {PROMISED_DB:g} dB by {SAMPLES} samples of lognormal size, whose logarithm has the\n"
        f"standard deviation {SPREAD:g}, and what those that are kept have on {OTHERS} others. {line}\n\n"
        f"{markdown_table(['network', 'dB by seed'], rows)}"
    )
    write_section(asked.out, "Intervals of an SQNR", "Promises on samples of lognormal size", text)
    if folder is not None:
        rows = list(list_printed(folder, cases))
        table = markdown_table(["network", "printed", "data of the task", "inside"], rows)
        write_section(asked.out, "Intervals of an SQNR", "Trained networks", f"{machine()}.\n\n{table}")


if __name__ == "__main__":
    main()
