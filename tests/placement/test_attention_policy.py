"""Attention for TensorRT: both products or neither, limits reported; small shapes left out on request."""

from __future__ import annotations

import importlib
from copy import deepcopy
from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import add_large_product, build, linear, planned, weights, whole_recipe, with_override
from engines import count_all, needs_builder, see_engines, unmeasured

from onnxfq.documents.plan import Plan
from onnxfq.documents.recipe import Recipe
from onnxfq.graph.io.load import load
from onnxfq.graph.patterns.attention import find_attentions
from onnxfq.stages.plan import make_plan
from onnxfq.targets.recipes import load_recipe
from onnxfq.targets.tensorrt import attention
from onnxfq.targets.tensorrt.attention import count_tokens
from onnxfq.targets.tensorrt.builder.jobs import Job, run_jobs
from onnxfq.targets.tensorrt.builder.layers import parse_layers
from onnxfq.tools.check import check

PRODUCTS = ("scores", "mix")


def heads(head: int, tokens: int | str = 64, count: int = 2, batch: int | str = 1) -> onnx.ModelProto:
    """Multi-head attention with projections before and behind it."""
    width = head * count
    return build(
        f"""g (float[{batch},{tokens},{width}] x) => (float[{batch},{tokens},{width}] y) {{
            [q] q = MatMul (x, wq) [qr] q4 = Reshape (q, split) [qt] qh = Transpose <perm = [0,2,1,3]> (q4)
            [k] k = MatMul (x, wk) [kr] k4 = Reshape (k, split) [kt] kh = Transpose <perm = [0,2,3,1]> (k4)
            [v] v = MatMul (x, wv) [vr] v4 = Reshape (v, split) [vt] vh = Transpose <perm = [0,2,1,3]> (v4)
            [scale] qs = Mul (qh, factor)
            [scores] s = MatMul (qs, kh)
            [soft] p = Softmax <axis = -1> (s)
            [mix] m = MatMul (p, vh)
            [mt] mh = Transpose <perm = [0,2,1,3]> (m) [mr] m3 = Reshape (mh, join)
            [project] y = MatMul (m3, wo) }}""",
        {
            **{f"w{n}": weights(width, width, seed=i) * np.float32(0.1) for i, n in enumerate("qkvo")},
            "split": np.asarray([0, 0, count, head], np.int64),
            "join": np.asarray([0, 0, width], np.int64),
            "factor": np.float32(head**-0.5),
        },
    )


def why_of(plan: Plan, node: str) -> set[str]:
    """Return what the plan says of the placements that `node` reads."""
    return {p.why for p in plan.placements if any(use.node == node for use in p.uses)}


def left_out(proto: onnx.ModelProto, recipe: str) -> dict[str, str]:
    """Return why the plan leaves nodes in float, by name."""
    return {s.name: s.why for s in planned(proto, recipe).skipped if s.kind == "node"}


def fused(proto: onnx.ModelProto, recipe: str | Recipe, folder: Path) -> dict[str, int]:
    """Return how many attentions TensorRT for RTX fuses, by architecture."""
    rows = count_all(folder, {"m": unmeasured(proto, recipe, "fp16")})["m"]
    return {capability: row.get("attention in one kernel", 0) for capability, row in rows.items()}


UNFUSED = {("tensorrt-int8", 80, 64), ("tensorrt-int8", 32, 577), ("tensorrt-fp8", 64, 31)}
"""Recipe, head size and tokens of attentions that the builder does not fuse in the format of the recipe."""


@needs_builder
@pytest.mark.parametrize(
    ("recipe", "head", "tokens"),
    [
        ("tensorrt-int8", 80, 64),
        ("tensorrt-int8", 32, 577),
        ("tensorrt-fp8", 80, 64),
        ("tensorrt-fp8", 64, 31),
        ("tensorrt-fp8", 64, 32),
        ("tensorrt-int8", 64, 31),
    ],
)
def test_the_plan_says_what_is_fused(recipe, head, tokens, tmp_path: Path):
    """The engine has one kernel for the attention exactly if the plan reports no limit."""
    proto, quantized = heads(head, tokens), load_recipe(recipe).override(unfused_attention="quantize")
    told = any("not fused: " in why for why in why_of(planned(proto, quantized), "scores"))
    assert told == ((recipe, head, tokens) in UNFUSED)
    assert set(fused(proto, quantized, tmp_path).values()) == {0 if told else 1}
    left = {s.name: s.why for s in planned(proto, recipe).skipped if s.name in ("scores", "mix")}
    assert len(left) == 2 * told and all("in a half type it is one kernel" in why for why in left.values())
    assert set(fused(proto, recipe, tmp_path).values()) == {1}


@pytest.mark.sample
def test_limits_are_told():
    """The reason names the limit and the number found, of heads, tokens and keys, for both products."""
    for node in ("scores", "mix"):
        assert "heads of 16, 32, 64, these have 80" in left_out(heads(80), "tensorrt-int8")[node]
        assert "up to 512 tokens, these are 600" in left_out(heads(64, 600), "tensorrt-int8")[node]
        assert "has 32 keys and more, these are 24" in left_out(heads(64, 24), "tensorrt-fp8")[node]
    assert not any("fused" in why for why in why_of(planned(heads(80), "tensorrt-fp8"), "mix"))
    # No half type fuses heads of 512 either, so they stay quantized.
    large = why_of(planned(heads(512), "tensorrt-fp8"), "mix")
    assert any("heads of up to 256, these have 512" in why for why in large)


def test_an_open_number_of_keys_is_no_float8() -> None:
    """A float8 attention with an open number of keys stays in float, unless the recipe asks for it."""
    proto = decode("T", "C")
    assert all("if the profile begins at 32 keys" in left_out(proto, "tensorrt-fp8")[n] for n in PRODUCTS)
    asked = load_recipe("tensorrt-fp8").override(unfused_attention="quantize")
    assert all(any("begins at 32 keys" in why for why in why_of(planned(proto, asked), n)) for n in PRODUCTS)
    assert all("of one query" in left_out(decode(1, "C"), "tensorrt-fp8")[n] for n in PRODUCTS)


@needs_builder
@pytest.mark.parametrize(("least", "expected"), [(1, 0), (31, 0), (32, 1)])
def test_the_least_end_of_the_profile_decides(least: int, expected: int, tmp_path: Path) -> None:
    """Float8 attention with open tokens is fused if the profile begins at 32 of them."""
    asked = load_recipe("tensorrt-fp8").override(unfused_attention="quantize")
    path, proto = tmp_path / "m.onnx", unmeasured(heads(64, "T"), asked, "fp16")
    onnx.save(proto, path)
    assert [one.message for one in check(proto).findings if "begins at 32 keys" in one.message]
    profile = {"x": tuple((1, tokens, 128) for tokens in (least, 64, 128))}
    (report,) = run_jobs([Job(path, "SM89", profile)], 120)
    assert sum(layer.is_attention for layer in parse_layers(report.layers)) == expected


@pytest.mark.parametrize(("kept", "other"), [("scores", "mix"), ("mix", "scores")])
def test_all_or_none(kept, other):
    """An override of one product takes the other along, with the reason; projections stay quantized."""
    plan = planned(heads(64), with_override(nodes=[kept], keep_float=True))
    (why,) = [s.why for s in plan.skipped if s.name == other]
    assert why.startswith(f"half of an attention: '{kept}' stays in float (kept in float by an override")
    assert [str(row) for row in plan.coverage()] == ["MatMul 4/6"]


WEIGHT_ONLY = ("tensorrt-int4", "tensorrt-int8-weights")


@pytest.mark.grid
@pytest.mark.parametrize("recipe", WEIGHT_ONLY)
@pytest.mark.parametrize(("batch", "words"), [(1, ["export with an open batch"]), (2, []), ("N", [])])
def test_weights_behind_attention(batch: int | str, words: list[str], recipe: str) -> None:
    """With one fixed sample the output projection stays in float, with the reason; else all are quantized."""
    whys = [
        s.why
        for s in planned(heads(64, 128, 4, batch), recipe).skipped
        if s.kind == "node" and s.name == "project"
    ]
    assert len(whys) == len(words)
    assert all(word in why for word, why in zip(words, whys, strict=True))


@pytest.mark.grid
@needs_builder
@pytest.mark.parametrize("recipe", WEIGHT_ONLY)
@pytest.mark.parametrize("batch", [1, 2, "N"])
def test_built_weights_behind_attention(batch: int | str, recipe: str, tmp_path: Path) -> None:
    """TensorRT keeps every weight that is planned weight-only so, with float16 around."""
    made = unmeasured(heads(64, 128, 4, batch), recipe, "fp16")
    rows = list(count_all(tmp_path, {"m": made})["m"].values())
    assert rows
    for row in rows:
        assert set(row) - {"attention in one kernel"} == {"MatMul weight-only as weight-only"}, row


@needs_builder
def test_a_masked_attention_is_one_kernel(tmp_path: Path) -> None:
    """The guard of masked rows that torch exports is in the way of no fused kernel, in int8 and float8."""
    proto = heads(64, 128, 4, 2)
    proto.graph.input.append(
        onnx.helper.make_tensor_value_info("look", onnx.TensorProto.BOOL, [2, 1, 1, 128])
    )
    for name, value in (("zero", 0.0), ("never", -np.inf)):
        proto.graph.initializer.append(onnx.numpy_helper.from_array(np.float32(value), name))
    soft = next(i for i, node in enumerate(proto.graph.node) if node.op_type == "Softmax")
    proto.graph.node[soft].input[0], proto.graph.node[soft + 1].input[0] = "masked", "guarded"
    make = onnx.helper.make_node
    for node in (make("Where", ["nan", "zero", "p"], ["guarded"]), make("IsNaN", ["p"], ["nan"])):
        proto.graph.node.insert(soft + 1, node)
    for node in (make("Add", ["s", "bias"], ["masked"]), make("Where", ["look", "zero", "never"], ["bias"])):
        proto.graph.node.insert(soft, node)
    recipes = map(whole_recipe, ("tensorrt-int8", "tensorrt-fp8"))
    made = {recipe.name: unmeasured(proto, recipe, "fp16") for recipe in recipes}
    for recipe, rows in count_all(tmp_path, made).items():
        for row in rows.values():
            assert row == {"MatMul low as low": 6, "attention in one kernel": 1}, recipe


def decode(tokens: int | str, cache: int | str = 31) -> onnx.ModelProto:
    """Attention of new tokens over themselves and a cache, 4 heads of 64, with its linear layers."""
    split = "".join(
        f"[{n}] {n}0 = MatMul (x, w{n}) {n}1 = Reshape ({n}0, heads) "
        f"{n}2 = Transpose <perm = [0,2,1,3]> ({n}1) "
        for n in "qkv"
    )
    all_ = "A" if isinstance(tokens, str) or isinstance(cache, str) else tokens + cache
    return build(
        f"g (float[1,{tokens},256] x, float[1,4,{cache},64] pk, float[1,4,{cache},64] pv)"
        f" => (float[1,{tokens},256] y, float[1,4,{all_},64] k3, float[1,4,{all_},64] v3) {{ {split}"
        "k3 = Concat <axis = 2> (pk, k2) v3 = Concat <axis = 2> (pv, v2)"
        "k4 = Transpose <perm = [0,1,3,2]> (k3) [scores] s0 = MatMul (q2, k4) s = Div (s0, root)"
        "p = Softmax <axis = -1> (s) [mix] m = MatMul (p, v3)"
        "t = Transpose <perm = [0,2,1,3]> (m) j = Reshape (t, joined)"
        "[out] y = MatMul (j, wo) }",
        {
            **{f"w{n}": weights(256, 256, seed=i) for i, n in enumerate("qkvo")},
            "root": np.float32(8),
            "heads": np.asarray([0, 0, 4, 64], np.int64),
            "joined": np.asarray([0, 0, 256], np.int64),
        },
    )


@pytest.mark.grid
@needs_builder
@pytest.mark.parametrize("name", ["tensorrt-int8", "tensorrt-fp8"])
@pytest.mark.parametrize("tokens", [1, 2])
def test_a_decode_step_is_one_kernel(
    name: str, tokens: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over a cache, one query stays in float, with the reason; all forms are fused.

    With float8 pairs the kernel of one query multiplies in float, too: were it low, they could stay.
    """
    proto, recipe = decode(tokens), load_recipe(name).override(small_shapes="quantize")
    kept = {s.name: s.why for s in planned(proto, recipe).skipped if s.kind == "node"}
    one = tokens == 1
    assert kept.keys() == ({"scores", "mix"} if one else set())
    assert all("an attention of one query" in why for why in kept.values())
    made = unmeasured(proto, recipe, "fp16")
    for row in count_all(tmp_path, {"m": made})["m"].values():
        assert row == {"MatMul low as low": 4 if one else 6, "attention in one kernel": 1}
    if one and name == "tensorrt-fp8":
        monkeypatch.setattr(attention, "is_one_query", lambda scores: False)
        pairs = unmeasured(proto, recipe, "fp16")
        assert all(seen["mix"] == "MatMul float as low" for seen in see_engines(tmp_path, pairs))


@needs_builder
def test_sizes_that_onnx_does_not_infer(tmp_path: Path) -> None:
    """ONNX Runtime infers them: 12 keys are fused in a half type alone, and both attentions stay in float."""
    pytest.importorskip("torch")
    proto, _ = importlib.import_module("structure_networks").structure("masked decoder")
    names = {f"/blocks.{block}/mix/MatMul{end}" for block in "01" for end in ("", "_1")}
    assert names <= left_out(proto, "tensorrt-fp8").keys()
    made = unmeasured(proto, "tensorrt-fp8", "fp16")
    for row in count_all(tmp_path, {"m": made})["m"].values():
        # Those in front of a GELU, of the outputs and of masks are one kernel each with what is behind them.
        assert row == {"MatMul low as low": 9, "attention in one kernel": 2}


def test_an_open_number_of_queries_is_a_prompt():
    """An attention whose number of queries is open is quantized as one of several queries."""
    names = {use.node for p in planned(decode("T", "C"), "tensorrt-int8").placements for use in p.uses}
    assert {"scores", "mix"} <= names


def test_other_targets_are_left_alone():
    """ONNX Runtime fuses no attention: there an override means one node."""
    plan = planned(heads(64), with_override("onnxruntime-int8", nodes=["scores"], keep_float=True))
    assert [str(row) for row in plan.coverage()] == ["MatMul 5/6"]
    assert not any("fused" in p.why for p in plan.placements)


@pytest.mark.grid
@pytest.mark.filterwarnings("ignore")  # the exporters are not under test
@pytest.mark.parametrize("dynamo", [False, True], ids=["torchscript", "dynamo"])
@pytest.mark.parametrize("masked", [False, True], ids=["plain", "masked"])
def test_the_exporters_of_torch(dynamo, masked, tmp_path: Path):
    """Attention is found as each exporter of torch writes it, with and without a mask."""
    torch = pytest.importorskip("torch")

    class Attend(torch.nn.Module):
        """Two heads of 16."""

        def __init__(self) -> None:
            super().__init__()
            self.qkv, self.out = torch.nn.Linear(32, 96), torch.nn.Linear(32, 32)

        def forward(self, x, mask):
            parts = self.qkv(x).reshape(1, 8, 3, 2, 16).permute(2, 0, 3, 1, 4)
            y = torch.nn.functional.scaled_dot_product_attention(*parts, attn_mask=mask if masked else None)
            return self.out(y.transpose(1, 2).reshape(1, 8, 32)) + (0 if masked else mask.sum())

    path = tmp_path / "m.onnx"
    arguments = (torch.zeros(1, 8, 32), torch.zeros(1, 1, 8, 8))
    torch.onnx.export(
        Attend().eval(), arguments, str(path), dynamo=dynamo, opset_version=18, input_names=["x", "mask"]
    )
    graph = load(path).graph()
    (found,) = find_attentions(graph.nodes)
    assert (found.scores.inputs[0].shape[-1], count_tokens(found)) == (16, 8)
    assert found.scores.op == found.mix.op == "MatMul" and found.scores is not found.mix
    # The inputs of both linear layers, the Softmax, and one pair for queries, keys and values.
    assert len(make_plan(load(path), load_recipe("tensorrt-int8")).activations) == 4


# Small shapes

CASES = {
    "a vector": (linear(64, 1), "a product with a vector: [N, 64] by [64, 1]"),
    "one row": (
        build("g (float[1,64] x) => (float[1,32] y) { [mm] y = MatMul (x, w) }", {"w": weights(64, 32)}),
        "a product with a vector: [1, 64] by [64, 32]",
    ),
    "few columns": (linear(64, 8), "a product gains from matrices of 16 and more: 8"),
    "few rows": (linear(8, 64), "a product gains from matrices of 16 and more: 8"),
    "large": (linear(64, 32), ""),
    "a vector on the right": (
        build("g (float[N,64] x) => (float[N] y) { [mm] y = MatMul (x, w) }", {"w": weights(64)}),
        "a product with a vector: [N, 64] by [64, 1]",
    ),
    "turned": (
        build(
            "g (float[N,64] x) => (float[N,8] y) { [mm] y = Gemm <transB = 1> (x, w) }", {"w": weights(8, 64)}
        ),
        "a product gains from matrices of 16 and more: 8",
    ),
}


def conv(
    into: int, out: int, window: tuple[int, int] = (3, 3), group: int = 1, head: str = ""
) -> onnx.ModelProto:
    """One Conv, behind a Relu if `head` is given: then it is not the first."""
    first = f"[head] h = {head} (x)" if head else ""
    return build(
        f"""g (float[N,{into},9,9] x) => (float[N,{out},H,W] y) {{
            {first} [mm] y = Conv <group = {group}> ({"h" if head else "x"}, w) }}""",
        {"w": weights(out, into // group, *window)},
    )


CONVS = {
    "first of three": (conv(3, 16), ""),
    "first of three, odd": (conv(3, 13), "int8 gains from 16 channels: 3 channels in and 13 out"),
    "later of eight": (conv(8, 8, head="Relu"), "int8 gains from 16 channels: 8 channels in and 8 out"),
    "later, one side large": (conv(8, 32, head="Relu"), ""),
    "not square": (conv(8, 32, (1, 3), head="Relu"), "int8 gains from 16 channels: 8 channels in and 32 out"),
    "wide": (conv(16, 32, (1, 3)), ""),
    "depthwise": (conv(32, 32, group=32), ""),
    "depthwise, odd": (conv(12, 12, group=12), "grouped int8 gains from a multiple of 8 channels"),
    "grouped, 1x1": (conv(32, 32, (1, 1), group=2), "grouped int8 gains from a multiple of 8 channels"),
}


@pytest.mark.parametrize("case", [*CASES, *CONVS])
def test_small_shapes(case):
    """Asked for, what is too small stays in float with its size; by default nothing does."""
    given, words = (CASES | CONVS)[case]
    proto = deepcopy(given)
    # Another product, large enough, so that the plan is not empty.
    add_large_product(proto)
    recipe = load_recipe("tensorrt-int8").model_copy(update={"small_shapes": "float"})
    plan = planned(proto, recipe)
    told = [s.why for s in plan.skipped if s.name == "mm"]
    assert len(told) == bool(words) and all(why.startswith(words) for why in told)
    assert not [s for s in planned(proto).skipped if s.name == "mm"]


def test_small_float8():
    """By default float8 convolutions need more than 16 channels on both sides of a group; products do not."""
    recipe = load_recipe("tensorrt-fp8")
    proto = build(
        """g (float[N,16,9,9] x) => (float[N,32,3,8] y) {
            [one] a = Conv (x, w1) [two] b = Conv (a, w2) [four] c = Conv <group = 4> (b, w3)
            [deep] d = Conv <group = 32> (c, w4) [small] y = MatMul (d, m) }""",
        {
            **{"w1": weights(32, 16, 3, 3), "w2": weights(32, 32, 3, 3), "w3": weights(32, 8, 1, 1)},
            **{"w4": weights(32, 1, 3, 3), "m": weights(3, 8)},
        },
    )
    plan = planned(proto, recipe)
    remedy = "; to quantize it, set {}: quantize in the recipe"
    small = "float8 gains from more than 16 channels: {}" + remedy.format("small_shapes")
    costly = "this node has kernels that cost {} bytes more than few bits save"
    costly += remedy.format("small_shapes")
    deep = "a depthwise convolution, which sums over no channels" + remedy.format("depthwise")
    assert {s.name: s.why for s in plan.skipped if s.kind == "node"} == {
        "one": small.format("16 channels in and 32 out"),
        "two": costly.format("2,096,320"),
        "four": small.format("32 channels in and 32 out in 4 groups"),
        "deep": deep,
        "small": costly.format("2,100,764"),
    }
    assert not [s for s in planned(proto, "tensorrt-fp8").skipped if s.kind == "node"]
