"""The worst samples by their number in the data, and their thumbnails."""

from __future__ import annotations

import base64
import io
from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import build, weights
from PIL import Image

from onnxfq.cli.main import main
from onnxfq.numerics.metrics import ErrorSums
from onnxfq.quantizing.pipeline import quantize
from onnxfq.report.record import quantize_record
from onnxfq.report.thumbnails import SIDE, draw_thumbnail
from onnxfq.runtime.session import Session
from onnxfq.stages.evaluate import evaluate
from onnxfq.stages.options import RunOptions

TEXT = "g (float[N,3,16,16] x) => (float[N,4,14,14] y) { y = Conv (x, w) }"


def convolution() -> onnx.ModelProto:
    """Return a model of one layer."""
    return build(TEXT, {"w": weights(4, 3, 3, 3)})


def images(count: int) -> np.ndarray:
    """Return images, of which the later have smaller values, and a coarser grid for them."""
    sizes = np.float32(0.9) ** np.arange(count, dtype=np.float32).reshape(-1, 1, 1, 1)
    return np.random.default_rng(3).normal(size=(count, 3, 16, 16)).astype(np.float32) * sizes


def test_numbers_and_figures_are_those_of_single_runs() -> None:
    """The listed samples are the worst of all, by the SQNR of each alone in ONNX Runtime."""
    data, proto = images(40), convolution()
    result = quantize(proto, {"x": data})
    found = (
        evaluate(proto, result.qdq, {"x": data}, options=RunOptions(exact=True)).candidates[0].worst_samples
    )
    sessions = [Session(one, 1, exact=True) for one in (proto, result.qdq)]
    alone = [
        ErrorSums.from_arrays(*(session.run({"x": row[None]})[0] for session in sessions)).sqnr_db
        for row in data
    ]
    assert [one.sample for one in found] == np.argsort(alone)[: len(found)].tolist() and len(found) == 6
    # Sums in another order.
    assert [one.sqnr_db for one in found] == pytest.approx(
        sorted(alone)[:6], abs=1e-6
    )  # sums in another order
    # Of the samples that `quantize` compares, the numbers are those in the data, whatever was left out.
    kept = result.candidate.session.feeds if result.candidate is not None else None
    assert kept is not None
    for sample in kept.feeds:
        number = kept.number(sample)
        assert number is not None and np.array_equal(sample["x"][0], data[number])
    listed = result.evaluation.candidates[0].worst_samples
    assert listed and {one.sample for one in listed} <= {kept.number(sample) for sample in kept.unseen}


def opened(picture: str) -> Image.Image:
    """Return the image in a data URL, as Pillow reads it."""
    return Image.open(io.BytesIO(base64.b64decode(picture.split(",")[1])))


@pytest.mark.parametrize("shape", [(1, 3, 20, 30), (1, 20, 30, 3), (2, 1, 20, 30), (1, 20, 30, 1)])
def test_thumbnails_are_read_by_pillow(shape: tuple[int, ...]) -> None:
    """The picture is the first image from black to white."""
    values = np.random.default_rng(1).normal(size=shape).astype(np.float32)
    picture = draw_thumbnail({"ids": np.ones(3, np.int64), "x": values})
    pixels = np.asarray(
        Image.open(io.BytesIO(base64.b64decode(picture.removeprefix("data:image/png;base64,"))))
    )
    image = values[0].transpose(1, 2, 0) if shape[1] in (1, 3) else values[0]
    scaled = (image - image.min()) / (image.max() - image.min()) * 255
    assert np.abs(pixels.reshape(image.shape) - scaled).max() <= 0.51


def test_what_is_no_image_has_no_thumbnail() -> None:
    """Other ranks and channels give nothing; large images are thinned out, and constant ones are black."""
    assert draw_thumbnail({"x": np.ones((1, 5, 4, 4), np.float32)}) == ""
    assert draw_thumbnail({"x": np.ones((1, 3), np.float32)}) == draw_thumbnail({}) == ""
    large = draw_thumbnail({"x": np.full((1, 3, 1000, 500), np.nan, np.float32)})
    assert max(opened(large).size) <= SIDE and opened(large).getextrema() == ((0, 0),) * 3


def test_thumbnails_are_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Reports are mailed: without the option there is no picture in page or record; it needs a report."""
    onnx.save(convolution(), tmp_path / "m.onnx")
    np.savez(tmp_path / "d.npz", x=images(20))
    page = tmp_path / "r.html"
    line = ["quantize", str(tmp_path / "m.onnx"), "--data", str(tmp_path / "d.npz")]
    line += ["-o", str(tmp_path / "q.onnx"), "-q"]
    assert main([*line, "--report", str(page)]) == 0
    assert "data:image/png" not in page.read_text(encoding="utf-8")
    assert main([*line, "--report", str(page), "--thumbnails"]) == 0
    assert page.read_text(encoding="utf-8").count("data:image/png") == 6
    assert main([*line, "--thumbnails"]) == 2
    assert "--thumbnails is for the report of one recipe" in capsys.readouterr().err
    record = quantize_record(quantize(convolution(), {"x": images(20)}))
    assert not any(one.picture for score in record.evaluation.candidates for one in score.worst_samples)
