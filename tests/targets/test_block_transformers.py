"""MXFP8 and NVFP4 in transformers: TensorRT for RTX builds every one, with every linear layer low."""

from __future__ import annotations

import importlib
from pathlib import Path

import numpy as np
import onnx
import pytest
from agreement import with_outputs
from builders import build, graph_text, plain_quantize, planned, qdq_of, stage, weights, whole_recipe
from engines import needs_builder, see_engines

import onnxfq
from onnxfq.errors import PlanError
from onnxfq.graph.names import Use
from onnxfq.numerics.float_types import FloatName
from onnxfq.passes.insert_fake_quantize import with_fake_quantize
from onnxfq.runtime.session import Session
from onnxfq.stages.insert import with_target_qdq
from onnxfq.tools.check import check

ROOT = Path(__file__).parents[2]
FAMILIES = ("bert", "vision", "windows", "decoder", "encoder-decoder")
FEW = [("bert", "fp16", "tensorrt-mxfp8"), ("vision", "fp16", "tensorrt-mxfp8")]
LOST = {"bert": 8}
"""MXFP8 weights that TensorRT for RTX makes float, where it fuses the product with a GELU behind it."""


def model(family: str, path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[dict[str, np.ndarray], int]:
    """Write the network with an open batch; return a feed and the number of linear layers."""
    rng = np.random.default_rng(0)
    if family == "bert":
        monkeypatch.syspath_prepend(ROOT / "models")
        onnx.save(importlib.import_module("networks").bert("N"), path)
        return {"input_ids": rng.integers(0, 2000, (2, 128)), "attention_mask": np.ones((2, 128), int)}, 26
    pytest.importorskip("torch.nn")
    one = importlib.import_module("torch_networks").FAMILIES[family]
    onnxfq.export_torch(one.build().eval(), one.inputs, path)
    feed = {}
    for value, given in zip(onnx.load(path).graph.input, one.inputs, strict=True):
        floats = given.dtype.is_floating_point
        shape = tuple(given.shape)
        feed[value.name] = (
            rng.standard_normal(shape).astype(np.float32) if floats else rng.integers(0, 64, shape)
        )
    return feed, one.linear


@needs_builder
@pytest.mark.filterwarnings("ignore")  # the exporter is not under test
@pytest.mark.parametrize("recipe", ["tensorrt-nvfp4", "tensorrt-mxfp8"])
@pytest.mark.parametrize(("family", "floats"), [*((family, "fp16") for family in FAMILIES), ("bert", "fp32")])
def test_every_linear_layer(
    family: str,
    floats: FloatName,
    recipe: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    """Each linear layer is NVFP4 in the engine; MXFP8 weights stay 8 bits except for the ones above.

    No rule speaks, and both products of each attention are in float with a reason.
    """
    if (family, floats, recipe) not in FEW and not request.config.getoption("--all-cases"):
        pytest.skip("large, for --all-cases")
    source = tmp_path / "m.onnx"
    feed, linear = model(family, source, monkeypatch)
    result = plain_quantize(
        source,
        [feed],
        recipe=whole_recipe(recipe),
        options=onnxfq.QuantizeOptions(floats=onnxfq.FloatOptions(floats)),
    )
    assert check(result.qdq).findings == ()
    whys = [s.why for s in result.plan.skipped if s.op_type == "MatMul" and s.kind == "node"]
    assert len(whys) >= 2 and all("MXFP8" in why or "NVFP4" in why for why in whys), whys
    (rows,) = see_engines(tmp_path, result.qdq)
    seen = [row.split()[1] for row in rows.values()]
    if recipe == "tensorrt-nvfp4":
        assert seen == ["low"] * linear
    else:
        outside = linear - len(seen)  # K of 16 has no block of 32
        assert seen.count("weight-only") == linear - outside - LOST.get(family, 0)
        assert outside == (family == "vision")


def rows(shape: str = "N,2,5,64") -> onnx.ModelProto:
    """A tensor of four axes by two matrices."""
    return build(
        f"""g (float[{shape}] x) => (float[{shape[:-2]}32] y, float[{shape[:-2]}6] z) {{
            [one] y = MatMul (x, w) [two] z = MatMul (x, v) }}""",
        {"w": weights(64, 32), "v": weights(64, 6, seed=1)},
    )


@pytest.mark.sample
def test_the_form_of_rows():
    """The rows are quantized as a matrix, once for all products; each result gets its axes back."""
    proto = qdq_of(stage(rows(), "tensorrt-mxfp8"))
    onnx.checker.check_model(proto, full_check=True)
    assert graph_text(proto)[:2] == [
        "[x/rows] x/rows = Reshape (x, x/rows_shape)",
        "[x/q] x/q, x/block_scale = TRT_MXFP8DynamicQuantize <axis=1 block_size=32 output_dtype=17> (x/rows)",
    ]
    assert [n.op_type for n in proto.graph.node].count("TRT_MXFP8DynamicQuantize") == 1
    assert [list(n.output) for n in proto.graph.node if n.name in ("one", "two")] == [["y/rows"], ["z/rows"]]


@pytest.mark.parametrize("shape", ["2,3,5,64", "N,2,5,64", "A,B,C,64", "N,2,3,4,64"])
def test_rows_change_no_bit(shape: str) -> None:
    """ONNX Runtime runs the MXFP8 model through its function bodies: the bits of the simulation."""
    staged = stage(rows(shape), "tensorrt-mxfp8")
    simulated = with_fake_quantize(staged.model, staged.plan, staged.encodings).proto
    for name in ("y", "z"):
        one, other = (
            Session(with_outputs(proto, [name]), 1, exact=True).run(staged.feed, [name])[0]
            for proto in (simulated, qdq_of(staged))
        )
        assert one.shape == other.shape
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)  # sums of a matrix go in another order


@needs_builder
@pytest.mark.parametrize("shape", ["2,3,5,64", "N,2,5,64", "A,B,C,64", "N,2,3,4,64"])
def test_rows_are_low(shape: str, tmp_path: Path) -> None:
    """With fixed and open sizes, one or all, both products are NVFP4 in the engine."""
    (seen,) = see_engines(tmp_path, qdq_of(stage(rows(shape), "tensorrt-nvfp4")))
    assert set(seen.values()) == {"MatMul low as low"}


def test_rows_of_an_edited_plan():
    """A plan that quantizes a tensor of four axes for another reader is refused in one line."""
    proto = build(
        "g (float[1,2,64,64] x, float[1,2,64,32] v) => (float[1,2,64,32] y) { [mm] y = MatMul (x, v) }"
    )
    staged = stage(proto, "nvfp4")
    plan = staged.plan.model_copy(update={"target": "tensorrt"})
    with pytest.raises(PlanError, match="TensorRT takes 3 axes at most in this format, and 'mm'"):
        with_target_qdq(staged.model, plan, staged.encodings)


IN_FLOAT = {
    "4-D by 4-D": ("float[1,2,64,64] x, float[1,2,64,32] v", "float[1,2,64,32]", "'x' is 4-D"),
    "open right": (
        "float[N,64,64] x, float[N,64,32] v",
        "float[N,64,32]",
        "right-hand tensors of fixed sizes",
    ),
    "vector": ("float[64] x, float[64,32] v", "float[32]", "'x' is 1-D"),
}


@pytest.mark.parametrize("case", IN_FLOAT)
def test_what_stays_in_float(case: str) -> None:
    """A product that TensorRT would not build in NVFP4 is in float, and the plan names the tensor."""
    inputs, output, why = IN_FLOAT[case]
    proto = build(
        f"g ({inputs}, float[4,64] a) => ({output} y, float[4,6] b) {{"
        " [mm] y = MatMul (x, v) [lin] b = MatMul (a, w) }",
        {"w": weights(64, 6)},
    )
    plan = planned(proto, "tensorrt-nvfp4")
    assert {use for p in plan.placements for use in p.uses} == {Use("lin", 0), Use("lin", 1)}
    assert [s for s in plan.skipped if s.name == "mm" and why in s.why], plan.skipped


def convolution_and_linear() -> onnx.ModelProto:
    """A convolution whose pixels a linear layer mixes, as in the UNet of a diffusion model."""
    return build(
        """g (float[N,128,16,16] x) => (float[N,256,256] y) <int64[3] rows = {0, 128, 256}> {
            [conv] c = Conv <pads = [1,1,1,1]> (x, k)
            [relu] r = Relu (c)
            [flat] f = Reshape (r, rows)
            [turn] t = Transpose <perm = [0,2,1]> (f)
            [linear] y = MatMul (t, w) }""",
        {"k": weights(128, 128, 3, 3), "w": weights(128, 256)},
    )


@needs_builder
@pytest.mark.parametrize("base", ["tensorrt-nvfp4", "tensorrt-mxfp8", "tensorrt-int4"])
def test_float8_convolutions_beside_blocks(base: str, tmp_path: Path) -> None:
    """One override gives convolutions fp8 beside linear layers in another format; TensorRT runs them so."""
    path = tmp_path / "unet.yaml"
    path.write_text(
        f"base: {base}\nsmall_shapes: quantize\noverrides:\n  - {{op_types: [Conv], base: tensorrt-fp8}}\n"
    )
    proto = convolution_and_linear()
    feeds = [{"x": np.random.default_rng(0).normal(size=(2, 128, 16, 16)).astype(np.float32)}]
    result = plain_quantize(proto, feeds, recipe=path)
    assert [str(row) for row in result.plan.coverage()] == ["Conv 1/1", "MatMul 1/1"]
    format_of = {use.node: str(p.spec.qtype) for p in result.plan.weights for use in p.uses}
    linear = str(onnxfq.load_recipe(base).weights.qtype)
    assert format_of == {"conv": "float8e4m3fn", "linear": linear}
    assert check(result.qdq).findings == ()
    for seen in see_engines(tmp_path, result.qdq):
        assert seen["conv"].startswith("Conv low"), seen
        assert len(seen) == 2 and not any("float" in row.split()[1] for row in seen.values()), seen
