"""Products in float between pairs: ONNX Runtime rounds their weights, but not in the form that is written."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from builders import build, plain_quantize, weights

import onnxfq
from onnxfq.numerics.metrics import ratio_db
from onnxfq.passes.qdq_form import PLAIN
from onnxfq.remedies import runtime_cure
from onnxfq.targets.onnxruntime import float_products, policy
from onnxfq.targets.target import BuildOptions

MIDDLE: dict[str, tuple[str, tuple[int, ...]]] = {
    "Conv": ("[mid] c = Conv <pads = [1,1,1,1]> (a, w, b1)", (8, 8, 3, 3)),
    "Conv without bias": ("[mid] c = Conv <pads = [1,1,1,1]> (a, w)", (8, 8, 3, 3)),
    "depthwise": ("[mid] c = Conv <pads = [1,1,1,1], group = 8> (a, w, b)", (8, 1, 3, 3)),
    "ConvTranspose": ("[mid] c = ConvTranspose <pads = [1,1,1,1]> (a, w, b)", (8, 8, 3, 3)),
    "behind a Relu": ("[mid] m = Conv <pads = [1,1,1,1]> (a, w, b) [r] c = Relu (m)", (8, 8, 3, 3)),
    "two readers": (
        "[mid] m = Conv <pads = [1,1,1,1]> (a, w, b) [r] n = Relu (m) [sum] c = Add (n, a)",
        (8, 8, 3, 3),
    ),
}
RECIPES = ("onnxruntime-int8", "qnn-int8", "qnn-a16w8")


def images(middle: str, shape: tuple[int, ...]) -> onnx.ModelProto:
    """Return three products; a channel of the middle one has weights that lose all others in int8."""
    wide = weights(*shape, seed=1)
    wide[0] *= 300
    last = weights(8, 8, 3, 3, seed=2)
    last[:, 0] /= 100
    return build(
        f"""g (float[N,8,8,8] x) => (float[N,8,8,8] y) {{
            [first] p = Conv <pads = [1,1,1,1]> (x, w0, b) [r0] a = Relu (p) {middle}
            [last] y = Conv <pads = [1,1,1,1]> (c, w2, b) }}""",
        {"w0": weights(8, 8, 3, 3), "w": wide, "w2": last, "b": 9 * weights(8), "b1": 9 * weights(8, seed=1)},
    )


def feeds(shape: tuple[int, ...] = (1, 8, 8, 8), count: int = 16) -> list[dict[str, np.ndarray]]:
    """Return normal numbers."""
    rng = np.random.default_rng(0)
    return [{"x": rng.normal(size=shape).astype(np.float32)} for _ in range(count)]


def run(proto: onnx.ModelProto, level: str, given: list[dict[str, np.ndarray]]) -> np.ndarray:
    """Return the outputs of all samples at a level of ONNX Runtime's optimisations."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, ["CPUExecutionProvider"])
    return np.concatenate([session.run(None, one)[0] for one in given])


def losses(proto: onnx.ModelProto, made: onnx.ModelProto, given: list[dict[str, np.ndarray]]) -> list[float]:
    """Return the SQNR of `made` as it is written, and in a session with default options."""
    wanted = run(proto, "ORT_DISABLE_ALL", given)
    signal = float(np.square(wanted).sum())
    return [
        ratio_db(signal, float(np.square(run(made, level, given) - wanted).sum()))
        for level in ("ORT_DISABLE_ALL", "ORT_ENABLE_ALL")
    ]


def written(proto: onnx.ModelProto, recipe: str, given: list[dict[str, np.ndarray]]) -> onnx.ModelProto:
    """Return the Q/DQ model with the node `mid` in float."""
    base = onnxfq.load_recipe(recipe)
    asked = base.override(overrides=[{"nodes": ["mid"], "keep_float": True}])
    return plain_quantize(proto, given, recipe=asked).qdq


@pytest.mark.grid
@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("name", MIDDLE)
@pytest.mark.wide_sums
def test_a_layer_in_float_stays_in_float(name: str, recipe: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A session with default options keeps the accuracy; without the form it would lose some."""
    proto, given = images(*MIDDLE[name]), feeds()
    made = written(proto, recipe, given)
    plain_db, default_db = losses(proto, made, given)
    assert default_db > plain_db - 0.5
    assert not any(one.rule == "rounded-product" for one in onnxfq.check(made, recipe.split("-")[0]).findings)
    monkeypatch.setattr(float_products, "find_rounded_products", lambda index: iter(()))
    # Without the form the run in a default session finds the product, and would leave others in float.
    monkeypatch.setattr(runtime_cure, "find_cure", lambda *given: ((), ""))
    bare = written(proto, recipe, given)
    assert run(bare, "ORT_DISABLE_ALL", given).tobytes() == run(made, "ORT_DISABLE_ALL", given).tobytes()
    if name != "two readers":
        assert losses(proto, bare, given)[1] < plain_db - 2


@pytest.mark.parametrize("turned", [0, 1])
@pytest.mark.wide_sums
def test_products_of_rows(turned: int) -> None:
    """A Gemm has the channels of its input along the second axis, and its weight in either order."""
    shape = (16, 32) if turned else (32, 16)
    proto = build(
        f"""g (float[N,24] x) => (float[N,8] y) {{
            [first] p = Gemm (x, w0) [r0] a = Relu (p) [mid] m = Gemm <transB = {turned}> (a, w, b)
            [r1] c = Relu (m) [last] y = Gemm (c, w2) }}""",
        {"w0": weights(24, 32), "w": weights(*shape, seed=1), "b": weights(16), "w2": weights(16, 8, seed=2)},
    )
    given = feeds((4, 24))
    made = written(proto, "qnn-int8", given)
    (product,) = [node for node in made.graph.node if node.name == "mid"]
    (reader,) = [node for node in made.graph.node if product.input[0] in node.output]
    (scale,) = [one for one in made.graph.initializer if one.name == reader.input[1]]
    assert tuple(scale.dims) == (32,) and reader.attribute[0].i == 1
    plain_db, default_db = losses(proto, made, given)
    assert default_db > plain_db - 0.5


@pytest.mark.parametrize("side, is_told", [(8, False), (None, True)])
def test_one_channel(side: int | None, is_told: bool, caplog: pytest.LogCaptureFixture) -> None:
    """A scale for each row does the same; without an axis of known size a warning names the product."""
    rows = side or "H"
    proto = build(
        f"""g (float[N,1,{rows},{side or "W"}] x) => (float[N,1,{rows},{side or "W"}] y) {{
            [first] a = Conv <pads = [1,1,1,1]> (x, w0) [mid] c = Conv <pads = [1,1,1,1]> (a, w)
            [last] y = Conv <pads = [1,1,1,1]> (c, w2) }}""",
        {"w0": weights(1, 1, 3, 3), "w": weights(1, 1, 3, 3, seed=1), "w2": weights(1, 1, 3, 3, seed=2)},
    )
    made = written(proto, "qnn-int8", feeds((1, 1, 8, 8)))
    told = [record.getMessage() for record in caplog.records if "'mid'" in record.getMessage()]
    assert any("ONNX Runtime rounds the weight" in text for text in told) is is_told
    found = [one.node for one in onnxfq.check(made, "qnn").findings if one.rule == "rounded-product"]
    assert found == (["mid"] if is_told else [])


def test_other_targets_keep_their_form() -> None:
    """Only what ONNX Runtime runs has it: TensorRT and OpenVINO take one scale for activations."""
    for name in ("tensorrt", "openvino", "simulation"):
        assert onnxfq.targets.target_by_name(name).form.finish is not float_products.keep_floats
    assert PLAIN.finish is None


def test_a_turned_weight_of_several_products_runs_in_integers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its values are stored turned; if the second line fails, ONNX Runtime needs that no more."""
    proto = build(
        """g (float[N,6,32] x) => (float[] y) { t = Transpose <perm = [1,0]> (w) a = MatMul (x, t)
        b = Tanh (a) c = MatMul (b, t) y = Tanh (c) }""",
        {"w": weights(32, 32)},
    )
    kept = []
    for store in (policy.store_turned, lambda model, readers: model):
        monkeypatch.setattr(policy, "store_turned", store)
        made = plain_quantize(proto, feeds((1, 6, 32)), recipe="onnxruntime-int8")
        (row,) = onnxfq.check(made.qdq, "onnxruntime", build=BuildOptions()).coverage
        kept.append((row.kept, row.promised))
    assert kept == [(2, 2), (0, 2)]


@pytest.mark.parametrize("rows", [1, 3])
def test_a_sum_of_two_products_runs_in_integers(rows: int) -> None:
    """As of the input and the state of an unrolled recurrence, which ONNX Runtime makes a Gemm of."""
    proto = build(
        f"""g (float[{rows},32] x, float[{rows},32] z) => (float[] y) {{ a = MatMul (x, w) c = MatMul (z, v)
        s = Add (a, c) t = Add (s, b) y = Tanh (t) }}""",
        {"w": weights(32, 32), "v": weights(32, 32, seed=1), "b": weights(32)},
    )
    given = [{**one, "z": -one["x"]} for one in feeds((rows, 32))]
    made = plain_quantize(proto, given, recipe="onnxruntime-int8")
    (row,) = onnxfq.check(made.qdq, "onnxruntime", build=BuildOptions()).coverage
    assert (row.kept, row.promised) == (2, 2)
