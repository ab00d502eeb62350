"""export_torch of quantized modules: standard Q/DQ, torch's scales, torch's numbers in ONNX Runtime."""

from __future__ import annotations

import copy
import logging
from collections import Counter

import numpy as np
import onnx
import onnxruntime
import pytest
from builders import run_as_written
from onnx import numpy_helper
from quantized_modules import Function, prepared, recipe, run

nn = pytest.importorskip("torch.nn")
pytest.importorskip("onnxscript")

import torch  # noqa: E402  only once it is known to be there
from torch.ao import quantization as peers
from torch_networks import small_network

from onnxfq import (
    BuildOptions,
    calibrate,
    check,
    collect_statistics,
    insert_qdq,
    load,
    load_recipe,
    make_plan,
)
from onnxfq.errors import ModelError, PlanError, StatisticsError
from onnxfq.numerics.spec import QuantSpec
from onnxfq.torch import (
    FakeQuantize,
    compute_encodings,
    export_torch,
    fake_quantize,
    freeze_batchnorm,
    learn_grids,
    quantizers,
)

both = pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])


def operators(model: onnx.ModelProto) -> set[tuple[str, str]]:
    """Return (domain, type) of all nodes."""
    return {(node.domain, node.op_type) for node in model.graph.node}


def scales(model: onnx.ModelProto, biases: bool = False) -> list[tuple[str, np.ndarray]]:
    """Return (operator, scale) of every Q and DQ, without biases or of biases alone."""
    held = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    pairs = [n for n in model.graph.node if n.op_type in ("QuantizeLinear", "DequantizeLinear")]
    kinds = {name: values.dtype for name, values in held.items()}
    return [(n.op_type, held[n.input[1]]) for n in pairs if (kinds.get(n.input[0]) == np.int32) == biases]


GRIDS = [
    QuantSpec(qtype="int8"),
    QuantSpec(qtype="uint8", symmetric=False),
    QuantSpec(qtype="uint4", symmetric=False),
    QuantSpec(qtype="int16"),
    QuantSpec(qtype="int5"),
    QuantSpec(qtype="int8[-127,127]"),
    QuantSpec(qtype="float8e4m3fn"),
    QuantSpec(qtype="int8", axis=1),
    QuantSpec(qtype="int4", axis=-1, block_size=4),
    QuantSpec(qtype="int8", block_shape=(-1, 2, 4)),
]


@pytest.mark.grid
@both
@pytest.mark.parametrize("spec", GRIDS, ids=str)
def test_quantized_values_are_torchs(spec, exporter):
    """A quantizer alone exports to Q and DQ whose output is torch's, bit for bit, at another batch too.

    Blocks along a dynamic axis have no ONNX form, so those keep the batch.
    """
    model = nn.Sequential(FakeQuantize(spec, "minmax"))
    x = torch.randn(2, 4, 8, generator=torch.Generator().manual_seed(0)) * 3
    with compute_encodings(model):
        model(x)
    blocked = spec.granularity.block_size is not None or spec.granularity.block_shape is not None
    exported = export_torch(model, (x,), exporter=exporter, dynamic_batch=not blocked)
    assert {op for _, op in operators(exported)} <= {"QuantizeLinear", "DequantizeLinear", "Clip"}
    assert {domain for domain, _ in operators(exported)} == {""}
    more = x * 1.7 if blocked else torch.cat([x, x * 1.7])
    expected = fake_quantize(
        more, model[0].scale, model[0].zero_point, qtype=spec.qtype, **spec.granularity.attributes
    )
    np.testing.assert_array_equal(run(exported, more).view(np.int32), expected.numpy().view(np.int32))


CASES = [
    ("residual_cnn", recipe("uint4", "int4", "onnxruntime"), "scale"),
    ("depthwise_cnn", recipe("uint8", "int8", "onnxruntime"), "range"),
    ("transformer", recipe("uint8", "int8", "onnxruntime"), "scale_zero_point"),
    ("transformer", recipe(None, "int4", "onnxruntime", granularity="blocked", block_size=16), "nothing"),
]


@pytest.mark.grid
@both
@pytest.mark.parametrize(("name", "asked", "learned"), CASES, ids=lambda value: str(value)[:12])
def test_networks_compute_what_torch_computes(name, asked, learned, exporter):
    """A network, its grids learned or not, exports to standard operators and gives torch's output.

    The scales are torch's to the bit. Layers sum up to 784 products in another order than torch, each right
    to 2^-24, on values below 2: 1e-5 for most. A sum that near the middle between two steps goes to the other
    one, and one step of one activation of 4 bits moves an output by less than 0.01.
    """
    model, x = small_network(name), torch.rand(4, 1, 28, 28, generator=torch.Generator().manual_seed(1))
    prepared(model, x, asked)
    learn_grids(model, learned)
    freeze_batchnorm(model)
    state = {n: v.clone() for n, v in model.state_dict().items()}
    exported = export_torch(model, (x[:2],), exporter=exporter)
    assert all(torch.equal(v, state[n]) for n, v in model.state_dict().items())
    assert {domain for domain, _ in operators(exported)} == {""}
    difference = np.abs(run(exported, x) - model(x).detach().numpy())
    assert np.median(difference) <= 1e-5 and difference.max() <= 0.01
    found = {np.sort(s, None).tobytes() for _, s in scales(exported)}  # a weight may be stored turned
    assert found == {np.sort(q.qparams()[0].numpy(), None).tobytes() for q in quantizers(model).values()}


@pytest.mark.parametrize("asked", ["onnxruntime-int8", "qnn-int8"])
@both
def test_a_session_runs_as_many_products_low_as_in_the_quantized_file(asked, exporter, tmp_path):
    """ONNX Runtime has the kernels of both roads, also for products whose result is an output, or has 3 axes.

    Grids are learned before the export: each bias has the final scales.
    """
    torch.manual_seed(0)
    layers = nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Flatten(2), nn.Linear(36, 8), nn.Flatten(), nn.Linear(32, 3)
    model, x = nn.Sequential(*layers).eval(), torch.randn(2, 2, 8, 8)
    plain = load(export_torch(model, (x,), dynamic_batch=False, exporter=exporter))
    plan = make_plan(plain, load_recipe(asked))
    feed = {plain.proto.graph.input[0].name: x.numpy()}
    encodings = calibrate(plain, plan, collect_statistics(plain, plan, [feed]))
    prepared(model, x, asked)
    learn_grids(model, "scale")
    for quantizer in quantizers(model).values():
        quantizer.log_ratio.data += 0.1
    trained = export_torch(model, (x,), dynamic_batch=False, exporter=exporter)
    kernels = []
    for proto in (insert_qdq(plain, plan, encodings), trained):
        options = onnxruntime.SessionOptions()
        options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
        options.log_severity_level = 3
        onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
        ran = Counter(node.op_type for node in onnx.load(tmp_path / "optimized.onnx").graph.node)
        kernels.append({op: n for op, n in ran.items() if "Conv" in op or "Gemm" in op or "MatMul" in op})
    assert kernels[0] == kernels[1] and {"QGemm", "QLinearConv"} <= kernels[0].keys()
    assert asked != "onnxruntime-int8" or kernels[0].keys().isdisjoint({"Conv", "Gemm", "MatMul"})
    # Rounding a bias moves a sum by little, and an activation at a tie by one step, of some hundred.
    expected = model(x).detach().numpy()
    assert np.abs(run(trained, x) - expected).max() <= 0.02 * np.abs(expected).max()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_16_bit_exports_have_the_form_of_their_target(dtype, tmp_path):
    """ONNX Runtime has no low kernels of 16-bit floats: its file computes in float32 between two casts.

    A session has as many products low as in the float32 export. TensorRT's file keeps the type.
    """
    torch.manual_seed(0)
    layers = nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Flatten(2), nn.Linear(36, 8)
    model, x, kernels = nn.Sequential(*layers).eval(), torch.randn(2, 2, 8, 8), []
    other = copy.deepcopy(model)
    prepared(model, x, "onnxruntime-int8")
    for each in (torch.float32, dtype):
        exported = export_torch(model.to(each), (x.to(each),))
        options = onnxruntime.SessionOptions()
        options.optimized_model_filepath, options.log_severity_level = str(tmp_path / "model.onnx"), 3
        onnxruntime.InferenceSession(
            exported.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        kernels.append(Counter(node.op_type for node in onnx.load(tmp_path / "model.onnx").graph.node))
    assert kernels[1] - kernels[0] == Counter(Cast=2) and not {"Conv", "Gemm", "MatMul"} & kernels[1].keys()
    prepared(other, x, "tensorrt-int8")
    types = {one.data_type for one in export_torch(other.to(dtype), (x.to(dtype),)).graph.initializer}
    assert onnx.TensorProto.FLOAT not in types and onnx.TensorProto.INT8 in types


# Tracing reads sizes of its own states; it says the same of a float LSTM.
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore:Exporting a model:UserWarning")
@pytest.mark.grid
@both
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_recurrent_layers_export(kind, exporter):
    """The weights of LSTM and GRU reach ONNX as integers, and the layer computes what torch computes.

    40 products a step, three steps: within 1e-5 on values below 1.
    """
    model, x = nn.ModuleDict({"layer": kind(4, 6, batch_first=True)}).eval(), torch.randn(2, 3, 4)
    model.forward = lambda x: model["layer"](x)[0]
    prepared(model, x, recipe(None, "int8"))
    expected = model(x).detach().numpy()
    exported = export_torch(model, (x,), exporter=exporter, dynamic_batch=False)
    assert sum(op == "DequantizeLinear" for op, _ in scales(exported)) == 2
    np.testing.assert_allclose(run(exported, x), expected, rtol=0, atol=1e-5)


def test_torchs_functions_are_translated(caplog):
    """torch.fake_quantize_* become Q/DQ with their limits; where both arithmetics agree, equal bits.

    The difference of the two arithmetics is one warning, with the number of quantizers.
    """
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(0)) * 20
    scale, zero = torch.tensor([0.1, 0.3, 0.25, 0.7]), torch.zeros(4, dtype=torch.int32)
    limits = [(-128, 127), (0, 255), (-8, 7), (-127, 127)]

    def function(x):
        made = (torch.fake_quantize_per_tensor_affine(x, 0.05, 0, *ends) for ends in limits)
        again = [torch.fake_quantize_per_channel_affine(y, scale, zero, 1, -128, 127) for y in made]
        return torch.stack(again)

    with caplog.at_level(logging.WARNING):
        exported = export_torch(Function(function), (x,))
    assert "8 of the model's quantizers multiply by 1 / scale" in caplog.text
    pairs = {"QuantizeLinear", "DequantizeLinear", "Clip"}
    assert {op for _, op in operators(exported)} <= pairs | {"Concat", "Unsqueeze"}
    expected = function(x).numpy()
    found = run(exported, x)
    # Next to a tie the one arithmetic may go up and the other down: whole steps, and few of them.
    for differs in found != expected:
        assert differs.mean() < 0.1
    assert np.abs(found - expected).max() <= 0.7 * 1.0001


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*reduce_range:UserWarning")
@pytest.mark.parametrize("fused", [False, True])
def test_modules_of_torch_ao(fused):
    """A model with torch.ao's FakeQuantize modules exports to Q/DQ with their scales and zero points."""
    fake = peers.FusedMovingAvgObsFakeQuantize if fused else peers.FakeQuantize
    activation = fake.with_args(observer=peers.MovingAverageMinMaxObserver, quant_min=0, quant_max=255)()
    torch.manual_seed(0)
    model, x = nn.Sequential(activation, nn.Linear(6, 4)), torch.rand(5, 6)
    model(x)
    model.apply(peers.disable_observer)
    exported = export_torch(model.eval(), (x,))
    (first, *_) = scales(exported)
    assert first[1] == activation.scale.numpy()
    # Scales of rand() are not powers of two: a value at a tie may go to the other step, 1/255 times a weight.
    np.testing.assert_allclose(run(exported, x), model(x).detach().numpy(), rtol=0, atol=0.01)


FORMS = {
    "divide, clamp last": lambda x: torch.clamp(torch.round(x / 0.1), -8, 7) * 0.1,
    "clamp first": lambda x: torch.round(torch.clamp(x / 0.1, -128, 127)) * 0.1,
    "reciprocal": lambda x: torch.round(x * 4.0).clamp(0, 15) * 0.25,
    "zero point": lambda x: (torch.clamp(torch.round(x / 0.1) + 3, 0, 255) - 3) * 0.1,
}


OTHERS = {
    "no limits": lambda x: torch.round(x / 0.1) * 0.1,
    "other scale": lambda x: torch.clamp(torch.round(x / 0.1), -8, 7) * 0.2,
    "odd limits": lambda x: torch.clamp(torch.round(x / 0.1), -8.5, 7.5) * 0.1,
    "other offset": lambda x: (torch.clamp(torch.round(x / 0.1) + 3, 0, 255) - 2) * 0.1,
}


@both
def test_written_out_quantization_is_recognised(exporter):
    """Division, rounding, clipping and multiplication are one Q/DQ pair, with the same numbers.

    Rounding without quantization stays as it was written.
    """
    x, forms = torch.linspace(-3, 3, 97)[:, None], FORMS | OTHERS
    every = Function(lambda x: tuple(form(x + i) for i, form in enumerate(forms.values())))
    exported = export_torch(every, (x,), exporter=exporter)
    kinds = Counter(node.op_type for node in exported.graph.node)
    assert kinds["QuantizeLinear"] == kinds["DequantizeLinear"] == len(FORMS)
    assert kinds["Round"] == len(OTHERS)
    found = run_as_written(exported, {exported.graph.input[0].name: x.numpy()})
    for name, made, expected in zip(forms, found, every(x), strict=True):
        np.testing.assert_array_equal(made, expected.numpy() + 0.0, err_msg=name)


@pytest.mark.sample
def test_one_tensor_in_two_grids():
    """Two readers may want two grids of one tensor, one after the other too: each gets its own pair."""
    one, two = FakeQuantize("int8", None), FakeQuantize("int4", None)
    one.set_qparams(0.1), two.set_qparams(0.3)
    model = nn.ModuleDict({"one": one, "two": two})
    model.forward = lambda x: (one(x) + 1, two(x) + 2, two(one(x)), one(x) + 4)
    x = torch.randn(3, 5)
    exported = export_torch(model, (x,))
    session = onnxruntime.InferenceSession(exported.SerializeToString(), providers=["CPUExecutionProvider"])
    for found, expected in zip(session.run(None, {"x": x.numpy()}), model(x), strict=True):
        np.testing.assert_array_equal(found, expected.numpy())
    assert "Identity" not in {op for _, op in operators(exported)}


def test_refusals():
    """No scale, a rounding ONNX lacks and an opset too low are errors of one line."""
    model = nn.Sequential(FakeQuantize("int8"))
    with pytest.raises(StatisticsError, match="quantizer '0' has no scale yet"):
        export_torch(model, (torch.ones(2, 3),))
    model[0].set_qparams(0.1)
    with pytest.raises(ModelError, match="need opset 21, and 18 was asked"):
        four = nn.Sequential(FakeQuantize("int4", None))
        four[0].set_qparams(0.1)
        export_torch(four, (torch.ones(2, 3),), opset=18)
    up = nn.Sequential(FakeQuantize("int8", None, rounding="half_up"))
    up[0].set_qparams(0.1)
    with pytest.raises(PlanError, match="QuantizeLinear rounds half_even, found 'half_up'"):
        export_torch(up, (torch.ones(2, 3),))


INT4 = recipe(None, "int4", "tensorrt", granularity="blocked", block_size=8)
# Convolutions are built in the example torch_to_tensorrt.
BUILT = [("transformer", "tensorrt-int8", "scale"), ("transformer", INT4, "range")]


@pytest.mark.parametrize(("name", "asked", "learned"), BUILT, ids=["int8", "int4"])
def test_tensorrt_builds_what_was_exported(name, asked, learned):
    """The builder of TensorRT for RTX takes exported networks without an error, learned grids or not."""
    pytest.importorskip("tensorrt_rtx")
    model, x = small_network(name), torch.rand(4, 1, 28, 28, generator=torch.Generator().manual_seed(1))
    prepared(model, x, asked)
    learn_grids(model, learned)
    result = check(export_torch(model, (x[:2],)), build=BuildOptions())
    assert result.builder and result.passed, result.table()
