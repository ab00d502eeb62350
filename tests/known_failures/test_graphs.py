"""Graphs on which other quantizers stop or write nonsense: names, sharing, and other rules of ONNX."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import Arrays, build, build_used, feed_for, square, weights
from onnx import helper, numpy_helper
from ort_quantizer import MEASURED, by_ort, loads

from onnxfq.quantizing.pipeline import quantize
from onnxfq.stages.options import RunOptions

pytestmark = pytest.mark.filterwarnings("ignore")  # ONNX Runtime's quantizer is not under test

W = {f"w{i}": weights(4, 4, seed=i) for i in range(3)}


@dataclass(frozen=True)
class Case:
    """A graph, and what ONNX Runtime 1.31.1 does: "refused", "does not load", or what its result shows."""

    make: Callable[[], onnx.ModelProto]
    theirs: str | Callable[[onnx.ModelProto], bool]
    quantized: str


def sparse() -> onnx.ModelProto:
    """A weight that is stored as its values that are not 0."""
    proto = build("g (float[N,4] x) => (float[N,4] y) { y = MatMul (x, w) }")
    values = numpy_helper.from_array(np.float32([1, 2, -3]), "w")
    places = numpy_helper.from_array(np.int64([1, 6, 12]))
    proto.graph.sparse_initializer.append(helper.make_sparse_tensor(values, places, [4, 4]))
    return proto


BIASED = """g (float[N,4,3,3] x) => (float[N,4,3,3] y) {
    a = Conv (x, w1, b) b0 = Relu (a) c = Conv (b0, w2, b) y = Conv (c, w3, b) }"""
"""One bias for three Conv, and a tensor that is called as a copy of it would be."""
BRANCHES = """g (float[N,4] x, bool cond) => (float[N,4] y) {
    y = If (cond) <then_branch = a () => (float[N,4] t) { t = MatMul (x, w0) },
                   else_branch = b () => (float[N,4] e) { r = Relu (x) e = MatMul (r, w0) }> }"""
KERNELS = {f"w{i}": weights(4, 4, 1, 1, seed=i) for i in (1, 2, 3)}
GIVEN = "g (float[N,4] x, float[4,4] w0) => (float[N,4] y) { y = MatMul (x, w0) }"
CASES = {
    # https://github.com/microsoft/onnxruntime/issues/24705: a copy of the bias takes the tensor's name.
    "a shared bias": Case(lambda: build(BIASED, KERNELS | {"b": weights(4)}), "does not load", "Conv 3/3"),
    # Measured: the weight that is quantized and the one that is called so are mixed up.
    "a weight called like a quantized one": Case(
        lambda: square("a = MatMul (x, w) y = MatMul (a, w_quantized)", {"w_quantized": W["w1"]}),
        "does not load",
        "MatMul 2/2",
    ),
    # https://github.com/microsoft/onnxruntime/issues/8811, /14142 and /7105: two nodes of one name.
    "nodes of one name": Case(
        lambda: square("[n] a = MatMul (x, w0) [n] y = MatMul (a, w1)", W), "refused", "MatMul 2/2"
    ),
    # https://github.com/microsoft/onnxruntime/issues/21277; measured: rounded once more behind the Transpose.
    "tied through a Transpose": Case(
        lambda: square("a = MatMul (x, w0) t = Transpose <perm = [1,0]> (w0) y = MatMul (a, t)", W),
        lambda proto: any(n.op_type == "QuantizeLinear" and n.input[0] == "t" for n in proto.graph.node),
        "MatMul 2/2",
    ),
    # Measured: AssertionError, "Graph is not a DAG".
    "a sparse weight": Case(sparse, "refused", "MatMul 1/1"),
    # https://github.com/microsoft/onnxruntime/pull/19421, of its dynamic form; measured: nothing quantized.
    "a weight for two branches": Case(
        lambda: build_used(BRANCHES, W),
        lambda proto: not any("Quant" in n.op_type for n in proto.graph.node),
        "MatMul 2/2",
    ),
    # Measured, per axis at opset 9; https://github.com/microsoft/onnxruntime/pull/3853 is of such models.
    "a weight that is an input": Case(
        lambda: build_used(GIVEN, W, opset=9, ir=3), "does not load", "MatMul 1/1"
    ),
}


def feeds_of(proto: onnx.ModelProto) -> list[Arrays]:
    """Return feeds for the inputs that have no value, both branches taken."""
    constants = {tensor.name for tensor in proto.graph.initializer}
    feed = {name: array for name, array in feed_for(proto).items() if name not in constants}
    both = [{"cond": np.asarray(taken)} for taken in (True, False)] if "cond" in feed else [{}]
    return [feed | choice for choice in both]


@pytest.mark.parametrize("name", CASES)
def test_it_is_quantized(name: str, tmp_path: Path) -> None:
    """Everything is quantized, once, the file loads as it is, and is what its fake-quant twin is."""
    case = CASES[name]
    feeds = feeds_of(case.make())
    result = quantize(case.make(), feeds, tmp_path / "q.onnx", options=RunOptions(exact=True))
    assert [str(row) for row in result.plan.coverage()] == [case.quantized]
    written = onnx.load(tmp_path / "q.onnx")
    onnx.checker.check_model(written, full_check=True)
    assert loads(written)
    stored = [t.name for t in written.graph.initializer if t.data_type == onnx.TensorProto.INT8 and t.dims]
    assert len([s for s in stored if s.endswith("/q")]) == len(result.plan.weights)
    twins = {candidate.candidate: candidate.outputs[0].sqnr_db for candidate in result.evaluation.candidates}
    assert twins["Q/DQ"] == twins["simulated"] > 25


@pytest.mark.parametrize("name", CASES)
def test_onnxruntime_fails(name: str, tmp_path: Path) -> None:
    """The same graphs with ONNX Runtime 1.31.1: what the test above is for."""
    case, made = CASES[name], None
    if not MEASURED:
        pytest.skip("measured with ONNX Runtime 1.31.1")
    try:
        made = by_ort(case.make(), feeds_of(case.make()), tmp_path, per_channel=name.endswith("input"))
    except Exception:  # AssertionError, and the classes of ONNX Runtime
        assert case.theirs == "refused"
    if made is not None and callable(case.theirs):
        assert case.theirs(made)
    elif made is not None:
        assert case.theirs == "does not load" and not loads(made)
