"""SQNR and task figures of real models with `--smooth auto --equalize auto`, sound and with scaled channels.

    python benchmarks/equalization.py FOLDER [--only TEXT] [--seeds 1] > benchmarks/results/equalization.md

FOLDER is that of `real_models.py`. Each model is quantized to int8 with weights per output channel and per
tensor, without protected layers. A scaled model has the same function: random powers of two up to 2^11 in
each group of channels are divided out behind it. The SQNR is that of the worst output on
calibration data, the figures of the task are on other data.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
from real_cases import CASES, Case, Folder, raised_to_float32
from real_page import numbers

import onnxfq
from onnxfq import RunOptions
from onnxfq.graph.channels import analyze_channels
from onnxfq.passes.equalize import fold_factors

MOST = 11
WAYS = [(granularity, way) for granularity in ("per_axis", "per_tensor") for way in ("default", "auto")]


def scale_channels(proto: onnx.ModelProto, seed: int, pairs: bool = False) -> onnx.ModelProto:
    """Return a model of the same function with a random power of two up to 2^MOST in every channel.

    With `pairs` only in channels that one layer reads, as between two convolutions in a row.
    """
    model = onnxfq.load(proto)
    channels = analyze_channels(model)
    rng = np.random.default_rng(seed)
    exponents = np.zeros(channels.count, np.int64)
    for group in channels.groups:
        if not group.explicit and (len(group.readers) == 1 or not pairs):
            exponents[group.classes] = rng.integers(-MOST, MOST + 1, len(group.classes))
    return fold_factors(model, channels, exponents).proto


def make_recipe(granularity: str, way: str) -> onnxfq.Recipe:
    """Return `tensorrt-int8` with this granularity of weights, for auto with `smooth` and `equalize`."""
    fields = onnxfq.load_recipe("tensorrt-int8").model_dump(mode="json", exclude_unset=True)
    fields["weights"] |= {"granularity": granularity}
    recipe = onnxfq.Recipe.model_validate(fields)
    return recipe if way == "default" else recipe.override(activations={"equalize": "auto"}, smooth="auto")


def variants(path: Path, case: Case, seeds: int, work: Path) -> Iterator[tuple[str, Path]]:
    """Yield name and file of the model, and of its scaled forms."""
    made = work / "float.onnx"
    onnx.save(raised_to_float32(path) if case.raised else onnx.load(path), made)
    yield case.name, made
    for seed in range(seeds):
        scaled = work / f"scaled{seed}.onnx"
        onnx.save(scale_channels(onnxfq.load(made).proto, seed), scaled)
        yield f"{case.name}, scaled {seed}", scaled


def measure(folder: Folder, case: Case, model: Path, work: Path) -> list[str]:
    """Return the cells of a model: the figures as float, and SQNR and figures for each of WAYS."""
    written = work / "written.onnx"
    row = [numbers(folder.measure(case, {case.file: model}))]
    for granularity, way in WAYS:
        recipe = make_recipe(granularity, way)
        result = onnxfq.quantize(
            model, folder.feeds(case), written, recipe=recipe, protect=None, options=RunOptions(exact=True)
        )
        assert result.evaluation is not None
        sqnr = min(output.sqnr_db for output in result.evaluation.candidates[0].outputs)
        row.append(f"{sqnr:.1f} dB, {numbers(folder.measure(case, {case.file: written}))}")
    return row


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="models whose path holds this text")
    parser.add_argument("--seeds", type=int, default=1, help="scaled forms of each model")
    asked = parser.parse_args()
    folder = Folder(asked.folder.resolve())
    titles = [f"{granularity.replace('_', ' ')}, {way}" for granularity, way in WAYS]
    print("# Smoothing and equalization\n")
    print("Written by `benchmarks/equalization.py`, which says what is measured.\n")
    print(f"| model | metric | float | {' | '.join(titles)} |")
    print(f"|{' --- |' * (3 + len(titles))}", flush=True)
    for case in CASES:
        if asked.only not in case.file or (case.raised != ("minilm" in case.file)):
            continue
        with tempfile.TemporaryDirectory() as temporary:
            work = Path(temporary)
            for name, model in variants(folder.path / case.file, case, asked.seeds, work):
                cells = [name, " / ".join(case.metrics), *measure(folder, case, model, work)]
                print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
