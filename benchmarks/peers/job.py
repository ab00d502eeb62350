"""Jobs for the tools, and the scores of the models that they write.

Every tool runs in a process of its own python, with `worker.py`. The models are scored here, all in one way:
by the task's own metric, on data that no tool has seen.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from real_cases import CASES, Case, Folder, open_model, raised_to_float32  # noqa: E402  (just added)
from worker import Feed, sqnr_db, write_feeds  # noqa: E402

import onnxfq  # noqa: E402

MATRIX = ("Conv", "ConvTranspose", "Gemm", "MatMul")
MOVES = ("Flatten", "Identity", "Reshape", "Slice", "Squeeze", "Transpose")
DEQUANTIZERS = ("DequantizeLinear", "FakeQuantize")


def parse(doc: str, *tools: str) -> argparse.Namespace:
    """Return the arguments: the folder of models, the python of each tool, and what is written."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("folder", type=Path, help="the folder of real_models.py")
    for tool in tools:
        parser.add_argument(f"--{tool}", metavar="PYTHON", help=f"python of {tool}'s environment")
    parser.add_argument("--out", type=Path, help="replace this script's section of this page")
    return parser.parse_args()


def find_case(name: str, raised: bool = False) -> Case:
    """Return the case of a model by its file name."""
    return next(case for case in CASES if Path(case.file).stem == name and case.raised == raised)


def float_model(folder: Folder, case: Case) -> onnx.ModelProto:
    """Return the float32 model as onnxfq loads it: shapes inferred, constants folded, weights inside."""
    path = folder.path / case.file
    return onnxfq.load(raised_to_float32(path) if case.raised else onnx.load(path)).proto


def labelled_data(folder: Folder, case: Case) -> tuple[list[dict[str, np.ndarray]], np.ndarray] | None:
    """Return calibration feeds of one sample with their classes; None for a model without classes."""
    score, name = folder.score, case.file.partition("/")[0]
    if name.startswith("s01"):
        held = np.load(folder.path / name / "mnist_t10k.npz")
        images, classes = held["images"][:2000], held["labels"][:2000]
        return [{"Input3": image[None].astype(np.float32)} for image in images], classes
    if name.startswith("s02"):
        images, classes = score.cifar(name, *score.IM)["calib"]
        return [{"input": image[None]} for image in images], classes
    if "cls" in case.file.partition("/")[2]:
        images, classes = zip(*score.cls_items("calib"), strict=True)
        return [{"x": image} for image in images], np.array(classes)
    return None


@contextmanager
def job_folder(model: onnx.ModelProto, feeds: list[Feed], labels: np.ndarray | None = None) -> Iterator[Path]:
    """Yield a temporary folder with the input of a job."""
    with TemporaryDirectory() as name:
        onnx.save(model, Path(name) / "model.onnx")
        write_feeds(Path(name), feeds)
        if labels is not None:
            np.save(Path(name) / "labels.npy", labels)
        yield Path(name)


def run(python: str | None, tool: str, task: str, folder: Path, **options: Any) -> dict[str, Any]:
    """Run a task of `by_TOOL.py` with `python`, None for this one; return its result, or {"error": text}."""
    script = str(HERE / f"by_{tool}.py")
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    if python:  # that environment has other packages
        environment.pop("PYTHONPATH", None)
    done = subprocess.run(
        [python or sys.executable, script, task, str(folder), json.dumps(options)],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    lines = done.stdout.strip().splitlines()
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        return {"error": last[:160]}
    result = json.loads(lines[-1])
    if "error" in result:
        print(tool, task, options, done.stderr[-2000:], file=sys.stderr)
    return result


def score(folder: Folder, case: Case, path: Path | None) -> tuple[float, ...]:
    """Return the figures of the task with the model at `path`, None for the float model."""
    return folder.measure(case, {} if path is None else {case.file: path})


def unseen_feeds(folder: Folder, case: Case) -> list[Feed]:
    """Return feeds of resnet20 or minilm that are not among the calibration data."""
    name = case.file.partition("/")[0]
    if name.startswith("s02"):
        images = folder.score.cifar(name, *folder.score.IM)["eval"][0]
        return [{"input": images[at : at + 50]} for at in range(0, 500, 50)]
    held = np.load(folder.path / name / "sts15_answers_forums_tokens.npz")
    tokens, masks = (held[key][75:375, 0].astype(np.int64) for key in ("input_ids", "attention_mask"))
    return [
        {"input_ids": tokens[at : at + 25], "attention_mask": masks[at : at + 25]} for at in range(0, 300, 25)
    ]


def output_db(reference: Path, made: Path, feeds: list[Feed]) -> float:
    """Return the SQNR of the first output of a model in dB against the float model."""
    runs = open_model(reference), open_model(made, "ORT_ENABLE_BASIC")
    return sqnr_db(*([np.asarray(one(feed)[0]) for feed in feeds] for one in runs))


def count_float(path: Path) -> tuple[int, int]:
    """Return how many operators with weights read a float activation or weight, and how many there are."""
    inputs = _quantized_inputs(path)
    return sum(not all(low) for low in inputs), len(inputs)


def count_weights(path: Path) -> tuple[int, int]:
    """Return how many weights of operators are quantized, and how many there are."""
    inputs = _quantized_inputs(path, weights=True)
    return sum(any(low) for low in inputs), len(inputs)


def _quantized_inputs(path: Path, weights: bool = False) -> list[list[bool]]:
    """Tell for each operator, or each that reads a constant, which of its two inputs are quantized."""
    graph = onnx.load(path).graph
    makers = {name: node for node in graph.node for name in node.output}
    constants = {tensor.name for tensor in graph.initializer}

    def source(name: str) -> str:
        while name in makers and makers[name].op_type in MOVES:
            name = makers[name].input[0]
        return name

    def is_low(name: str) -> bool:
        node = makers.get(source(name))
        return node is not None and node.op_type in DEQUANTIZERS

    def is_constant(name: str) -> bool:
        name = source(name)
        while name in makers and makers[name].op_type in (*DEQUANTIZERS, "QuantizeLinear"):
            name = source(makers[name].input[0])
        return name in constants or (name in makers and makers[name].op_type == "Constant")

    nodes = [node for node in graph.node if node.op_type in MATRIX]
    if weights:
        nodes = [node for node in nodes if any(map(is_constant, node.input[:2]))]
    return [[is_low(name) for name in node.input[:2]] for node in nodes]


def labelled(folder: Folder, case: Case, batch: int) -> tuple[list[Feed], np.ndarray]:
    """Return the labelled calibration data of a case in batches."""
    found = labelled_data(folder, case)
    assert found is not None, f"{case.name} has no classes"
    feeds, labels = found
    names = feeds[0].keys()
    parts = [feeds[at : at + batch] for at in range(0, len(feeds), batch)]
    return [{name: np.concatenate([one[name] for one in part]) for name in names} for part in parts], labels
