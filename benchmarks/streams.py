"""Drift of networks that feed their state back: dB along a recording, by format, and what cures it.

    python benchmarks/streams.py [FOLDER] [--out FILE]

A planted state space, and the voice detector and the speech enhancer of FOLDER, the one for `real_models.py`.
Each is quantized without repair with the feeds of a recording, and is then run along another recording, with
its own state. The last rows of a network have its worst layer, by `sensitivity`, in float or in 16 bits.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from real_cases import DTLN, SILERO, Case, Feed, Folder
from timing import machine, markdown_table, report

import onnxfq
from onnxfq.numerics.metrics import ratio_db
from onnxfq.runtime.session import Session

RECIPES = ("tensorrt-int8", "tensorrt-fp8", "onnxruntime-int8", "qnn-a16w8")
CURED = "onnxruntime-int8"
"""Recipe whose worst layer is cured."""

SIXTEEN = {"qtype": "int16", "symmetric": True}
CURES = {
    "in float": {"keep_float": True},
    "16-bit activations": {"activations": {"qtype": "uint16"}},
    "16 bits": {"activations": SIXTEEN, "weights": SIXTEEN},
}
PARTS = ((0, 64), (100, 200), (500, 1000), (1500, 2000))
STATES = 64


def plant() -> onnx.ModelProto:
    """Return a state space whose states turn by pairs and shrink by 0.998 in a step."""
    random = np.random.default_rng(0)
    turn = np.zeros((STATES, STATES))
    for at in range(0, STATES, 2):
        angle = random.uniform(0.02, 0.5)
        pair = [[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]
        turn[at : at + 2, at : at + 2] = 0.998 * np.asarray(pair)
    basis = np.linalg.qr(random.normal(size=(STATES, STATES)))[0]
    arrays = {
        "turn": basis @ turn @ basis.T,
        "enter": random.normal(size=(16, STATES)) / 10,
        "leave": random.normal(size=(STATES, 8)) / 10,
    }
    nodes = [
        helper.make_node("MatMul", ["x", "enter"], ["a"], "in"),
        helper.make_node("MatMul", ["state", "turn"], ["b"], "recurrent"),
        helper.make_node("Add", ["a", "b"], ["next"], "sum"),
        helper.make_node("MatMul", ["next", "leave"], ["y"], "out"),
    ]
    shapes = {"x": 16, "state": STATES, "y": 8, "next": STATES}
    values = {n: helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, size]) for n, size in shapes.items()}
    graph = helper.make_graph(
        nodes,
        "state_space",
        [values["x"], values["state"]],
        [values["y"], values["next"]],
        [numpy_helper.from_array(array.astype(np.float32), name) for name, array in arrays.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def record(model: onnx.ModelProto, count: int, seed: int) -> list[Feed]:
    """Return feeds of the planted network, with the state that it leaves itself."""
    rows = np.random.default_rng(seed).normal(size=(count, 1, 16)).astype(np.float32)
    session, state, feeds = Session(model, 1), np.zeros((1, STATES), np.float32), []
    for row in rows:
        feeds.append({"x": row, "state": state})
        state = session.run(feeds[-1])[1]
    return feeds


def run_along(model: onnx.ModelProto, feeds: Sequence[Feed], state: str) -> np.ndarray:
    """Return the first output for each feed of one recording, of a model that takes its own state."""
    session, own, found = Session(model, 1, exact=True), feeds[0][state], []
    for feed in feeds:
        output, own = session.run({**feed, state: own})[:2]
        found.append(np.asarray(output, np.float64).ravel())
    return np.asarray(found)


def sqnr_db(signal: np.ndarray, noise: np.ndarray) -> float:
    """Return the SQNR in dB."""
    return ratio_db(float(np.square(signal).sum()), float(np.square(noise).sum()))


def list_ways(model: onnx.ModelProto, feeds: Sequence[Feed]) -> Iterator[tuple[str, onnxfq.Recipe]]:
    """Yield the name of each way and its recipe."""
    for name in RECIPES:
        yield name, onnxfq.load_recipe(name)
    worst = onnxfq.sensitivity(model, feeds, recipe=CURED).groups[0]
    layer = worst.nodes[0].rpartition("/")[2]
    for name, change in CURES.items():
        override = onnxfq.Override(tensors=worst.tensors, **change)
        recipe = onnxfq.load_recipe(CURED)
        yield f"{CURED}, {layer} {name}", recipe.model_copy(update={"overrides": (override,)})


def measure(
    name: str, model: onnx.ModelProto, feeds: Sequence[Feed], others: Sequence[Feed], state: str
) -> Iterator[list[str]]:
    """Yield the rows of a network.

    Args:
        name: of the network.
        model: the network.
        feeds: recordings to quantize it with.
        others: another recording.
        state: the input that is fed back.
    """
    want = run_along(model, others, state)
    parts = [part for part in PARTS if part[0] < len(others)]
    for way, recipe in list_ways(model, feeds):
        try:
            result = onnxfq.quantize(model, feeds, recipe=recipe, accuracy=onnxfq.AccuracyTarget(repair=None))
        except onnxfq.OnnxfqError as error:
            yield [name, way, str(error).partition(";")[0], *[""] * (len(PARTS) + 1)]
            continue
        error = want - run_along(result.simulation, others, state)
        worst = result.evaluation.candidates[0].drifting
        yield [
            name,
            way,
            f"{result.evaluation.lowest_db:.1f}",
            "" if worst is None or worst.drift is None else f"{worst.drift.loss_db:.2g}",
            *(f"{sqnr_db(want[start:stop], error[start:stop]):.1f}" for start, stop in parts),
            *[""] * (len(PARTS) - len(parts)),
        ]


def list_networks(path: Path | None) -> Iterator[tuple[str, onnx.ModelProto, list[Feed], list[Feed], str]]:
    """Yield the arguments of `measure` for each network."""
    planted = plant()
    yield "planted state space", planted, record(planted, 600, 1), record(planted, 2000, 2), "state"
    if path is None:
        return
    cases = (
        Case(SILERO, (), "ev_s06"),
        *(Case(file, (), "ev_s07", scored=DTLN) for file in DTLN),
    )
    for case, state in zip(cases, ("state", "input_3", "input_5"), strict=True):
        folder = Folder(path)
        model = onnx.load(path / case.file)
        others = folder.task_feeds(case)
        starts = [at for at, feed in enumerate(others) if at and not feed[state].any()]
        yield case.name, model, folder.feeds(case), others[: (starts or [None])[0]], state


def main() -> None:
    """Print the table, and write it to a file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    heads = ["network", "way", "printed dB", "loss found", *(f"feeds {a} to {b}" for a, b in PARTS)]
    rows = [row for network in list_networks(asked.folder) for row in measure(*network)]
    report(
        "Drift along streams", TEXT.format(machine=machine(), table=markdown_table(heads, rows)), asked.out
    )


TEXT = """Networks that feed their state back, quantized without repair and run along another recording
with their own state. The printed figure is the worst 64 feeds after the first 64, of unseen feeds. The
loss found is the slope in the summary, in dB for a hundred feeds, if the error grows. The other columns
have the SQNR of parts of the other recording.

    PYTHONPATH=. python benchmarks/streams.py FOLDER --out benchmarks/results/streams.md

{machine}.

{table}

The error of the planted network adds up over hundreds of feeds. 16 bits for the state alone do not cure
it: the weight that feeds back still turns the state by a wrong angle. Both in 16 bits, or the product in
float, do. The voice detector and the speech enhancer have no growing error: what is said in a window
matters more."""


if __name__ == "__main__":
    main()
