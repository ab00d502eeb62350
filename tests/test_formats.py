"""Every number format from the recipe to the written model: simulated and deployed are twins."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest
from agreement import twins
from builders import (
    attention,
    constants,
    conv_relu,
    feed_for,
    gemm,
    linear,
    one_format,
    qdq_of,
    stage,
    transposed_weight,
)
from hypothesis import given
from hypothesis import strategies as st
from keyword_numerics import fake_quantize

from onnxfq.documents.encodings import Encoding, Encodings
from onnxfq.documents.recipe import Recipe
from onnxfq.errors import ModelError, PlanError
from onnxfq.graph.model import default_opset
from onnxfq.numerics import qtypes
from onnxfq.numerics.granularity import Granularity
from onnxfq.numerics.qtypes import qtype_by_name
from onnxfq.passes.insert_fake_quantize import with_fake_quantize
from onnxfq.runtime.session import Session
from onnxfq.stages.calibrate import calibrate
from onnxfq.stages.insert import with_target_qdq

# The lowest opset that can carry each: 8 bits 13, float8 19, 4 and 16 bits 21, 2 bits 25.
OPSETS = (
    dict.fromkeys(["int8", "uint8", "int5", "uint6", "int7", "int8[-127,127]"], 13)
    | dict.fromkeys(["float8e4m3fn", "float8e4m3fnuz", "float8e5m2", "float8e5m2fnuz"], 19)
    | dict.fromkeys(["int4", "uint4", "int16", "uint16", "int3", "uint3", "int9", "uint12", "int15"], 21)
    | dict.fromkeys(["int4[-7,7]", "int16[-300,300]"], 21)
    | dict.fromkeys(["int2", "uint2", "int2[-1,1]"], 25)
)


MODELS = {
    "conv": lambda: conv_relu(opset=13),
    "gemm": gemm,
    "attention": attention,
    "turned": transposed_weight,
}


@pytest.mark.grid
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("qtype", OPSETS)
def test_twins_in_every_format(qtype: str, name: str) -> None:
    """Simulated and deployed tensors are the same to the bit in every format that onnxruntime runs."""
    for tensor, simulated, deployed in zip(*twins(stage(MODELS[name](), one_format(qtype))), strict=True):
        np.testing.assert_array_equal(simulated, deployed, err_msg=tensor)


@pytest.mark.parametrize("qtype", OPSETS)
def test_twins_at_the_edges(qtype: str) -> None:
    """Signed zeros, values far below a step and far beyond the range: the same bits, -0 included."""
    # onnxruntime 1.31.1 makes 2^31 steps and more the lowest number in its 2-bit QuantizeLinear.
    far = 1e8 if qtype in ("int2", "uint2") else 1e30
    staged = stage(conv_relu(), one_format(qtype))
    values = staged.feed["x"].copy()
    values.ravel()[:8] = [-0.0, 0.0, 1e-9, -1e-9, far, -far, -0.01, 0.01]
    names, simulated, deployed = twins(replace(staged, feed={"x": values}))
    at = names.index("x")
    np.testing.assert_array_equal(simulated[at].view(np.uint32), deployed[at].view(np.uint32))


@pytest.mark.parametrize("qtype", OPSETS)
def test_the_lowest_opset(qtype: str) -> None:
    """The written model passes ONNX's checker at the lowest opset that has the format, and says it once.

    Below opset 21 the zero point says the type, above output_dtype or a zero point that is not 0.
    """
    proto = qdq_of(stage(conv_relu(opset=13), one_format(qtype)))
    onnx.checker.check_model(proto, full_check=True)
    assert default_opset(proto) == OPSETS[qtype]
    for node in proto.graph.node:
        if node.op_type == "QuantizeLinear":
            says = [a.name for a in node.attribute if a.name == "output_dtype"] + list(node.input[2:])
            assert len(says) == 1
            assert (says == ["output_dtype"]) <= (OPSETS[qtype] >= 21)


@pytest.mark.parametrize("qtype", ["int5", "int7", "uint6", "int8[-127,127]", "int3", "int12", "int2[-1,1]"])
def test_limits_are_never_left(qtype: str) -> None:
    """Odd widths and limits of one's own hold for stored weights and for activations far out of range."""
    found = qtype_by_name(qtype)
    staged = stage(conv_relu(), one_format(qtype))
    proto = qdq_of(staged)
    assert "Clip" in {node.op_type for node in proto.graph.node}
    stored = constants(proto)["w/q"].astype(np.int64)
    assert found.qmin <= stored.min() and stored.max() <= found.qmax
    proto.graph.node.append(onnx.helper.make_node("Cast", ["x/q"], ["numbers"], to=onnx.TensorProto.FLOAT))
    proto.graph.output.append(onnx.helper.make_empty_tensor_value_info("numbers"))
    far = feed_for(conv_relu())["x"] * np.float32(1e6)
    _, numbers = Session(proto, 1, exact=True).run({"x": far})
    assert (numbers.min(), numbers.max()) == (found.qmin, found.qmax)


@given(
    st.sampled_from(["int5", "int12", "int8[-127,127]", "int16[-300,300]", "uint6"]),
    st.floats(2.0**-126, 2.0**100, width=32),
    st.integers(0, 63),
)
def test_clip_is_exact(qtype: str, scale: float, zero_point: int) -> None:
    """The real number of a limit, rounded to float32, is quantized to that very limit."""
    found = qtype_by_name(qtype)
    s, z = np.float32(scale), zero_point if found.qmin == 0 else 0
    for limit in (found.qmin, found.qmax):
        real = np.float32((limit - z) * np.float64(s))
        assert np.rint(real / s) + z == limit


def test_power_of_two_scales() -> None:
    """power_of_two makes every scale a power of two, in both models."""
    base = one_format("int8", power_of_two=True).model_dump()
    base["activations"]["power_of_two"] = True
    staged = stage(conv_relu(), Recipe.model_validate(base))
    for encoding in staged.encodings.encodings:
        fractions, _ = np.frexp(encoding.scale)
        np.testing.assert_array_equal(fractions, 0.5)
    for _, simulated, deployed in zip(*twins(staged), strict=True):
        np.testing.assert_array_equal(simulated, deployed)


@pytest.mark.parametrize("qtype", ["float6e2m3", "float6e3m2", "float4e2m1", "float8e4m3fn", "int11"])
def test_every_format_is_simulated(qtype: str) -> None:
    """Target simulation takes what no target takes; the model then holds values of the grid only."""
    staged = stage(gemm(), one_format(qtype, "simulation"))
    proto = with_fake_quantize(staged.model, staged.plan, staged.encodings).proto
    encoding = staged.encodings["w"]
    rounded = fake_quantize(
        constants(gemm())["w"], encoding.scale, qtype=qtype, axis=encoding.spec.granularity.axis
    )
    np.testing.assert_array_equal(constants(proto)["w/fq"], rounded)
    assert np.isfinite(Session(proto, 1).run(staged.feed)[0]).all()


@pytest.mark.parametrize(("qtype", "opset"), [("float4e2m1", 23), ("float6e2m3", 28), ("float6e3m2", 28)])
def test_formats_that_only_onnx_has(qtype: str, opset: int) -> None:
    """Formats that ONNX has and ONNX Runtime lacks are written too, and pass the checker."""
    staged = stage(conv_relu(), one_format(qtype, "simulation"))
    proto = qdq_of(staged)
    onnx.checker.check_model(proto, full_check=True)
    assert default_opset(proto) == opset
    assert constants(proto)["w/q"].dtype == qtype_by_name(qtype).dtype


def test_what_an_old_onnx_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A type that the installed onnx is too old for is refused in one line."""
    monkeypatch.delitem(qtypes._OPSETS, "float6e2m3")
    with pytest.raises(PlanError) as caught:
        qdq_of(stage(gemm(), one_format("float6e2m3", "simulation")))
    assert str(caught.value) == (
        "tensor 'x': the installed onnx has no float6e2m3; upgrade onnx, or insert fake-quant nodes instead"
    )


def test_refused_opset(monkeypatch: pytest.MonkeyPatch) -> None:
    """When onnx cannot raise the opset to what a format needs, one line says so."""

    def refuse(*_: object) -> None:
        raise RuntimeError("no adapter")

    staged = stage(gemm(), one_format("int2"))
    monkeypatch.setattr(onnx.version_converter, "convert_version", refuse)
    with pytest.raises(ModelError) as caught:
        qdq_of(staged)
    assert str(caught.value) == (
        "the given model: opset 17 must be raised to 25 and onnx's converter refused (no adapter); export "
        "the model at opset 25 or above"
    )


def test_clipped_per_axis() -> None:
    """An edited plan that gives a clipped activation a scale per index writes a clip for each index."""
    staged = stage(linear(4, 4), one_format("int5"))
    placement = staged.plan.activations[0]
    spec = placement.spec.model_copy(update={"granularity": Granularity(1)})
    changed = placement.model_copy(update={"spec": spec})
    plan = staged.plan.model_copy(update={"placements": (changed, *staged.plan.weights)})
    many = Encoding.of("x", spec, np.float32([0.05, 0.1, 0.2, 0.4]), np.zeros(4, np.int32))
    encodings = Encodings(model_sha256=staged.model.sha256, encodings=(many, staged.encodings["w"]))
    written = with_target_qdq(staged.model, plan, encodings).proto
    simulated = with_fake_quantize(staged.model, plan, encodings).proto
    feed = {"x": np.linspace(-9, 9, 12, dtype=np.float32).reshape(3, 4)}
    want, got = (Session(proto, 1, exact=True).run(feed)[0] for proto in (simulated, written))
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("calibrator", ["minmax", "percentile", "entropy", "mse"])
def test_every_calibrator_takes_floats(calibrator: str) -> None:
    """All calibrators give a float8 scale; entropy gives the full range."""
    staged = stage(conv_relu(), "tensorrt-fp8")
    scale = calibrate(staged.model, staged.plan, staged.statistics, calibrator)["x"].scale
    full = staged.encodings["x"].scale
    assert scale == full if calibrator in ("minmax", "entropy") else 0 < scale <= full
