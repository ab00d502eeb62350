"""Words: what is odd about the values or the samples is said in one line, once, with the remedy."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest
from builders import conv_relu, feed_for

import onnxfq
from onnxfq.data import DataOptions, Feeds, InputSpec
from onnxfq.errors import DataError

RNG = np.random.default_rng(3)
IMAGE = (InputSpec("x", np.dtype(np.float32), (None, 3, 8, 8)),)
ROWS = (InputSpec("x", np.dtype(np.float32), (None, 4)),)
UNIT = RNG.random((40, 3, 8, 8), np.float32)
PIXELS = RNG.integers(0, 256, (40, 3, 8, 8)).astype(np.float32)


def told(caplog: pytest.LogCaptureFixture, data: object, inputs=ROWS, **options: object) -> list[str]:
    """Go through the data twice; return the notes."""
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        feeds = Feeds(data, inputs, 8, DataOptions(**options))
        list(feeds), list(feeds)
    lines = [record.getMessage() for record in caplog.records]
    assert all("\n" not in line for line in lines)
    return lines


def refused(data: object, inputs=ROWS, **options: object) -> str:
    """Return the one line with which the data is refused."""
    with pytest.raises(DataError) as caught:
        list(Feeds(data, inputs, 8, DataOptions(**options)))
    return str(caught.value)


# The samples as a whole


def test_good_data_has_no_words(caplog: pytest.LogCaptureFixture) -> None:
    """Enough samples of usual values are not worth a word."""
    assert told(caplog, RNG.normal(size=(32, 4)).astype(np.float32)) == []
    assert told(caplog, UNIT, IMAGE) == []


@pytest.mark.parametrize(
    ("data", "inputs", "words"),
    [
        (np.eye(4, dtype=np.float32), ROWS, "only 4 samples"),
        (RNG.random((31, 4), np.float32), (InputSpec("x", ROWS[0].dtype, (31, 4)),), "only 31"),
    ],
)
def test_few_samples(caplog: pytest.LogCaptureFixture, data, inputs, words: str) -> None:
    """Fewer than 32 samples give a note with the usual number; a fixed batch counts."""
    (line,) = told(caplog, data, inputs)
    assert words in line and line.endswith("samples; 100 to 500 are usual for calibration")
    assert told(caplog, data, inputs, survey=False) == []


def test_constant_and_repeated_samples(caplog: pytest.LogCaptureFixture) -> None:
    """One line at the end counts them and names the first three by their number in all the data."""
    x = RNG.normal(size=(40, 4)).astype(np.float32)
    x[[3, 17]] = 2.0
    x[17] = 3.0
    x[[9, 30, 31, 39]] = x[1]
    feeds = [{"x": x[:5]}, {"x": x[5:]}]
    assert told(caplog, feeds) == [
        "of 40 samples 2 hold one value only (samples 3, 17) and 4 repeat earlier ones (samples 9, 30, 31, "
        "...); check how the data was made"
    ]
    x[[9, 30, 31]], x[17, 0] = RNG.normal(size=(3, 4)), 0
    assert told(caplog, x) == [
        "of 40 samples 1 hold one value only (sample 3) and 1 repeat earlier ones (sample 39); check how the "
        "data was made"
    ]


def test_single_numbers_are_not_constant(caplog: pytest.LogCaptureFixture) -> None:
    """A sample of one number is not blamed for having one value; nor is a mask of ones next to ids."""
    numbers = (InputSpec("x", np.dtype(np.int64), (None,)),)
    assert told(caplog, np.arange(40), numbers) == []
    both = (InputSpec("ids", np.dtype(np.int64), (None, 4)), InputSpec("mask", np.dtype(np.int64), (None, 4)))
    ids = np.arange(160).reshape(40, 4)
    assert told(caplog, {"ids": ids, "mask": np.ones_like(ids)}, both) == []


# Values


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite(caplog: pytest.LogCaptureFixture, value: float) -> None:
    """NaN and infinities are an error that names input, sample and counts, unless they are let through."""
    x = RNG.normal(size=(40, 4)).astype(np.float32)
    x[17, 1:3] = value
    counts = "2 NaN and 0 infinite" if np.isnan(value) else "0 NaN and 2 infinite"
    rule = "remove it, or let such values pass with --nonfinite skip"
    expected = f"input 'x' has {counts} values in sample 17; {rule}"
    assert refused([{"x": x[:15]}, {"x": x[15:]}]) == expected
    assert refused([{"x": row[np.newaxis]} for row in x]) == expected
    assert told(caplog, x, nonfinite="skip") == []
    fixed = (InputSpec("x", np.dtype(np.float32), (5, 4)),)
    assert f"{counts} values in feed 3;" in refused(x, fixed)


def test_raw_pixels(caplog: pytest.LogCaptureFixture) -> None:
    """Whole numbers from 0 to 255 for a float image give a note once, without a scale or an example."""
    (line,) = told(caplog, PIXELS, IMAGE)
    assert line == (
        f"input x: the values are whole numbers from 0 to {PIXELS.max():g}, as raw pixels; if the model was "
        "trained on 0..1, give --scale 0.00392, else --scale 1"
    )
    assert told(caplog, PIXELS, IMAGE, scale=1) == []
    assert told(caplog, PIXELS, IMAGE, scale=1 / 255) == []
    assert told(caplog, PIXELS, IMAGE, example={"x": PIXELS[:1]}) == []
    assert told(caplog, UNIT.round(), IMAGE) == [], "black and white"
    assert told(caplog, PIXELS - 1, IMAGE) == [], "centred"
    assert told(caplog, PIXELS + np.float32(0.5), IMAGE) == [], "no whole numbers"
    assert told(caplog, PIXELS[:, :, :, 0], (InputSpec("x", IMAGE[0].dtype, (None, 3, 8)),)) == [], "no image"
    assert told(caplog, PIXELS.astype(np.uint8), (InputSpec("x", np.dtype(np.uint8), IMAGE[0].shape),)) == []


@pytest.mark.parametrize(
    ("data", "example", "words"),
    [
        (PIXELS, UNIT[:1], "has values from 0 to 255, the example from {} to {}; give --scale 0.00392"),
        (UNIT, PIXELS[:1], "the example from {} to {}; give --scale 255"),
        (UNIT / UNIT.max() * 1000, UNIT / UNIT.max(), "give --scale 0.001"),
        (
            PIXELS,
            UNIT[:1] * 4 - 2,
            "the example from {} to {}; give --scale, --mean and --std as in training",
        ),
        (UNIT * 0, UNIT[:1], "values from 0 to 0, the example from {} to {}; check where"),
        (UNIT, UNIT[:1] * 0, "the example has no values to compare in input 'x'"),
    ],
)
def test_another_range_than_the_example(data, example, words: str) -> None:
    """Ranges that differ more than eightfold are an error that names both, and the option that helps."""
    words = words.format(f"{example.min():.4g}", f"{example.max():.4g}")
    assert words in refused(data, IMAGE, example={"x": example})
    assert words in refused([{"x": data}], IMAGE, example={"x": example})


def test_an_example_that_the_data_is_like(tmp_path, caplog: pytest.LogCaptureFixture) -> None:
    """Ranges up to eightfold apart pass; the scale that the message names repairs the data; files do too."""
    assert told(caplog, UNIT * 7.9, IMAGE, example={"x": UNIT[:1] / UNIT[:1].max() * UNIT.max()}) == []
    np.savez(tmp_path / "one.npz", x=UNIT[:1])
    assert "--scale 0.00392" in refused(PIXELS, IMAGE, example=tmp_path / "one.npz")
    assert told(caplog, PIXELS, IMAGE, example=tmp_path / "one.npz", scale=0.00392) == []
    dark = PIXELS.copy()
    dark[:20] /= 100
    assert told(caplog, dark, IMAGE, example={"x": PIXELS[:1]}) == [], "not by a single dark sample"
    with pytest.raises(DataError, match="must fit of the example"):
        list(Feeds(UNIT, IMAGE, 8, DataOptions(example={"x": UNIT[:, :2]})))
    with pytest.raises(DataError, match="example .* holds no samples; give a known-good sample"):
        list(Feeds(UNIT, IMAGE, 8, DataOptions(example=[])))


# Preparation


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_preparation_is_that_of_torch(layout: str) -> None:
    """Scale, mean and std of bytes are what torch computes in float32, to the bit."""
    torch = pytest.importorskip("torch")
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    pixels = PIXELS.astype(np.uint8)
    t = torch.from_numpy(pixels).float() * torch.tensor(1 / 255)
    t = (t - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)
    expected = t.numpy()
    if layout == "nhwc":
        pixels, expected = pixels.transpose(0, 2, 3, 1), expected.transpose(0, 2, 3, 1)
    inputs = (InputSpec("x", np.dtype(np.float32), (None, *pixels.shape[1:])),)
    feeds = Feeds(pixels, inputs, 40, DataOptions(scale=1 / 255, mean=mean, std=std, layout=layout))
    (feed,) = feeds
    np.testing.assert_array_equal(feed["x"], expected, strict=True)


def test_preparation_reaches_the_one_float_input() -> None:
    """Other integer inputs are left alone; with two float inputs it is not guessed which is meant."""
    ids, x = np.arange(4).reshape(4, 1), np.ones((4, 2), np.float64)
    specs = (InputSpec("ids", np.dtype(np.int64), (None, 1)), InputSpec("x", np.dtype(np.float16), (None, 2)))
    (feed,) = Feeds({"ids": ids, "x": x}, specs, 8, DataOptions(scale=3, mean=1, std=4))
    np.testing.assert_array_equal(feed["x"], np.full((4, 2), 0.5, np.float16), strict=True)
    np.testing.assert_array_equal(feed["ids"], ids, strict=True)
    two = (specs[1], InputSpec("y", np.dtype(np.float32), (None, 2)))
    line = refused({"x": x, "y": x}, two, scale=3)
    assert "prepare the one float input, and the model has 2 (x float16 [?, 2], y float32 [?, 2])" in line
    assert "the model has 0 (ids" in refused({"ids": ids}, specs[:1], mean=1)
    scalar = (InputSpec("x", np.dtype(np.float32), ()),)
    (feed,) = Feeds([{"x": 3}], scalar, 8, DataOptions(scale=2))
    assert isinstance(feed["x"], np.ndarray) and feed["x"] == 6


def test_numbers_for_channels() -> None:
    """As many numbers as channels, for an image; texts are not prepared but refused as before."""
    assert "mean has 2 numbers, and the data 3 channels (nchw, [8, 3, 8, 8])" in refused(
        UNIT, IMAGE, mean=(1, 2)
    )
    assert "std has 2 numbers, and an input of shape [8, 4] has no channels; give one number" in refused(
        np.ones((40, 4), np.float32), ROWS, std=(1, 2)
    )
    assert "its dtype must be float32" in refused(np.full((2, 4), "a"), ROWS, scale=1)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"nonfinite": "drop"}, "unknown nonfinite 'drop'; known: skip, stop"),
        ({"limit": 0}, "limit is 0; read at least 1 sample"),
        ({"resize": (0, 3)}, "resize is 0x3; give a width and height of at least 1"),
        ({"resize": 0}, "resize is 0x0; give a width"),
        ({"resize": 9000}, "resize is 9000x9000, more than 67,108,864 pixels; give less"),
        ({"crop": (3, 0)}, "crop is 3x0; give a width and height of at least 1"),
        ({"resample": "cubic"}, "unknown resample 'cubic'; nearest: bicubic"),
        ({"scale": 0.0}, "scale is 0.0; a zero would lose the data, give other numbers"),
        ({"std": (1.0, 0.0)}, "std is (1.0, 0.0); a zero would lose the data"),
        ({"mean": np.nan}, "mean is nan; give finite numbers"),
    ],
)
def test_options_that_are_none(options: dict[str, object], words: str) -> None:
    """A value that no option takes is refused when it is given."""
    with pytest.raises(DataError) as caught:
        DataOptions(**options)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("want", "sample", "hint"),
    [
        ((None, 3, 8, 9), (8, 9, 3), "HWC, the model wants CHW; use array.transpose(2, 0, 1)"),
        ((1, 8, 9, 3), (3, 8, 9), "CHW, the model wants HWC; use array.transpose(1, 2, 0)"),
    ],
)
def test_layout_of_single_samples(want, sample, hint: str) -> None:
    """A sample without the axis of the batch gets the transpose for its own axes."""
    x = np.zeros(sample, np.float32)
    inputs = (InputSpec("x", np.dtype(np.float32), want),)
    assert refused([x], inputs).endswith(hint)
    order = eval(hint.split("transpose")[1])  # our own message
    assert len(list(Feeds([x.transpose(order)], inputs))) == 1


@pytest.mark.parametrize("command", ["cast", "compare", "convert", "diagnose", "evaluate", "handoff"])
def test_only_calibration_counts_samples(
    command: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Commands that observe no ranges take a sample as it is."""
    model = conv_relu()
    given = onnxfq.quantize(model, [feed_for(model)]).qdq
    caplog.clear()
    run = {
        "cast": lambda: onnxfq.cast(model, data=[feed_for(model)]),
        "compare": lambda: onnxfq.compare(given, [feed_for(model)]),
        "convert": lambda: onnxfq.convert(given, data=[feed_for(model)]),
        "diagnose": lambda: onnxfq.diagnose(given, data=[feed_for(model)]),
        "evaluate": lambda: onnxfq.evaluate(model, given, [feed_for(model)]),
        "handoff": lambda: onnxfq.handoff(given, tmp_path / "kit", data=[feed_for(model)]),
    }
    run[command]()
    assert not [record for record in caplog.records if "usual for calibration" in record.getMessage()]
