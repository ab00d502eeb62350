"""NVFP4 and MXFP4 of weights alone: written form, its numbers, and the engine that TensorRT makes of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from agreement import with_outputs
from builders import build, constants, feed_for, graph_text, plain_quantize, qdq_of, stage, weights
from engines import build_all, needs_builder, verdicts
from half_models import as_type
from onnx.reference import ReferenceEvaluator

import onnxfq
from onnxfq.documents.recipe import Recipe
from onnxfq.errors import ModelError, RecipeError
from onnxfq.graph.model import default_opset
from onnxfq.numerics.float_types import FloatName
from onnxfq.passes.insert_fake_quantize import with_fake_quantize
from onnxfq.stages.plan import make_plan
from onnxfq.targets.reading.context import read
from onnxfq.targets.tensorrt.builder.layers import parse_layers
from onnxfq.targets.tensorrt.rules.structure import EXTRA

SCALES = {"nvfp4": "e4m3", "mxfp4": "e8m0"}
FORMS = {
    "nvfp4": """
[w/scale] w/scale = DequantizeLinear (w/block_scale, w/global_scale)
[w/dq] w/dq = DequantizeLinear <axis=0 block_size=16> (w/q, w/scale)
[mm] y = MatMul (x, w/dq)
""",
    "mxfp4": """
[w/dq] w/dq = DequantizeLinear <axis=0 block_size=32> (w/q, w/scale)
[mm] y = MatMul (x, w/dq)
""",
}
MODELS = {
    "rows": ("float[N,64] x", "float[N,6] y", "MatMul (x, w)", (64, 6)),
    "one row": ("float[1,64] x", "float[1,6] y", "MatMul (x, w)", (64, 6)),
    "one column": ("float[N,64] x", "float[N,1] y", "MatMul (x, w)", (64, 1)),
    "odd": ("float[N,64] x", "float[N,33] y", "Gemm <transB = 1> (x, w)", (33, 64)),
    "one block": ("float[N,32] x", "float[N,6] y", "MatMul (x, w)", (32, 6)),
    "four axes": ("float[N,2,5,64] x", "float[N,2,5,32] y", "MatMul (x, w)", (64, 32)),
    "stack": ("float[N,4,8,64] x", "float[N,4,8,32] y", "MatMul (x, w)", (4, 64, 32)),
    "left": ("float[64,8] x", "float[31,8] y", "MatMul (w, x)", (31, 64)),
}


def alone(name: str, target: str = "tensorrt") -> Recipe:
    """Return a recipe of float activations and weights in the format."""
    scheme = {"qtype": "float4e2m1", "scale_type": SCALES[name], "granularity": "blocked"}
    return Recipe.model_validate({"name": name, "target": target, "activations": None, "weights": scheme})


def product(name: str) -> onnx.ModelProto:
    """Return one of MODELS."""
    given, result, text, shape = MODELS[name]
    return build(f"g ({given}) => ({result}) {{ [mm] y = {text} }}", {"w": weights(*shape)})


def wide_product() -> onnx.ModelProto:
    """Return a product of numbers up to 2^30 apart, with a block of zeros and one that NVFP4 makes zero."""
    rng = np.random.default_rng(0)
    values = rng.standard_normal((64, 6)) * 2.0 ** rng.integers(-20, 10, (64, 6))
    values[:32, 0] = 0
    values[32:, 1] = 2.0**-24
    return build(
        "g (float[4,64] x) => (float[4,6] y) { [mm] y = MatMul (x, w) }", {"w": values.astype(np.float32)}
    )


@pytest.mark.sample
@pytest.mark.parametrize("name", FORMS)
def test_the_written_form(name: str) -> None:
    """Operators of ONNX alone, and none of them for activations."""
    proto = qdq_of(stage(product("rows"), alone(name)))
    assert graph_text(proto) == FORMS[name].strip().splitlines()
    assert [o.domain for o in proto.opset_import] == [""] and default_opset(proto) == 23
    onnx.checker.check_model(proto, full_check=True)
    assert constants(proto)["w/q"].dtype.name == "float4_e2m1fn"


@pytest.mark.grid
@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("kind", ["float32", "float16", "bfloat16"])
def test_the_numbers_of_the_written_form(name: str, kind: str) -> None:
    """ONNX's reference evaluator computes weights and outputs of the simulation, to the bit."""
    proto = wide_product() if kind == "float32" else as_type(wide_product(), kind)
    staged = stage(proto, alone(name))
    simulated = with_fake_quantize(staged.model, staged.plan, staged.encodings).proto
    written = qdq_of(staged)
    expected = constants(simulated)["w/fq"]
    x = feed_for(proto)["x"].astype(expected.dtype)
    weight, y = ReferenceEvaluator(with_outputs(written, ["w/dq", "y"])).run(["w/dq", "y"], {"x": x})
    assert weight.dtype == expected.dtype and weight.tobytes() == expected.tobytes()
    (other,) = ReferenceEvaluator(simulated).run(["y"], {"x": x})
    assert y.dtype == other.dtype and y.tobytes() == other.tobytes()


@pytest.mark.parametrize("name", FORMS)
def test_quantize_writes_it(name: str, tmp_path: Path) -> None:
    """The file has 4 bits and block scales for weights; the figures are the simulation's, with a note."""
    text = "g (float[N,256] x) => (float[N,512] y) { [mm] y = MatMul (x, w) }"
    proto = build(text, {"w": weights(256, 512)})
    result = plain_quantize(proto, [feed_for(proto)], tmp_path / "m.onnx", recipe=alone(name))
    bits = 8 * (tmp_path / "m.onnx").stat().st_size / (256 * 512)
    assert bits < 4.1 + (8 / 16 if name == "nvfp4" else 32 / 32)
    assert result.evaluation.notes == ("Q/DQ model not run: ONNX Runtime has no kernels for float4e2m1",)
    (finding,) = onnxfq.check(tmp_path / "m.onnx").findings
    assert (finding.rule, finding.severity) == ("float4", "float") and "saves memory" in finding.message


@pytest.mark.whole
@pytest.mark.grid
@needs_builder
@pytest.mark.parametrize("floats", ["fp32", "fp16"])
@pytest.mark.parametrize("name", FORMS)
def test_the_engine(name: str, floats: FloatName, tmp_path: Path) -> None:
    """TensorRT for RTX builds every form, keeps weights in 4 bits, and multiplies many rows in float."""
    options = onnxfq.QuantizeOptions(floats=onnxfq.FloatOptions(floats))
    protos = {at: product(at) for at in MODELS}
    written = {
        at: plain_quantize(proto, [feed_for(proto)], recipe=alone(name), options=options).qdq
        for at, proto in protos.items()
    }
    for at, reports in build_all(tmp_path, written).items():
        (report,) = reports.values()
        assert report.built, (at, report.faults, report.errors)
        stored = {c.dtype for layer in parse_layers(report.layers) for c in layer.constants if c.is_data}
        assert "FP4E2M1" in stored, at
        kind = "weight-only" if at == "one row" else "float"
        assert verdicts(read(written[at], EXTRA), report)["mm"].split()[1] == kind, at


REFUSED = {
    "conv": ("[c] y = Conv (x, w)", "float[N,32,8,8] x", (4, 32, 1, 1), "for MatMul and Gemm only"),
    "vector": ("[mm] y = MatMul (x, w)", "float[N,64] x", (64,), "vectors: 'w'"),
    "blocks": ("[mm] y = MatMul (x, w)", "float[N,40] x", (40, 6), "40 is not a multiple of"),
}


@pytest.mark.grid
@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize("name", FORMS)
def test_what_tensorrt_does_not_store(case: str, name: str) -> None:
    """Without a form the operator stays in float, with the reason in one line."""
    text, given, shape, why = REFUSED[case]
    proto = build(f"g ({given}) => (float[] y) {{ {text} }}", {"w": weights(*shape)})
    with pytest.raises(ModelError) as caught:
        make_plan(onnxfq.load(proto), alone(name))
    assert why in str(caught.value)


@pytest.mark.parametrize("name", FORMS)
def test_onnx_runtime_has_no_form(name: str) -> None:
    """The error names what has one."""
    with pytest.raises(RecipeError) as caught:
        onnxfq.quantize(product("rows"), None, recipe=alone(name, "onnxruntime"))
    assert str(caught.value) == (
        "node 'mm', tensor 'w': ONNX Runtime has no QuantizeLinear for float4e2m1; use float8e4m3fn, or "
        "target simulation"
    )
