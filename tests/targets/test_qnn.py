"""QNN: its placement beside ONNX Runtime's own, its scales, its rules, and the nodes that an HTP takes."""

from __future__ import annotations

import importlib
import json
import sys
from copy import deepcopy
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import onnxruntime
import pytest
from builders import (
    build,
    build_used,
    constants,
    feed_for,
    plain_quantize,
    planned,
    stage,
    transposed_weight,
    weights,
)
from one_operator import dequantized, one_operator, weight
from onnx import TensorProto
from onnxruntime import get_ep_devices
from onnxruntime.quantization import QuantType, quantize
from onnxruntime.quantization.execution_providers.qnn import get_qnn_qdq_config
from ort_quantizer import Reader
from qnn_networks import NETWORKS, detector, mlp, residual, transformer

import onnxfq
from onnxfq.cli.main import main
from onnxfq.documents.override import Override
from onnxfq.errors import RuntimeLibraryError, StatisticsError
from onnxfq.graph.ops import MOVES
from onnxfq.runtime.optimized_graph import assign_nodes, optimize_graph
from onnxfq.runtime.session import Session
from onnxfq.stages.plan import observation_plan
from onnxfq.targets.qnn import build as qnn_build
from onnxfq.targets.qnn.operators import EIGHT_BITS, FEW_AXES, MIXING, OPERATORS
from onnxfq.targets.qnn.policy import IDLE
from onnxfq.targets.reading.runtime_forms import forms_by_operator
from onnxfq.targets.target import BuildOptions, prepare_model

ROOT = Path(__file__).parents[2]
RECIPES = {"qnn-int8": QuantType.QUInt8, "qnn-a16w8": QuantType.QUInt16}
Pair = tuple[str, float, int]

# ONNX Runtime's quantizer also removes a Relu behind moved data, and the Reshape before it gets two scales.
# Here the Reshape keeps one scale, as the HTP wants it, and the Relu has its own pairs.
DIFFERENCES: dict[str, set[tuple[str, int]]] = {"mlp": {("r1", 0)}}

# Its files have a pair between a product and its bias. Here the session makes a Gemm of both.
GEMMS = {"transformer": ("q", "bias")}

# The HTP multiplies the first 8 bits of a second operand that is computed, and here it has 8.
SECOND = {("transformer", "qnn-a16w8"): {("turn", 0), ("s", 1), ("o", 1)}}


def written(proto: onnx.ModelProto, recipe: str) -> onnx.ModelProto:
    """Return the Q/DQ model of `proto` by the stages, with ranges from the least to the largest value."""
    base = onnxfq.load_recipe(recipe)
    staged = stage(proto, base.override(activations={"calibrator": "minmax"}))
    return onnxfq.insert_qdq(staged.model, staged.plan, staged.encodings)


def by_onnxruntime(proto: onnx.ModelProto, recipe: str, folder: Path) -> onnx.ModelProto:
    """Return what ONNX Runtime's quantizer makes of `proto` for QNN."""
    onnx.save(proto, folder / "float.onnx")
    config = get_qnn_qdq_config(
        folder / "float.onnx",
        Reader([feed_for(proto, seed) for seed in range(3)]),
        activation_type=RECIPES[recipe],
        weight_type=QuantType.QInt8,
        per_channel=True,
    )
    quantize(folder / "float.onnx", folder / "theirs.onnx", config)
    return onnx.load(folder / "theirs.onnx")


def test_a_tensor_without_a_range_stops_its_own_nodes_alone() -> None:
    """`c` has no pair: its maker and its reader are in float, and the pairs that other nodes need stay."""
    layers = (
        "g (float[1,8] x) => (float[1,8] y, float[1,8] d) { [m] a = MatMul (x, w) [s] b = Sigmoid (a) "
        "[l] c = Log (b) [z] d = Mul (c, zero) [n] e = MatMul (a, v) [t] f = Tanh (e) [o] y = MatMul (f, w) }"
    )
    proto = build(layers, {"w": weights(8, 8), "v": weights(8, 8, seed=1), "zero": np.zeros(1, np.float32)})
    plan = planned(proto, "qnn-int8")
    part = plan.without(["c"], "it has no range")
    assert [one.name for one in part.skipped if one.kind == "node"] == ["l", "z"]
    gone = {one.tensor for one in plan.placements} - {one.tensor for one in part.placements}
    assert gone == {"c", "zero", "d"} and part.coverage() != plan.coverage()


def test_moved_data_without_a_range_leave_their_maker_its_pair() -> None:
    """The Transpose and its reader are in float, named once; the product in front keeps its pair behind."""
    layers = (
        "g (float[8,8] x) => (float[8,8] y) "
        "{ [m] a = MatMul (x, w) [t] b = Transpose (a) [l] c = Sigmoid (b) [o] y = MatMul (c, w) }"
    )
    plan = planned(build(layers, {"w": weights(8, 8)}), "qnn-int8")
    part = plan.without(["b"], "it has no range")
    assert sorted(one.name for one in part.skipped if one.kind == "node") == ["l", "t"]
    assert {one.tensor for one in part.placements} == {"x", "w", "a", "c", "y"} and not part.bridges
    assert next(one.quantized for one in part.coverage() if one.op_type == "MatMul") == 2


@pytest.mark.parametrize(("kept", "moved"), [(("m", "n"), set()), (("n",), {"a", "b"})])
def test_moves_between_operators_in_float_have_no_pairs(kept: tuple[str, ...], moved: set[str]) -> None:
    """A pair around a move alone would round numbers that no operator computes with in 8 bits."""
    text = """g (float[8,8] x) => (float[8,8] y, float[8,8] z) { [m] a = MatMul (x, w) [t] b = Transpose (a)
        [n] y = MatMul (b, w) [o] z = MatMul (x, v) }"""
    proto = build(text, {"w": weights(8, 8), "v": weights(8, 8, seed=1)})
    recipe = onnxfq.load_recipe("qnn-int8").with_overrides([Override(nodes=kept, keep_float=True)])
    plan = planned(proto, recipe)
    assert {one.tensor for one in plan.activations} == {"x", "z"} | moved
    assert [one.why for one in plan.skipped if one.name == "t"] == [IDLE] * (not moved)


FLOATS = {
    "a step of two": "y = Conv <group = 4, strides = [1,2]> (x, w)",
    "a mirror": 'a = Pad <mode = "reflect"> (x, pads) y = Conv <group = 4> (a, w)',
    "a look-up": "a = Gather <axis = 3> (x, at) y = Relu (a)",
    "a curve": "y = Gelu (x)",
    "three dimensions": "a = Unsqueeze (x, at) b = Conv <group = 4> (a, w3) y = Relu (b)",
}


@pytest.mark.parametrize("name", FLOATS)
def test_the_htp_runs_what_stays_in_float(name: str) -> None:
    """The session opens, and computes in half precision."""
    pytest.importorskip("onnxruntime_qnn", reason="onnxruntime-qnn is not installed")
    values = {"w": weights(4, 1, 1, 3), "w3": weights(4, 1, 1, 1, 1), "at": np.int64([2])}
    values |= {"pads": np.int64([0, 0, 0, 1, 0, 0, 0, 1])}
    proto = build_used(f"g (float[1,4,8,16] x) => (float[] y) {{ {FLOATS[name]} }}", values, opset=20)
    feed = {"x": weights(1, 4, 8, 16, seed=1)}
    got, want = qnn_build.open_model(proto)(feed)["y"], Session(proto, 1, exact=True).run(feed)[0]
    np.testing.assert_allclose(got, want, atol=2**-10 * np.abs(want).max())


def read_pairs(proto: onnx.ModelProto) -> dict[tuple[str, int], Pair]:
    """Return (type, first scale, number of scales) of the pair that each input and each output comes from.

    The key is the name of the node and the input, or "" and the position of the output.
    """
    makers = {name: node for node in proto.graph.node for name in node.output}
    slots = [(n.name, at, name) for n in proto.graph.node for at, name in enumerate(n.input)]
    slots += [("", at, value.name) for at, value in enumerate(proto.graph.output)]
    values, pairs = constants(proto), {}
    for node, at, tensor in slots:
        maker = makers.get(tensor)
        if maker is not None and maker.op_type == "DequantizeLinear":
            scale = values[maker.input[1]]
            pairs[node, at] = (str(values[maker.input[2]].dtype), float(scale.flat[0]), scale.size)
    return pairs


@pytest.mark.grid
@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("name", NETWORKS)
def test_pairs_of_onnxruntimes_quantizer(name: str, recipe: str, tmp_path: Path) -> None:
    """The same inputs and outputs have pairs as in ONNX Runtime's model, of the same types and grids."""
    proto = prepare_model(onnxfq.load(NETWORKS[name]()), "qnn").proto
    ours, theirs = read_pairs(written(proto, recipe)), read_pairs(by_onnxruntime(proto, recipe, tmp_path))
    product, bias = GEMMS.get(name, (None, None))
    theirs = {slot: pair for slot, pair in theirs.items() if slot[0] != bias}
    assert ours.keys() - theirs.keys() == DIFFERENCES.get(name, set()) and not theirs.keys() - ours.keys()
    assert len(ours) >= 12
    # The HTP takes int8 gains only with biases of 8 bits, and ONNX Runtime writes int32 here.
    gains = {(node.name, 1) for node in proto.graph.node if node.op_type == "LayerNormalization"}
    for slot, (kind, _, count) in theirs.items():
        narrow = slot in gains or slot in SECOND.get((name, recipe), ())
        assert ours[slot][0::2] == ("uint8" if narrow else kind, 8 if slot == (product, 1) else count), slot


@pytest.mark.grid
@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.sample) if name == "residual" else name for name in NETWORKS],
)
def test_every_operator_is_a_node_unit(name: str, recipe: str) -> None:
    """The rules find nothing in the written file, and in one without a pair they name its operator."""
    proto = NETWORKS[name]()
    qdq = written(proto, recipe)
    onnx.checker.check_model(qdq, full_check=True)
    result = onnxfq.check(qdq, "qnn")
    assert not result.findings, result.table()
    assert all(row.kept == row.promised for row in result.coverage)
    assert len(result.findings) < len(onnxfq.check(without_pair(qdq), "qnn").findings)


def without_pair(qdq: onnx.ModelProto, at: int = 0) -> onnx.ModelProto:
    """Return a copy whose pair number `at` of an activation is taken out."""
    bare = deepcopy(qdq)
    q = [node for node in bare.graph.node if node.op_type == "QuantizeLinear"][at]
    dq = next(node for node in bare.graph.node if q.output[0] in node.input)
    for node in bare.graph.node:
        node.input[:] = [q.input[0] if name == dq.output[0] else name for name in node.input]
    for node in (q, dq):
        bare.graph.node.remove(node)
    return bare


@pytest.mark.grid
@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("name", NETWORKS)
def test_the_file_has_the_values_of_the_simulation(name: str, recipe: str) -> None:
    """ONNX Runtime computes from the file what the fake-quant model gives, close to the float model."""
    proto = NETWORKS[name]()
    staged = stage(proto, recipe)
    qdq = onnxfq.insert_qdq(staged.model, staged.plan, staged.encodings)
    simulated = onnxfq.insert_fake_quantize(staged.model, staged.plan, staged.encodings)
    feed = feed_for(proto)
    results = [Session(one, 1, exact=True).run(feed) for one in (qdq, simulated, proto)]
    for got, wanted, reference in zip(*results, strict=True):
        # A sum in another order may cross half a step of 16 bits.
        np.testing.assert_allclose(got, wanted, atol=np.abs(reference).max() / 500)
        noise = np.sum((got - reference) ** 2) / np.sum(reference**2)
        assert 10 * np.log10(noise) < (-15 if recipe == "qnn-int8" else -25)


@pytest.mark.grid
@pytest.mark.parametrize("recipe", ["qnn-int8", "qnn-a16w8"])
@pytest.mark.parametrize(
    ("name", "moves"),
    [
        ("residual", {"pool": "mean", "flat": "fc"}),
        ("detector", {"split": "c1", "pool": "join", "up": "c2"}),
        ("transformer", {"turn": "s", "look": "norm"}),
        ("mlp", {"move": "r1"}),
    ],
)
def test_moved_data_keeps_its_scale(name: str, moves: dict[str, str], recipe: str) -> None:
    """Data behind a move has the scale in front of it; a table of words gives its own scale."""
    pairs = read_pairs(written(NETWORKS[name](), recipe))
    for move, reader in moves.items():
        scales = {pair[:2] for (node, at), pair in pairs.items() if node == reader and at < 2}
        assert pairs[move, 0][:2] in scales, move


def test_halves_of_a_split_that_differ_in_size() -> None:
    """Calibration cannot refuse the common scale, even where one half is tiny beside the other."""
    proto = build(
        """g (float[1,2,8] x) => (float[1,1,8] y, float[1,1,8] z) {
            [scale] s = Mul (x, factors) [split] p, q = Split <axis = 1, num_outputs = 2> (s)
            [one] y = Abs (p) [two] z = Abs (q) }""",
        {"factors": np.asarray([[[1000.0], [0.001]]], np.float32)},
        opset=18,
    )
    pairs = read_pairs(written(proto, "qnn-int8"))
    assert pairs["one", 0] == pairs["two", 0] == pairs["split", 0]


def test_turned_weights_are_stored() -> None:
    """A Transpose between a weight and its product is computed beforehand, with the same results."""
    proto = transposed_weight()
    qdq = written(proto, "qnn-a16w8")
    assert "Transpose" not in {node.op_type for node in qdq.graph.node}
    assert [one.rule for one in onnxfq.check(qdq, "qnn").findings] == ["open-size"]
    feed = feed_for(proto)
    got, wanted = (Session(one, 1, exact=True).run(feed)[0] for one in (qdq, proto))
    np.testing.assert_allclose(got, wanted, atol=np.abs(wanted).max() / 50)


NORM = """g (float[N,6,16] x) => (float[N,6,16] y) { [first] a = MatMul (x, w)
    m = ReduceMean <axes = [-1]> (a) d = Sub (a, m) s = Pow (d, two) v = ReduceMean <axes = [-1]> (s)
    e = Add (v, eps) r = Sqrt (e) n = Div (d, r) [gain] g1 = Mul (n, gain) [bias] h = Add (g1, bias)
    [last] y = MatMul (h, w2) }"""
PARTS = {"w": weights(16, 16), "w2": weights(16, 16, seed=1), "gain": weights(16, seed=2) + 3}
PARTS |= {"bias": weights(16, seed=3), "two": np.float32(2), "eps": np.float32(1e-5)}


def test_a_norm_of_single_operators_is_one() -> None:
    """The same function in ONNX Runtime, one node unit, finite where 8 bits lose the squares of most rows."""
    proto = build(NORM, PARTS, opset=13)
    prepared = prepare_model(onnxfq.load(proto), "qnn")
    kinds = [node.op_type for node in prepared.proto.graph.node]
    assert kinds == ["MatMul", "LayerNormalization", "MatMul"]
    assert {t.name for t in prepared.proto.graph.initializer} == {"w", "w2", "gain", "bias"}
    rows = weights(40, 6, 16, seed=4)
    rows[::10] *= 12
    feed = {"x": rows}
    want, got = (Session(one, 1).run(feed)[0] for one in (proto, prepared.proto))
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)  # the sums of a row in another order
    result = plain_quantize(proto, feed, recipe="qnn-int8")
    (candidate,) = result.evaluation.candidates
    assert not candidate.broken and candidate.lowest_db > 12
    assert any("9 operators are 1 LayerNormalization now" in note for note in result.model.notes)


@pytest.mark.parametrize(
    "change",
    [
        ("axes = [-1]", "axes = [1]"),
        ("v = ReduceMean <axes", "v = ReduceMax <axes"),
        ("n = Div (d, r)", "n = Div (a, r)"),
    ],
    ids=["another axis", "a maximum", "another dividend"],
)
def test_other_norms_stay(change: tuple[str, str]) -> None:
    """Other formulas keep their operators."""
    prepared = prepare_model(onnxfq.load(build(NORM.replace(*change), PARTS, opset=13)), "qnn")
    assert all(node.op_type != "LayerNormalization" for node in prepared.proto.graph.node)


HALF = "h = Mul (x, half) y = Mul (h, p)"
CURVE = "c = Pow (x, three) c1 = Mul (c, k) c2 = Add (x, c1) c3 = Mul (c2, r) t = Tanh (c3) p = Add (one, t) "
GELUS = {
    "divided": ("d = Div (x, s) e = Erf (d) p = Add (e, one) m = Mul (x, p) y = Mul (m, half)", "none"),
    "halved first": (f"d = Mul (x, i) e = Erf (d) p = Add (one, e) {HALF}", "none"),
    "tanh": (CURVE + HALF, "tanh"),
    "tanh, factored": (
        "q = Mul (x, x) q1 = Mul (q, k) q2 = Add (one, q1) q3 = Mul (x, q2) q4 = Mul (r, q3) t = Tanh (q4) "
        f"p = Add (t, one) {HALF}",
        "tanh",
    ),
}
NUMBERS = {
    "s": 2**0.5,
    "i": 0.5**0.5,
    "one": 1,
    "half": 0.5,
    "three": 3,
    "k": 0.044715,
    "r": (2 / np.pi) ** 0.5,
}


def gelu(parts: str, **changes: float) -> onnx.ModelProto:
    """Return a network of a Gelu in `parts` from x to y, with other numbers by name."""
    numbers = {name: np.float32(value) for name, value in (NUMBERS | changes).items()}
    return build(f"g (float[2,40] x) => (float[2,40] y) {{ {parts} }}", numbers, opset=17)


@pytest.mark.parametrize("name", GELUS)
def test_a_gelu_of_single_operators_is_one(name: str) -> None:
    """The operator gives the numbers of its parts."""
    parts, form = GELUS[name]
    proto = gelu(parts)
    prepared = prepare_model(onnxfq.load(proto), "qnn")
    (node,) = prepared.proto.graph.node
    assert node.op_type == "Gelu" and node.attribute[0].s.decode() == form
    feed = {"x": weights(2, 40) * 9}
    want, got = (Session(one, 1).run(feed)[0] for one in (proto, prepared.proto))
    np.testing.assert_allclose(got, want, atol=1e-5)  # the operators round apart


@pytest.mark.parametrize("changes", [{"half": 0.4}, {"one": 1.01}, {"s": 1.3}])
def test_other_sums_of_an_erf_stay(changes: dict[str, float]) -> None:
    """Another number in it makes another function, which stays."""
    prepared = prepare_model(onnxfq.load(gelu(GELUS["divided"][0], **changes)), "qnn")
    assert "Erf" in {node.op_type for node in prepared.proto.graph.node}


def test_a_last_concat_of_ranges_far_apart_stays_in_float() -> None:
    """Its inputs keep their pairs and the scores their steps; ranges that are close have one scale."""
    feed = {"x": weights(1, 4, 8)}
    for factor, output in ((300.0, ""), (3.0, "DequantizeLinear")):
        proto = build(
            """g (float[1,4,8] x) => (float[1,4,16] y) {
                a = MatMul (x, w) b = Sigmoid (a) c = Mul (b, k) y = Concat <axis = 2> (c, b) }""",
            {"w": weights(8, 8), "k": np.float32(factor)},
        )
        qdq = written(proto, "qnn-int8")
        makers = {node.output[0]: node.op_type for node in qdq.graph.node}
        joined = next(node for node in qdq.graph.node if node.op_type == "Concat")
        assert {makers[name] for name in joined.input} == {"DequantizeLinear"}
        assert makers["y"] == (output or "Concat")
        assert onnxfq.check(qdq, "qnn").passed
        got, want = (Session(one, 1, exact=True).run(feed)[0] for one in (qdq, proto))
        if not output:
            np.testing.assert_allclose(got[..., 8:], want[..., 8:], atol=0.02)


def test_layers_that_share_a_bias_have_one_each() -> None:
    """Both convolutions are whole node units, and each bias has the scale of its own products."""
    proto = build(
        """g (float[1,4,6,6] x) => (float[1,4,6,6] y) {
            [one] a = Conv (x, w, b) r = Relu (a) [two] c = Conv (r, w, b) y = Relu (c) }""",
        {"w": weights(4, 4, 1, 1), "b": weights(4, seed=1)},
    )
    qdq = written(proto, "qnn-int8")
    assert onnxfq.check(qdq, "qnn").coverage[0].kept == 2
    pairs = read_pairs(qdq)
    for node in ("one", "two"):
        data, weight, bias = (pairs[node, slot][1] for slot in range(3))
        assert bias == pytest.approx(data * weight, rel=1e-6)
    assert pairs["one", 2] != pairs["two", 2]


def test_a_tied_table_has_the_format_of_its_product() -> None:
    """A table that a Gather and a Gemm read is a weight for the Gemm, and the rules name the Gather."""
    proto = build(
        """g (int64[3] words) => (float[3,16] y) {
            [look] x = Gather (table, words) [head] y = Gemm <transB = 1> (x, table) }""",
        {"table": weights(16, 8)},
    )
    qdq = written(proto, "qnn-int8")
    assert read_pairs(qdq)["head", 1][0::2] == ("int8", 16)
    assert [(one.rule, one.node) for one in onnxfq.check(qdq, "qnn").findings] == [("node-unit", "look")]


def test_grids_of_sigmoid_and_tanh() -> None:
    """In 16 bits they have the grids of ONNX Runtime's quantizer for QNN, in 8 bits their own."""
    proto = build("g (float[2,8] x) => (float[2,8] y, float[2,8] z) { y = Sigmoid (x) z = Tanh (x) }")
    values = constants(written(proto, "qnn-a16w8"))
    assert (values["y/scale"], values["y/zero_point"]) == (np.float32(1 / 65536), 0)
    assert (values["z/scale"], values["z/zero_point"]) == (np.float32(1 / 32768), 32768)
    assert constants(written(proto, "qnn-int8"))["y/scale"] < np.float32(1 / 255)


def test_formats_of_weights() -> None:
    """A scale for each channel of convolutions, Gemm and MatMul with a bias, one of MatMul and of gains."""
    plain = build("g (float[4,8] x) => (float[4,8] y) { [plain] y = MatMul (x, w) }", {"w": weights(8, 8)})
    pairs = {}
    for proto in (residual(), transformer(), plain):
        pairs |= read_pairs(written(proto, "qnn-int8"))
    assert [pairs[slot][0::2] for slot in (("c0", 1), ("fc", 1), ("q", 1), ("plain", 1), ("norm", 1))] == [
        ("int8", 8), ("int8", 5), ("int8", 8), ("int8", 1), ("uint8", 1),
    ]  # fmt: skip
    assert [pairs[slot][0::2] for slot in (("c0", 2), ("norm", 2))] == [("int32", 8), ("int32", 1)]
    data, gain, bias = (pairs["norm", slot][1] for slot in range(3))
    assert bias == pytest.approx(data * gain, rel=1e-6)


def test_statistics_of_other_recipes_lack_tensors() -> None:
    """Statistics observed without a plan do not serve QNN: the error names a tensor and the remedy."""
    model = onnxfq.load(residual())
    feeds = [feed_for(model.proto, seed) for seed in range(2)]
    statistics = onnxfq.collect_statistics(model, observation_plan(model), feeds)
    plan = onnxfq.make_plan(model, onnxfq.load_recipe("qnn-int8"))
    with pytest.raises(StatisticsError, match="no statistics for tensor '.*': observe again with this plan"):
        onnxfq.calibrate(model, plan, statistics)


CONV = dequantized() + "t = Conv (d, w) "
RELU = CONV + "u = Relu (t) v = QuantizeLinear (u, so, {zero}) y = DequantizeLinear (v, so, {zero})"
WEIGHT, ZERO = weight((8, 8, 3, 3)), {"z0": np.uint8(0)}
BIASED = (CONV.replace("(d, w)", "(d, w, b)") + "{behind}", WEIGHT | {"b": weights(8)})
PLANTED = {
    "clean": (one_operator(CONV + "{behind}", WEIGHT), ""),
    "relu": (one_operator(RELU.replace("{zero}", "z0"), WEIGHT | ZERO), ""),
    "relu in the range": (one_operator(RELU.replace("{zero}", "zo"), WEIGHT), "node-unit"),
    "no output": (one_operator(CONV.replace("t =", "y ="), WEIGHT), "node-unit"),
    "no input": (one_operator(CONV.replace("(d,", "(x,") + "{behind}", WEIGHT), "node-unit"),
    "float bias": (one_operator(*BIASED), ""),
    "float bias of a norm": (
        one_operator(
            "w = DequantizeLinear (w_q, ws, wz) t = LayerNormalization (d, w, b) {behind}",
            weight((8,), None, dtype=np.uint8, zero=0) | {"b": weights(8)},
        ),
        "node-unit",
    ),
    "turned weight": (
        one_operator(
            "w0 = DequantizeLinear (w_q, ws, wz) w = Transpose (w0) t = MatMul (d, w) {behind}",
            weight((8, 8), None),
            "1,8,8,8",
        ),
        "",
    ),
    "signed": (one_operator(CONV + "{behind}", WEIGHT, dtype=np.int8), "activation-format"),
    "unsigned weight": (
        one_operator(CONV + "{behind}", weight((8, 8, 3, 3), dtype=np.uint8, zero=128)),
        "weight-format",
    ),
    "moved": (one_operator("t = Transpose (d) {behind}"), "moved-scale"),
    "scales of groups": (
        one_operator(
            dequantized(1) + "t = ConvTranspose <group = 2> (d, w) {behind}", weight((8, 4, 3, 3), 1)
        ),
        "group-scales",
    ),
    "groups in three dimensions": (
        one_operator(
            dequantized(None) + "t = ConvTranspose <group = 2> (d, w) {behind}",
            weight((8, 4, 3, 3, 3), None),
            "1,8,4,4,4",
        ),
        "group-axes",
    ),
    "unknown": (one_operator("t = Det (d) {behind}"), "operator"),
    "wide": (
        one_operator("t = PRelu (d, e) {behind}", None, *("1,8,8,8",) * 2, dtype=np.uint16, opset=21),
        "operator",
    ),
    "int8 gain": (
        one_operator(
            "w = DequantizeLinear (w_q, ws, wz) t = LayerNormalization (d, w) {behind}", weight((8,), None)
        ),
        "gain",
    ),
    "no zero point": (
        one_operator("t = Relu (d) a = QuantizeLinear (t, so) y = DequantizeLinear (a, so)"),
        "zero-point",
    ),
}


@pytest.mark.parametrize("name", ["float bias", "turned weight", "float bias of a norm"])
def test_onnxruntime_makes_biases_of_products_whole_numbers(name: str, tmp_path: Path) -> None:
    """In its optimized model all inputs of a product have pairs. A norm keeps its float bias."""
    proto, rule = PLANTED[name]
    settings = onnxruntime.SessionOptions()
    settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    settings.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    onnxruntime.InferenceSession(proto.SerializeToString(), settings, providers=["CPUExecutionProvider"])
    graph = onnx.load(tmp_path / "optimized.onnx").graph
    makers = {output: node.op_type for node in graph.node for output in node.output}
    (node,) = (node for node in graph.node if node.op_type in {"Conv", "MatMul", "LayerNormalization"})
    assert [makers.get(one) == "DequantizeLinear" for one in node.input].count(False) == bool(rule)


@pytest.mark.parametrize("name", PLANTED)
def test_rules(name: str) -> None:
    """Each planted mistake is named by its rule and no other one."""
    proto, rule = PLANTED[name]
    result = onnxfq.check(proto, "qnn")
    assert {found.rule for found in result.findings} == {rule} - {""}, result.table()
    assert result.passed == (rule in ("", "moved-scale"))
    for finding in result.findings:
        assert "\n" not in finding.message and len(finding.message) < 300


def test_simulations_are_refused() -> None:
    """A fake-quant model is refused by a rule."""
    staged = stage(mlp(), "qnn-int8")
    simulated = onnxfq.insert_fake_quantize(staged.model, staged.plan, staged.encodings)
    found = onnxfq.check(simulated, "qnn").findings
    assert ("operator", "refused") in {(one.rule, one.severity) for one in found}


def test_assignment_is_what_onnx_runtime_says() -> None:
    """Every node of a model in a session of the CPU alone is the CPU provider's."""
    nodes = assign_nodes(residual(), "CPUExecutionProvider", {})
    assert nodes.keys() >= {"c0", "c1", "sum", "fc"} and set(nodes.values()) == {"CPUExecutionProvider"}
    with pytest.raises(RuntimeLibraryError, match="no device of NoSuchProvider; register"):
        assign_nodes(residual(), "NoSuchProvider", {})


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Put a module in the place of onnxruntime_qnn, whose library is not there."""
    module = SimpleNamespace(
        get_library_path=lambda: "/no/such.so", get_qnn_htp_path=lambda: "/no/htp.so", __version__="2.7.0"
    )
    monkeypatch.setitem(sys.modules, "onnxruntime_qnn", module)
    return module


def test_a_library_that_does_not_load(library: SimpleNamespace) -> None:
    """A library that ONNX Runtime cannot load is one line with the remedy."""
    if any(device.ep_name == "QNNExecutionProvider" for device in get_ep_devices()):
        pytest.skip("this process has loaded the library itself")
    with pytest.raises(RuntimeLibraryError, match="cannot load QNNExecutionProvider: .*; install"):
        onnxfq.check(written(mlp(), "qnn-int8"), "qnn", build=BuildOptions())


def test_build_reports_each_promised_node(library: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the CPU provider in the place of QNN's, every promised node is taken; of another one none is."""
    monkeypatch.setattr(qnn_build, "PROVIDER", "CPUExecutionProvider")
    qdq = written(detector(), "qnn-int8")
    result = onnxfq.check(qdq, "qnn", build=BuildOptions())
    assert result.builder == "onnxruntime-qnn 2.7.0" and {node.device for node in result.engine} == {"HTP"}
    assert {node.verdict for node in result.engine if node.op_type == "MaxPool"} == {"low"}
    monkeypatch.setattr(qnn_build, "assign_nodes", lambda *given: {})
    lost = onnxfq.check(qdq, "qnn", build=BuildOptions())
    assert not lost.passed and {n.verdict for n in lost.engine if n.op_type not in MOVES} == {"missing"}


def test_a_model_that_onnx_runtime_refuses(library: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    """What does not load is a finding with ONNX Runtime's words."""
    monkeypatch.setattr(qnn_build, "PROVIDER", "CPUExecutionProvider")
    broken = build("g (float[2] x) => (float[2] y) { y = mine.Odd (x) }", mine=1)
    found = onnxfq.check(broken, "qnn", build=BuildOptions()).findings
    assert [one.rule for one in found if one.severity == "refused"] == ["build"]


def test_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without onnxruntime-qnn one line says what to do; the rules work."""
    monkeypatch.setitem(sys.modules, "onnxruntime_qnn", None)
    qdq = written(mlp(), "qnn-int8")
    with pytest.raises(
        RuntimeLibraryError, match="read its licence, pip install onnxruntime-qnn if you agree"
    ):
        onnxfq.check(qdq, "qnn", build=BuildOptions())
    assert onnxfq.check(qdq, "qnn").passed


ATTENTION = """g (float[2,6,16] x, float[2,6] mask) => (float[2,6,16] y) {
    [norm] n = LayerNormalization <axis = -1> (x, g, h) q = MatMul (n, wq)
    k = MatMul (n, wk) v = MatMul (n, wv) t = Transpose <perm = [0,2,1]> (k) s = MatMul (q, t)
    r = Sub (one, mask) m0 = Mul (r, low) m = Unsqueeze (m0, axis) masked = Add (s, m)
    p = Softmax <axis = -1> (masked)
    o = MatMul (p, v) a = Add (o, x) u = MatMul (a, w1) d = Div (u, s2) e = Erf (d) f = Add (e, one) 
    i = Mul (u, f) j = Mul (i, half) z = MatMul (j, w2) y = Add (z, a) }"""


def attention(low: float) -> tuple[onnx.ModelProto, list[dict[str, np.ndarray]]]:
    """Return a block of a transformer in parts with masks of `low`, and feeds."""
    shapes = {"wq": (16, 16), "wk": (16, 16), "wv": (16, 16), "w1": (16, 32), "w2": (32, 16)}
    values = {name: weights(*shape, seed=at) / 4 for at, (name, shape) in enumerate(shapes.items())}
    values |= {"g": 1 + weights(16) / 9, "h": weights(16, seed=1) / 9, "axis": np.asarray([1], np.int64)}
    numbers = {"one": 1, "low": low, "s2": 2**0.5, "half": 0.5}
    values |= {name: np.asarray(value, np.float32) for name, value in numbers.items()}
    masks = [np.arange(6)[None] < [[4 + at % 3], [6 - at % 2]] for at in range(6)]
    feeds = [
        {"x": weights(2, 6, 16, seed=at), "mask": mask.astype(np.float32)} for at, mask in enumerate(masks)
    ]
    return build(ATTENTION, values), feeds


SHAPES = {"a": (4, 8, 64), "b": (4, 64, 8)}
MASKS = [-1e4, -1e9, float(np.finfo(np.float32).min)]


@pytest.mark.grid
@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("low", MASKS)
def test_masks_leave_scores_their_steps(low: float, recipe: str) -> None:
    """A network loses with masks about what it loses without masked places."""
    proto, feeds = attention(low)
    result = plain_quantize(proto, feeds, recipe=recipe)
    shown = [feed | {"mask": np.ones((2, 6), np.float32)} for feed in feeds]
    whole = plain_quantize(proto, shown, recipe=recipe)
    masked, plain = (one.evaluation.candidates[0].lowest_db for one in (result, whole))
    assert masked > plain - 3
    scale = result.encodings["masked"].scale
    # 16 bits have four times the range that was seen.
    assert scale.max() * (2**8 if recipe == "qnn-int8" else 2**14) < 150


@pytest.mark.parametrize("whole_row", [False, True])
def test_a_constant_mask_sets_no_range(whole_row: bool) -> None:
    """A mask of -100, as of shifted windows, unless a row has no other scores."""
    mask = np.where(np.eye(4) > 0, 0, -100).astype(np.float32)
    mask[2] = -100 if whole_row else mask[2]
    proto = build(
        "g (float[2,4,8] x) => (float[2,4,8] y) { t = Transpose <perm = [0,2,1]> (x) s = MatMul (x, t) "
        "m = Add (s, mask) p = Softmax <axis = -1> (m) y = MatMul (p, x) }",
        {"mask": mask},
    )
    feeds = [{"x": weights(2, 4, 8, seed=at) / 4} for at in range(6)]
    made = plain_quantize(proto, feeds, recipe="qnn-int8")
    ranges = [float(made.encodings[name].scale.max()) * 255 for name in ("m", "mask")]
    assert all(one > 99 for one in ranges) if whole_row else all(one < 30 for one in ranges)


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_htp_takes_a_whole_transformer(recipe: str, tmp_path: Path) -> None:
    """The emulated HTP runs all of it, about as exactly as ONNX Runtime's CPU."""
    pytest.importorskip("onnxruntime_qnn", reason="onnxruntime-qnn is not installed")
    proto, feeds = attention(MASKS[-1])
    path = tmp_path / "q.onnx"
    plain_quantize(proto, feeds, path, recipe=recipe)
    result = onnxfq.check(path, "qnn", build=BuildOptions())
    assert result.passed and not result.findings, result.table()
    run = qnn_build.open_model(path)
    references, got = Session(proto, 1, exact=True), [run(feed)["y"] for feed in feeds]
    simulated = [Session(onnx.load(path), 1, exact=True).run(feed)[0] for feed in feeds]
    want = [references.run(feed)[0] for feed in feeds]
    noise = [float(np.sum((np.stack(one) - np.stack(want)) ** 2)) for one in (got, simulated)]
    assert noise[0] < noise[1] * 10**0.1


@pytest.mark.parametrize("groups", [1, 2])
def test_groups_in_three_dimensions_in_float(groups: int) -> None:
    """The emulated HTP computes them otherwise in half precision too, and the check tells it."""
    text = f"g (float[1,8,4,4,4] x) => (float[1,8,6,6,6] y) {{ y = ConvTranspose <group = {groups}> (x, w) }}"
    proto, feed = build(text, {"w": weights(8, 8 // groups, 3, 3, 3)}), {"x": weights(1, 8, 4, 4, 4, seed=1)}
    rules = {(one.rule, one.severity) for one in onnxfq.check(proto, "qnn").findings}
    assert (("group-axes", "wrong") in rules) == (groups > 1)
    if find_spec("onnxruntime_qnn") is not None:
        want, got = Session(proto, 1, exact=True).run(feed)[0], qnn_build.open_model(proto)(feed)["y"]
        assert np.allclose(got, want, atol=0.01 * np.abs(want).max()) == (groups == 1)


@pytest.mark.parametrize("size", ["N", "2"])
def test_open_sizes(size: str) -> None:
    """The HTP takes fixed sizes alone: a warning says so, and each size of the samples has a session."""
    text = (
        f"g (float[{size},16] x) => (float[{size},8] y) {{ a = MatMul (x, w) b = Sigmoid (a) y = Neg (b) }}"
    )
    qdq = written(build(text, {"w": weights(16, 8)}), "qnn-int8")
    found = [one for one in onnxfq.check(qdq, "qnn").findings if one.rule == "open-size"]
    assert [one.severity for one in found] == ["warning"] * (size == "N")
    if find_spec("onnxruntime_qnn") is None:
        return
    result = onnxfq.check(qdq, "qnn", build=BuildOptions())
    assert result.coverage and all(row.kept == row.promised for row in result.coverage), result.table()
    run, reference = qnn_build.open_model(qdq), Session(qdq, 1, exact=True)
    for count in (2, 2) if size == "2" else (1, 3, 1):
        feed = {"x": weights(count, 16, seed=count)}
        (want,) = reference.run(feed)
        # The HTP rounds values midway otherwise: three roundings, each by one step of 1/255.
        np.testing.assert_allclose(run(feed)["y"], want, atol=3.1 / 255)


@pytest.mark.parametrize(("second", "as_meant"), [(np.uint8, True), (np.uint16, False)])
def test_second_operands_of_the_htp(second: type, as_meant: bool) -> None:
    """The emulated HTP multiplies 16 bits with 8: 40 dB and not 80 where both have 16."""
    pytest.importorskip("onnxruntime_qnn", reason="onnxruntime-qnn is not installed")
    text = (
        "g (float[4,8,64] a, float[4,64,8] b) => (float[4,8,8] y) { i = QuantizeLinear (a, s, z) "
        "c = DequantizeLinear (i, s, z) j = QuantizeLinear (b, t, o) d = DequantizeLinear (j, t, o) "
        "e = MatMul (c, d) k = QuantizeLinear (e, u, z) y = DequantizeLinear (k, u, z) }"
    )
    steps = {np.uint8: 2**4, np.uint16: 2**12}
    scales = {"s": np.float32(2**-12), "t": np.float32(1 / steps[second]), "u": np.float32(2**-9)}
    zeros = {"z": np.uint16(2**15), "o": second(np.iinfo(second).max // 2 + 1)}
    proto, rng = build(text, scales | zeros, opset=21, ir=10), np.random.default_rng(0)
    feed = {name: rng.normal(size=shape).astype(np.float32) for name, shape in SHAPES.items()}
    got, want = qnn_build.open_model(proto)(feed)["y"], Session(proto, 1, exact=True).run(feed)[0]
    far_db = -10 * np.log10(np.sum((got - want) ** 2) / np.sum(want**2))
    assert far_db > 60 if as_meant else far_db < 45


BODIES = {
    "If": """If (c) <then_branch = g1 () => (float[1,8] p) { [p] p = MatMul (a, v) },
                    else_branch = g2 () => (float[1,8] q) { q = Neg (a) }>""",
    "Loop": """Loop (n, c, a) <body = g1 (int64 i, bool k, float[1,8] b) => (bool k2, float[1,8] p) {
        k2 = Identity (k) [p] p = MatMul (b, v) }>""",
}


@pytest.mark.parametrize("owner", BODIES)
def test_nodes_of_a_body_stay_in_float(owner: str) -> None:
    """ONNX Runtime asks QNN of no node of a body: the plan says so, and the check of other files."""
    constants = {"w": weights(8, 8), "v": weights(8, 8)} | ({"n": np.asarray(2)} if owner == "Loop" else {})
    text = f"g (float[1,8] x, bool c) => (float[1,8] y) {{ a = MatMul (x, w) y = {BODIES[owner]} }}"
    proto = build(text, constants)
    plan = planned(proto, "qnn-int8")
    assert {one.tensor for one in plan.placements if one.role == "weight"} == {"w"}
    (why,) = (one.why for one in plan.skipped if one.name == "p" and one.kind == "node")
    assert "gives QNN no node of a body" in why
    feeds = [feed_for(proto, seed) | {"c": np.asarray(True)} for seed in range(4)]
    other = onnxfq.quantize(proto, feeds, recipe="onnxruntime-int8").qdq
    has_htp = find_spec("onnxruntime_qnn") is not None
    result = onnxfq.check(other, "qnn", build=BuildOptions() if has_htp else False)
    assert [one.node for one in result.findings if one.rule == "body"] == ["p"]
    assert [one.verdict for one in result.engine if one.node == "p"] == ["float"] * has_htp


SQUARES = {
    "x x": "y = MatMul (x, x)",
    "x x^T": "t = Transpose <perm = [0,2,1]> (x) y = MatMul (x, t)",
    "x^T x": "t = Transpose <perm = [0,2,1]> (x) y = MatMul (t, x)",
    "two inputs": "y = MatMul (x, z)",
}


@pytest.mark.parametrize("name", SQUARES)
def test_second_operands_that_are_inputs(name: str) -> None:
    """Inputs of the model have 8 bits on the right of a product, as computed ones; the emulation agrees."""
    more = ", float[1,8,8] z" if "z" in SQUARES[name] else ""
    proto = build(f"g (float[1,8,8] x{more}) => (float[1,8,8] y) {{ {SQUARES[name]} }}", {})
    plan = planned(proto, "qnn-a16w8")
    bits = {place.tensor: place.spec.qtype.bits for place in plan.placements}
    right = next(node.input[1] for node in proto.graph.node if node.op_type == "MatMul")
    assert bits[right] == 8 and bits["y"] == 16 and bits["x"] == (16 if more else 8)
    if find_spec("onnxruntime_qnn") is not None:
        feeds = [feed_for(proto, seed, 1) for seed in range(6)]
        made = plain_quantize(proto, feeds, recipe="qnn-a16w8")
        assert made.proof is not None and not made.proof.difference and not made.proof.kept_float


BETWEEN = {
    "Add": "b = Add (a, c)",
    "Sub": "b = Sub (a, c)",
    "Mul": "b = Mul (a, c)",
    "LayerNormalization": "b = LayerNormalization <axis = -1> (a, c, h)",
    "ReduceMean": "b = ReduceMean <axes = [-1]> (a)",
    "Sigmoid": "b = Sigmoid (a)",
    "Softmax": "b = Softmax <axis = -1> (a)",
}


@pytest.mark.parametrize("wide", ["a", "b"])
@pytest.mark.parametrize("op", sorted(MIXING))
def test_operators_between_two_formats(op: str, wide: str, tmp_path: Path) -> None:
    """The emulated HTP runs each with 8 bits on one side and 16 on the other, as the pairs mean it."""
    pytest.importorskip("onnxruntime_qnn", reason="onnxruntime-qnn is not installed")
    values = {name: weights(16, seed=at) for at, name in enumerate("cdeh")}
    # The HTP rounds a product in front of a sum of 16 bits otherwise, by 1.4 dB in this network.
    front = "Add" if op == "Add" else "Mul"
    text = f"g (float[2,6,16] x) => (float[2,6,N] y) {{ a = {front} (x, d) {BETWEEN[op]} y = Add (b, e) }}"
    wider = Override(tensors=(wide,), activations={"qtype": "uint16"})
    recipe = onnxfq.load_recipe("qnn-int8").with_overrides([wider])
    feeds = [{"x": weights(2, 6, 16, seed=at)} for at in range(6)]
    path = tmp_path / "q.onnx"
    plain_quantize(build_used(text, values), feeds, path, recipe=recipe)
    result = onnxfq.check(path, "qnn", build=BuildOptions())
    assert result.passed and not result.findings, result.table()
    meant, run = Session(onnx.load(path), 1, exact=True), qnn_build.open_model(path)
    want, got = (
        np.stack(rows) for rows in zip(*((meant.run(f)[0], run(f)["y"]) for f in feeds), strict=True)
    )
    assert np.sum((got - want) ** 2) < np.sum(want**2) / 10**3.5  # a step of the result is 1/255 of its range


def test_a_product_of_constants_has_no_pairs() -> None:
    """The session computes the queries that a network has learned once, in float; the HTP runs all else."""
    pytest.importorskip("torch")
    proto, samples = importlib.import_module("structure_networks").structure("learned queries", 4)
    plan = planned(proto, "qnn-int8")
    fixed = {one.op_type for one in plan.skipped if one.why == "computed from constants, once"}
    assert "MatMul" in fixed
    if find_spec("onnxruntime_qnn") is not None:
        qdq = plain_quantize(proto, samples, recipe="qnn-int8").qdq
        taken = assign_nodes(qdq, qnn_build.PROVIDER, qnn_build.register())
        left = {name for name, provider in taken.items() if provider != qnn_build.PROVIDER}
        assert left <= {"x/q", "376/dq"}  # the input and the output


@pytest.mark.skipif(find_spec("onnxruntime_qnn") is None, reason="onnxruntime-qnn is not installed")
def test_groups_in_three_dimensions_are_computed_otherwise() -> None:
    """A failure means that the rule can go."""
    qdq, feed = PLANTED["groups in three dimensions"][0], {"x": weights(1, 8, 4, 4, 4)}
    meant, run = Session(qdq, 1, exact=True).run(feed)[0], qnn_build.open_model(qdq)(feed)["y"]
    assert np.sum((run - meant) ** 2) > np.sum(meant**2) / 10


def test_the_table_of_the_htp() -> None:
    """The HTP takes every listed operator; plans of 16 bits leave out those that it has in 8 bits only."""
    table = forms_by_operator("qnn")
    few = {op for op in OPERATORS if any(not (form.rank or form.attributes) for form in table.get(op, ()))}
    assert few == EIGHT_BITS == {"LRN", "PRelu"} and FEW_AXES.isdisjoint(few)
    proto = build("g (float[1,8,8,8] x) => (float[1,8,8,8] y) { a = Relu (x) [it] y = LRN <size = 3> (a) }")
    for recipe, names in (("qnn-int8", []), ("qnn-a16w8", ["it"])):
        assert [one.name for one in planned(proto, recipe).skipped if one.kind == "node"] == names


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("sizes", ["6,8", "2,6,8", "2,3,4,8"])
def test_a_bias_is_added_in_its_product(sizes: str, recipe: str) -> None:
    """ONNX Runtime makes one Gemm of a MatMul and an Add without a pair between, which the HTP takes."""
    sums = "[m] a = MatMul (x, w) b = Add (c, a) r = Relu (b) y = Abs (r)"
    text = f"g (float[{sizes}] x) => (float[] y) {{ {sums} }}"
    proto = build(text, {"w": weights(8, 5), "c": weights(5, seed=1)})
    plan = planned(proto, recipe)
    axes = {one.tensor: one.spec.granularity.axis for one in plan.placements}
    assert axes == {"x": None, "w": 1, "r": None, "y": None}
    assert {row.op_type: row.quantized for row in plan.coverage()} == {"MatMul": 1, "Abs": 1}
    feeds = [{"x": weights(*map(int, sizes.split(",")), seed=seed)} for seed in range(6)]
    made = plain_quantize(proto, feeds, recipe=recipe).qdq
    run = {node.op_type for node in optimize_graph(made).graph.node}
    assert run.isdisjoint({"Add", "MatMul"})
    has_htp = find_spec("onnxruntime_qnn") is not None
    result = onnxfq.check(made, "qnn", build=BuildOptions() if has_htp else None)
    assert not result.findings, result.table()
    found = onnxfq.check(without_pair(made, 1), "qnn").findings
    assert [one.node for one in found if one.rule == "node-unit"][0] == "m"


SUMS = {
    "an axis more": ("a = MatMul (x, w) y = Add (a, c)", (1, 1, 5)),
    "a number": ("a = MatMul (x, w) y = Add (a, c)", (1,)),
    "another reader": ("a = MatMul (x, w) b = Add (a, c) y = Mul (a, b)", (5,)),
    "a product of data": ("t = Transpose <perm = [0,2,1]> (x) a = MatMul (x, t) y = Add (a, d)", (6,)),
    "an output": ("y = MatMul (x, w) z = Add (y, c)", (5,)),
    "no matrix": ("a = MatMul (x, v) y = Add (a, c)", (5,)),
}


@pytest.mark.parametrize("name", SUMS)
def test_sums_that_are_no_bias(name: str) -> None:
    """ONNX Runtime makes no Gemm of these, and the product has a pair behind it."""
    body, shape = SUMS[name]
    result, more = ("y", ", float[] z") if name == "an output" else ("a", "")
    values = {"w": weights(8, 5), "v": weights(2, 8, 5), "c": weights(*shape), "d": weights(*shape)}
    proto = build_used(f"g (float[2,6,8] x) => (float[] y{more}) {{ {body} }}", values)
    assert result in {one.tensor for one in planned(proto, "qnn-int8").placements}
    assert "Gemm" not in {node.op_type for node in optimize_graph(proto).graph.node}


def test_a_bias_between_two_formats() -> None:
    """A Gemm has one format: a product with a result of 8 bits and data of 16 keeps its pair."""
    proto = build(
        "g (float[2,6,8] x, float[2,6,6] z) => (float[] y) "
        "{ a = MatMul (x, w) b = Add (a, c) p = Softmax (z) y = MatMul (p, b) }",
        {"w": weights(8, 5), "c": weights(5, seed=1)},
    )
    bits = {one.tensor: one.spec.qtype.bits for one in planned(proto, "qnn-a16w8").activations}
    assert bits == {"x": 16, "a": 16, "b": 8, "z": 16, "p": 16, "y": 16}


def test_the_htp_has_few_axes() -> None:
    """A Tanh of five axes stays in float, and `check` names one with pairs."""
    pair = "{0}q = QuantizeLinear ({1}, s, z) {0} = DequantizeLinear ({0}q, s, z)"
    for axes, found in (("1,2,4,4", False), ("1,2,4,4,4", True)):
        head = f"g (float[{axes}] x) => (float[{axes}] y)"
        proto = build(f"{head} {{ a = Relu (x) [it] b = Tanh (a) y = Relu (b) }}")
        left = [one for one in planned(proto, "qnn-int8").skipped if one.kind == "node"]
        assert [one.name for one in left if "axes" in one.why] == ["it"] * found
        text = f"{head} {{ {pair.format('a', 'x')} [it] b = Tanh (a) {pair.format('y', 'b')} }}"
        checked = onnxfq.check(build(text, {"s": np.float32(0.1), "z": np.uint8(128)}), "qnn")
        assert any("up to 4 axes" in one.message for one in checked.findings) is found


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("name", NETWORKS)
def test_the_htp_takes_all(name: str, recipe: str) -> None:
    """The HTP takes every node of the written networks."""
    pytest.importorskip("onnxruntime_qnn", reason="onnxruntime-qnn is not installed")
    result = onnxfq.check(written(NETWORKS[name](), recipe), "qnn", build=BuildOptions())
    assert result.passed, result.table()


def test_commands(
    digits_model: Path, digit_images: np.ndarray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Quantize and check on the command line; every operator of the network is a whole node unit."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "onnxruntime_qnn", None)
    np.savez("data.npz", image=digit_images[8000:8032])
    words = ["quantize", str(digits_model), "--data", "data.npz", "-o", "m.onnx", "--recipe", "qnn-int8"]
    assert main([*words, "--quiet"]) == 0
    assert main(["check", "m.onnx", "--target", "qnn", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert [one["rule"] for one in result["findings"]] == ["open-size"]
    assert {row["op_type"] for row in result["coverage"]} >= {"Add", "Conv", "Gemm"}
    stored = {tensor.data_type for tensor in onnx.load("m.onnx").graph.initializer}
    assert {TensorProto.INT8, TensorProto.UINT8, TensorProto.INT32} <= stored
    assert main(["check", "m.onnx", "--target", "qnn", "--build"]) == 1
    assert "package onnxruntime-qnn is not installed" in capsys.readouterr().err
