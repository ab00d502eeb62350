"""Bits of what is written: SHA-256 of file, plan and encodings of every recipe on a list of networks.

    python benchmarks/same_files.py OUT.json [--folder FOLDER] [--networks NAME ...] [--against OTHER.json]

Two revisions that write the same bits write the same lines. With `--against` every line that differs is
printed, and the exit code is 1. Networks of parser texts have random weights; `--folder` is the one of
`real_models.py`. Quantization begins from floats; `requantize` and `convert` begin from what it wrote.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from real_cases import CASES, Folder

import onnxfq
from onnxfq.documents.recipe import Recipe
from onnxfq.targets.recipes import RECIPES

SAMPLES = 8
REPAIRED = ("convolutions", "attention", "mnist_op8")
"""Networks small enough for every remedy; the others are written without repair."""

DOCUMENTS = ("plan.json", "encodings.json")

TEXTS = {
    "convolutions": """g (float[N,3,8,8] x) => (float[N,10] y) {
        a = Conv <pads = [1, 1, 1, 1]> (x, a0) b = Relu (a) c = Conv <pads = [1, 1, 1, 1], group = 8> (b, a1)
        d = HardSwish (c) e = Conv (d, a2) f = Add (e, b) p = GlobalAveragePool (f) q = Flatten (p)
        y = Gemm (q, a3, a4) }""",
    "attention": """g (float[N,6,16] x) => (float[N,6,16] y) {
        n = LayerNormalization <axis = -1> (x, b0, b1) q = MatMul (n, b2) k = MatMul (n, b3)
        v = MatMul (n, b4) t = Transpose <perm = [0, 2, 1]> (k) s = MatMul (q, t)
        p = Softmax <axis = -1> (s) o = MatMul (p, v)
        u = MatMul (o, b5) r = Add (u, x) g1 = MatMul (r, b6) g2 = Gelu (g1) g3 = MatMul (g2, b7)
        y = Add (g3, r) }""",
    "recurrence": """g (float[N,5,12] x) => (float[N,4] y) {
        t = Transpose <perm = [1, 0, 2]> (x) h, l = LSTM <hidden_size = 8> (t, c0, c1)
        m = Squeeze (l, zero) y = MatMul (m, c2) }""",
    "selection": """g (float[N,20] x) => (float[N,6] y) {
        s = MatMul (x, d0) v, i = TopK <axis = -1> (s, four) c = Softmax <axis = -1> (v) m = MatMul (c, d1)
        r = Relu (m) y = MatMul (r, d2) }""",
    "upsampling": """g (float[N,4,6,6] x) => (float[N,2,12,12] y) {
        a = Conv <pads = [1, 1, 1, 1]> (x, e0) b = LeakyRelu (a)
        c = ConvTranspose <strides = [2, 2]> (b, e1) d = Sigmoid (c) e = Mul (c, d) y = Conv (e, e2) }""",
}
SHAPES = {
    "convolutions": {"a0": (8, 3, 3, 3), "a1": (8, 1, 3, 3), "a2": (8, 8, 1, 1), "a3": (8, 10), "a4": (10,)},
    "attention": {"b0": (16,), "b1": (16,), "b2": (16, 16), "b3": (16, 16), "b4": (16, 16), "b5": (16, 16)}
    | {"b6": (16, 32), "b7": (32, 16)},
    "recurrence": {"c0": (1, 32, 12), "c1": (1, 32, 8), "c2": (8, 4)},
    "selection": {"d0": (20, 12), "d1": (4, 16), "d2": (16, 6)},
    "upsampling": {"e0": (8, 4, 3, 3), "e1": (8, 8, 2, 2), "e2": (2, 8, 1, 1)},
}
INTEGERS = {"recurrence": {"zero": [0]}, "selection": {"four": [4]}}
Feed = dict[str, Any]


def build(name: str) -> onnx.ModelProto:
    """Return a network of `TEXTS` with random weights."""
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]> {TEXTS[name]}')
    rng = np.random.default_rng(7)
    arrays: dict[str, Any] = {
        tensor: (rng.normal(size=shape) / max(1, np.prod(shape[1:])) ** 0.5).astype(np.float32)
        for tensor, shape in SHAPES[name].items()
    }
    arrays |= {tensor: np.asarray(numbers, np.int64) for tensor, numbers in INTEGERS.get(name, {}).items()}
    model.graph.initializer.extend(
        onnx.numpy_helper.from_array(array, tensor) for tensor, array in arrays.items()
    )
    return model


def list_networks(folder: Path | None) -> Iterator[tuple[str, onnx.ModelProto, list[Feed]]]:
    """Yield names, models and samples."""
    for name in TEXTS:
        model, rng = build(name), np.random.default_rng(3)
        shape = [size.dim_value or 1 for size in model.graph.input[0].type.tensor_type.shape.dim]
        yield name, model, [{"x": rng.standard_normal(shape).astype(np.float32)} for _ in range(SAMPLES)]
    trained = None if folder is None else Folder(folder)
    for case in CASES if folder is not None else ():
        if not case.raised and trained is not None:
            yield case.name, onnx.load(folder / case.file), trained.feeds(case)[:SAMPLES]


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a file; names of the scratch folder do not count, files hold none."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def name_failure(act: Callable[..., dict[str, str]], *given: Any) -> dict[str, str]:
    """Return what `act` returns for `given`, or its error in words."""
    try:
        return act(*given)
    except onnxfq.OnnxfqError as error:
        return {"error": re.sub(r"\S*/(?=[^/\s]+\.onnx)", "", str(error))}


def write(
    model: onnx.ModelProto | Path, feeds: list[Feed], recipe: str | Recipe, repair: str | None, out: Path
) -> dict[str, str]:
    """Quantize, save, and return the hashes of file, plan and encodings."""
    accuracy = onnxfq.AccuracyTarget(repair=repair)
    result = onnxfq.quantize(model, feeds, out, recipe=recipe, accuracy=accuracy)
    result.plan.save(out.with_name(DOCUMENTS[0]))
    result.encodings.save(out.with_name(DOCUMENTS[1]))
    return {name: hash_file(out.with_name(name)) for name in (out.name, *DOCUMENTS)}


def hash_network(name: str, model: onnx.ModelProto, feeds: list[Feed], folder: Path) -> dict[str, Any]:
    """Return the hashes of a network for every recipe, and of files made from those."""
    found: dict[str, Any] = {}
    repair, again = ("auto" if name in REPAIRED else None), onnxfq.load_recipe("tensorrt-int8")
    again = again.override(existing="requantize")
    for recipe in RECIPES:
        out = folder / f"{recipe}.onnx"
        found[recipe] = name_failure(write, model, feeds, recipe, repair, out)
        if "error" not in found[recipe]:
            second = name_failure(write, out, feeds, again, None, folder / "again.onnx")
            found[f"{recipe}, requantize"] = second
            found[f"{recipe}, convert"] = name_failure(convert, out, feeds, folder / "converted.onnx")
    return found


def convert(model: Path, feeds: list[Feed], out: Path) -> dict[str, str]:
    """Convert for TensorRT, and return the hash of the file."""
    onnxfq.convert(model, out, data=feeds)
    return {out.name: hash_file(out)}


def main() -> int:
    """Write the hashes, and compare them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--folder", type=Path, help="the folder of real_models.py")
    parser.add_argument("--networks", nargs="*", default=[])
    parser.add_argument("--against", type=Path, help="hashes of another revision")
    asked = parser.parse_args()
    logging.disable(logging.CRITICAL)
    hashes: dict[str, Any] = {}
    for name, model, feeds in list_networks(asked.folder):
        if not asked.networks or name in asked.networks:
            with tempfile.TemporaryDirectory() as folder:
                hashes[name] = hash_network(name, model, feeds, Path(folder))
            asked.out.write_text(json.dumps(hashes, indent=1) + "\n")
            print(name, len(hashes[name]), flush=True)
    if asked.against is None:
        return 0
    other, differing = json.loads(asked.against.read_text()), 0
    for name, own in hashes.items():
        for way, value in own.items():
            before = other.get(name, {}).get(way)
            if before != value:
                differing += 1
                print(f"{name}, {way}: {before} became {value}")
    print(f"{differing} of {sum(map(len, hashes.values()))} differ")
    return int(bool(differing))


if __name__ == "__main__":
    sys.exit(main())
