"""Models that are quantized already, and models with operators that ONNX Runtime lacks."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from apart import run_apart
from builders import (
    BUILDERS,
    build,
    conv_relu,
    feed_for,
    gemm,
    planned,
    stage,
    two_branch,
    weights,
    whole_recipe,
)
from onnx import numpy_helper

from onnxfq.cli.main import main
from onnxfq.documents.recipe import Existing, Recipe
from onnxfq.errors import ModelError, RuntimeLibraryError
from onnxfq.graph.model import list_nodes
from onnxfq.quantized.existing import load_existing
from onnxfq.quantizing.pipeline import quantize
from onnxfq.runtime import custom_ops as library
from onnxfq.runtime.session import Session
from onnxfq.stages.evaluate import evaluate
from onnxfq.stages.insert import insert_fake_quantize, insert_qdq
from onnxfq.stages.options import RunOptions
from onnxfq.stages.plan import make_plan
from onnxfq.targets.recipes import load_recipe


def asked(existing: Existing, **override: object) -> Recipe:
    """Return tensorrt-int8 that does so with existing quantizers."""
    base = whole_recipe("tensorrt-int8").model_dump()
    return Recipe.model_validate(base | {"existing": existing, "overrides": [override] if override else []})


def in_part(proto: onnx.ModelProto, node: str) -> onnx.ModelProto:
    """Return the model with `node` alone left in float, as another tool may have left it."""
    one = stage(proto, asked("refuse", nodes=[node], keep_float=True))
    return insert_qdq(one.model, one.plan, one.encodings)


@pytest.mark.grid
@pytest.mark.parametrize("insert", [insert_qdq, insert_fake_quantize])
@pytest.mark.parametrize("name", BUILDERS)
def test_requantize_takes_quantizers_out(name: str, insert: object) -> None:
    """Stripped, a quantized model is the float one except for the rounding of weights: the same plan."""
    one = stage(BUILDERS[name]())
    made = insert(one.model, one.plan, one.encodings)
    model = load_existing(made, "requantize")
    assert any("quantizer(s) taken out" in note for note in model.notes)
    onnx.checker.check_model(model.proto, full_check=True)
    left = {node.op_type for node in list_nodes(model.proto.graph)}
    assert not left & {"QuantizeLinear", "DequantizeLinear", "FakeQuantize"}
    plan = make_plan(model, asked("requantize"))
    assert plan.existing == "requantize"
    assert plan.coverage() == one.plan.coverage()
    rounded = {e.tensor: e for e in one.encodings.encodings}
    values = {t.name: numpy_helper.to_array(t) for t in model.proto.graph.initializer}
    for weight in one.plan.weights:
        source = next(t for t in one.model.proto.graph.initializer if t.name == weight.tensor)
        want = rounded[weight.tensor].fake_quantize(numpy_helper.to_array(source))
        assert any(np.array_equal(want, one) for one in values.values() if one.shape == want.shape)


@pytest.mark.sample
def test_what_has_no_float_form_cannot_be_taken_out() -> None:
    """An unknown operator on integers is named, with what to do."""
    proto = build(
        """g (float[N,4] x) => (float[N,4] y) { q = QuantizeLinear (x, s, z)
            [odd] p = com.microsoft.QLinearOdd (q) y = DequantizeLinear (p, s, z) }""",
        {"s": np.float32(0.1), "z": np.int8(0)},
        **{"com.microsoft": 1},
    )
    with pytest.raises(ModelError, match="QLinearOdd 'odd' has no known float form.* --keep-existing"):
        load_existing(proto, "requantize")


def test_keep_existing_quantizes_the_rest() -> None:
    """A quantized tensor keeps its pair to the bit; the float node gets one; both stand in the plan."""
    proto = in_part(two_branch(), "conv2")
    with pytest.raises(ModelError, match="already quantized .* --keep-existing to quantize the rest"):
        planned(proto)
    plan = make_plan(load_existing(proto, "keep"), asked("keep"))
    assert [str(row) for row in plan.coverage() if row.op_type == "Conv"] == ["Conv 1/1"]
    kept = {s.name: s.why for s in plan.skipped if s.kind == "node"}
    assert kept["conv1"].endswith("already, and that is kept")
    options = RunOptions(exact=True)
    result = quantize(proto, [feed_for(two_branch())], recipe=asked("keep"), options=options)
    before = {t.name: numpy_helper.to_array(t) for t in proto.graph.initializer}
    after = {t.name: numpy_helper.to_array(t) for t in result.qdq.graph.initializer}
    for name in ("w1/q", "w1/scale", "h/scale"):
        np.testing.assert_array_equal(after[name], before[name])
    assert "w2/q" in after and "w2" not in after
    scores = {c.candidate: c.outputs[0].sqnr_db for c in result.evaluation.candidates}
    assert scores["Q/DQ"] == scores["simulated"]


def test_what_follows_a_product_of_integer_weights_is_quantized(tmp_path: Path) -> None:
    """MatMulNBits stores its weight in 4 bits and gives floats: its reader is part of the rest."""
    constants = {
        "q": np.full((16, 1, 16), 0x79, np.uint8),
        "s": np.ones(16, np.float32),
        "w": weights(16, 16),
    }
    proto = build(
        """g (float[N,32] x) => (float[N,16] y) {
            h = com.microsoft.MatMulNBits <K = 32, N = 16, bits = 4, block_size = 32> (x, q, s)
            y = MatMul (h, w) }""",
        constants,
        **{"com.microsoft": 1},
    )
    recipe = load_recipe("tensorrt-int8").model_copy(update={"existing": "keep"})
    result = quantize(proto, [feed_for(proto)], tmp_path / "q.onnx", recipe=recipe)
    assert [str(row) for row in result.plan.coverage()] == ["MatMul 1/1"]
    assert {p.tensor for p in result.plan.placements} == {"h", "w"}
    assert [node.op_type for node in result.qdq.graph.node].count("MatMulNBits") == 1
    models = {"fake-quant": result.simulation, "Q/DQ": result.qdq}
    assert all(score.lowest_db > 20 for score in evaluate(proto, models, feed_for(proto)).candidates)


def test_both_options_exclude_each_other(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """One of the two is meant."""
    onnx.save(conv_relu(), tmp_path / "m.onnx")
    line = f"plan {tmp_path}/m.onnx -o {tmp_path}/p.json --keep-existing --requantize"
    assert main(line.split()) == 2
    assert "--keep-existing and --requantize exclude each other" in capfd.readouterr().err


@pytest.mark.parametrize("option", ["--keep-existing", "--requantize"])
def test_the_stages_know_from_the_plan(
    option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The option is given when planning; the later stages read it there and give what `quantize` gives."""
    monkeypatch.chdir(tmp_path)
    onnx.save(in_part(two_branch(), "conv2"), "m.onnx")
    np.savez("d.npz", **feed_for(two_branch()))
    for line in (
        f"plan m.onnx -o p.json {option}",
        "observe m.onnx --plan p.json --data d.npz -o s.npz",
        "calibrate m.onnx --plan p.json --statistics s.npz -o e.json",
        "insert m.onnx --plan p.json --encodings e.json -o a.onnx",
        f"quantize m.onnx --data d.npz -o b.onnx --repair off {option}",
    ):
        assert main(line.split()) == 0, capfd.readouterr().err
    assert Path("a.onnx").read_bytes() == Path("b.onnx").read_bytes()


WITH_ODD = """g (float[N,4] x) => (float[N,4] y) {
    [first] h = MatMul (x, w) [odd] o = mine.Odd (h) [second] y = MatMul (o, w) }"""


@pytest.fixture
def odd(tmp_path: Path) -> Iterator[Path]:
    """A library with operator Odd of domain `mine`; forgotten again afterwards."""
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    root = Path(__file__).parents[1]
    made = tmp_path / "odd.so"
    command = [compiler, "-std=c++17", "-shared", "-fPIC", f"-I{root.parent}/custom_ops/include"]
    subprocess.run([*command, str(root / "libraries/odd.cc"), "-o", str(made)], check=True)
    before = list(library._own_libraries)
    yield made
    library._own_libraries[:] = before


def test_an_operator_that_onnxruntime_has_not(
    odd: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Without its library one line with node, domain and option; with it, both sides are quantized."""
    monkeypatch.chdir(tmp_path)
    onnx.save(build(WITH_ODD, {"w": weights(4, 4)}, mine=1), "m.onnx")
    np.savez("d.npz", x=weights(40, 4))
    assert main("quantize m.onnx --data d.npz -o q.onnx".split()) == 1
    assert capfd.readouterr().err == (
        "onnxfq: error: node 'odd' is Odd of domain 'mine', which ONNX Runtime lacks; give the library that "
        "has it with --custom-ops LIB\n"
    )
    assert not Path("q.onnx").exists()
    assert main(f"quantize m.onnx --data d.npz -o q.onnx --custom-ops {odd}".split()) == 0
    assert "MatMul 2/2" in capfd.readouterr().out
    session = Session(onnx.load("q.onnx"), 1)
    want = (weights(40, 4) @ weights(4, 4)) * 2 @ weights(4, 4)
    (got,) = session.run({"x": weights(40, 4)})
    assert np.linalg.norm(got - want) < 0.05 * np.linalg.norm(want)


def test_workers_of_a_cluster_have_the_library(
    odd: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """A Ray cluster observes a model with the user's operator as one process does."""
    pytest.importorskip("ray", reason="extra ray is not installed")
    if not request.config.getoption("--all-cases"):
        pytest.skip("large, for --all-cases")
    onnx.save(build(WITH_ODD, {"w": weights(4, 4)}, mine=1), tmp_path / "m.onnx")
    np.savez(tmp_path / "d.npz", x=weights(40, 4))
    for name, option in (("ray.npz", ["--ray", "local"]), ("one.npz", [])):
        command = ["observe", "m.onnx", "--data", "d.npz", "-o", name, "--custom-ops", odd.name, *option]
        run_apart("-m", "onnxfq", *command, folder=tmp_path)
    assert (tmp_path / "ray.npz").read_bytes() == (tmp_path / "one.npz").read_bytes()


def test_a_library_that_is_none(tmp_path: Path) -> None:
    """A missing library and a file of another kind are one line each, and leave later sessions alone."""
    with pytest.raises(RuntimeLibraryError, match="no such custom-op library"):
        library.use_custom_ops(tmp_path / "none.so")
    (tmp_path / "text.so").write_text("hello")
    with pytest.raises(RuntimeLibraryError, match="refused .*text.so.*; the library must be built for"):
        library.use_custom_ops(tmp_path / "text.so")
    assert str(tmp_path / "text.so") not in library.list_custom_ops()
    Session(gemm(), 1)
