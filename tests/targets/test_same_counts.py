"""`quantize` and `check` count the same operators in low precision, for every target with rules."""

from __future__ import annotations

import importlib
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import BUILDERS, build, weights
from engines import needs_builder, unmeasured

import onnxfq
from onnxfq.errors import ModelError
from onnxfq.targets.recipes import RECIPES
from onnxfq.targets.target import BuildOptions, target_by_name

RECIPES_OF_RULES = [
    name
    for name, recipe in RECIPES.items()
    if target_by_name(recipe.target).check and not recipe.embeddings == "quantize"
]
NETWORKS = ("mobilenetv2", "unet", "bert")
JOINED = """g (float[1,32,16,16] x) => (float[] y) {
    [c0] a0 = Conv <pads = [1,1,1,1]> (x, w) [r0] a = Relu (a0)
    [p1] b = MaxPool <kernel_shape = [3,3], pads = [1,1,1,1]> (a) [c1] c0 = Conv (b, k) [r1] c = Relu (c0)
    [up] u = Resize (c, , twice) [down] d = MaxPool <kernel_shape = [2,2], strides = [2,2]> (u)
    [c2] e0 = Conv (d, k) [r2] e = Relu (e0) [join] f = Concat <axis = 1> (c, e) [c3] g0 = Conv (f, k2)
    [sum] h = Add (g0, b) [gate] m = GlobalAveragePool (h) [s] n = Sigmoid (m) [times] o = Mul (h, n)
    [c4] y = Conv (o, k) }"""
FIXED = """g (float[1,4,16] x) => (float[1,4,16] y) {
    [both] n = Add (one, two) [less] t = Sub (n, x) [mm] m = MatMul (t, w) [sum] s = Add (m, one)
    [turn] z = Transpose <perm = [0,2,1]> (n) [scores] p = MatMul (s, z) [soft] q = Softmax (p)
    [mix] r = MatMul (q, n) y = Add (r, x) }"""


def joined() -> onnx.ModelProto:
    """Return convolutions with a pool, a Resize, a Concat, a sum and a gate between."""
    constants = {"w": weights(32, 32, 3, 3), "k": weights(32, 32, 1, 1), "k2": weights(32, 64, 1, 1)}
    return build(JOINED, {**constants, "twice": np.asarray([1, 1, 2, 2], np.float32)})


def fixed() -> onnx.ModelProto:
    """Return products and sums with constants, some of them computed from constants."""
    return build(FIXED, {"one": weights(1, 4, 16), "two": weights(1, 4, 16, seed=1), "w": weights(16, 16)})


def wide() -> onnx.ModelProto:
    """Return two products that are wide enough for blocks."""
    text = "[one] a = MatMul (x, w) r = Relu (a) [two] y = MatMul (r, v)"
    return build(
        f"g (float[N,256] x) => (float[N,256] y) {{ {text} }}",
        {"w": weights(256, 256), "v": weights(256, 256, seed=1)},
    )


SMALL = {**BUILDERS, "joined": joined, "fixed": fixed, "wide": wide}


def count_both(proto: onnx.ModelProto, name: str) -> tuple[dict[str, int], dict[str, int]]:
    """Return how many operators are low by the plan, and by the check of the written model."""
    recipe = RECIPES[name].override(small_shapes="quantize")
    plan, qdq = onnxfq.make_plan(onnxfq.load(proto), recipe), unmeasured(proto, recipe)
    planned = {row.op_type: row.quantized for row in plan.coverage() if row.quantized}
    found: Counter[str] = Counter()
    for row in onnxfq.check(qdq, recipe.target).coverage:
        found[row.op_type] += row.promised
    return planned, dict(found)


@pytest.mark.filterwarnings("ignore:the ranges of")  # made-up numbers
@pytest.mark.parametrize("recipe", RECIPES_OF_RULES)
def test_small_models(recipe: str) -> None:
    """Each operator counts the same in both, whatever the structure."""
    tried, differ = 0, {}
    for name, make in SMALL.items():
        try:
            planned, found = count_both(make(), recipe)
        except ModelError as error:
            assert "nothing to quantize" in str(error)
            continue
        tried += 1
        if planned != found:
            differ[name] = (planned, found)
    assert not differ and tried


@pytest.mark.sample
@needs_builder
@pytest.mark.parametrize(("name", "low"), [("two_branch", 1), ("downsample", 0)])
def test_sums_in_engines(name: str, low: int) -> None:
    """A sum reads its skip branch in 8 bits; the sum of two convolutions is float in TensorRT for RTX."""
    result = onnxfq.check(unmeasured(BUILDERS[name](), "tensorrt-int8", "fp16"), build=BuildOptions())
    rows = {row.op_type: (row.kept, row.promised) for row in result.coverage}
    assert rows == {"Conv": (3, 3), "Add (residual)": (low, 1)} and result.passed


@pytest.mark.grid
@pytest.mark.filterwarnings("ignore:the ranges of")  # made-up numbers
@pytest.mark.parametrize(
    "recipe", ["tensorrt-int8", "tensorrt-fp8", "onnxruntime-int8", "openvino-int8", "qnn-int8"]
)
@pytest.mark.parametrize("name", NETWORKS)
def test_networks(name: str, recipe: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Networks of well-known shapes count the same in both."""
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "models")
    planned, found = count_both(importlib.import_module("networks").NETWORKS[name](1), recipe)
    assert planned == found and sum(planned.values()) >= 6
