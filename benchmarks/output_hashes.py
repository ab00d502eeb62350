"""Hashes of the outputs of onnxfq for a folder of real models, for changes that must keep every bit.

    python benchmarks/output_hashes.py MODELS --out before.json
    python benchmarks/output_hashes.py MODELS --against before.json

MODELS is a folder as `real_models.py` takes it. For each model and recipe one SHA-256 each of the statistics,
the encodings (names, shapes, scales, zero points) and the graphs with FakeQuantize nodes and with Q/DQ pairs.
Exit code 1 when a hash differs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from real_cases import CASES, Case, Folder, raised_to_float32

import onnxfq

RECIPES = (
    "tensorrt-int8",
    "tensorrt-int8-weights",
    "tensorrt-int4",
    "tensorrt-fp8",
    "tensorrt-mxfp8",
    "tensorrt-nvfp4",
    "onnxruntime-int8",
    "onnxruntime-uint8-dynamic",
)
CALIBRATORS = ("entropy", "mse", "percentile:99.9", "minmax")
FEEDS = 8


def statistics_hash(statistics: onnxfq.Statistics, work: Path) -> str:
    """Hash every array of the statistics' file by name, type, shape and bytes."""
    file = work / "hashed.stats.npz"
    statistics.save(file)
    digest = hashlib.sha256()
    with np.load(file) as arrays:
        for name in sorted(arrays.files):
            array = arrays[name]
            digest.update(f"{name} {array.dtype.str} {array.shape}".encode() + array.tobytes())
    return digest.hexdigest()


def encodings_hash(encodings: onnxfq.Encodings) -> str:
    """Hash tensors, shapes, scales and zero points, in their order."""
    digest = hashlib.sha256()
    for one in encodings.encodings:
        digest.update(
            f"{one.tensor} {one.spec.qtype.name} {list(one.param_shape)} {one.global_scale}".encode()
        )
        digest.update(one.scale_array.tobytes() + one.zero_point_array.tobytes())
    return digest.hexdigest()


def graph_hash(proto: onnx.ModelProto) -> str:
    """Hash a model without its metadata and producer, which name versions and formats of files."""
    bare = onnx.ModelProto()
    bare.CopyFrom(proto)
    del bare.metadata_props[:]
    bare.ClearField("producer_version")
    return hashlib.sha256(bare.SerializeToString(deterministic=True)).hexdigest()


def hashes_of(path: Path, case: Case) -> dict[str, str]:
    """Return the hashes of one model by recipe and output; an error counts by its type."""
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as work:
        return dict(_hashes(Folder(path), case, Path(work)))


def _hashes(folder: Folder, case: Case, work: Path) -> Iterator[tuple[str, str]]:
    file = folder.path / case.file
    if case.raised:
        onnx.save(raised_to_float32(file), work / "raised.onnx")
        file = work / "raised.onnx"
    feeds = list(islice(folder.feeds(case), FEEDS))
    for name in RECIPES:
        key = f"{case.name}/{case.file.rpartition('/')[2]}/{name}"
        try:
            yield from ((f"{key}/{what}", found) for what, found in _of_recipe(file, feeds, name, work))
        except onnxfq.OnnxfqError as error:
            yield f"{key}/refused", type(error).__name__
    made = onnxfq.quantize(file, feeds, options=onnxfq.QuantizeOptions(floats=onnxfq.FloatOptions("fp16")))
    yield f"{case.name}/{case.file.rpartition('/')[2]}/fp16/qdq", graph_hash(made.qdq)


def _of_recipe(file: Path, feeds: list[dict[str, Any]], name: str, work: Path) -> Iterator[tuple[str, str]]:
    recipe = onnxfq.load_recipe(name)
    model = onnxfq.load(file)
    plan = onnxfq.make_plan(model, recipe)
    statistics = onnxfq.collect_statistics(model, plan, onnxfq.open_feeds(model.proto, feeds))
    yield "statistics", statistics_hash(statistics, work)
    encodings = onnxfq.calibrate(model, plan, statistics)
    yield "encodings", encodings_hash(encodings)
    yield "fake-quant", graph_hash(onnxfq.insert_fake_quantize(model, plan, encodings))
    yield "qdq", graph_hash(onnxfq.insert_qdq(model, plan, encodings))
    for calibrator in CALIBRATORS if name == "tensorrt-int8" else ():
        yield (
            f"encodings by {calibrator}",
            encodings_hash(onnxfq.calibrate(model, plan, statistics, calibrator)),
        )


def main() -> None:
    """Hash, then write or compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="models whose path holds this text")
    parser.add_argument("--out", type=Path, help="write the hashes to this JSON file")
    parser.add_argument("--against", type=Path, help="compare with this JSON file")
    parser.add_argument("--jobs", type=int, default=2)
    arguments = parser.parse_args()
    cases = [case for case in CASES if arguments.only in case.file]
    path = arguments.folder.resolve()
    with ProcessPoolExecutor(arguments.jobs, mp_context=get_context("spawn")) as pool:
        parts = list(pool.map(hashes_of, [path] * len(cases), cases))
    found = {key: value for part in parts for key, value in part.items()}
    print(f"{len(found)} hashes of {len(cases)} models")
    if arguments.out:
        arguments.out.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
    if arguments.against:
        before = json.loads(arguments.against.read_text())
        known = {key: value for key, value in before.items() if arguments.only or key in found}
        different = sorted(key for key in known | found if key in found and known.get(key) != found[key])
        missing = sorted(set(before) - set(found)) if not arguments.only else []
        for key in (*different, *missing):
            print("differs:", key)
        sys.exit(bool(different or missing))


if __name__ == "__main__":
    main()
