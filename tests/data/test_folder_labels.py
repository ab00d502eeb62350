"""Labels from the folders of images: a folder for each class."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from builders import build
from PIL import Image

from onnxfq import evaluate
from onnxfq.data.labels import RightClasses, read_labels
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


@pytest.mark.parametrize(
    ("labels", "says"),
    [
        ([1, 2, 3, 4, 1], "0.0% of the labels are right, and 100.0% with 1 less"),
        ([0, 1, 2, 3, 0], ""),
        ([3, 0, 1, 2, 3], ""),  # another order of the classes: no shift makes them right
    ],
)
def test_labels_that_count_from_another_number(labels: list[int], says: str) -> None:
    """A note names the shift of labels that makes most rows right."""
    right = RightClasses(np.asarray(labels), "y")
    scores = np.eye(4, dtype=np.float32)[[0, 1, 2, 3, 0]]
    for rows in np.split(scores, 5):
        right.add(rows)
    assert " ".join(right.notes()).startswith(says) and bool(right.notes()) == bool(says)


def test_a_background_class_is_one_more() -> None:
    """A model with a class of its own in front gives 1 for label 0; two swapped classes are no shift."""
    scores = np.eye(5, dtype=np.float32)[[1, 2, 3, 3]]
    background, swapped = (RightClasses(np.asarray(given), "y") for given in ([0, 1, 2, 2], [1, 1, 0, 0]))
    background.add(scores)
    swapped.add(np.eye(2, dtype=np.float32)[[0, 0, 1, 1]])
    assert "100.0% with 1 more" in background.notes()[0] and swapped.notes() == []
