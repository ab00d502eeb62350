"""The digits and the networks in models/: the split, the shipped network's figure, what the recipes are."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

MODELS = Path(__file__).parents[1] / "models"
RECIPES = ["depthwise_cnn", "residual_cnn", "transformer"]


@pytest.fixture
def load(monkeypatch):
    """Import a module of models/ by name; they import each other as `python models/train.py` sees them."""
    monkeypatch.syspath_prepend(MODELS)
    return importlib.import_module


@pytest.fixture
def torch():
    """Return torch, or skip; not torch alone: a folder called torch would look like it."""
    pytest.importorskip("torch.nn")
    return importlib.import_module("torch")


@pytest.mark.parametrize(("part", "count"), [("train", 8000), ("calibration", 500), ("scoring", 1500)])
def test_split_sizes(load, part, count):
    """Each part has its documented size, shape, type and range, and shows every digit."""
    images, labels = load("digits").load(part)
    assert images.shape == (count, 1, 28, 28)
    assert images.dtype == np.float32
    assert (images.min(), images.max()) == (0, 1)
    assert labels.dtype == np.int64
    assert np.unique(labels).tolist() == list(range(10))


def test_split_is_disjoint_and_complete(load):
    """No image is in two parts and none is left out: an accuracy on scoring digits is on unseen ones."""
    positions = [i for part in load("digits").SPLIT.values() for i in range(10000)[part]]
    assert sorted(positions) == list(range(10000))


def test_no_picture_is_in_two_parts(load):
    """The pictures differ too, not only their positions."""
    digits = load("digits")
    seen = [{image.tobytes() for image in digits.load(part)[0]} for part in digits.SPLIT]
    assert not seen[0] & seen[1] and not seen[0] & seen[2] and not seen[1] & seen[2]


def test_unknown_part_is_named(load):
    """A part that does not exist is named, with those that do."""
    with pytest.raises(ValueError, match="no part 'test'; known: train, calibration, scoring"):
        load("digits").load("test")


def test_archive_is_small():
    """The digits are installed with the package: under 2 MB, the network under 500 kB, in one file."""
    assert (MODELS / "digits" / "mnist_t10k.npz").stat().st_size < 2_000_000
    assert (MODELS / "digits" / "digits_cnn.onnx").stat().st_size < 500_000


def test_shipped_network_is_valid():
    """digits_cnn.onnx passes the checker and has the documented input and output."""
    model = onnx.load(MODELS / "digits" / "digits_cnn.onnx", load_external_data=False)
    onnx.checker.check_model(model, full_check=True)
    shapes = {
        value.name: [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for value in (*model.graph.input, *model.graph.output)
    }
    assert shapes == {"image": ["batch", 1, 28, 28], "logits": ["batch", 10]}
    assert {i.data_location for i in model.graph.initializer} == {onnx.TensorProto.DEFAULT}


def test_shipped_network_scores_as_written(load):
    """The README's figure for digits_cnn.onnx is the one that ONNX Runtime gives, to the digit."""
    images, labels = load("digits").load("scoring")
    session = onnxruntime.InferenceSession(
        MODELS / "digits" / "digits_cnn.onnx", providers=["CPUExecutionProvider"]
    )
    (logits,) = session.run(None, {"image": images})
    written = re.search(r"digits_cnn.onnx.*?(\d+) of 1,500", (MODELS / "README.md").read_text(), re.DOTALL)
    assert written is not None
    assert int((logits.argmax(1) == labels).sum()) == int(written[1])


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("count", [1, 3])
def test_forward_shapes(load, torch, recipe, count):
    """Each recipe maps [N, 1, 28, 28] to ten finite logits per image."""
    logits = load(recipe).build().eval()(torch.rand(count, 1, 28, 28))
    assert logits.shape == (count, 10)
    assert torch.isfinite(logits).all()


@pytest.mark.parametrize("recipe", RECIPES)
def test_one_step_lowers_the_loss(load, torch, recipe):
    """A training step on a batch lowers the cross entropy of that same batch."""
    pytest.importorskip("onnxscript")  # train.py exports what it trains
    train = load("train")
    torch.manual_seed(0)
    images, labels = (torch.from_numpy(array[:100]) for array in load("digits").load("train"))
    model = load(recipe).build().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    before = train.step(model, optimizer, images, labels)
    assert train.step(model, optimizer, images, labels) < before


def test_jitter_moves_ink_a_little(load, torch):
    """Augmentation keeps shape and range, and shifts the ink by pixels, not by much more."""
    pytest.importorskip("onnxscript")
    torch.manual_seed(0)
    images = torch.zeros(200, 1, 28, 28)
    images[:, :, 10:18, 10:18] = 1
    moved = load("train").jitter(images)
    assert moved.shape == images.shape
    assert 0 <= moved.min() and moved.max() <= 1 + 1e-6  # bilinear weights add up to 1 within rounding
    for axis in (2, 3):
        ink = moved.sum((1, 5 - axis))
        shift = ((ink * torch.arange(28.0)).sum(1) / ink.sum(1) - 13.5).abs()
        # 2 pixels on both axes, turned by 10 degrees and zoomed by 1 / 0.9, are at most 2.6 on one.
        assert 1 < shift.max() < 2.6


def test_recipes_are_those_described(load, torch):
    """train.py offers the three recipes that the README describes."""
    pytest.importorskip("onnxscript")
    readme = (MODELS / "README.md").read_text()
    assert sorted(load("train").RECIPES) == RECIPES
    assert all(f"`{name}.py`" in readme for name in RECIPES)
