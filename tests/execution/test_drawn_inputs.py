"""Drawn inputs have a natural spectrum, and a scale by the statistics of the model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import build, weights

import onnxfq
from onnxfq.cli.main import main
from onnxfq.data import DrawnInputs
from onnxfq.errors import DataError
from onnxfq.execution.drawn_inputs import draw_inputs
from onnxfq.report.record import quantize_record
from onnxfq.report.text import quantize_summary
from onnxfq.runtime.session import Session

PICTURE = "g (float[N,3,32,32] x) => (float[N,8,15,15] y) {"
OPTIONS = onnxfq.DataOptions(limit=16)


def normalized(mean: np.ndarray, variance: np.ndarray) -> onnx.ModelProto:
    """Return a convolution and a BatchNormalization with these statistics."""
    constants = {"w": weights(8, 3, 3, 3), "one": np.ones(8, np.float32), "zero": np.zeros(8, np.float32)}
    return build(
        f"""{PICTURE} c = Conv <strides = [2, 2]> (x, w)
            n = BatchNormalization (c, one, zero, mean, variance) y = Relu (n) }}""",
        constants | {"mean": mean.astype(np.float32), "variance": variance.astype(np.float32)},
    )


def photographs(count: int, seed: int) -> np.ndarray:
    """Return pictures of overlapping rectangles, which are not what the package draws, in 0 to 1."""
    rng = np.random.default_rng(seed)
    pictures = np.tile(rng.random((count, 3, 1, 1)), (1, 1, 32, 32))
    for picture in pictures:
        for _ in range(12):
            (top, bottom), (left, right) = np.sort(rng.integers(0, 33, (2, 2)), axis=1)
            picture[:, top:bottom, left:right] = rng.random() + 0.1 * rng.normal(size=(3, 1, 1))
    return pictures


def plain(text: str = f"{PICTURE} c = Conv <strides = [2, 2]> (x, w) y = Relu (c) }}") -> onnx.ModelProto:
    """Return a convolution without statistics."""
    return build(text, {"w": weights(8, 3, 3, 3)})


@pytest.mark.parametrize(("scale", "offset"), [(255.0, 0.0), (1.0, 0.0), (2.0, -1.0), (64.0, -20.0)])
def test_statistics_tell_scale_and_offset(scale: float, offset: float) -> None:
    """Drawn inputs have mean and spread of what the model has seen, whatever its preprocessing was."""
    seen = (photographs(256, 0) * scale + offset).astype(np.float32)
    before = build(f"{PICTURE} y = Conv <strides = [2, 2]> (x, w) }}", {"w": weights(8, 3, 3, 3)})
    convolved = Session(before, 1).run({"x": seen})[0]
    model = normalized(convolved.mean(axis=(0, 2, 3)), convolved.var(axis=(0, 2, 3)))
    drawn = np.concatenate([feed["x"] for feed in draw_inputs(model, OPTIONS)])
    assert drawn.shape == (16, 3, 32, 32)
    assert abs(np.log2(drawn.std() / seen.std())) < 0.7  # leaves have other edges than rectangles
    assert abs(drawn.mean() - seen.mean()) < 0.75 * seen.std()


def test_pictures_and_sound_are_natural() -> None:
    """Energy falls with frequency: white noise would have as much above a quarter of the rate as below."""
    drawn = np.concatenate([feed["x"] for feed in draw_inputs(plain(), OPTIONS)])
    assert abs(drawn.mean()) < 0.6 and 0.5 < drawn.std() < 1.5
    sound = build("g (float[N,2048] x) => (float[N,2048] y) { y = Relu (x) }", {})
    signal = np.concatenate([feed["x"] for feed in draw_inputs(sound, OPTIONS)])
    assert 0.05 < signal.std() < 0.2 and np.abs(signal).max() <= 1
    for values in (drawn, signal):
        power = np.square(np.abs(np.fft.rfft(values - values.mean(axis=-1, keepdims=True))))
        power = power.reshape(-1, power.shape[-1]).mean(axis=0)
        half = len(power) // 2
        assert power[:half].sum() > 3 * power[half:].sum()


def test_preprocessing_takes_pixels() -> None:
    """With a scale, a mean or a deviation pictures are pixels, which these then prepare."""
    options = onnxfq.DataOptions(scale=1 / 255, mean=(0.5, 0.4, 0.3), limit=4)
    drawn = np.concatenate([feed["x"] for feed in draw_inputs(plain(), options)])
    assert drawn.min() >= 0 and 200 < drawn.max() <= 255 and (drawn == drawn.round()).all()
    recipe = onnxfq.load_recipe("tensorrt-int8").override(activations={"calibrator": "minmax"})
    made = onnxfq.quantize(
        plain(), DrawnInputs(), recipe=recipe, options=onnxfq.QuantizeOptions(data=options)
    )
    assert -0.51 < made.statistics["x"].rmin < 0 < made.statistics["x"].rmax < 0.71


def test_the_same_inputs_are_drawn_again() -> None:
    """The seed is fixed, a sample does not depend on the number of samples, and no two are alike."""
    few, many = (draw_inputs(plain(), onnxfq.DataOptions(limit=count)) for count in (3, 5))
    assert all((one["x"] == other["x"]).all() for one, other in zip(few, many, strict=False))
    assert (
        len({feed["x"].tobytes() for feed in many}) == 5
        and len(draw_inputs(plain(), onnxfq.DataOptions())) == 64
    )


def test_state_is_what_the_model_left() -> None:
    """State begins with zeros, and then is the model's own."""
    model = build(
        "g (float[1,4] x, float[1,4] state) => (float[1,4] y, float[1,4] stateN) "
        "{ s = Add (x, state) stateN = Tanh (s) y = Relu (stateN) }",
        {},
    )
    feeds = draw_inputs(model, OPTIONS)
    left = np.zeros((1, 4), np.float32)
    for feed in feeds:
        np.testing.assert_array_equal(feed["state"], left)
        left = Session(model, 1).run(feed)[1]
    assert left.any()


def test_drawn_inputs_are_told_everywhere() -> None:
    """File, evaluation, summary, record, verdict and repr say that no data was read."""
    results = {
        drawn: onnxfq.quantize(plain(), DrawnInputs() if drawn else draw_inputs(plain(), OPTIONS))
        for drawn in (True, False)
    }
    for drawn, result in results.items():
        summary, record = quantize_summary(result), quantize_record(result)
        for proto in (result.qdq, result.simulation):
            assert drawn is any((e.key, e.value) == ("onnxfq.data", "drawn") for e in proto.metadata_props)
        assert result.evaluation.drawn is record.evaluation.drawn is drawn
        assert drawn is ("on drawn inputs, not on data" in summary)
        assert drawn is ("64 inputs were drawn from a fixed seed" in " ".join(record.notes))
        assert drawn is ("measure it: inputs were drawn" in summary)
        assert drawn is ("drawn" in record.samples) is ("drawn" in repr(result))
        assert drawn is not ("unseen" in record.samples)


@pytest.mark.parametrize("accuracy", [{"min_sqnr": 20.0}, {"max_drop": 1.0, "labels": [0] * 64}])
def test_drawn_inputs_prove_nothing(accuracy: dict[str, object]) -> None:
    """A promise on them is refused."""
    with pytest.raises(
        DataError, match="drawn prove no accuracy on real data; give data, or leave the promise"
    ):
        onnxfq.quantize(plain(), DrawnInputs(), accuracy=onnxfq.AccuracyTarget(**accuracy))


def test_drawn_inputs_are_for_quantize_alone() -> None:
    """Functions that measure or rank take data."""
    with pytest.raises(DataError, match="rank no layers .*; give data"):
        onnxfq.sensitivity(plain(), DrawnInputs())
    with pytest.raises(DataError, match="the data given is a DrawnInputs; give a file"):
        onnxfq.evaluate(plain(), plain(), DrawnInputs())


def test_inputs_that_do_not_run_are_told() -> None:
    """Sizes that must agree and do not say so."""
    model = build("g (float[N,8] x, float[M,9] z) => (float[K,8] y) { y = Add (x, z) }", {})
    with pytest.raises(DataError, match=r"inputs drawn at random do not run \(.*\); give data"):
        draw_inputs(model, OPTIONS)


def test_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command takes --no-data in place of --data, and `plan` takes it for ranks."""
    path = tmp_path / "m.onnx"
    onnx.save(plain(), path)
    made, planned = str(tmp_path / "q.onnx"), str(tmp_path / "plan.json")
    assert main(["quantize", str(path), "--no-data", "--limit", "8", "-o", made]) == 0
    assert "8 inputs were drawn" in capsys.readouterr().out
    assert main(["plan", str(path), "--no-data", "-o", planned]) == 0
    assert main(["quantize", str(path), "--no-data", "--data", "x.npz", "-o", made]) == 2
    assert "--no-data draws inputs in place of --data; give one of them" in capsys.readouterr().err
