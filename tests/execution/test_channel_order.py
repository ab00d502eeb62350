"""A note on images whose channels stand in reverse: by labels, for a network that sees colors, never else."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from builders import build
from numpy.typing import NDArray

from onnxfq.stages.evaluate import evaluate
from onnxfq.stages.options import RunOptions

IMAGES = 200


def network(layout: str, colors: float) -> onnx.ModelProto:
    """Return a classifier of the place of the brightest color, which sees them by the factor `colors`."""
    shape, axes = ("N,3,4,4", "2, 3") if layout == "NCHW" else ("N,4,4,3", "1, 2")
    text = f"""g (float[{shape}] image) => (float[N,3] y) {{
        m = ReduceMean <axes = [{axes}], keepdims = 0> (image) y = MatMul (m, w) }}"""
    rest = np.float32([[0, 0, 0], [1, 1, 1], [0, 0, 0]])  # the green one alone
    return build(text, {"w": colors * np.eye(3, dtype=np.float32) + (1 - colors) * rest})


def images(layout: str, noise: float) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return noisy images with one color brighter than the others, and its place."""
    rng = np.random.default_rng(3)
    labels = rng.integers(0, 3, IMAGES)
    colors = np.eye(3)[labels] + noise * rng.normal(size=(IMAGES, 3))
    made = (colors[:, :, None, None] * np.ones((4, 4))).astype(np.float32)
    return (made if layout == "NCHW" else made.transpose(0, 2, 3, 1).copy()), labels


def notes(proto: onnx.ModelProto, data: object, labels: NDArray[np.int64], batch: int = 1) -> list[str]:
    """Return the notes on the order of channels."""
    found = evaluate(proto, proto, data, labels=labels, options=RunOptions(batch=batch))
    return [note for note in found.notes if "RGB" in note]


@pytest.mark.parametrize("batch", [1, 7])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_reversed_channels_are_found(layout: str, batch: int) -> None:
    """With the channels in reverse a note has both shares of right labels; in order there is none."""
    data, labels = images(layout, noise=0.4)
    axis = layout.index("C")
    proto = network(layout, 1.0)
    right = np.mean(data.mean((2, 3) if axis == 1 else (1, 2)).argmax(1)[:32] == labels[:32])
    assert notes(proto, {"image": data}, labels, batch) == []
    (note,) = notes(proto, {"image": np.flip(data, axis).copy()}, labels, batch)
    assert f"of the first 32 labels are right, and {right:.1%} with the channels of input 'image'" in note


@pytest.mark.parametrize("seed", range(10, 14))
def test_a_network_without_colors_has_no_note(seed: int) -> None:
    """Nothing is said if both orders have as many labels right, or if labels are noise."""
    data, _ = images("NCHW", noise=0.4)
    labels = np.random.default_rng(seed).integers(0, 3, IMAGES)
    for colors in (0.0, 1.0):
        for given in (data, data[:, ::-1].copy()):
            assert notes(network("NCHW", colors), {"image": given}, labels) == []


def test_data_that_is_read_once() -> None:
    """An iterator is read once; what the note needs is kept."""
    data, labels = images("NCHW", noise=0.4)
    proto = network("NCHW", 1.0)
    feeds = ({"image": one[None, ::-1].copy()} for one in data)
    assert len(notes(proto, feeds, labels)) == 1
