"""Operators of opset 23 and later: kept where the builder takes them, else written out."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from builders import build, onnx_cases, plain_quantize, square, weights

import onnxfq
from onnxfq.graph.io.load import load
from onnxfq.graph.model import default_opset
from onnxfq.graph.normalize.write_out_functions import WRITTEN_OUT
from onnxfq.runtime.session import Session
from onnxfq.targets.target import BuildOptions
from onnxfq.targets.tensorrt.builder.jobs import Job, Report, builder_installed, run_jobs

needs_builder = pytest.mark.skipif(not builder_installed(), reason="TensorRT for RTX is not installed")
KEPT = ("RMSNormalization", "RotaryEmbedding", "TensorScatter")


def cases(*operators: str) -> dict[str, Any]:
    """Return ONNX's cases of these operators alone, by name, in types that ONNX Runtime has."""
    found = {}
    for case in onnx_cases():
        alone = len(case.model.graph.node) == 1 and case.model.graph.node[0].op_type in operators
        if alone and "bf16" not in case.name and "bfloat16" not in case.name:
            found[case.name.removeprefix("test_")] = case
    assert {case.model.graph.node[0].op_type for case in found.values()} == set(operators)
    return found


def types_in(proto: onnx.ModelProto) -> set[str]:
    """Return the operators of the main graph."""
    return {node.op_type for node in proto.graph.node}


@pytest.mark.whole
@pytest.mark.filterwarnings("ignore")  # warnings of onnx about its own cases
def test_written_out_as_onnx_defines_it() -> None:
    """ONNX's cases run in ONNX Runtime, which lacks most of these operators, and give ONNX's numbers."""
    for name, case in cases(*sorted(WRITTEN_OUT - {"Attention"})).items():
        loaded = load(case.model)
        assert not types_in(loaded.proto) & WRITTEN_OUT and loaded.opset <= 25, name
        onnx.checker.check_model(loaded.proto, full_check=True)
        inputs = [value.name for value in case.model.graph.input]
        for given, wanted in case.data_sets:
            got = Session(loaded.proto, 1).run(dict(zip(inputs, given, strict=True)))
            for found, want in zip(got, wanted, strict=True):
                # A function rounds at other places than the reference: a few steps of the type.
                step = 16 * np.finfo(want.dtype).eps
                np.testing.assert_allclose(found, want, rtol=step, atol=step, err_msg=name)


@pytest.fixture
def most(request: pytest.FixtureRequest) -> int:
    """Most cases of an operator that are built."""
    return 1000 if request.config.getoption("--all-cases") else 2


def sample(named: dict[str, Any], most: int) -> list[tuple[str, Any]]:
    """Return at most so many of the cases, spread over all."""
    return list(named.items())[:: max(1, -(-len(named) // most))]


def build_all(models: dict[str, onnx.ModelProto], folder: Path) -> list[Report]:
    """Build an engine of each model; return what the builder said."""
    jobs = []
    for number, proto in enumerate(models.values()):
        onnx.save(proto, folder / f"{number}.onnx")
        jobs.append(Job(folder / f"{number}.onnx", "SM89", {}))
    return run_jobs(jobs, 600)


@needs_builder
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("op_type", [*KEPT, *sorted(WRITTEN_OUT)])
def test_the_builder_takes_them(op_type: str, most: int, tmp_path: Path) -> None:
    """An engine is built of each of ONNX's cases as loaded, unless a rule gives the reason why not."""
    names = {name: case for name, case in cases(op_type).items() if not re.search("float16|fp16", name)}
    models = {name: load(case.model).proto for name, case in sample(names, most)}
    for (name, proto), report in zip(models.items(), build_all(models, tmp_path), strict=True):
        refused = [one for one in onnxfq.check(proto).findings if one.severity == "refused"]
        assert report.built is not bool(refused), (name, report.faults, refused)


@needs_builder
@pytest.mark.filterwarnings("ignore")
def test_rules_say_what_the_builder_says(most: int, tmp_path: Path) -> None:
    """Of the operators as given, the rules refuse exactly the cases that the builder refuses.

    Attention is another test's: kernels of a whole one also depend on its sizes.
    """
    refusals = 0
    names = cases(*sorted({*WRITTEN_OUT, *KEPT} - {"SwiGLU", "Attention"}))
    models = {name: case.model for name, case in sample(names, 3 * most)}
    for (name, proto), report in zip(models.items(), build_all(models, tmp_path), strict=True):
        refused = [one for one in onnxfq.check(proto).findings if one.severity == "refused"]
        assert report.built is not bool(refused), (name, report.faults, report.errors, refused)
        refusals += bool(refused)
    assert refusals > 1


@needs_builder
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "products"),
    [
        ("attention_4d_with_past_and_present_qk_matmul", 2),
        ("attention_4d_causal_nonpad_batch_prefill", 2),
        ("attention_local_window", 2),
        ("linear_attention_gated_delta", 3),
        ("causal_conv_with_state_silu", 1),
    ],
)
def test_pairs_are_on_their_products(name: str, products: int, tmp_path: Path) -> None:
    """Every product of what is written out is quantized, in bodies too, and runs low in the engine."""
    case = cases("Attention", "CausalConvWithState", "LinearAttention")[name]
    feed = dict(zip([value.name for value in case.model.graph.input], case.data_sets[0][0], strict=True))
    options = onnxfq.QuantizeOptions(batch=0)
    result = plain_quantize(case.model, [feed] * 4, tmp_path / "q.onnx", options=options)
    rows = [row for row in result.plan.coverage() if row.op_type in ("MatMul", "Conv")]
    assert [(row.quantized, row.total) for row in rows] == [(products, products)]
    found = onnxfq.check(tmp_path / "q.onnx", build=BuildOptions())
    assert found.passed and sum(row.kept for row in found.coverage) == products
    assert result.evaluation.lowest_db > 25


@pytest.mark.sample
def test_an_opset_without_new_operators_is_lowered() -> None:
    """A model whose operators are all older gets TensorRT 11's last opset; others keep it."""
    proto = square("h = MatMul (x, w) y = Relu (h)")
    proto.opset_import[0].version, proto.ir_version = 28, 14
    loaded = load(proto)
    assert loaded.opset == 25 and loaded.proto.ir_version == 13
    assert "opset lowered from 28 to 25" in " ".join(loaded.notes)
    newer = build("g (float[N,8] x) => (float[N,8] y) { y = CumProd (x, one) }", {"one": np.int64(1)})
    newer.opset_import[0].version, newer.ir_version = 28, 14
    assert load(newer).opset == 28
    assert default_opset(proto) == 28


def test_float_models_are_cast_and_evaluated(tmp_path: Path) -> None:
    """`cast` and `evaluate` take a float model that ONNX Runtime alone cannot open."""
    text = """<ir_version: 14, opset_import: ["": 28]> g (float[N,8] x) => (float[N,8] y) {
        a = MatMul (x, w) b = MatMul (x, v) y = SwiGLU <alpha = 1.5> (a, b) }"""
    proto = onnx.parser.parse_model(text)
    for name, seed in (("w", 0), ("v", 1)):
        proto.graph.initializer.append(onnx.numpy_helper.from_array(weights(8, 8, seed=seed), name))
    feeds = [{"x": np.random.default_rng(seed).normal(size=(2, 8)).astype(np.float32)} for seed in range(4)]
    result = onnxfq.cast(proto, feeds, tmp_path / "h.onnx")
    assert result.evaluation is not None and result.evaluation.lowest_db > 50
    assert onnxfq.evaluate(proto, tmp_path / "h.onnx", feeds).lowest_db > 50
    assert types_in(result.half) == {"Cast", "CastLike", "MatMul", "Mul", "Sigmoid"}
