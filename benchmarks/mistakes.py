"""Asks the command line what it answers to mistakes, and writes the page of answers.

    python benchmarks/mistakes.py [--out benchmarks/results/mistakes.md]

Each mistake is one command in a folder of a digit network, its quantized file, samples and labels. The page
is right where each answer is one line that names what is wrong and what to give in its place.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx

import onnxfq
from onnxfq.support.resources import package_file

ROOT = Path(__file__).resolve().parents[1]
Run = Callable[[list[str]], tuple[int, str]]
"""Runs a command in the folder of mistakes, and returns its exit code and what it says on standard error."""


def quantize(options: str, model: str = "model.onnx") -> str:
    """Return a command that quantizes with `options`."""
    return f"onnxfq quantize {model} {options} -o out.onnx"


def change(options: str) -> str:
    """Return a command that quantizes on good data, with `options` more."""
    return quantize(f"--data data.npz {options}")


def measure(options: str) -> str:
    """Return a command that evaluates on good data, with `options` more."""
    return f"onnxfq evaluate model.onnx q.onnx --data data.npz {options}"


MISTAKES = {
    # The belief of the user: the command.
    "the data stands where a model may": quantize("data.npz"),
    "a shell put a list of images there": quantize("--data images/0.png images/1.png"),
    "a pattern in quotes": quantize("--data 'images/*.png'"),
    "a home folder behind an equals sign": quantize("--data=~/data.npz"),
    "an address of the web as data": quantize("--data https://example.com/data.npz"),
    "an address of the web as model": quantize("--data data.npz", "https://example.com/model.onnx"),
    "model and data are swapped": quantize("--data model.onnx", "data.npz"),
    "a pointer of Git LFS": quantize("--data data.npz", "lfs.onnx"),
    "a web page under the name of a model": quantize("--data data.npz", "page.onnx"),
    "a zip archive under the name of a model": quantize("--data data.npz", "zip.onnx"),
    "the data file of the weights was not copied": quantize("--data data.npz", "apart.onnx"),
    "rows of pixels": quantize("--data flat.npz"),
    "one sample without its axis": quantize("--data one.npz"),
    "labels as data": quantize("--data labels.npy"),
    "pickled samples": quantize("--data data.pkl"),
    "samples in JSON": quantize("--data data.json"),
    "texts for a network of images": quantize("--data notes.txt"),
    "an array without a name": quantize("--data unnamed.npz"),
    "a Python file in place of a module": quantize("--data user.py:feeds"),
    "means with blanks between them": quantize("--data images --mean 0.485 0.456 0.406"),
    "means of colours for a gray network": quantize("--data images --mean 0.485,0.456,0.406"),
    "images without the scale of training": quantize("--data images"),
    "a target and a recipe": change("--target tensorrt"),
    "bits in place of a recipe": change("--bits 4"),
    "the path of the model as an option": "onnxfq quantize -m model.onnx --data data.npz -o out.onnx",
    "a calibrator twice": change("--calibrator entropy --calibrator mse"),
    "a unit behind a number": change("--min-sqnr 30dB"),
    "a percent sign": change("--labels labels.npy --max-drop 1%"),
    "a word in place of a count": change("--threads all"),
    "a promise of a size without a second format": change("--weight-bits 4"),
    "a float type as fallback": change("--min-sqnr 20 --fallback fp16"),
    "a report as PDF": change("--report report.pdf"),
    "two recipes with a comma": change("--recipe tensorrt-int8,onnxruntime-int8"),
    "two errors in a recipe": change("--recipe two.yaml"),
    "the short name of a target": change("--recipe target.yaml"),
    "an operator of another library": change("--recipe operator.yaml"),
    "float8 for an A100": change("--recipe tensorrt-fp8 --gpu a100"),
    "a cache where none is": change("--kv int8"),
    "no candidate": "onnxfq evaluate model.onnx --data data.npz",
    "no data for a comparison": "onnxfq evaluate model.onnx q.onnx",
    "a table as labels": measure("--labels labels.csv"),
    "probabilities as labels": measure("--labels scores.npy"),
    "the usual spelling of a metric": measure("--labels labels.npy --metric mAP"),
    "labels of classes for boxes": measure("--labels labels.npy --metric map"),
    "labels for a metric without": measure("--labels labels.npy --metric perplexity"),
    "a metric that returns nothing": measure("--labels labels.npy --metric user:nothing"),
    "a metric that takes too much": measure("--labels labels.npy --metric user:greedy"),
    "the short name of a runtime": measure("--runtime ort"),
    "integers from cast": "onnxfq cast model.onnx --to int8 -o out.onnx",
    "two models for two runtimes": "onnxfq compare model.onnx q.onnx --data data.npz",
    "a model as a result": "onnxfq report model.onnx -o page.html",
    "scales without a plan": "onnxfq calibrate model.onnx -o scales.json",
    "a rule that is none": "onnxfq check q.onnx --ignore all",
    "a model for the demo": "onnxfq demo model.onnx",
    "help as a command": "onnxfq help quantize",
    "a list as a command": "onnxfq list",
}


def prepare(folder: Path) -> None:
    """Write the files that the commands name into `folder`."""
    with np.load(package_file("digits", "mnist_t10k.npz")) as digits:
        images, labels = digits["images"][:32].reshape(-1, 1, 28, 28), digits["labels"][:32]
    samples = images.astype(np.float32) / np.float32(255)
    arrays = {"data": samples, "flat": samples.reshape(32, -1), "one": samples[0]}
    for name, array in arrays.items():
        np.savez(folder / f"{name}.npz", image=array)
    np.savez(folder / "unnamed.npz", samples)
    np.save(folder / "labels.npy", labels)
    np.save(folder / "scores.npy", np.eye(10)[labels])
    model = onnx.load(package_file("digits", "digits_cnn.onnx"))
    onnx.save(model, folder / "model.onnx")
    off = onnxfq.AccuracyTarget(repair=None)
    onnxfq.quantize(folder / "model.onnx", folder / "data.npz", folder / "q.onnx", accuracy=off)
    onnx.save(model, folder / "apart.onnx", save_as_external_data=True, location="apart.bin")
    (folder / "apart.bin").unlink()
    with zipfile.ZipFile(folder / "zip.onnx", "w") as archive:
        archive.write(folder / "model.onnx", "model.onnx")
    (folder / "images").mkdir()
    for number, image in enumerate(images[:4]):
        _write_image(folder / f"images/{number}.png", image[0])
    (folder / "data.pkl").write_bytes(b"\x80\x04K\x01.")
    for name, text in _TEXTS.items():
        (folder / name).write_text(text, encoding="utf-8")


_TEXTS = {
    "lfs.onnx": "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12345\n",
    "page.onnx": "<!DOCTYPE html><title>404</title>",
    "data.json": "[[0.5]]",
    "notes.txt": "some words",
    "labels.csv": "file,label\n0.png,7\n",
    "two.yaml": "weigths: {qtype: int8}\nactivation: {qtype: int8}\n",
    "target.yaml": "target: trt\n",
    "operator.yaml": "overrides: [{op_types: [conv2d], keep_float: true}]\n",
    "user.py": "def nothing(outputs, labels): pass\ndef greedy(outputs, labels, more): return 1\n",
}


def _write_image(path: Path, pixels: np.ndarray) -> None:
    from PIL import Image  # an extra

    Image.fromarray(pixels).save(path)


def ask(run: Run, folder: Path) -> dict[str, tuple[str, int, str]]:
    """Return the command of each mistake with its exit code and its answer, without what varies."""
    answers = {}
    for name, line in MISTAKES.items():
        code, said = run(shlex.split(line)[1:])
        answers[name] = line, code, said.strip().replace(f"{folder}{os.sep}", "")
    return answers


def page(answers: dict[str, tuple[str, int, str]]) -> str:
    """Return the page: a command and an answer for each mistake."""
    parts = [
        f"""# Answers to mistakes

{len(answers)} mistakes, each made by hand in a folder of a digit network. Every answer is one line that names
what is wrong and what to give in its place. Nothing is written. A test makes all of them again.

    python benchmarks/mistakes.py
"""
    ]
    for name, (line, code, said) in answers.items():
        parts.append(f"**{name}**\n\n    $ {line}\n    {said}\n    exit code {code}\n")
    return "\n".join(parts)


def read_page(text: str) -> dict[str, tuple[str, int, str]]:
    """Return what `page` wrote, by mistake."""
    found = re.findall(r"^\*\*(.*)\*\*\n\n    \$ (.*)\n    (.*)\n    exit code (\d)$", text, re.MULTILINE)
    return {name: (line, int(code), said) for name, line, said, code in found}


def main() -> None:
    """Make the folder, ask, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "mistakes.md")
    out = parser.parse_args().out
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(folder)

        def run(words: list[str]) -> tuple[int, str]:
            done = subprocess.run(
                [sys.executable, "-m", "onnxfq", *words],
                cwd=folder,
                env=os.environ | {"PYTHONPATH": str(ROOT)},
                capture_output=True,
                text=True,
            )
            return done.returncode, done.stdout + done.stderr

        out.write_text(page(ask(run, folder)), encoding="utf-8")


if __name__ == "__main__":
    main()
