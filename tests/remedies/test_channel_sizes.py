"""The sizes of channels are those of NumPy, and the terminal names the channel that takes the grid."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import build, weights, with_constants
from planted_chain import WIDTH, chain, with_modules

from onnxfq import load
from onnxfq.cli.main import main
from onnxfq.documents.layers import ChannelSizes
from onnxfq.layers.channel_statistics import measure_channels
from onnxfq.runtime.session import Session


@pytest.mark.parametrize(
    ("text", "weight", "shape", "axis"),
    [
        (
            "(float[N,6,5,5] x) => (float[N,4,5,5] y) { y = Conv (x, w) }",
            weights(4, 6, 1, 1),
            (2, 6, 5, 5),
            1,
        ),
        ("(float[N,7,6] x) => (float[N,7,4] y) { y = MatMul (x, w) }", weights(6, 4), (2, 7, 6), 2),
        ("(float[N,6] x) => (float[N,4] y) { y = Gemm (x, w) }", weights(6, 4), (5, 6), 1),
        ("(float[N,6,8] x) => (float[N,4,8] y) { y = MatMul (w, x) }", weights(4, 6), (2, 6, 8), 1),
    ],
)
def test_sizes_are_those_of_numpy(text: str, weight: np.ndarray, shape: tuple[int, ...], axis: int) -> None:
    """The channels are along the axis that the layer sums over; samples are pooled."""
    model = load(build(f"g {text}", {"w": weight}))
    rng = np.random.default_rng(1)
    feeds = [{"x": rng.normal(size=shape).astype(np.float32)} for _ in range(3)]
    others = tuple(at for at in range(len(shape)) if at != axis)
    wanted = np.max([np.abs(feed["x"]).max(axis=others) for feed in feeds], axis=0)
    sizes = measure_channels(model, feeds, ["x"])["x"]
    assert (sizes.count, sizes.samples) == (wanted.size, 3)
    assert [at for at, _ in sizes.largest] == np.argsort(-wanted)[:5].tolist()
    # A report has four digits.
    assert [size for _, size in sizes.largest] == pytest.approx(np.sort(wanted)[::-1][:5], rel=1e-3)
    assert sizes.median == pytest.approx(np.median(wanted), rel=1e-3)


def values_of(proto: onnx.ModelProto, tensor: str, rows: np.ndarray) -> np.ndarray:
    """Return an inner tensor as ONNX Runtime computes it."""
    fetched = onnx.ModelProto.FromString(proto.SerializeToString())
    fetched.graph.output.append(onnx.helper.make_tensor_value_info(tensor, onnx.TensorProto.FLOAT, None))
    return Session(fetched, 1).run({"x": rows}, [tensor])[0]


def test_inner_tensors_are_those_of_onnxruntime() -> None:
    """The planted channel of an inner tensor is found, with the size that ONNX Runtime computes."""
    proto, rows = chain((3,)), np.random.default_rng(1).normal(size=(8, WIDTH)).astype(np.float32)
    sizes = measure_channels(load(proto), [{"x": row[None]} for row in rows], [f"h{at}" for at in range(8)])
    assert max(sizes, key=lambda name: sizes[name].ratio) == "h3"
    channel, size = sizes["h3"].largest[0]
    # A report has four digits.
    assert channel == 3 and size == pytest.approx(values_of(proto, "h3", rows)[:, 3].max(), rel=1e-3)


def test_what_has_no_channels() -> None:
    """Fewer than three channels, open axes, values that are not finite, and no samples give nothing."""
    assert ChannelSizes.of(np.ones(2), 1) is None
    assert ChannelSizes.of(np.asarray([1.0, np.inf, 1.0]), 1) is None
    quiet = ChannelSizes.of(np.asarray([0.0, 0.0, 0.0, 3.0]), 1)
    assert quiet is not None and quiet.ratio == np.inf
    zeros = ChannelSizes.of(np.zeros(4), 1)
    assert zeros is not None and zeros.ratio == 0
    model = load(build("g (float[N,M] x) => (float[N,M] y) { y = Relu (x) }", {}))
    feeds = [{"x": np.ones((1, count), np.float32)} for count in (4, 5)]
    assert measure_channels(model, feeds, ["x", "nothing"]) == {} == measure_channels(model, [], ["x"])


def scale_channels(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return `proto` with every channel of h4 scaled by another factor, and the function as it was."""
    factors = np.exp2(np.linspace(-8, 8, WIDTH)).astype(np.float32)
    scaled = {"w3": factors, "w4": 1 / factors[:, None]}
    return with_constants(proto, lambda name, array: array * scaled[name] if name in scaled else array)


@pytest.mark.parametrize(
    ("proto", "tensor"), [(chain((3,)), "h3"), (scale_channels(chain()), "h4")], ids=["one", "all"]
)
def test_the_terminal_names_channel_and_cure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], proto: onnx.ModelProto, tensor: str
) -> None:
    """`quantize` and `sensitivity` of a wrecked network name the channel and the option that cures it."""
    onnx.save(with_modules(proto), tmp_path / "m.onnx")
    rows = np.random.default_rng(1).normal(size=(64, WIDTH)).astype(np.float32)
    np.savez(tmp_path / "d.npz", x=rows)
    largest = np.argsort(-np.abs(values_of(proto, tensor, rows)).max(axis=0))[:3].tolist()
    given = [str(tmp_path / "m.onnx"), "--data", str(tmp_path / "d.npz")]
    written = ["-o", str(tmp_path / "q.onnx")]
    for line in (["quantize", *given, *written, "--repair", "off"], ["sensitivity", *given]):
        assert main(line) == 0
        said = capsys.readouterr().out
        (channel,) = re.findall(rf"channels   '{tensor}': channel (\d+) of {WIDTH} reaches", said)
        assert int(channel) in largest and re.search(r"^cure .*--repair auto", said, re.MULTILINE)
    assert main(["quantize", *given, *written, "--repair", "auto"]) == 0
    said = capsys.readouterr().out
    assert "low SQNR" not in said and "channels   " not in said and "equalize    kept" in said
