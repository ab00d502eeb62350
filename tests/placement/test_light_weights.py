"""Products of float formats stay in float where their kernels cost more than few bits save."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import build, planned, weights
from engines import build_all, build_beside_half, unmeasured

from onnxfq.documents.plan import Plan
from onnxfq.documents.recipe import Recipe
from onnxfq.targets.recipes import load_recipe
from onnxfq.targets.tensorrt.builder.figures import count_layers
from onnxfq.targets.tensorrt.builder.jobs import builder_installed
from onnxfq.targets.tensorrt.builder.layers import parse_layers

NVFP4, FP8 = load_recipe("tensorrt-nvfp4"), load_recipe("tensorrt-fp8")
NEEDS_BUILDER = pytest.mark.skipif(not builder_installed(), reason="TensorRT for RTX is not installed")


def asked(recipe: Recipe) -> Recipe:
    """Return the recipe without the rule."""
    return recipe.override(small_shapes="quantize")


def two(columns: int) -> onnx.ModelProto:
    """A product with a weight of 8 MB in half, and one with 8 kB for each of its columns."""
    return build(
        f"""g (float[N,1024] x) => (float[N,{columns}] y) {{
        [large] a = MatMul (x, w) [little] y = MatMul (a, v) }}""",
        {"w": weights(1024, 4096), "v": weights(4096, columns)},
        opset=18,
    )


def left_out(plan: Plan) -> dict[str, str]:
    """Return why nodes stay in float, by name."""
    return {s.name: s.why for s in plan.skipped if s.kind == "node"}


def test_small_next_to_large() -> None:
    """A weight pays for three kernels, and for the numbers that they move, or its product stays in float.

    A column of the small one saves 4,096 * (2 - 0.5) bytes, 4,096 / 133 for its multiply-adds, and takes 4.
    The three kernels count 1 MB each, and the float32 input 5 * 4,096 bytes.
    """
    columns = (3 * (1 << 20) + 5 * 4096) / (4096 * 1.5 + 4096 * 0.75 / 100 - 4)
    assert left_out(planned(two(int(columns)), NVFP4)).keys() == {"little"}
    assert not left_out(planned(two(int(columns) + 1), NVFP4))
    cost = f"{3 * (1 << 20) + 5 * 4096 - 64 * (4096 * 1.5 + 4096 * 0.75 / 100 - 4):,.0f} bytes more"
    assert cost in left_out(planned(two(64), NVFP4))["little"]


def test_products_without_a_weight(tmp_path: Path) -> None:
    """One of two computed tensors stays in float; in low precision it has at least two kernels more."""
    proto = build(
        """g (float[2,64,512] x) => (float[2,64,8192] y, float[2,64,64] z) {
        [large] y = MatMul (x, w) a = Relu (x) b = Transpose <perm = [0,2,1]> (x)
        [both] z = MatMul (a, b) }""",
        {"w": weights(512, 8192)},
        opset=18,
    )
    assert left_out(planned(proto, NVFP4)).keys() == {"both"}
    assert not left_out(planned(proto, asked(NVFP4)))
    if builder_installed():
        models = {"plan": unmeasured(proto, NVFP4, "fp16"), "asked": unmeasured(proto, asked(NVFP4), "fp16")}
        kernels = {
            name: count_layers(parse_layers(reports.popitem()[1].layers), {}).kernels
            for name, reports in build_all(tmp_path, models).items()
        }
        assert kernels["plan"] + 2 <= kernels["asked"], kernels


def test_the_recipe_decides() -> None:
    """Without small shapes every product is quantized, and so it is in MXFP8 by default."""
    assert not left_out(planned(two(64), asked(NVFP4)))
    assert not left_out(planned(two(64), "tensorrt-mxfp8"))
    assert left_out(planned(two(64), load_recipe("tensorrt-mxfp8").override(small_shapes="convolutions")))
    assert not left_out(planned(two(64), NVFP4.override(entry_bytes=0)))


def test_a_small_model_is_quantized_as_asked() -> None:
    """If every product is small, all stay quantized, and the plan says so."""
    plan = planned(two(64), NVFP4.override(entry_bytes=1 << 30))
    assert not left_out(plan)
    assert all("so are all of the model's" in p.why for p in plan.placements)


def perceptron(width: int) -> onnx.ModelProto:
    """A block of a transformer without attention: products around a GELU, and norms."""
    return build(
        f"""g (float[2,64,{width}] x) => (float[2,64,{width}] y) {{ n = LayerNormalization (x, s, t)
        [wide] a = MatMul (n, w) b = Add (a, u) g0 = Div (b, r) g1 = Erf (g0) g2 = Add (g1, one)
        g3 = Mul (b, g2) c = Mul (g3, half) [narrow] e = MatMul (c, v) f = Add (e, z) h = Add (f, x)
        y = LayerNormalization (h, s, t) }}""",
        {
            "w": weights(width, 4 * width),
            "v": weights(4 * width, width),
            "u": weights(4 * width),
            **{name: weights(width) for name in ("s", "t", "z")},
            **{"r": np.float32(2**0.5), "one": np.float32(1), "half": np.float32(0.5)},
        },
        opset=18,
    )


def test_a_kernel_behind_a_product_has_to_pay() -> None:
    """In half a GELU joins the product in front, a norm does not; a large weight pays for the kernel."""
    assert left_out(planned(perceptron(128), FP8)).keys() & {"wide", "narrow"} == {"wide"}
    for plan in (
        planned(perceptron(128), asked(FP8)),
        planned(perceptron(1024), FP8),
        planned(perceptron(128), "tensorrt-int8"),
    ):
        assert not left_out(plan).keys() & {"wide", "narrow"}


@NEEDS_BUILDER
def test_only_the_product_in_front_of_a_gelu_costs_a_kernel(tmp_path: Path) -> None:
    """By the plan the engine has the kernels of half, and one more if both products are in float8.

    If the second one fails, a kernel of float8 takes the operators behind it, and `price_sums` can go.
    """
    for recipe, more in ((FP8, 0), (asked(FP8), 1)):
        ours, half = build_beside_half(unmeasured(perceptron(128), recipe, "fp16"), tmp_path)
        assert ours.kernels == half.kernels + more
