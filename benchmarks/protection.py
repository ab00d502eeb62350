"""Task figures of real models with layers kept in float by default and by a promise.

    python benchmarks/protection.py FOLDER [--only TEXT]

FOLDER is that of `real_models.py`. Labelled models get the promise `max_drop=0.5` on labelled calibration
data, half of which proves it; the figures of the task are on other data. A planted model is a sound one in
which two random convolutions read a channel times 2000 and have their weights divided by it. Its float
function is the same.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper
from real_cases import CASES, Case, Folder
from real_page import numbers

import onnxfq
from onnxfq.graph.index import GraphIndex

FACTOR = 2000.0


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


Pair = tuple[onnx.NodeProto, onnx.NodeProto]
"""A convolution, and the convolution that alone reads its output."""


def plant(proto: onnx.ModelProto, seed: int, count: int = 2) -> tuple[onnx.ModelProto, list[Pair]]:
    """Return a model of the same function with `count` pairs of convolutions; int8 ruins each second one."""
    made = onnx.ModelProto()
    made.CopyFrom(proto)
    index = GraphIndex(made.graph)
    weights = {tensor.name: tensor for tensor in made.graph.initializer}
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in made.graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)

    def writer(reader: onnx.NodeProto) -> onnx.NodeProto | None:
        node = index.makers.get(reader.input[0])
        while node is not None and node.op_type == "Relu" and len(readers[node.input[0]]) == 1:
            node = index.makers.get(node.input[0])
        alone = node is not None and node.op_type == "Conv" and len(readers[reader.input[0]]) == 1
        return node if alone and len(readers[node.output[0]]) == 1 else None

    pairs = [(w, n) for n in made.graph.node if n.op_type == "Conv" and (w := writer(n)) is not None]
    rng = np.random.default_rng(seed)
    chosen = [pairs[at] for at in rng.choice(len(pairs), count, replace=False)]
    for first, second in chosen:
        channel = rng.integers(weights[first.input[1]].dims[0])
        for name, where, factor in (
            *((name, np.s_[channel], FACTOR) for name in first.input[1:3]),
            (second.input[1], np.s_[:, channel], 1 / FACTOR),
        ):
            array = numpy_helper.to_array(weights[name]).copy()
            array[where] *= np.float32(factor)
            weights[name].CopyFrom(numpy_helper.from_array(array, name))
    return made, chosen


def measure(folder: Folder, case: Case, model: Path, work: Path) -> list[str]:
    """Return the row of one model: float, all layers quantized, the default, and a promised drop."""
    written = work / "written.onnx"
    feeds = folder.feeds(case)
    row = [numbers(folder.measure(case, {case.file: model} if model.parent == work else {}))]
    for protect in (None, 20.0):
        result = onnxfq.quantize(model, feeds, written, accuracy=onnxfq.AccuracyTarget(repair=protect))
        row.append(f"{numbers(folder.measure(case, {case.file: written}))}{_changes(result)}")
    labelled = labelled_data(folder, case)
    if labelled is not None:
        promise = onnxfq.AccuracyTarget(max_drop=0.5, labels=labelled[1])
        try:
            result = onnxfq.quantize(model, labelled[0], written, accuracy=promise)
            row.append(f"{numbers(folder.measure(case, {case.file: written}))}{_changes(result)}")
        except onnxfq.OnnxfqError as error:
            row.append(str(error))
    return row


def _changes(result: onnxfq.QuantizeResult) -> str:
    found = result.sensitivity
    if found is None or found.remedy is None:
        return ""
    cost = f", {found.remedy.multiplies:.1%}" if found.remedy.multiplies is not None else ""
    return f" ({len(found.remedy.kept)} of {len(found.groups)}{cost})"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="models whose path holds this text")
    arguments = parser.parse_args()
    folder = Folder(arguments.folder.resolve())
    print("| model | metric | float | all int8 | default | `--max-drop 0.5` |")
    print("| --- | --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        for case in CASES:
            if arguments.only not in case.file or case.raised:
                continue
            models = {case.name: folder.path / case.file}
            if "resnet20_dynamo" in case.file:
                proto = onnxfq.load(onnx.load(folder.path / case.file)).proto
                for seed in range(3):
                    models[f"{case.name}, planted {seed}"] = work / f"planted{seed}.onnx"
                    onnx.save(plant(proto, seed)[0], work / f"planted{seed}.onnx")
            for name, model in models.items():
                cells = [name, " / ".join(case.metrics), *measure(folder, case, model, work)]
                print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
