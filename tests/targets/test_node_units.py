"""Node units of ONNX Runtime: the integer kernels that a plain session makes of a file, and their numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from builders import build, build_used, plain_quantize, planned, weights
from integer_kernels import simulate

import onnxfq
from onnxfq.graph.io.load import load
from onnxfq.targets.target import BuildOptions, prepare_model

IMAGE = "g (float[N,4,9,9] x) => (float[] y)"
TAIL = "[last] y = Conv (t, k)"
CONSTANTS = {
    "w": weights(4, 4, 3, 3),
    "v": weights(4, 4, 3, 3, seed=1),
    "d": weights(4, 1, 3, 3, seed=2),
    "b": weights(4, seed=3),
    "k": weights(3, 4, 1, 1, seed=4),
    "k8": weights(3, 8, 1, 1, seed=5),
    "m": weights(4, 5, seed=6),
    "n": weights(5, seed=7),
    "zero": np.float32(0),
    "six": np.float32(6),
    "offset": weights(1, 4, 1, 1, seed=8),
    "gain": np.abs(weights(4, seed=9)) + 0.5,
    "var": np.abs(weights(4, seed=10)) + 0.5,
}
PADS = "<pads = [1,1,1,1]>"
UNITS = {
    "relu": (f"[c0] a = Conv {PADS} (x, w, b) t = Relu (a) {TAIL}", {"QLinearConv": 2}),
    "relu6": (f"[c0] a = Conv {PADS} (x, w) t = Clip (a, zero, six) {TAIL}", {"QLinearConv": 2}),
    "output": ("[c0] y = Conv (x, w, b)", {"QLinearConv": 1}),
    "output and reader": (f"[c0] t = Conv {PADS} (x, w, b) {TAIL}", {"QLinearConv": 2}),
    "depthwise": (f"[c0] t = Conv <pads = [1,1,1,1], group = 4> (x, d, b) {TAIL}", {"QLinearConv": 2}),
    "residual": (
        f"""[c0] h = Conv {PADS} (x, w, b) r = Relu (h) [c1] c = Conv {PADS} (r, v)
        s = Add (c, r) t = Relu (s) {TAIL}""",
        {"QLinearConv": 3, "QLinearAdd": 1},
    ),
    "constant operand": (
        f"[c0] h = Conv {PADS} (x, w) r = Relu (h) t = Add (r, offset) {TAIL}",
        {"QLinearConv": 2, "QLinearAdd": 1},
    ),
    "bias behind": (f"[c0] h = Conv {PADS} (x, w) t = Add (h, offset) {TAIL}", {"QLinearConv": 2}),
    "silu": (
        f"[c0] h = Conv {PADS} (x, w, b) g = Sigmoid (h) t = Mul (h, g) {TAIL}",
        {"QLinearConv": 2, "QLinearSigmoid": 1, "QLinearMul": 1},
    ),
    "leaky": (f"[c0] h = Conv {PADS} (x, w) t = LeakyRelu <alpha = 0.1> (h) {TAIL}", {"QLinearConv": 2}),
    "concat": (
        f"""[c0] h = Conv {PADS} (x, w) [c1] g = Conv {PADS} (x, v)
        t = Concat <axis = 1> (h, g) [last] y = Conv (t, k8)""",
        {"QLinearConv": 3, "QLinearConcat": 1},
    ),
    "pools": (
        f"""[c0] h = Conv {PADS} (x, w) r = Relu (h) p = MaxPool <kernel_shape = [2,2], strides = [2,2]> (r)
        [c1] c = Conv {PADS} (p, v) t = AveragePool <kernel_shape = [2,2], strides = [2,2]> (c) {TAIL}""",
        {"QLinearConv": 3, "QLinearAveragePool": 1},
    ),
    "classifier": (
        f"""[c0] h = Conv {PADS} (x, w) r = Relu (h) p = GlobalAveragePool (r)
        f = Flatten (p) y = Gemm (f, m, n)""",
        {"QLinearConv": 1, "QLinearGlobalAveragePool": 1, "QGemm": 1},
    ),
    "normalization": (
        f"[c0] c = Conv {PADS} (x, w, b) h = BatchNormalization (c, gain, b, b, var) t = Relu (h) {TAIL}",
        {"QLinearConv": 2},
    ),
}
FLOAT = {"Conv", "FusedConv", "Add", "Mul", "Sigmoid", "LeakyRelu", "Concat", "AveragePool", "Gemm", "MatMul"}
FLOAT |= {"BatchNormalization", "GlobalAveragePool", "Relu", "Clip"}


def network(text: str) -> onnx.ModelProto:
    """Return the graph of a case."""
    proto = build(f"{IMAGE} {{ {text} }}", CONSTANTS)
    return onnx.shape_inference.infer_shapes(proto)


def quantized(proto: onnx.ModelProto, path: Path, seed: int = 0) -> onnx.ModelProto:
    """Write `proto` quantized for ONNX Runtime, without remedies, and return it."""
    feeds = [{"x": weights(2, 4, 9, 9, seed=seed + number)} for number in range(3)]
    plain_quantize(proto, feeds, path, recipe="onnxruntime-int8")
    return onnx.load(path)


def session(path: Path, optimized: Path | None = None) -> onnxruntime.InferenceSession:
    """Open a file as its users do, or without optimisations."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    if optimized is None:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    else:
        options.optimized_model_filepath = str(optimized)
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def kernels_of(path: Path) -> Counter[str]:
    """Return the operators of the graph that a plain session makes of a file."""
    session(path, path.with_name("optimized.onnx"))
    return Counter(node.op_type for node in onnx.load(path.with_name("optimized.onnx")).graph.node)


def both(
    given: onnx.ModelProto, made: onnx.ModelProto, feed: dict[str, np.ndarray]
) -> Iterator[list[np.ndarray]]:
    """Yield the outputs of two models in plain sessions."""
    for one in (given, made):
        yield onnxruntime.InferenceSession(one.SerializeToString()).run(None, feed)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.sample) if name == "relu" else name for name in UNITS]
)
def test_plain_session_runs_integer_kernels(name: str, tmp_path: Path) -> None:
    """Each unit becomes one kernel, and nothing between the first pair and the last runs in float."""
    text, kernels = UNITS[name]
    quantized(network(text), tmp_path / "q.onnx")
    counts = kernels_of(tmp_path / "q.onnx")
    assert {op: counts[op] for op in kernels} == kernels
    assert FLOAT.isdisjoint(counts)


@pytest.mark.grid
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", UNITS)
@pytest.mark.wide_sums
def test_numbers_of_the_kernels(name: str, seed: int, tmp_path: Path) -> None:
    """A plain session gives the numbers of exact integer arithmetic, but for one step where it is at a tie.

    A step more in a tensor between two units moves later ones by a fraction of a step, so ends may differ by
    two; few elements may.
    """
    path, rng = tmp_path / "q.onnx", np.random.default_rng(seed)
    proto = network(UNITS[name][0])
    for tensor in proto.graph.initializer:
        if len(tensor.dims) > 1:
            values = rng.standard_normal(tuple(tensor.dims)).astype(np.float32)
            tensor.CopyFrom(onnx.numpy_helper.from_array(values, tensor.name))
    written = quantized(proto, path, seed)
    feed = {"x": weights(2, 4, 9, 9, seed=seed + 50)}
    (found,) = session(path, tmp_path / "optimized.onnx").run(None, feed)
    expected = simulate(written, feed)
    wanted = expected["y"]
    makers = {output: node for node in written.graph.node for output in node.output}
    step = _last_step(makers["y"], expected, written)
    difference = np.abs(found - wanted) / step
    assert difference.max() <= 2.01 and np.mean(difference > 0.01) <= 0.03


def _last_step(node: onnx.NodeProto, values: dict[str, np.ndarray], written: onnx.ModelProto) -> float:
    """Return the step of the output; of a product that ends in float the largest of a channel's products."""
    if node.op_type == "DequantizeLinear":
        return float(np.max(values[node.input[1]]))
    assert node.op_type == "Gemm"
    makers = {output: maker for maker in written.graph.node for output in maker.output}
    scales = [values[makers[name].input[1]] for name in node.input[:2]]
    return float(np.max(scales[0]) * np.max(scales[1]) * 127)


@pytest.mark.wide_sums
def test_biases_fit_their_integers(tmp_path: Path) -> None:
    """A bias beside tiny weights neither saturates nor loses its digits; nor does one beside zeros."""
    weight = weights(16, 4, 3, 3) * np.float32(1e-9)
    weight[3], weight[5] = 0, weight[5] * np.float32(1e-31)
    proto = build(f"{IMAGE} {{ [c0] y = Conv (x, w, b) }}", {"w": weight, "b": weights(16) * 5})
    feed = {"x": weights(8, 4, 9, 9) * np.float32(1e8)}
    path = tmp_path / "q.onnx"
    plain_quantize(proto, [feed], path, recipe="onnxruntime-int8")
    onnx.save(proto, tmp_path / "float.onnx")
    wanted, *found = (
        session(file, optimized).run(None, feed)[0]
        for file, optimized in (
            (tmp_path / "float.onnx", None),
            (path, None),
            (path, tmp_path / "optimized.onnx"),
        )
    )
    for made in found:
        noise = ((made - wanted) ** 2).mean((0, 2, 3))
        assert (10 * np.log10((wanted**2).mean((0, 2, 3)) / noise) > 20).all()


@pytest.mark.parametrize("recipe", ["onnxruntime-int8", "openvino-int8", "qnn-int8", "tensorrt-int8"])
@pytest.mark.parametrize("linear", [False, True])
def test_sums_with_large_biases_fit_their_integers(linear: bool, recipe: str, tmp_path: Path) -> None:
    """ONNX Runtime's plain session keeps sums with a bias of 2^32 steps, planned in integers or in float."""
    text = (
        "m = MatMul (x, w) t = Add (m, b) y = MatMul (t, v)"
        if linear
        else "t = Conv (x, w, b) y = Conv (t, v)"
    )
    shape = (9, 9) if linear else (9, 4, 3, 3)
    values = {"w": weights(*shape) * np.float32(4e-7), "v": weights(*shape[:1], 9, *shape[2:], seed=1)}
    proto = build(f"{IMAGE.replace('N', '8')} {{ {text} }}", values | {"b": weights(9, seed=2)})
    feed, path = {"x": weights(8, 4, 9, 9)}, tmp_path / "q.onnx"
    onnx.save(proto, tmp_path / "float.onnx")
    made = plain_quantize(proto, [feed], path, recipe=recipe)
    assert made.proof is None or not made.proof.kept_float
    (wanted,) = session(tmp_path / "float.onnx").run(None, feed)
    (found,) = session(path, tmp_path / "optimized.onnx").run(None, feed)
    assert 10 * np.log10((wanted**2).mean() / ((found - wanted) ** 2).mean()) > 30


def test_pairs_only_between_units() -> None:
    """A sum of a network's input, and of products of matrices, stays in float: pairs would cost more."""
    constants = {"w": CONSTANTS["w"], "p": weights(8, 8), "q": weights(8, 8, seed=1)}
    image = build(f"{IMAGE} {{ [sum] s = Add (x, x) [c0] y = Conv (s, w) }}", constants)
    tokens = build(
        """g (float[N,5,8] x) => (float[] y) {
        [m0] a = MatMul (x, p) [sum] s = Add (a, x) [m1] y = MatMul (s, q) }""",
        constants,
    )
    for proto in (image, tokens):
        plan = planned(proto, "onnxruntime-int8")
        assert not any(use.node == "sum" for placement in plan.placements for use in placement.uses)


@pytest.mark.parametrize("qtype", ["int16", "float8e4m3fn"])
def test_formats_without_integer_kernels_have_no_units(qtype: str) -> None:
    """Outputs have pairs only where the runtime fuses them."""
    recipe = onnxfq.load_recipe("onnxruntime-int8").override(activations={"qtype": qtype, "symmetric": True})
    plan = planned(network(UNITS["residual"][0]), recipe)
    assert not any("output of" in placement.why for placement in plan.placements)


def test_an_override_keeps_a_unit_in_float() -> None:
    """A node between units that an override keeps in float has no pairs of its own."""
    override = onnxfq.Override(op_types=("Add",), keep_float=True)
    recipe = onnxfq.load_recipe("onnxruntime-int8").override(overrides=(override,))
    plan = planned(network(UNITS["residual"][0]), recipe)
    assert "Add" not in {coverage.op_type for coverage in plan.coverage() if coverage.quantized}


def test_normalization_is_folded_exactly() -> None:
    """The folded model computes what the given one does; every kind of convolution, and what must stay."""
    text = """g (float[N,4,9,9] x) => (float[] y, float[] z, float[] i) {
        [c0] a = Conv <group = 2> (x, g2) [n0] h = BatchNormalization (a, gain, b, b, var)
        [up] u = ConvTranspose <strides = [2,2], group = 2> (h, t)
        [n1] i = BatchNormalization (u, gain, b, b, var)
        [c1] c = Conv (x, w) [n2] y = BatchNormalization (c, gain, b, b, var) z = Add (c, y) }"""
    proto = build(text, CONSTANTS | {"g2": weights(4, 2, 3, 3), "t": weights(4, 2, 2, 2)})
    folded = prepare_model(load(proto), "onnxruntime")
    assert [node.name for node in folded.proto.graph.node if node.op_type == "BatchNormalization"] == ["n2"]
    assert any("2 BatchNormalization folded" in note for note in folded.notes)
    feed = {"x": weights(2, 4, 9, 9, seed=11)}
    for before, after in zip(*both(proto, folded.proto, feed), strict=True):
        np.testing.assert_allclose(after, before, rtol=1e-5, atol=1e-5)  # float32 sums in another order


@pytest.mark.parametrize(
    ("behind", "left"),
    [
        ("Add (c, offset)", 0),
        ("Sub (c, offset)", 0),
        ("Mul (offset, c)", 0),
        ("Div (c, offset)", 0),
        ("Mul (c, six)", 0),
        ("Sub (offset, c)", 1),
        ("Div (offset, c)", 1),
        ("Add (c, columns)", 1),
        ("Add (c, more)", 1),
        ("Div (c, zero)", 1),
        ("Add (c, c)", 1),
    ],
)
@pytest.mark.parametrize("conv", ["Conv (x, w)", "Conv (x, w, b)", "ConvTranspose <group = 2> (x, g)"])
def test_constants_of_channels_are_folded_exactly(behind: str, left: int, conv: str) -> None:
    """A convolution takes up sums and products with a constant of its channels, and no others."""
    constants = {**CONSTANTS, "columns": weights(9 if "T" in conv else 7), "more": weights(1, 1, 4, 1, 1)}
    constants |= {"g": weights(4, 2, 1, 1)}
    proto = build(f"g (float[N,4,9,9] x) => (float[] y) {{ [c0] c = {conv} [n0] y = {behind} }}", constants)
    made = prepare_model(load(proto), "onnxruntime").proto
    assert len(made.graph.node) == 1 + left
    feed = {"x": weights(2, 4, 9, 9, seed=11)}
    want, got = both(proto, made, feed)
    np.testing.assert_allclose(got[0], want[0], rtol=2e-5, atol=2e-5)  # float32 sums in another order


def test_a_sum_is_not_rounded_before_its_bias() -> None:
    """A large constant behind a convolution costs no bits of what is in front of it."""
    text = f"{IMAGE} {{ [c0] h = Conv {PADS} (x, w) s = Add (h, offset) t = Relu (s) {TAIL} }}"
    samples = {"x": weights(32, 4, 9, 9, seed=12)}
    found = []
    for shift in (0, 200):
        proto = build(text, CONSTANTS | {"offset": CONSTANTS["offset"] - shift, "b": weights(4)})
        proto.graph.node[0].input.append("lift")
        lift = onnx.numpy_helper.from_array(np.full(4, shift, np.float32), "lift")
        proto.graph.initializer.append(lift)
        result = plain_quantize(proto, samples, recipe="onnxruntime-int8")
        found.append(result.evaluation.lowest_db)
    assert found[1] == pytest.approx(found[0], abs=0.5)  # float32 sums near 200 differ


def test_a_bias_keeps_the_kernel_of_its_product(tmp_path: Path) -> None:
    """Without the second axis of the bias ONNX Runtime makes a Gemm of it, which loses the kernel.

    A failure of the second half means that `product_biases` can go.
    """
    text = """g (float[1,6,64] x) => (float[] y) {
        [m0] a = MatMul (x, p) s = Add (a, n) r = Relu (s) [m1] t = MatMul (r, q) y = Add (t, n) }"""
    proto = build(text, {"p": weights(64, 64), "q": weights(64, 64, seed=1), "n": weights(64, seed=2)})
    proto = onnx.shape_inference.infer_shapes(proto)
    path = tmp_path / "q.onnx"
    feeds = [{"x": weights(1, 6, 64, seed=number)} for number in range(2)]
    plain_quantize(proto, feeds, path, recipe="onnxruntime-int8")
    plain = onnx.load(path)
    for tensor in plain.graph.initializer:
        if tensor.name.endswith("/row"):
            tensor.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(tensor)[0], tensor.name))
    onnx.save(plain, tmp_path / "plain.onnx")
    floats = {}
    for name in ("q", "plain"):
        counts = kernels_of(tmp_path / f"{name}.onnx")
        floats[name] = counts["Gemm"] + counts["MatMul"]
    assert floats["q"] == 0 < floats["plain"]


READERS = {
    "ReduceSum": "t = ReduceSum <keepdims = 0> (a, last) [m1] y = MatMul (a, q)",
    "Exp": "t = Exp (a) [m1] y = MatMul (a, q)",
    "Add": "[m1] t = MatMul (a, q) y = Add (a, t)",
    "output": "t = Identity (a) [m1] y = MatMul (a, q)",
    "itself": "b = Transpose <perm = [0,2,1]> (a) [m1] c = MatMul (a, b) t = Exp (a) y = Exp (c)",
}


@pytest.mark.parametrize("rows", ["1", "N"])
@pytest.mark.parametrize("name", READERS)
def test_a_result_that_a_pair_does_not_read_alone(name: str, rows: str, tmp_path: Path) -> None:
    """Both products are in integers; without the Max in front of the pair the first is in float."""
    text = f"g (float[{rows},6,8] x) => (float[] y, float[] t) {{ [m0] a = MatMul (x, p) {READERS[name]} }}"
    values = {"p": weights(8, 8), "q": weights(8, 8, seed=1), "last": np.int64([-1])}
    proto = onnx.shape_inference.infer_shapes(build_used(text, values))
    path, feeds = tmp_path / "q.onnx", [{"x": weights(1, 6, 8, seed=number)} for number in range(4)]
    made = plain_quantize(proto, feeds, path, recipe="onnxruntime-int8")
    assert made.proof is not None and not made.proof.difference
    assert [(row.kept, row.promised) for row in made.proof.coverage] == [(2, 2)]
    plain = onnx.load(path)
    for node in plain.graph.node:
        if node.op_type == "QuantizeLinear":
            node.input[0] = node.input[0].removesuffix("/copy")
    result = onnxfq.check(plain, "onnxruntime", build=BuildOptions())
    assert [row.kept for row in result.coverage] == [1] and "in float; ONNX Runtime" in result.table()


@pytest.mark.parametrize("shape", [(5,), (1, 5)])
def test_products_of_two_axes_are_one_kernel_with_their_bias(shape: tuple[int, ...], tmp_path: Path) -> None:
    """MatMul and Add become QGemm; the sum is the same, and a computed bias stays as it is."""
    values = {"m": CONSTANTS["m"], "n": weights(*shape, seed=7)}
    computed = "[m0] a = MatMul (x, m) y = Add (a, n) [m1] c = MatMul (x, m) z = Add (c, a)"
    proto, only = (
        onnx.shape_inference.infer_shapes(build(f"g (float[N,4] x) => ({results}) {{ {text} }}", values))
        for results, text in (
            ("float[] y, float[] z", computed),
            ("float[] y", computed.partition(" [m1]")[0]),
        )
    )
    folded = prepare_model(load(proto), "onnxruntime").proto
    assert [node.op_type for node in folded.graph.node] == ["MatMul", "Add", "MatMul", "Add"]
    path, feed = tmp_path / "q.onnx", {"x": weights(6, 4)}
    plain_quantize(only, [feed], path, recipe="onnxruntime-int8")
    (made,), counts = session(path, tmp_path / "plain.onnx").run(None, feed), kernels_of(path)
    assert counts["QGemm"] == 1 and not {"Gemm", "MatMul", "Add"} & set(counts)
    wanted = feed["x"] @ CONSTANTS["m"] + weights(*shape, seed=7)
    assert np.abs(made - wanted).max() < 0.05 * np.abs(wanted).max()


def test_constants_in_files(tmp_path: Path) -> None:
    """Operands and parameters that a model keeps in a file are placed and folded without being in memory."""
    text = f"""[c0] h = Conv {PADS} (x, w) g = BatchNormalization (h, gain, b, b, var)
        t = Add (g, offset) {TAIL}"""
    path, made = tmp_path / "m.onnx", tmp_path / "q.onnx"
    onnx.save(network(text), path, save_as_external_data=True, size_threshold=0)
    plain_quantize(path, [{"x": weights(2, 4, 9, 9)}], made, recipe="onnxruntime-int8")
    assert FLOAT.isdisjoint(kernels_of(made))


def test_a_constant_that_makes_channels_stays() -> None:
    """A sum of one channel and a constant of eight is no sum of the convolution's bias."""
    text = "g (float[2,4,9,9] x) => (float[2,8,9,9] y) { c = Conv (x, w) y = Add (c, b) }"
    proto = build(text, {"w": weights(1, 4, 1, 1), "b": weights(8, 1, 1)})
    prepared = prepare_model(load(proto), "onnxruntime")
    assert [node.op_type for node in prepared.proto.graph.node] == ["Conv", "Add"]


def test_a_tiny_weight_of_two_convolutions_fits_both_biases(tmp_path: Path) -> None:
    """Its scale is the larger of those that the two biases need, whichever convolution comes first."""
    weight = weights(4, 4, 3, 3) * np.float32(1e-9)
    for first, second in ((5.0, 500.0), (500.0, 5.0)):
        proto = build(
            f"{IMAGE} {{ [c0] g = Conv (x, w, b0) [c1] h = Conv (x, w, b1) y = Concat <axis = 1> (g, h) }}",
            {"w": weight, "b0": np.full(4, first, np.float32), "b1": np.full(4, second, np.float32)},
        )
        path, feed = tmp_path / "q.onnx", {"x": weights(2, 4, 9, 9)}
        plain_quantize(proto, [feed], path, recipe="onnxruntime-int8")
        found = session(path).run(None, feed)[0].mean((0, 2, 3))
        np.testing.assert_allclose(found, [first] * 4 + [second] * 4, rtol=0.01)  # 8 bits
