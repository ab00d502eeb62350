"""Labels from the folders of images: a folder for each class."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from builders import build
from PIL import Image

from onnxfq import evaluate
from onnxfq.data.labels import read_labels
from onnxfq.data.options import DataOptions
from onnxfq.errors import DataError
from onnxfq.stages.options import RunOptions

GRAYS = (10, 120, 240)


def write_classes(folder: Path, names: tuple[str, ...], count: int = 3) -> Path:
    """Write `count` images for each name; the gray of one tells its class."""
    for gray, name in zip(GRAYS, names, strict=False):
        (folder / name).mkdir(parents=True)
        for at in range(count):
            Image.fromarray(np.full((4, 4), gray + at, np.uint8)).save(folder / name / f"{at}.png")
    return folder


@pytest.mark.parametrize("names", [("ant", "bee", "cat"), ("zebra", "ant", "Bee"), ("2", "10", "0")])
def test_a_folder_labels_its_images(tmp_path: Path, names: tuple[str, ...]) -> None:
    """A model that knows the classes of torchvision's order, or of numbers, is always right."""
    folder = write_classes(tmp_path / "images", names)
    ordered = sorted(names) if not names[0].isdecimal() else [str(at) for at in range(11)]
    weight, bias = np.zeros((16, 11), np.float32), np.full(11, -1e9, np.float32)
    for gray, name in zip(GRAYS, names, strict=True):  # the nearest gray has the largest value
        at = ordered.index(name)
        weight[:, at], bias[at] = 2 * gray / 16, -(gray**2)
    model = build(
        "g (float[N,1,4,4] x) => (float[N,11] y) { f = Flatten (x) m = MatMul (f, w) y = Add (m, b) }",
        {"w": weight, "b": bias},
    )
    result = evaluate(model, model, folder, labels=folder, options=RunOptions(data=DataOptions(scale=(1.0,))))
    assert result.accuracy == 1.0
    numbers = [ordered.index(name) for name in sorted(names) for _ in range(3)]
    np.testing.assert_array_equal(read_labels(folder), numbers)


def test_images_without_class_folders_are_refused(tmp_path: Path) -> None:
    """Images that lie in the folder itself have no class."""
    (tmp_path / "i").mkdir()
    Image.fromarray(np.zeros((4, 4), np.uint8)).save(tmp_path / "i" / "a.png")
    with pytest.raises(DataError, match="has no folder of images for each class; give a file of labels"):
        read_labels(tmp_path / "i")
