"""`cast`: float16 and bfloat16 models, what stays in float32, and what TensorRT for RTX makes of them."""

from __future__ import annotations

import json
from itertools import cycle
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from builders import BUILDERS, build, feed_for, weights
from engines import build_all
from onnx import TensorProto
from onnx.reference import ReferenceEvaluator

import onnxfq
from onnxfq.cli.main import main
from onnxfq.documents.cast_plan import FloatOptions
from onnxfq.errors import DataError, ModelError
from onnxfq.execution.drawn_inputs import draw_feed
from onnxfq.graph.normalize.shapes import add_shapes
from onnxfq.targets.profiles import profiles
from onnxfq.targets.target import BuildOptions
from onnxfq.targets.tensorrt.builder.jobs import builder_installed
from onnxfq.tools.cast import Casting, cast

BF16 = FloatOptions("bf16")
MODELS = [name for name in BUILDERS if name != "if_body"]
needs_builder = pytest.mark.skipif(not builder_installed(), reason="TensorRT for RTX is not installed")


def loud(scale: float = 9000.0) -> onnx.ModelProto:
    """Three layers; the middle one gives 8 times `scale` for ones, and what reads it divides that again."""
    return build(
        """g (float[N,8] x) => (float[N,8] y) {
            [low] a = MatMul (x, w)
            [relu] r = Relu (a)
            [loud] b = MatMul (r, large)
            [calm] c = Div (b, by)
            [last] y = MatMul (c, v) }""",
        {
            "w": np.eye(8, dtype=np.float32),
            "large": np.full((8, 8), scale, np.float32),
            "by": np.array([3e4], np.float32),
            "v": weights(8, 8, seed=1),
        },
    )


def risky() -> onnx.ModelProto:
    """A norm, a softmax and a square, each written out; a harmless product between them."""
    return build(
        """g (float[N,8] x) => (float[N,8] y) {
            [mean] m = ReduceMean <axes = [-1]> (x)
            [centre] c = Sub (x, m)
            [square] s = Mul (c, c)
            [variance] v = ReduceMean <axes = [-1]> (s)
            [guard] g1 = Add (v, eps)
            [root] r = Sqrt (g1)
            [norm] n = Div (c, r)
            [product] p = MatMul (n, w)
            [exp] e = Exp (p)
            [half] h = Div (e, two)
            [last] y = Relu (h) }""",
        {"eps": np.float32(1e-5), "w": weights(8, 8), "two": np.float32(2)},
    )


def typed(proto: onnx.ModelProto) -> dict[str, int]:
    """Return the element type of each node's first output, by node, as ONNX infers it."""
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    del copy.graph.value_info[:]
    add_shapes(copy)
    values = (*copy.graph.value_info, *copy.graph.output)
    types = {value.name: value.type.tensor_type.elem_type for value in values}
    return {node.name: types[node.output[0]] for node in copy.graph.node}


def eights(number: int = 8) -> list[dict[str, np.ndarray]]:
    """Feeds of ones."""
    return [{"x": np.ones((1, 8), np.float32)} for _ in range(number)]


@pytest.mark.grid
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("floats", [FloatOptions("fp16"), FloatOptions("fp16", True), BF16], ids=str)
@pytest.mark.parametrize("given", [True, False])
def test_casts_are_valid_and_near(name: str, floats: FloatOptions, given: bool) -> None:
    """ONNX's checker takes the model; its outputs keep at least 30 dB."""
    proto = BUILDERS[name]()
    feeds = [feed_for(proto, seed) for seed in range(3)]
    result = cast(proto, feeds if given else None, floats=floats)
    onnx.checker.check_model(result.half, full_check=True)
    assert (result.evaluation is not None) is given
    if result.evaluation is not None:
        assert result.evaluation.lowest_db > 30
    kinds = {value.type.tensor_type.elem_type for value in result.half.graph.input} - {TensorProto.INT64}
    assert kinds <= {TensorProto.FLOAT16 if floats.io else TensorProto.FLOAT}


@pytest.mark.share(2)
@pytest.mark.parametrize("name", MODELS)
def test_float16_runs_in_onnxruntime(name: str) -> None:
    """ONNX Runtime itself, which has float16 kernels, gives the float model's numbers to 30 dB."""
    proto = BUILDERS[name]()
    feed = feed_for(proto, 1)
    half = cast(proto, [feed]).half
    reference = ReferenceEvaluator(proto).run(None, feed)
    options = onnxruntime.SessionOptions()
    session = onnxruntime.InferenceSession(half.SerializeToString(), options, ["CPUExecutionProvider"])
    for got, want in zip(session.run(None, feed), reference, strict=True):
        noise = np.square(got.astype(np.float64) - want).sum() / np.square(want.astype(np.float64)).sum()
        assert 10 * np.log10(1 / max(noise, 1e-12)) > 30


@needs_builder
def test_tensorrt_builds_it(tmp_path: Path) -> None:
    """TensorRT for RTX, strongly typed, builds an engine of each, in one of the types; `check` agrees."""
    made = {}
    for name, floats in zip(MODELS, cycle((FloatOptions("fp16"), FloatOptions("fp16", True), BF16))):
        proto = BUILDERS[name]()
        made[name] = cast(proto, [feed_for(proto)], floats=floats).half
        assert onnxfq.check(made[name]).passed, name
    for name, reports in build_all(tmp_path, made).items():
        assert all(report.built for report in reports.values()), (name, reports)


@pytest.mark.sample
def test_ranges_decide() -> None:
    """The same graph is all float16 where its values fit, and keeps two nodes where they do not."""
    loudly, quietly = cast(loud(), eights()), cast(loud(100), eights())
    assert {node.name for node in loudly.floats.nodes} == {"loud", "calm"}
    assert [(tensor.name, "to 72000, beyond 65504" in tensor.why) for tensor in loudly.floats.tensors] == [
        ("b", True)
    ]
    assert not quietly.floats.nodes and not quietly.floats.tensors
    assert set(typed(quietly.half).values()) - {TensorProto.FLOAT} == {TensorProto.FLOAT16}


def test_every_sample_counts() -> None:
    """One loud sample among 300 keeps the nodes in float32, wherever it comes."""
    feeds = eights(300)
    feeds[211] = {"x": np.full((1, 8), 9, np.float32)}
    assert {node.name for node in cast(loud(1000), feeds).floats.nodes} == {"loud", "calm"}
    assert not cast(loud(1000), feeds[:200]).floats.nodes


@needs_builder
def test_overflow_is_bfloat16() -> None:
    """What float16 does not hold is bfloat16 on request, and the engine builds."""
    result = cast(loud(), eights(), overflow="bf16")
    types = typed(result.half)
    assert types["loud"] == types["calm"] == TensorProto.BFLOAT16 and types["low"] == TensorProto.FLOAT16
    assert {node.name for node in result.wider} == {"loud", "calm"}
    assert not result.floats.nodes and not result.floats.tensors
    assert result.evaluation is not None and result.evaluation.lowest_db > 30
    assert onnxfq.check(result.half, build=BuildOptions()).passed


def test_rules_without_data() -> None:
    """Sums, squares, exponentials and divisions by computed numbers stay in float32; products do not."""
    kept = {node.name: node.why for node in cast(risky()).floats.nodes}
    assert {"mean", "square", "variance", "guard", "root", "norm", "exp"} <= set(kept)
    assert "no data shows its range" in kept["exp"] and "sums over many" in kept["mean"]
    assert "product" not in kept and "last" not in kept
    feeds = [feed_for(risky(), seed) for seed in range(3)]
    observed = {node.name for node in cast(risky(), feeds).floats.nodes}
    assert "exp" not in observed and "mean" in observed
    assert "exp" not in {node.name for node in cast(risky(), floats=BF16).floats.nodes}


def test_what_overflows_without_data() -> None:
    """Inputs drawn at random show it; the file is then finite in ONNX Runtime where float16 alone is not."""
    result = cast(loud())
    kept = {node.name: node.why for node in result.floats.nodes}
    assert kept.keys() == {"loud", "calm"} and "drawn at random" in kept["loud"]
    assert sum("drawn at random" in note for note in result.notes) == 1
    session = onnxruntime.InferenceSession(result.half.SerializeToString())
    assert np.isfinite(session.run(None, eights()[0])[0]).all()
    assert not cast(loud(10)).floats.nodes


def test_drawn_integers_lie_in_their_tables() -> None:
    """Numbers of tokens index both tables, and a mask hides nothing."""
    proto = build(
        """g (int64[N,6] ids, int64[N,6] attention_mask) => (float[N,6,4] y) {
            long = Gather (words, ids) flat = Unsqueeze (ids, last) back = Squeeze (flat, last)
            short = Gather (kinds, back) a = Add (long, short) m = Cast <to = 1> (attention_mask)
            n = Unsqueeze (m, last) y = Div (a, n) }""",
        {"words": 1e5 * weights(500, 4), "kinds": weights(3, 4), "last": np.asarray([-1], np.int64)},
    )
    feed = draw_feed(proto, profiles(proto, {}))
    assert {*np.unique(feed["ids"])} == {0, 1, 2} and (feed["attention_mask"] == 1).all()
    overflown = [node for node in cast(proto).floats.nodes if node.op_type in ("Add", "Div")]
    assert len(overflown) == 2


def test_inputs_that_do_not_run_are_told() -> None:
    """Sizes that must agree and do not say so leave the decision to the rules."""
    proto = build("g (float[N,8] x, float[M,9] z) => (float[K,8] y) { y = Add (x, z) }")
    result = cast(proto)
    assert not result.floats.nodes
    assert "inputs drawn at random do not run" in result.notes[-1] and "\n" not in result.notes[-1]


def test_casts_are_counted() -> None:
    """The figure is the number of Cast nodes that the file has more."""
    result = cast(loud(), eights())
    casts = [node for node in result.half.graph.node if node.op_type == "Cast"]
    assert result.casts == len(casts) == 4 and result.nodes == 5


def test_pairs_of_a_quantized_model_stay() -> None:
    """A Q/DQ model keeps its pairs, with scales of the type."""
    proto = BUILDERS["two_branch"]()
    feeds = [feed_for(proto, seed) for seed in range(3)]
    quantized = onnxfq.quantize(proto, feeds).qdq
    half = cast(quantized, feeds).half
    count = [sum(node.op_type == "QuantizeLinear" for node in one.graph.node) for one in (quantized, half)]
    assert count[0] == count[1] > 0
    assert onnxfq.check(half).passed and onnxfq.check(half).coverage == onnxfq.check(quantized).coverage


def test_refusals() -> None:
    """A type that is none, an overflow type that holds no more, and a model without floats: one line each."""
    with pytest.raises(DataError, match="a model in fp32 needs no cast; give fp16 or bf16"):
        cast(loud(), floats=FloatOptions("fp32"))
    with pytest.raises(DataError, match="overflow is 'bf16', which holds no more than bf16"):
        cast(loud(), floats=BF16, overflow="bf16")
    whole = build("g (int64[N,8] x) => (int64[N,8] y) { y = Add (x, x) }")
    with pytest.raises(ModelError, match="has no operator on float32 to cast"):
        cast(whole)


def test_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """The command writes what the function returns, and prints what stays and why."""
    monkeypatch.chdir(tmp_path)
    onnx.save(loud(), "m.onnx")
    np.savez("d.npz", x=np.ones((8, 8), np.float32))
    assert main(["cast", "m.onnx", "--data", "d.npz", "-o", "h.onnx"]) == 0
    text = capfd.readouterr().out
    assert "3 of 5 nodes to fp16, 4 Casts written" in text
    assert "tensor 'b': its values go from 72000 to 72000, beyond 65504" in text
    expected: Casting = cast("m.onnx", "d.npz")
    assert onnx.load("h.onnx") == expected.half
    assert main(["cast", "m.onnx", "-o", "b.onnx", "--float", "bf16", "--json"]) == 0
    record = json.loads(capfd.readouterr().out)
    assert record["floats"]["name"] == "bf16" and record["evaluation"] is None and record["check"]["target"]


def test_numbers_of_dynamic_scales_choose_nothing() -> None:
    """Integers of DynamicQuantizeLinear are numbers of a grid: the output is scored, and not their scales."""
    proto = build(
        """g (float[N,8] x) => (float[N,6] y) {
            q, s, z = DynamicQuantizeLinear (x) i = MatMulInteger (q, w, z, u) f = Cast <to = 1> (i)
            y = Mul (f, s) }""",
        {"w": np.ones((8, 6), np.int8), "u": np.int8(0)},
    )
    evaluation = cast(proto, [feed_for(proto, 0, 8)]).evaluation
    assert evaluation is not None and not evaluation.candidates[0].parts
