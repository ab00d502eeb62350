"""The written file in the session of its users: it gives the printed figure, or operators stay in float.

The authorities are ONNX Runtime's default session and OpenVINO themselves, opened as a user opens them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from builders import build, plain_quantize, weights, with_constants

import onnxfq
from onnxfq.cli.main import main
from onnxfq.data import Feed
from onnxfq.documents.scores import CandidateScore, OutputScore
from onnxfq.errors import ModelError, RecipeError
from onnxfq.judging import written_proof
from onnxfq.remedies import runtime_cure
from onnxfq.report.text import quantize_summary
from onnxfq.runtime.session import Session
from onnxfq.targets import Target, TargetPolicy, register_target
from onnxfq.targets.reading import runtime_forms
from onnxfq.targets.recipes import RECIPES
from onnxfq.targets.target import TARGETS, AnyModel


@pytest.fixture(autouse=True)
def without_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Operators that the table of forms leaves in float keep their pairs, so that the run finds them."""
    monkeypatch.setattr(runtime_forms, "read_table", dict)


needs_openvino = pytest.mark.skipif(not find_spec("openvino"), reason="OpenVINO is not installed")
DATA = {"x": np.random.default_rng(0).normal(size=(24, 8, 8, 8)).astype(np.float32)}
CONSTANTS = {
    "w": weights(8, 8, 3, 3, seed=1) * 0.2,
    "v": weights(8, 8, 1, 1, seed=2) * 0.5,
    "k": weights(1, 8, 1, 1, seed=3),
    "m": weights(64, 64, seed=4) * 0.2,
    "flat": np.array([0, 8, 64]),
    "square": np.array([0, 8, 8, 8]),
    "g": weights(8, seed=5) + 1,
}
POOL = "p = AveragePool <kernel_shape = [3,3], pads = [1,1,1,1], count_include_pad = 1 {}> (a)"
IN_ONNXRUNTIME = {
    "AveragePool that reaches over the end": POOL.format(", strides = [2,2], ceil_mode = 1"),
    "AveragePool with dilations": "p = AveragePool <kernel_shape = [2,2], dilations = [2,2]> (a)",
}
IN_OPENVINO = {
    "AveragePool with pads": POOL.format(""),
    "ReduceMean and Sub": "r = ReduceMean <axes = [1]> (a) p = Sub (a, r)",
    "ReduceMax and Sub": "r = ReduceMax <axes = [1]> (a) p = Sub (a, r)",
    "means and Add": "r = ReduceMean <axes = [2,3]> (a) p = Add (a, r)",
    "GlobalMaxPool": "p = GlobalMaxPool (a)",
    "Transpose and Mul": "t = Transpose <perm = [0,1,3,2]> (a) p = Mul (t, k)",
    "LayerNormalization": "p = LayerNormalization <axis = 3> (a, g)",
    "MatMul between Reshapes": "r = Reshape (a, flat) t = MatMul (r, m) p = Reshape (t, square)",
    "a sum with itself": "p = Add (a, a)",
}
HONEST = {
    "Relu": "p = Relu (a)",
    "MaxPool": "p = MaxPool <kernel_shape = [2,2]> (a)",
    "Mul": "p = Mul (a, k)",
}


def between(operators: str, opset: int = 17) -> onnx.ModelProto:
    """Operators between two convolutions."""
    used = {name: value for name, value in CONSTANTS.items() if f", {name})" in operators or name in "wv"}
    used |= {"g": CONSTANTS["g"]} if "Layer" in operators else {}
    text = f"c = Conv <pads = [1,1,1,1]> (x, w) a = Relu (c) {operators} y = Conv (p, v)"
    text = text.replace(" a = Relu (c)", "").replace("c = Conv", "a = Conv")
    return build(f"g (float[N,8,8,8] x) => (float[N,8,H,W] y) {{ {text} }}", used, opset=opset)


def run_onnxruntime(proto: onnx.ModelProto) -> np.ndarray:
    """Outputs in a session with default options."""
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    return np.concatenate([session.run(None, {"x": row[None]})[0] for row in DATA["x"]])


def run_openvino(proto: onnx.ModelProto) -> np.ndarray:
    """Outputs in OpenVINO with the float part in float32."""
    import openvino

    core = openvino.Core()
    network = core.read_model(proto.SerializeToString())
    compiled = core.compile_model(network, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return np.concatenate([np.array(compiled({"x": row[None]})[0]) for row in DATA["x"]])


def sqnr_db(wanted: np.ndarray, got: np.ndarray) -> float:
    """Return the SQNR in dB, computed here."""
    return float(10 * np.log10((wanted**2).sum() / ((wanted - got) ** 2).sum()))


def assert_as_printed(
    operators: str, recipe: str, run: Callable[[onnx.ModelProto], np.ndarray], opset: int = 17
) -> onnxfq.QuantizeResult:
    """Quantize, and find in the runtime what the simulation has on the same samples."""
    proto = between(operators, opset)
    made = plain_quantize(proto, DATA, recipe=recipe)
    float_rows = Session(proto, 1).run(DATA)[0]
    simulated_db = sqnr_db(float_rows, Session(made.simulation, 1, exact=True).run(DATA)[0])
    assert sqnr_db(float_rows, run(made.qdq)) > simulated_db - 1
    assert made.proof is not None and not made.proof.difference and not made.proof.why
    assert made.plan.placements and made.proof.samples == written_proof.FIRST
    return made


@pytest.mark.parametrize("kind", IN_ONNXRUNTIME)
@pytest.mark.wide_sums
def test_onnxruntime_computes_what_is_printed(kind: str) -> None:
    """The pool alone stays in float, both convolutions keep their integers; the plan names the release."""
    made = assert_as_printed(IN_ONNXRUNTIME[kind], "onnxruntime-int8", run_onnxruntime, 19)
    assert made.proof is not None and made.proof.kept_float == ("AveragePool 'p'",)
    assert str(made.plan.coverage()[0]) == "Conv 2/2"
    release = f"ONNX Runtime {onnxruntime.__version__}"
    assert made.proof.runtime == release
    whys = {one.name: one.why for one in made.plan.skipped}
    assert whys["p"].startswith(f"{release} computes the model otherwise")
    assert f"AveragePool 'p' in float, because {release}" in quantize_summary(made)


@pytest.mark.parametrize("kind", IN_OPENVINO)
@needs_openvino
@pytest.mark.wide_sums
def test_openvino_computes_what_is_printed(kind: str) -> None:
    """One operator at most stays in float for each kind."""
    made = assert_as_printed(IN_OPENVINO[kind], "openvino-int8", run_openvino)
    assert made.proof is not None and len(made.proof.kept_float) <= 1
    assert made.proof.runtime.startswith("OpenVINO 20")


@pytest.mark.parametrize("kind", HONEST)
@pytest.mark.wide_sums
def test_nothing_stays_in_float_without_need(kind: str) -> None:
    """The file is the one of the recipe if both agree, in any order of the data."""
    made = assert_as_printed(HONEST[kind], "onnxruntime-int8", run_onnxruntime)
    turned = plain_quantize(between(HONEST[kind]), {"x": DATA["x"][::-1]}, recipe="onnxruntime-int8")
    assert made.proof == turned.proof and made.proof is not None and not made.proof.kept_float
    assert not made.recipe.overrides


@pytest.mark.sample
def test_an_operator_that_an_override_keeps_in_float_is_set_apart() -> None:
    """ONNX Runtime runs it in float between two integer convolutions; the numbers stay."""
    proto = between("p = AveragePool <kernel_shape = [2,2]> (a)")
    kept = onnxfq.Override(op_types=("AveragePool",), keep_float=True)
    recipe = RECIPES["onnxruntime-int8"].model_copy(update={"overrides": (kept,)})
    plain = plain_quantize(proto, DATA, recipe="onnxruntime-int8")
    apart = plain_quantize(proto, DATA, recipe=recipe)
    kinds = [[node.op_type for node in optimized(one.qdq).graph.node] for one in (plain, apart)]
    assert "QLinearAveragePool" in kinds[0] and "QLinearAveragePool" not in kinds[1]
    assert "AveragePool" in kinds[1] and kinds[1].count("QLinearConv") == 2
    exact = [Session(one.qdq, 1, exact=True).run(DATA)[0] for one in (plain, apart)]
    assert np.array_equal(*exact)


def optimized(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return the graph of a default session."""
    from onnxfq.runtime.optimized_graph import optimize_graph

    return optimize_graph(proto)


# A runtime that is registered from outside.

LIAR = onnxfq.Recipe.model_validate(
    {
        "name": "liar-int8",
        "target": "liar",
        "activations": {"qtype": "int8", "calibrator": "minmax"},
        "weights": {"qtype": "int8", "granularity": "per_axis"},
    }
)
CHAIN = (
    "g (float[N,32] x) => (float[N,32] y) { [first] a = MatMul (x, w) r = Relu (a) [second] b = MatMul (r, v)"
    " s = Relu (b) [third] c = MatMul (s, u) t = Relu (c) [fourth] y = MatMul (t, z) }"
)
ROWS = {"x": np.random.default_rng(3).normal(size=(40, 32)).astype(np.float32)}


def chain() -> onnx.ModelProto:
    """Four products."""
    return build(CHAIN, {name: weights(32, 32, seed=at) for at, name in enumerate("wvuz")})


def open_lying(wrong: Callable[[onnx.ModelProto], bool]) -> Callable[..., Any]:
    """Return an opener of ONNX Runtime whose outputs are halved if `wrong` says so of the model."""

    def open_model(model: AnyModel, threads: int = 0) -> Any:
        proto = model if isinstance(model, onnx.ModelProto) else onnx.load(model)
        names = [output.name for output in proto.graph.output]
        session, factor = Session(proto, 1, exact=True), np.float32(0.5 if wrong(proto) else 1)
        return lambda feed: {n: factor * a for n, a in zip(names, session.run(feed), strict=True)}

    return open_model


def has_pairs(*products: str) -> Callable[[onnx.ModelProto], bool]:
    """Tell whether one of these products, or any without names, reads a DequantizeLinear."""

    def tell(proto: onnx.ModelProto) -> bool:
        makers = {name: node.op_type for node in proto.graph.node for name in node.output}
        reading = [n.name for n in proto.graph.node if makers.get((*n.input, "")[0]) == "DequantizeLinear"]
        return any(name in reading for name in products) if products else bool(reading)

    return tell


@pytest.fixture
def register() -> Iterator[Callable[..., None]]:
    """Register the lying target for one test."""

    def call(**fields: Any) -> None:
        known = {"release": lambda: "Liar 1.2", "conversion": "liar-int8"}
        register_target(Target("liar", TargetPolicy(), recipes=(LIAR,), **known | fields))

    yield call
    del TARGETS["liar"], RECIPES["liar-int8"]


@pytest.mark.parametrize(
    "guilty", [("first",), ("second",), ("fourth",), ("second", "third"), ("first", "fourth")]
)
def test_the_guilty_operators_are_found(guilty: tuple[str, ...], register: Callable[..., None]) -> None:
    """Each of them stays in float, and no other, wherever they are."""
    register(values=open_lying(has_pairs(*guilty)))
    made = plain_quantize(chain(), ROWS, recipe="liar-int8")
    assert made.proof is not None and not made.proof.difference and made.proof.runtime == "Liar 1.2"
    named = {one.split("'")[1] for one in made.proof.kept_float}
    assert set(guilty) <= named and (named == set(guilty) or len(guilty) == 2)
    assert named <= {one.name for one in made.plan.skipped if "Liar 1.2 computes" in one.why}


def test_what_cannot_be_cured_ends_with_3(
    register: Callable[..., None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The file stands, the first line tells what differs, and the lower figure is the number, in JSON too."""
    monkeypatch.chdir(tmp_path)
    register(values=open_lying(has_pairs()))
    onnx.save(chain(), "m.onnx")
    np.savez("d.npz", **ROWS)
    words = "quantize m.onnx --data d.npz --recipe liar-int8 --repair off -o q.onnx".split()
    assert main([*words, "--report", "page.html", "--artifacts", "all"]) == 3
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("differs    Liar 1.2 computes 6.") and "the simulation" in lines[0]
    assert lines[1].startswith("SQNR ") and float(lines[1].split(" dB")[0].split()[-1]) < 7
    onnx.checker.check_model("q.onnx")
    assert "Liar 1.2 computes" in Path("page.html").read_text(encoding="utf-8")
    table = ["--recipe", "onnxruntime-int8", "-o", "several"]
    assert main([*words[:-2], *table]) == 3
    assert "differs    liar-int8: Liar 1.2" in capsys.readouterr().out
    result = plain_quantize(chain(), ROWS, recipe="liar-int8")
    assert result.proof is not None and result.evaluation.lowest_db < 7 < result.proof.simulated_db
    assert "SQNR: 6." in repr(result)
    promised = onnxfq.AccuracyTarget(min_sqnr=20)
    with pytest.raises(RecipeError, match="cannot keep 20 dB in liar"):
        onnxfq.quantize(chain(), ROWS, recipe="liar-int8", accuracy=promised)
    assert main([*words, "--min-sqnr", "20"]) == 1


def test_a_runtime_that_refuses_the_file(register: Callable[..., None]) -> None:
    """The operator that it refuses is found as well, and a refusal of everything has a line."""

    def open_strict(refused: Callable[[onnx.ModelProto], bool]) -> Callable[..., Any]:
        honest = open_lying(lambda proto: False)

        def open_model(model: AnyModel, threads: int = 0) -> Any:
            if isinstance(model, onnx.ModelProto) and refused(model):
                raise ModelError("no kernel; use another file")
            return honest(model, threads)

        return open_model

    register(values=open_strict(has_pairs("third")))
    made = plain_quantize(chain(), ROWS, recipe="liar-int8")
    assert made.proof is not None and made.proof.kept_float == ("MatMul 'third'",)
    TARGETS["liar"] = replace(TARGETS["liar"], values=open_strict(lambda proto: True))
    made = plain_quantize(chain(), ROWS, recipe="liar-int8")
    assert made.proof is not None and "no kernel; use another file" in made.proof.difference
    assert "it does not run the float model either" in made.proof.difference


@pytest.mark.parametrize("spoiled", [1, 16])
def test_a_difference_is_above_chance(spoiled: int, register: Callable[..., None]) -> None:
    """A runtime that rounds one sample of 16 to the other side computes no other model, and loses nothing."""
    register(values=open_lying(lambda proto: False))
    made = plain_quantize(chain(), ROWS, recipe="liar-int8")
    assert made.proof is not None and made.proof.simulated_db == made.proof.runtime_db
    noise, plain_db = 10 ** (-made.proof.simulated_db / 20), made.evaluation.lowest_db

    def open_spoiling(model: AnyModel, threads: int = 0) -> Any:
        run, numbers = open_lying(lambda proto: False)(model, threads), count()

        def spoil(feed: Feed) -> dict[str, np.ndarray]:
            error = 3 * noise if next(numbers) < spoiled else 0.0
            return {name: (array * (1 + error)).astype(np.float32) for name, array in run(feed).items()}

        return spoil

    TARGETS["liar"] = replace(TARGETS["liar"], values=open_spoiling)
    in_order = onnxfq.QuantizeOptions(threads=1)
    made = plain_quantize(chain(), ROWS, recipe="liar-int8", options=in_order)
    assert made.proof is not None and made.proof.samples == 16
    assert made.proof.runtime_db < made.proof.simulated_db - written_proof.DIFFERENCE_DB
    assert bool(made.proof.difference) == (spoiled == 16)
    assert (made.evaluation.lowest_db < plain_db) == (spoiled == 16)


def test_a_loss_is_of_its_own_tensor() -> None:
    """Two tensors that one module makes have the same words, and each its own loss."""
    alike = {"made_by": "Conv of 'head'", "sqnr_db": 30.0, "cosine": 1.0, "largest_error": 0.1}
    score = CandidateScore(candidate="q", outputs=tuple(OutputScore(output=name, **alike) for name in "ab"))
    assert [one.sqnr_db for one in score.lowered({"b": 4.0}).outputs] == [30.0, 26.0]


def test_the_float_model_alone_may_differ(register: Callable[..., None]) -> None:
    """Then no operator is left in float, and the words say so."""
    register(values=open_lying(lambda proto: True))
    made = plain_quantize(chain(), ROWS, recipe="liar-int8")
    assert made.proof is not None and "the float model has 6.0 dB there" in made.proof.difference
    assert not made.recipe.overrides


def test_other_commands_prove_what_they_write(
    register: Callable[..., None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """`convert` and `diagnose -o` end with 3, and `evaluate` has a line for the session of users."""
    monkeypatch.chdir(tmp_path)
    honest = open_lying(lambda proto: False)
    register(values=honest)
    onnx.save(chain(), "m.onnx")
    np.savez("d.npz", **ROWS)
    recipe = RECIPES["liar-int8"]
    onnx.save(plain_quantize(chain(), ROWS, recipe=recipe).qdq, "q.onnx")
    sound = onnx.load("q.onnx")
    damaged = with_constants(sound, lambda name, array: array * 6 if name == "r/scale" else array)
    onnx.save(damaged, "damaged.onnx")
    convert = "convert q.onnx --data d.npz --target liar -o c.onnx".split()
    diagnose = "diagnose damaged.onnx --float m.onnx --data d.npz -o r.onnx".split()
    for words in (convert, diagnose):
        assert main(words) == 0
        assert "proof " in capsys.readouterr().out
    TARGETS["liar"] = replace(TARGETS["liar"], values=open_lying(has_pairs()))
    for words, file in ((convert, "c.onnx"), (diagnose, "r.onnx")):
        Path(file).unlink()
        assert main(words) == 3
        assert capsys.readouterr().out.startswith("differs    Liar 1.2") and Path(file).exists()
    assert main("evaluate m.onnx q.onnx --data d.npz --metric tests_metric:size".split()[:-2]) == 0
    told = capsys.readouterr().out
    assert "q.onnx in Liar 1.2" in told
    exact, users = onnxfq.evaluate("m.onnx", "q.onnx", ROWS).candidates
    assert exact.candidate == "q.onnx" and users.lowest_db < 7 < exact.lowest_db
    scored = onnxfq.evaluate("m.onnx", "q.onnx", ROWS, metric=size)
    assert scored.candidates[1].metric == pytest.approx((scored.candidates[0].metric or 0) / 2, rel=1e-3)


def size(outputs: Any, samples: Any) -> float:
    """Return the sum of all absolute outputs."""
    return float(sum(np.abs(made["y"]).sum() for made in outputs))


@needs_openvino
def test_check_runs_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """`check --build` finds other numbers without data, where the file was made without a proof."""
    monkeypatch.setattr(runtime_cure, "find_cure", lambda *given: ((), ""))
    for operators, recipe in ((IN_OPENVINO["AveragePool with pads"], "openvino-int8"), (HONEST["Mul"], "")):
        made = plain_quantize(between(operators), DATA, recipe=recipe or "openvino-int8")
        found = onnxfq.check(made.qdq, build=onnxfq.BuildOptions()).findings
        told = [one for one in found if one.rule == "session"]
        assert bool(told) == bool(recipe) and all(one.severity == "wrong" for one in told)


def test_what_was_not_tried_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """TensorRT, a library that is missing, random draws, and data that is not there."""
    made = plain_quantize(chain(), ROWS)
    assert made.proof is not None and not made.proof.runtime
    assert "not run    nothing here runs a file for target tensorrt" in quantize_summary(made)
    monkeypatch.setitem(sys.modules, "openvino", None)
    made = plain_quantize(chain(), ROWS, recipe="openvino-int8")
    assert "not run    package openvino is not installed" in quantize_summary(made)
    drawing = chain()
    drawing.graph.node.append(onnx.helper.make_node("RandomNormalLike", ["y"], ["noise"]))
    drawing.graph.output.append(onnx.helper.make_tensor_value_info("noise", 1, ["N", 32]))
    made = plain_quantize(drawing, ROWS, recipe="onnxruntime-int8")
    assert "not run    the model draws random numbers" in quantize_summary(made)
    made = plain_quantize(chain(), None, recipe="onnxruntime-uint8-dynamic")
    assert "not run    there is no sample" in quantize_summary(made)
    made = plain_quantize(chain(), ROWS, recipe="mxint8")
    assert made.proof is not None and not made.proof.lines()


def test_sums_that_saturate_are_told_and_not_repaired(
    register: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a processor without VNNI the difference is the processor's; the lower figure still counts."""
    register(values=open_lying(has_pairs()), unsaturated=open_lying(lambda proto: False))
    monkeypatch.setattr(written_proof, "find_byte_products", lambda: written_proof.multiply_floats)
    made = plain_quantize(chain(), ROWS, recipe="liar-int8")
    assert made.proof is not None and made.proof.saturated and not made.proof.difference
    assert not made.recipe.overrides and made.evaluation.lowest_db < 7
    assert "sums of int8 products saturate on this processor" in quantize_summary(made)


@needs_openvino
def test_what_users_open_decides_nothing(
    register: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A processor's own float type is a second line."""
    monkeypatch.setattr(runtime_cure, "OPENED", 40)
    register(values=open_lying(lambda proto: False), open=open_lying(has_pairs()), differs=lambda: "half")
    made = plain_quantize(chain(), ROWS, recipe="liar-int8")
    assert made.proof is not None and not made.proof.difference and made.proof.opened_db is not None
    assert made.proof.opened_db < 7 < made.evaluation.lowest_db
    assert "as users open it, in half" in quantize_summary(made)


@pytest.mark.parametrize("wrong", [(7,), (7, 180), (3, 90, 170), tuple(range(0, 200, 2))])
def test_the_search_is_bounded(wrong: tuple[int, ...]) -> None:
    """Units of one or two kinds are found; more have no cure, and it is asked about few models."""
    units = {str(number): str(number) for number in range(200)}
    asked: list[int] = []

    def agrees(names: Sequence[str]) -> bool:
        asked.append(len(names))
        return set(map(str, wrong)) <= set(names)

    found = runtime_cure._FloatSearch(units, agrees).run()
    assert found == ([str(number) for number in reversed(wrong)] if len(wrong) <= 2 else [])
    assert len(asked) <= 40
