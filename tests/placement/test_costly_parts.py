"""By default no plan of float formats takes an engine above 1.05 times the kernels of half."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import build, feed_for, planned, weights
from engines import build_beside_half, needs_builder, unmeasured
from plan_networks import dense

from onnxfq.cli.main import main
from onnxfq.documents.plan import Plan
from onnxfq.documents.recipe import Recipe
from onnxfq.graph.ops import QDQ_OPS
from onnxfq.placement import costly_parts
from onnxfq.placement.costly_parts import MOST
from onnxfq.stages import plan as stages_plan
from onnxfq.targets.recipes import load_recipe
from onnxfq.targets.tensorrt.builder.jobs import builder_installed

FP8, NVFP4 = load_recipe("tensorrt-fp8"), load_recipe("tensorrt-nvfp4")


def perceptrons(count: int, width: int = 1024, rows: str = "1,16") -> onnx.ModelProto:
    """Blocks of two products around a GELU, and a norm."""
    text = "".join(
        f"n{i} = LayerNormalization (x{i}, s) [wide{i}] a{i} = MatMul (n{i}, w) b{i} = Add (a{i}, u) "
        f"d{i} = Div (b{i}, r) e{i} = Erf (d{i}) f{i} = Add (e{i}, one) g{i} = Mul (b{i}, f{i}) "
        f"[narrow{i}] c{i} = MatMul (g{i}, v) x{i + 1} = Add (c{i}, x{i}) "
        for i in range(count)
    )
    return build(
        f"g (float[{rows},{width}] x0) => (float[{rows},{width}] y) {{ {text} "
        f"y = LayerNormalization (x{count}, s) }}",
        {
            **{"w": weights(width, 4 * width), "v": weights(4 * width, width), "s": weights(width)},
            **{"u": weights(4 * width), "r": np.float32(2**0.5), "one": np.float32(1)},
        },
        opset=18,
    )


def left_out(proto: onnx.ModelProto, recipe: Recipe = FP8) -> dict[str, tuple[str, str]]:
    """Return the rule and the reason of each node that kernels leave in float, by name."""
    skipped = planned(proto, recipe).skipped
    return {s.name: (s.rule, s.why) for s in skipped if s.rule in ("bytes", "kernels")}


@pytest.mark.parametrize("blocks", [1, 10, 20])
def test_a_twentieth_of_the_kernels(blocks: int) -> None:
    """The product in front of a GELU takes a kernel: one of 20 may, though the bytes of each pay."""
    proto = perceptrons(blocks)
    left = left_out(proto)
    assert len(left) == blocks - int(2 * blocks * (MOST - 1) + 1e-9)
    assert all(rule == "kernels" and name.startswith("wide") for name, (rule, _) in left.items())
    assert all(
        "1 more kernels than in half" in why and "small_shapes: bytes" in why for _, why in left.values()
    )
    for value in ("bytes", "quantize"):
        assert not left_out(proto, FP8.override(small_shapes=value))


def test_large_products_with_dynamic_scales_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """What saves more for each kernel than memory reads while one starts is always faster."""
    proto = perceptrons(4)
    assert len(left_out(proto, NVFP4)) == 8
    # A weight of 1024 x 4096 saves 6.3 MB, and 2 or 3 kernels are more than in half.
    monkeypatch.setattr(costly_parts, "LARGE", 500_000)
    assert not left_out(proto, NVFP4) and left_out(proto, FP8)
    monkeypatch.setattr(costly_parts, "LARGE", 4_000_000)
    assert len(left_out(proto, NVFP4)) == 8


@pytest.mark.whole
def test_the_parts_that_save_most_stay() -> None:
    """A product with a larger weight is the first to stay."""
    proto = perceptrons(10)
    for name, shape in (("w2", (1024, 8192)), ("v2", (8192, 1024)), ("u2", (8192,))):
        proto.graph.initializer.append(onnx.numpy_helper.from_array(weights(*shape), name))
    for node in proto.graph.node:
        if node.name == "wide7" or node.name == "narrow7" or list(node.output) == ["b7"]:
            node.input[1] += "2"
    del proto.graph.value_info[:]
    assert "wide7" not in left_out(proto) and len(left_out(proto)) == 9


@pytest.mark.whole
@needs_builder
def test_engines(tmp_path: Path) -> None:
    """The engine of a plan has the kernels that are counted for it."""
    for recipe, more in ((FP8, 0), (FP8.override(small_shapes="bytes"), 2)):
        ours, half = build_beside_half(unmeasured(perceptrons(2), recipe, "fp16"), tmp_path)
        assert ours.kernels == half.kernels + more and ours.weights < half.weights


def crossed(tokens: str, bias: bool = True) -> onnx.ModelProto:
    """Attention of tokens over `tokens`: x, or m of others."""
    add = "qb = Add (q0, b) " if bias else "qb = Identity (q0) "
    parts = "".join(
        f"{n}r = Reshape ({n}{'b' if n == 'q' else '0'}, heads) {n}t = Transpose <perm = [0,2,1,3]> ({n}r) "
        for n in "qkv"
    )
    return build(
        f"""g (float[1,64,128] x, float[1,64,128] m) => (float[1,64,128] y) {{
        xn = LayerNormalization (x, s) mn = LayerNormalization (m, s)
        [q] q0 = MatMul (xn, w) {add} [k] k0 = MatMul ({tokens}n, w) [v] v0 = MatMul ({tokens}n, w) {parts}
        kk = Transpose <perm = [0,1,3,2]> (kt) [scores] a = MatMul (qt, kk) p = Softmax (a)
        [mix] o = MatMul (p, vt) ot = Transpose <perm = [0,2,1,3]> (o) r = Reshape (ot, flat)
        [out] z = MatMul (r, w) e = Add (z, x) y = LayerNormalization (e, s) }}""",
        {
            **{"w": weights(128, 128), "s": weights(128), "b": weights(128)},
            **{"heads": np.asarray([1, 64, 4, 32]), "flat": np.asarray([1, 64, 128])},
        },
        opset=18,
    )


def test_attention_over_other_tokens() -> None:
    """It takes a kernel, and so does the product of its queries; one over its own tokens does not."""
    left = left_out(crossed("m"))
    assert {"q", "scores", "mix"} <= left.keys() and "out" not in left
    assert not {"scores", "mix"} & left_out(crossed("x")).keys()


@pytest.mark.parametrize("recipe", [FP8, NVFP4])
def test_nothing_pays(recipe: Recipe, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`quantize` ends well without a pair, and names in one line the number of nodes and the remedy."""
    text = "[one] a = MatMul (x, w) r = Relu (a) [two] y = MatMul (r, w)"
    proto = build(f"g (float[1,8,64] x) => (float[] y) {{ {text} }}", {"w": weights(64, 64)}, opset=18)
    model, data, made = tmp_path / "m.onnx", tmp_path / "d.npz", tmp_path / "q.onnx"
    onnx.save(proto, model)
    np.savez(data, **feed_for(proto))
    line = ["quantize", str(model), "--data", str(data), "-o", str(made), "--recipe"]
    assert main([*line, recipe.name]) == 0
    (told,) = (text for text in capsys.readouterr().out.splitlines() if "nothing pays" in text)
    assert "2 nodes stay in float" in told and "small_shapes: quantize" in told
    assert not {node.op_type for node in onnx.load(made).graph.node} & QDQ_OPS
    plan_file = tmp_path / "p.json"
    assert main(["plan", str(model), "--recipe", recipe.name, "-o", str(plan_file)]) == 0
    plan = Plan.load(plan_file)
    assert not plan.placements and {s.rule for s in plan.skipped if s.kind == "node"} == {"bytes"}
    whole = tmp_path / "whole.yaml"
    whole.write_text(f"base: {recipe.name}\nsmall_shapes: quantize\n", encoding="utf-8")
    assert main([*line, str(whole)]) == 0
    assert len(planned(proto, load_recipe(whole)).weights) == 1


FREE8, FREE4 = (recipe.override(small_shapes="bytes") for recipe in (FP8, NVFP4))


def asked(recipe: Recipe) -> Recipe:
    """Return the recipe without the rule."""
    return recipe.override(small_shapes="quantize")


def reasons(plan: Plan) -> dict[str, str]:
    """Return why nodes stay in float, by name."""
    return {s.name: s.why for s in plan.skipped if s.kind == "node"}


def two(columns: int) -> onnx.ModelProto:
    """A product with a weight of 8 MB in half, and one with 8 kB for each of its columns."""
    return build(
        f"""g (float[N,1024] x) => (float[N,{columns}] y) {{
        [large] a = MatMul (x, w) [little] y = MatMul (a, v) }}""",
        {"w": weights(1024, 4096), "v": weights(4096, columns)},
        opset=18,
    )


def test_small_next_to_large() -> None:
    """A weight pays for three kernels, and for the numbers that they move, or its product stays in float.

    A column of the small one saves 4,096 * (2 - 0.5) bytes, 4,096 / 133 for its multiply-adds, and takes 4.
    The three kernels count 1 MB each, and the float32 input 5 * 4,096 bytes.
    """
    columns = (3 * (1 << 20) + 5 * 4096) / (4096 * 1.5 + 4096 * 0.75 / 100 - 4)
    assert reasons(planned(two(int(columns)), FREE4)).keys() == {"little"}
    assert not reasons(planned(two(int(columns) + 1), FREE4))
    cost = f"{3 * (1 << 20) + 5 * 4096 - 64 * (4096 * 1.5 + 4096 * 0.75 / 100 - 4):,.0f} bytes more"
    assert cost in reasons(planned(two(64), FREE4))["little"]


def test_products_without_a_weight(tmp_path: Path) -> None:
    """One of two computed tensors stays in float; in low precision it has at least two kernels more."""
    proto = build(
        """g (float[2,64,512] x) => (float[2,64,8192] y, float[2,64,64] z) {
        [large] y = MatMul (x, w) a = Relu (x) b = Transpose <perm = [0,2,1]> (x)
        [both] z = MatMul (a, b) }""",
        {"w": weights(512, 8192)},
        opset=18,
    )
    assert reasons(planned(proto, FREE4)).keys() == {"both"}
    assert not reasons(planned(proto, asked(FREE4)))
    if builder_installed():
        plan, more = (
            build_beside_half(unmeasured(proto, recipe, "fp16"), tmp_path)[0].kernels
            for recipe in (FREE4, asked(FREE4))
        )
        assert plan + 2 <= more


def test_the_recipe_decides() -> None:
    """Without small shapes every product is quantized, and so it is in MXFREE8 by default."""
    assert not reasons(planned(two(64), asked(FREE4)))
    assert not reasons(planned(two(64), "tensorrt-mxfp8"))
    assert reasons(planned(two(64), load_recipe("tensorrt-mxfp8").override(small_shapes="bytes")))
    assert not reasons(planned(two(64), FREE4.override(entry_bytes=0)))


def test_a_kernel_behind_a_product_has_to_pay() -> None:
    """In half a GELU joins the product in front, a norm does not; a large weight pays for the kernel."""
    small, large = perceptrons(1, 128, "2,64"), perceptrons(1, 1024, "2,64")
    products = {"wide0", "narrow0"}
    assert reasons(planned(small, FREE8)).keys() & products == {"wide0"}
    for proto, recipe in ((small, asked(FREE8)), (large, FREE8), (small, "tensorrt-int8")):
        assert not reasons(planned(proto, recipe)).keys() & products


@needs_builder
def test_only_the_product_in_front_of_a_gelu_costs_a_kernel(tmp_path: Path) -> None:
    """By the plan the engine has the kernels of half, and one more if both products are in float8.

    If the second one fails, a kernel of float8 takes the operators behind it, and `price_sums` can go.
    """
    for recipe, more in ((FREE8, 0), (asked(FREE8), 1)):
        ours, half = build_beside_half(unmeasured(perceptrons(1, 128, "2,64"), recipe, "fp16"), tmp_path)
        assert ours.kernels == half.kernels + more


@pytest.mark.parametrize(("channels", "kept"), [(512, False), (65536, True)])
def test_weights_of_convolutions(channels: int, kept: bool) -> None:
    """They pay for the kernels of the entry and of the result, if the recipe allows these."""
    proto = build(
        f"""g (float[1,{channels},1,1] x) => (float[] y) {{ r = Relu (x) [one] a = Conv (r, w)
        y = Softmax (a) }}""",
        {"w": weights(64, channels, 1, 1)},
    )
    assert ("one" not in left_out(proto, FREE8)) == kept
    assert "one" in left_out(proto) and "one" not in left_out(proto, FREE8.override(entry_bytes=0))


def test_a_weight_that_is_computed_is_a_weight() -> None:
    """One made of constants alone, too large to be folded, saves what a stored one does."""
    told = []
    for weight in ("made", "w"):
        proto = build(
            f"""g (float[1,64] x) => (float[] y) {{ [made] made = Mul (w, two) r = Relu (x)
            [one] a = Gemm (r, {weight}) y = Relu (a) }}""",
            {"w": weights(64, 64), "two": np.float32(2)},
        )
        told.append(left_out(proto)["one"][1])
    saved = 64**2 * (1 + 1 / 200)
    assert told[0] == told[1] and f"cost {(1 << 20) + 4 * 64 - saved:,.0f} bytes" in told[0]


@needs_builder
def test_small_convolutions_have_more_layers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the convolutions that the rule leaves in float an engine has twelve layers more than in half."""
    monkeypatch.setattr(stages_plan, "leave_out_costly", lambda decisions, *_: decisions)
    low, half = build_beside_half(unmeasured(dense(3), FREE8, "fp16"), tmp_path)
    assert low.kernels >= half.kernels + 12


@needs_builder
def test_each_convolution_has_a_kernel_more(tmp_path: Path) -> None:
    """It quantizes the result for the next convolution; if this fails, none counts."""
    layers = "".join(
        f"[c{i}] a{i} = Conv <pads = [1,1,1,1]> (r{i}, w) r{i + 1} = Relu (a{i}) " for i in range(4)
    )
    proto = build(
        f"g (float[1,32,16,16] x) => (float[] y) {{ r0 = Relu (x) {layers} y = Neg (r4) }}",
        {"w": weights(32, 32, 3, 3)},
    )
    low, half = build_beside_half(unmeasured(proto, asked(FP8), "fp16"), tmp_path)
    assert low.kernels >= half.kernels + 3
