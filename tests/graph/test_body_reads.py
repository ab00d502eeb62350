"""Bodies that read quantized data behind moves: ONNX Runtime ends the process, and loads what is written."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from builders import Arrays, ends_process, run_as_written
from onnx import parser

import onnxfq
from onnxfq.graph.body_reads import PROPAGATED, find_moved_reads, pair_moved_reads
from onnxfq.runtime.plain_session import open_plain_session
from onnxfq.runtime.session import Session

MOVES = {
    "MaxPool": ("MaxPool <kernel_shape = [1]> (d)", (1, 2, 4)),
    "Reshape": ("Reshape (d, all)", (1, 4)),
    "Slice": ("Slice (d, zero, one)", (4, 4)),
    "Squeeze": ("Squeeze (d, zero)", (1, 4)),
    "Transpose": ("Transpose (d)", (2, 4)),
    "Unsqueeze": ("Unsqueeze (d, zero)", (4,)),
}
IF = """If (c) <then_branch = g1 () => (float[M] a) { a = Relu (t) },
    else_branch = g2 () => (float[L] b) { b = If (c) <then_branch = g3 () => (float[K] e) { e = Neg (t) },
        else_branch = g4 () => (float[J] f) { f = Abs (t) }> }>"""
LOOP = """Loop (three, c, start) <body = g1 (int64 i, bool k, float[M] p) => (bool k2, float[M] p2) {
    k2 = Identity (k) p2 = Add (p, t) }>"""


def network(move: str, shape: tuple[int, ...], owner: str = IF, pair: str = "s, z") -> onnx.ModelProto:
    """Return x, a pair, a move, and a body that reads the result."""
    axis = "<axis = 0>" if pair != "s, z" else ""
    sizes = ",".join(map(str, shape))
    model = parser.parse_model(
        f"""<ir_version: 10, opset_import: ["" : 21]> g (float[{sizes}] x, bool c) => (float[N] y)
        <float s = {{0.1}}, uint8 z = {{3}}, float[4] many = {{0.1, 0.2, 0.3, 0.4}},
         uint8[4] zeros = {{1, 2, 3, 4}}, float[4] start = {{0, 0, 0, 0}},
         int64[1] zero = {{0}}, int64[1] one = {{1}}, int64[1] all = {{-1}}, int64 three = {{3}}>
        {{ q = QuantizeLinear {axis} (x, {pair}) d = DequantizeLinear {axis} (q, {pair})
           t = {move} y = {owner} }}"""
    )
    for graph in (model.graph, *(a.g for n in model.graph.node for a in n.attribute if a.type == a.GRAPH)):
        for output in graph.output:
            output.type.tensor_type.ClearField("shape")
    return model


def feed(shape: tuple[int, ...], chosen: bool = True) -> Arrays:
    """Return values between the steps of the grid, and the branch."""
    return {"x": np.random.default_rng(0).normal(size=shape).astype(np.float32), "c": np.asarray(chosen)}


CASES = {name: (*move, IF) for name, move in MOVES.items()} | {"Loop": (*MOVES["Squeeze"], LOOP)}


@pytest.mark.parametrize("name", CASES)
def test_the_repaired_file_is_loaded(name: str, tmp_path: Path) -> None:
    """It gives the values of the file as written. A failure of the first line means that the rule can go."""
    move, shape, owner = CASES[name]
    model = network(move, shape, owner)
    assert ends_process(model, tmp_path / "model.onnx")
    repaired = pair_moved_reads(model)
    assert repaired is not model and not find_moved_reads(repaired)
    session = onnxruntime.InferenceSession(repaired.SerializeToString(), providers=["CPUExecutionProvider"])
    for chosen in (True, False):
        given = feed(shape, chosen or owner is LOOP)
        np.testing.assert_array_equal(session.run(None, given)[0], run_as_written(model, given)[0])


def test_the_table_is_whole() -> None:
    """Each operator of the rule has a case."""
    assert MOVES.keys() == PROPAGATED


def test_other_reads_are_left_alone(tmp_path: Path) -> None:
    """Scales of channels, other operators, and moves that no body reads are loaded as they are."""
    kept = [
        network("Unsqueeze (d, zero)", (4,), pair="many, zeros"),
        network("Flatten (d)", (1, 4)),
        network("Squeeze (d, zero)", (1, 4), "Relu (t)"),
    ]
    for number, model in enumerate(kept):
        assert pair_moved_reads(model) is model
        assert not ends_process(model, tmp_path / f"{number}.onnx")


def test_given_files_end_no_process(caplog: pytest.LogCaptureFixture) -> None:
    """Sessions of onnxfq load such a file without the optimization, and say so."""
    model, given = network("Squeeze (d, zero)", (1, 4)), feed((1, 4))
    expected = run_as_written(model, given)[0]
    np.testing.assert_array_equal(Session(model).run(given)[0], expected)
    np.testing.assert_array_equal(open_plain_session(model)(given)["y"], expected)
    assert "tensor 't' is behind a pair and a Squeeze, and a body reads it" in caplog.text


@pytest.mark.parametrize("recipe", ["qnn-int8", "onnxruntime-int8", "openvino-int8", "tensorrt-int8"])
def test_no_recipe_writes_one(recipe: str, tmp_path: Path) -> None:
    """A branch that reads a squeezed result of a convolution has a file that default sessions load."""
    model = parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 21]> g (float[1,2,4,4] x, bool c) => (float[K] y)
        { u = Relu (x) v = Conv (u, w) t = Squeeze (v, zero)
          y = If (c) <then_branch = g1 () => (float[2,4,4] a) { a = Relu (t) },
                      else_branch = g2 () => (float[2,4,4] b) { b = Neg (t) }> }"""
    )
    weights = np.random.default_rng(0).normal(size=(2, 2, 1, 1)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros(1, np.int64), "zero"))
    model.graph.output[0].type.tensor_type.ClearField("shape")
    result = onnxfq.quantize(model, [feed((1, 2, 4, 4))] * 4, tmp_path / "out.onnx", recipe=recipe)
    assert result.plan.placements
    assert not ends_process(onnx.load(tmp_path / "out.onnx"), tmp_path / "again.onnx")
