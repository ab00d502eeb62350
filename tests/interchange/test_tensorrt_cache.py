"""TensorRT's calibration caches: exact scales, all names accounted for; and damaged files of any format."""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import build, constants, conv_relu, feed_for, gemm, two_branch, weights, whole_recipe
from damage import BYTES
from given_files import by_tensor, file, fitted, small, vectors
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st

import onnxfq
from onnxfq.documents.encodings import Encoding, Encodings
from onnxfq.errors import OnnxfqError, PlanError, RecipeError
from onnxfq.graph.io.load import load
from onnxfq.interchange import WRITERS, read_given
from onnxfq.interchange.tensorrt_cache import read_cache
from onnxfq.stages.calibrate import encode_weights
from onnxfq.stages.plan import make_plan
from onnxfq.targets.recipes import load_recipe

HEADERS = [
    "TRT-7103-EntropyCalibration2",
    "TRT-8501-EntropyCalibration2",
    "TRT-8602-MinMaxCalibration",
    "TRT-8400-LegacyCalibration",
    "TRT-100300-EntropyCalibration",
]


def hex_of(scale: float) -> str:
    """Return a scale as a cache has it."""
    return struct.pack(">f", scale).hex()


def cache(scales: dict[str, float], header: str = HEADERS[1]) -> str:
    """Return the text of a cache."""
    return "".join(f"{line}\n" for line in (header, *(f"{n}: {hex_of(s)}" for n, s in scales.items())))


def given(folder: Path, scales: dict[str, float], header: str = HEADERS[1], **more: str) -> onnxfq.Sources:
    """Return a cache of these scales as what `quantize` is given."""
    return onnxfq.Sources(encodings=file(folder, cache(scales, header)), **more)


def float_tensors(proto: onnx.ModelProto) -> list[str]:
    """Return what TensorRT has scales of: inputs and all that is computed."""
    computed = [name for node in proto.graph.node for name in node.output]
    return [*(value.name for value in proto.graph.input), *computed]


def scales_in(proto: onnx.ModelProto) -> dict[str, bytes]:
    """Return the bits of the scale of every QuantizeLinear by its tensor."""
    arrays = constants(proto)
    quantizers = [node for node in proto.graph.node if node.op_type == "QuantizeLinear"]
    return {node.input[0]: arrays[node.input[1]].tobytes() for node in quantizers}


@pytest.fixture
def nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every inference fail."""

    def ran(*_: object, **__: object) -> None:
        raise AssertionError("a model was run")

    monkeypatch.setattr("onnxfq.stages.statistics_source.Observation", ran)
    monkeypatch.setattr("onnxfq.runtime.session.Session.run", ran)


@pytest.mark.parametrize("header", HEADERS)
def test_scales_are_the_hex_of_the_file(header: str, tmp_path: Path, nothing_runs: None) -> None:
    """Each scale in the Q/DQ model has the bits of the cache, and no model is run for it."""
    proto = two_branch()
    names = float_tensors(proto)
    scales = {name: np.float32(0.1) / np.float32(3 + number) for number, name in enumerate(names)}
    result = onnxfq.quantize(proto, None, tmp_path / "o.onnx", sources=given(tmp_path, scales, header))
    found = scales_in(result.qdq)
    assert set(found) == {p.tensor for p in result.plan.activations} and len(found) > 2
    assert found == {name: np.float32(scales[name]).tobytes() for name in found}
    assert result.encodings.source == f"TensorRT calibration cache ({header})"
    assert not result.statistics.tensors and not result.evaluation.candidates
    assert result.encodings.statistics_sha256 == ""
    assert result.matched is not None
    lines = "\n".join(result.matched.lines())
    assert all(name in lines for name in set(names) - set(found)) and "weights    " in lines
    for own in encode_weights(result.model, result.plan):
        assert result.encodings[own.tensor] == own


def test_data_beside_a_whole_cache_are_compared_with_only(tmp_path: Path) -> None:
    """With data nothing is observed either: the result is compared, on the same scales."""
    proto = conv_relu()
    result = onnxfq.quantize(proto, feed_for(proto, count=8), sources=given(tmp_path, {"x": 0.125}))
    assert not result.statistics.tensors and result.evaluation.candidates
    assert result.encodings["x"].scale == (0.125,)
    onnxfq.write_report(result, tmp_path / "report.html")
    assert '"encodings from", "TensorRT calibration cache' in (tmp_path / "report.html").read_text()


def test_names_with_blanks_and_colons(tmp_path: Path) -> None:
    """The last colon ends the name, at either end of a line that there is."""
    lines = ("(Unnamed Layer* 1) [Shuffle]_output: 3c010204\r", "a:b: c: 00800000", "")
    text = "\n".join(("TRT-8501-EntropyCalibration2\r", *lines))
    found = read_cache(text, "c").tensors
    assert {name: float(tensor.scale or 0) for name, tensor in found.items()} == {
        "(Unnamed Layer* 1) [Shuffle]_output": float(np.float32(1 / 127)),
        "a:b: c": 2.0**-126,
    }


def test_unknown_and_unneeded_names_are_listed(tmp_path: Path) -> None:
    """Tensors that the model lacks are listed with the nearest names, unneeded ones by name."""
    _, found = fitted(conv_relu(), file(tmp_path, cache({"x": 0.5, "c": 0.25, "xx_": 0.5, "y": 1.0})))
    assert found.lines() == [
        "external   TensorRT calibration cache (TRT-8501-EntropyCalibration2): 1 of 4 tensors used",
        "weights    1 with scales from their own values: w",
        f"unknown    xx_{onnxfq.errors.nearest('xx_', ['x', 'c', 'y', 'w', 'b'])}",
        "not needed 2 tensors: c, y",
    ]


def gemms() -> onnx.ModelProto:
    """Two Gemms with something between them."""
    return build(
        """g (float[N,8] first) => (float[N,4] y) {
            h = Gemm (first, w1) second = Sigmoid (h) y = Gemm (second, w2) }""",
        {"w1": weights(8, 6), "w2": weights(6, 4)},
    )


def test_what_the_cache_lacks_stops(tmp_path: Path) -> None:
    """Activations without a scale are an error that names each, the nearest name and both remedies."""
    sources = given(tmp_path, {"first": 0.5, "secnd": 0.25})
    with pytest.raises(PlanError) as caught:
        onnxfq.quantize(gemms(), None, tmp_path / "o.onnx", sources=sources)
    assert str(caught.value) == (
        f"{sources.encodings} has no scale for 1 activation(s) of the plan; give data to calibrate them, or "
        "--uncalibrated float to leave their nodes in float: 'second' (nearest: secnd)"
    )
    assert not (tmp_path / "o.onnx").exists()


def test_what_the_cache_lacks_is_calibrated_from_data(tmp_path: Path) -> None:
    """With data the rest is observed, and nothing but the rest; the given scale stays as it is."""
    data = feed_for(gemms(), count=16)
    result = onnxfq.quantize(gemms(), data, sources=given(tmp_path, {"first": 0.5}))
    assert set(result.statistics.tensors) == {"second"}
    whole = onnxfq.quantize(gemms(), data)
    assert result.encodings["second"] == whole.encodings["second"]
    assert result.encodings["first"].scale == (0.5,) and whole.encodings["first"].scale != (0.5,)


def test_what_the_cache_lacks_may_stay_in_float(tmp_path: Path, nothing_runs: None) -> None:
    """`uncalibrated="float"` leaves the node that needs it in float, with the reason."""
    sources = given(tmp_path, {"first": 0.5}, uncalibrated="float")
    result = onnxfq.quantize(gemms(), None, sources=sources)
    assert [str(row) for row in result.plan.coverage()] == ["Gemm 1/2"]
    assert "has no scale for it" in next(s.why for s in result.plan.skipped if s.name == "second")
    with pytest.raises(PlanError, match="nothing to quantize: every node needs"):
        onnxfq.quantize(conv_relu(), None, sources=given(tmp_path, {"x": 0.0}, uncalibrated="float"))


def test_a_scale_of_zero_counts_as_lacking(tmp_path: Path) -> None:
    """TensorRT writes 0 for tensors that are always 0: it is not a scale, and a line says why."""
    sources = given(tmp_path, {"x": 0.0, "c": math.inf})
    with pytest.raises(PlanError, match=r"'x' \(line 2 has scale 0, and scales are finite and positive\)"):
        onnxfq.quantize(conv_relu(), None, sources=sources)
    result = onnxfq.quantize(conv_relu(), feed_for(conv_relu(), count=8), sources=sources)
    assert result.encodings["x"].calibrator == "best_error"


@pytest.mark.parametrize("recipe", ["tensorrt-mxfp8", "tensorrt-fp8"])
def test_recipes_that_have_no_int8_refuse(recipe: str, tmp_path: Path) -> None:
    """A cache is of int8: a recipe of another format says so before anything is written."""
    sources = given(tmp_path, {"first": 0.5, "second": 1.0})
    with pytest.raises(RecipeError):
        onnxfq.quantize(gemms(), None, recipe=recipe, sources=sources)


def test_zero_points_move_for_onnxruntime(tmp_path: Path) -> None:
    """Recipe onnxruntime-int8 has uint8: the same grid has the zero point 128 there."""
    _, found = fitted(conv_relu(), file(tmp_path, cache({"x": 0.5})), "onnxruntime-int8")
    x = by_tensor(found)["x"]
    assert (x.spec.qtype.name, x.scale, x.zero_point) == ("uint8", (0.5,), (128,))
    assert (x.rmin, x.rmax) == (-64.0, 63.5)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("x 3c010a14", "line 2: is 'x 3c010a14', expected a tensor, a colon and a float32 in hex"),
        ("x: 0.5", "expected a tensor"),
        ("x: 3c010a14f", "expected a tensor"),
        ("x: 3c010a", "expected a tensor"),
        (": 3c010a14", "expected a tensor"),
        ("x: 3c010a14\nx: 3c010a15", "line 3: tensor 'x' is also in line 2 with other values"),
        ("", "without a tensor"),
    ],
)
def test_damaged_lines(line: str, message: str, tmp_path: Path) -> None:
    """A line that is not an entry is one message with its number."""
    path = file(tmp_path, f"{HEADERS[0]}\n{line}\n")
    with pytest.raises(PlanError) as caught:
        read_given(path)
    assert str(caught.value).startswith(f"{path}: ") and message in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"TRT-\nx: 3c010a14\n", "line 1: is 'TRT-', but the header of a calibration cache is like TRT-"),
        (b"\x00\x01\xff", "is not text"),
        (b"x 2.008338\n", "is none of TensorRT calibration cache, AIMET encodings"),
        (b'{"a": ', "is damaged: Expecting value"),
        (b"[" * 100_000, "is damaged"),
        (b'{"x": [{}], "x": [{}]}', "is damaged: 'x' appears twice in one object"),
        (b"[1]", "is none of"),
        (b'{"format": "onnxfq.encodings/1"}', "give it to `onnxfq insert --plan PLAN --encodings`"),
    ],
)
def test_files_of_no_format(content: bytes, message: str, tmp_path: Path) -> None:
    """The content shows the format; a file of none is one line with all that are known."""
    path = tmp_path / "calib.cache"
    path.write_bytes(content)
    with pytest.raises(PlanError) as caught:
        read_given(path)
    assert str(path) in str(caught.value) and message in str(caught.value)


@settings(max_examples=30)
@drawn(scale=st.floats(2.0**-126, float(np.finfo(np.float32).max), width=32))
def test_what_is_written_is_read_again(tmp_path_factory: pytest.TempPathFactory, scale: float) -> None:
    """A scale comes back to the last bit."""
    model = load(conv_relu())
    plan = make_plan(model, load_recipe("tensorrt-int8"))
    made = [
        Encoding.of(p.tensor, p.spec, np.full(shape, scale, np.float32), np.zeros(shape))
        for p, shape in zip(plan.placements, ((), (4,)), strict=True)
    ]
    written = WRITERS["tensorrt-cache"](Encodings(model_sha256=model.sha256, encodings=tuple(made)), plan)
    assert written.lost == {"w": "TensorRT makes the scales of weights itself"}
    _, found = fitted(conv_relu(), file(tmp_path_factory.getbasetemp(), written.text, "cache"))
    assert by_tensor(found)["x"].scale == (scale,)


@pytest.mark.parametrize(
    ("proto", "recipe", "why"),
    [
        (conv_relu(), "onnxruntime-int8", "uint8, and a cache holds int8 only"),
        (conv_relu(), "tensorrt-fp8", "float8e4m3fn, and a cache holds int8 only"),
        (gemm(), "onnxruntime-uint8-dynamic", "its scales are dynamic"),
    ],
)
def test_what_a_cache_cannot_hold_is_told(proto: onnx.ModelProto, recipe: str, why: str) -> None:
    """Formats and scales that a cache lacks are named with the reason; a cache of nothing is refused."""
    result = onnxfq.quantize(proto, feed_for(proto, count=8), recipe=whole_recipe(recipe))
    written = WRITERS["tensorrt-cache"](result.encodings, result.plan)
    assert written.lost["x"] == why
    with pytest.raises(PlanError, match="holds none of these encodings"):
        written.refuse_empty("tensorrt-cache")


NAMES = ("image", "r", "f", "s")
CACHE = "TRT-8501-EntropyCalibration2\nimage: 3cf99020\nr: 3e17f254\nf: 3d83ee54\ns: 3c00fab6\n"
RANGE = {"CLS": "TensorData", "lowest": {"data": [-1.5]}, "highest": {"data": [2.5]}}
OVERRIDES = dict.fromkeys(NAMES, [{"quant_type": "QInt8", "scale": 0.5, "zero_point": 0}])
CONTENTS = {
    "cache": CACHE,
    "0.6.1": json.dumps(vectors()["variants"]["symmetric"]["files"]["0.6.1"]),
    "1.0.0": json.dumps(vectors()["variants"]["blocks"]["files"]["1.0.0"]),
    "2.0.0": json.dumps(vectors()["variants"]["LPBQ"]["files"]["2.0.0"]),
    "ranges": json.dumps({"CLS": "TensorsData", "data": dict.fromkeys(NAMES, RANGE)}),
    "overrides": json.dumps(OVERRIDES),
}


@pytest.mark.parametrize("name", CONTENTS)
@pytest.mark.parametrize("damage", BYTES)
def test_damaged_bytes(name: str, damage: str, tmp_path: Path) -> None:
    """No damage gives a traceback or a message of several lines; the undamaged file is read."""
    path = tmp_path / "given"
    path.write_text(CONTENTS[name], encoding="utf-8")
    _, whole = fitted(small(), path, "onnxruntime-int8")
    assert len(whole.encodings) >= 4
    rng = np.random.default_rng([len(name), len(damage)])
    for _ in range(8):
        content = bytearray(CONTENTS[name].encode())
        BYTES[damage](content, rng)
        path.write_bytes(content)
        try:
            fitted(small(), path, "onnxruntime-int8")
        except OnnxfqError as fault:
            assert str(fault).isprintable()
