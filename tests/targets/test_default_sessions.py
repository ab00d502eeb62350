"""Models for ONNX Runtime in a session with its default options, as its users have them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from builders import build, build_used, plain_quantize, weights

import onnxfq
from onnxfq.documents.recipe import Recipe
from onnxfq.runtime.session import Session
from onnxfq.targets.recipes import load_recipe

OPERATORS: dict[str, tuple[str, tuple[int, ...]]] = {
    "Conv 1d": ("y = Conv (x, c1)", (4, 8, 12)),
    "Conv 2d": ("c = Conv (x, c2) y = Relu (c)", (4, 8, 6, 6)),
    "Conv 3d": ("y = Conv (x, c3)", (4, 8, 4, 4, 4)),
    "ConvTranspose": ("y = ConvTranspose (x, t2)", (4, 8, 6, 6)),
    "Gemm": ("a = Gemm (x, m, b) r = Relu (a) y = Gemm <transB = 1> (r, m0)", (8, 64)),
    "MatMul": ("a = MatMul (x, m) r = Relu (a) y = MatMul (r, l)", (8, 64)),
    "bias": ("a = MatMul (x, m) y = Add (a, b)", (2, 5, 64)),
    "stack": ("y = MatMul (x, m3)", (4, 5, 64)),
    "stack of one": ("y = MatMul (x, m1)", (4, 5, 64)),
    "stack in a chain": ("a = MatMul (x, m3) r = Relu (a) y = MatMul (r, l)", (4, 5, 64)),
    "stacks": ("a = MatMul (x, m4) y = Add (a, b)", (2, 3, 5, 64)),
    "weight first": ("y = MatMul (l, x)", (64, 9)),
    "stack first": ("y = MatMul (l3, x)", (4, 64, 9)),
    "attention": ("k = Transpose <perm = [0,2,1]> (x) s = MatMul (x, k) y = MatMul (s, x)", (2, 9, 64)),
}
SHAPES = {"c1": (16, 8, 3), "c2": (16, 8, 3, 3), "c3": (16, 8, 3, 3, 3), "t2": (8, 16, 3, 3), "b": (32,)}
SHAPES |= {"m": (64, 32), "m0": (64, 32), "m1": (1, 64, 32), "m3": (4, 64, 32), "m4": (2, 3, 64, 32)}
SHAPES |= {"l": (32, 64), "l3": (4, 32, 64)}
FORMATS: dict[str, str] = {
    "static": "base: onnxruntime-int8",
    "dynamic": "base: onnxruntime-uint8-dynamic",
    "int8 inputs": "base: onnxruntime-int8\nactivations: {qtype: int8}",
    "int16 inputs": "base: onnxruntime-int8\nactivations: {qtype: int16}",
    "weights": "base: onnxruntime-int8\nactivations: null",
    "int4": "base: onnxruntime-int8\nweights: {qtype: int4}",
    "blocked": "base: onnxruntime-int8\nweights: {granularity: blocked, block_size: 16}",
    "float8": "base: onnxruntime-int8\nweights: {qtype: float8e4m3fn}\n"
    "activations: {qtype: float8e4m3fn, symmetric: true}",
    "asymmetric": "base: onnxruntime-int8\nweights: {qtype: uint8, symmetric: false}",
}
TOLD = {("blocked", "MatMul"), ("float8", "MatMul"), ("float8", "Gemm"), ("asymmetric", "MatMul")}
TOLD |= {("weights", "MatMul")}  # MatMulNBits, which it makes of weights alone, rounds the inputs too
"""Format and operator of which a default session computes some forms otherwise, or refuses them."""


def recipe(text: str, folder: Path) -> Recipe:
    """Return the recipe of a file with this text."""
    (folder / "r.yaml").write_text(text)
    return load_recipe(folder / "r.yaml")


@pytest.mark.grid
@pytest.mark.parametrize("opset", [17, 21])
@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.wide_sums
def test_default_options(form: str, opset: int, tmp_path: Path) -> None:
    """The file gives what it gives without optimisations, some products in float, or its proof says not."""
    wanted, told = recipe(FORMATS[form], tmp_path), 0
    for text, shape in OPERATORS.values():
        constants = {name: weights(*size) / 8 for name, size in SHAPES.items()}
        sizes = ",".join(map(str, shape))
        proto = build_used(f"g (float[{sizes}] x) => (float y) {{ {text} }}", constants, opset=opset, ir=10)
        proto = onnx.shape_inference.infer_shapes(proto)
        feed = {"x": weights(*shape, seed=1)}
        try:
            result = plain_quantize(proto, [feed], tmp_path / "q.onnx", recipe=wanted)
        except onnxfq.OnnxfqError as error:
            assert "nothing to quantize" in str(error)
            continue
        proof = result.evaluation.proof
        assert proof is not None and proof.runtime == f"ONNX Runtime {onnxruntime.__version__}"
        if proof.difference or proof.kept_float:
            told += 1
            assert any((form, op) in TOLD for op in ("MatMul", "Gemm") if op in text)
        if proof.difference:
            continue
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        session = onnxruntime.InferenceSession(str(tmp_path / "q.onnx"), options, ["CPUExecutionProvider"])
        plain = Session(onnx.load(tmp_path / "q.onnx"), 1, exact=True).run(feed)[0]
        # Fused kernels round an integer sum once where the plain ones round every product.
        np.testing.assert_allclose(session.run(None, feed)[0], plain, atol=0.02 * np.abs(plain).max())
    assert bool(told) == any(form == one for one, _ in TOLD)


@pytest.mark.sample
def test_a_weight_in_a_stack_has_one_scale_and_says_why(tmp_path: Path) -> None:
    """A weight of three axes has one scale with 8-bit inputs, and one for each channel without."""
    proto = build("g (float[4,5,64] x) => (float[4,5,32] y) { y = MatMul (x, m) }", {"m": weights(4, 64, 32)})
    for form, scales in (("static", 1), ("dynamic", 1), ("int16 inputs", 32), ("weights", 32)):
        feeds = [{"x": weights(4, 5, 64)}]
        result = plain_quantize(proto, feeds, recipe=recipe(FORMATS[form], tmp_path))
        (placement,) = result.plan.weights
        assert result.encodings["m"].scale.size == scales
        assert ("take one scale of a weight" in placement.why) == (scales == 1)
