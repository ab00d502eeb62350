"""Bytes and accuracy of trained language models with weights of 4 to 8 bits, from a folder of real models.

    python benchmarks/weight_bits.py FOLDER [--bits 4.5,5,6]

FOLDER is the one of `real_models.py`. The files are those that `quantize` writes for TensorRT. The figures,
on data that calibration does not see, are of their fake-quant twins: perplexity of the decoder, SQNR in dB of
the embeddings of the encoder. Mixed models have `--weight-bits` on average, with int8 for some layers.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
import onnx
from real_cases import CASES, Case, Feed, Folder, open_model, raised_to_float32

import onnxfq
from onnxfq.remedies.accuracy_target import AccuracyTarget

SENTENCES = range(75, 225)
"""Sentences that score the encoder; calibration takes those before them."""

RECIPES = {
    "int8": ("tensorrt-int8-weights", "nearest", "minmax"),
    "int4 minmax": ("tensorrt-int4", "nearest", "minmax"),
    "int4 mse": ("tensorrt-int4", "nearest", "mse"),
    "int4 gptq": ("tensorrt-int4", "gptq", "mse"),
}
"""Recipe, rounding and calibrator of the weights."""


def make_recipe(name: str) -> onnxfq.Recipe:
    """Return a recipe of RECIPES."""
    base, rounding, calibrator = RECIPES[name]
    fields = onnxfq.load_recipe(base).model_dump(mode="json", exclude_unset=True)
    fields["weights"] |= {"rounding": rounding, "calibrator": calibrator}
    return onnxfq.Recipe.model_validate(fields)


def score(folder: Folder, case: Case, model: Path, reference: Path) -> float:
    """Return the perplexity of a decoder, or the SQNR of the embeddings of an encoder in dB."""
    if not case.raised:
        return folder.measure(case, {case.file: model})[0]
    data = np.load(folder.path / "s08_minilm" / "sts15_answers_forums_tokens.npz")
    feed: Feed = {name: data[name][SENTENCES, 0].astype(np.int64) for name in ("input_ids", "attention_mask")}
    right, found = (open_model(path, "ORT_ENABLE_BASIC")(feed)[0] for path in (reference, model))
    with np.errstate(divide="ignore"):  # the model itself
        return float(10 * np.log10(np.square(right).sum() / np.square(right - found).sum()))


def measure(path: Path, case: Case, bits: list[float], work: Path) -> list[tuple[str, int, float]]:
    """Return name, bytes of the file and figure of each quantized form of a model."""
    folder, model = Folder(path), work / "float.onnx"
    onnx.save(raised_to_float32(path / case.file) if case.raised else onnx.load(path / case.file), model)
    rows = [("float", model.stat().st_size, score(folder, case, model, model))]
    mixed = [(f"mixed, {most:g} bits", "int4 gptq", most) for most in bits]
    for title, name, most in [*((name, name, None) for name in RECIPES), *mixed]:
        promise = AccuracyTarget(weight_bits=most, fallback="tensorrt-int8-weights") if most else None
        made = onnxfq.quantize(
            model, folder.feeds(case), work / "qdq.onnx", recipe=make_recipe(name), accuracy=promise
        )
        onnxfq.save(made.simulation, work / "simulation.onnx")
        figure = score(folder, case, work / "simulation.onnx", model)
        rows.append((title, (work / "qdq.onnx").stat().st_size, figure))
    return rows


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--bits", default="4.5,5,6")
    asked = parser.parse_args()
    bits = [float(text) for text in asked.bits.split(",")]
    print("| model | weights | MB | perplexity, or dB of the embeddings |\n|---|---|---|---|")
    for case in CASES:
        if case.file.endswith("stories260k_ts_op17.onnx") or case.raised:
            with tempfile.TemporaryDirectory() as work:
                for name, size, figure in measure(asked.folder.resolve(), case, bits, Path(work)):
                    print(f"| {case.name} | {name} | {size / 1e6:.2f} | {figure:.2f} |", flush=True)


if __name__ == "__main__":
    main()
