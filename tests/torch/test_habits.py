"""Modules as torch users have them: casts, inference mode, parametrized weights, torch.func and more."""

from __future__ import annotations

import warnings

import numpy as np
import onnx
import pytest

nn = pytest.importorskip("torch.nn")
pytest.importorskip("onnxscript")

import torch  # noqa: E402  only once it is known to be there
from quantized_modules import made_of, prepared, recipe, run
from torch.nn.utils import parametrizations, prune

from onnxfq.errors import ModelError
from onnxfq.numerics.float_types import round_scale
from onnxfq.numerics.qparams import ParamRules, choose_qparams
from onnxfq.numerics.qtypes import qtype_by_name
from onnxfq.torch import (
    OBSERVERS,
    FakeQuantize,
    compute_encodings,
    export_torch,
    fake_quantize,
    learn_grids,
    quantize_module,
    quantizers,
    range_to_params,
    remove_fake_quantize,
)


def network() -> nn.Module:
    """Return two layers with something between."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).eval()


X = torch.rand(6, 8, generator=torch.Generator().manual_seed(0))


@pytest.mark.sample
@pytest.mark.parametrize("observer", sorted(OBSERVERS))
def test_calibration_in_inference_mode_can_be_trained_on(observer):
    """Scales and ranges that were found in inference mode are plain tensors, which training changes."""
    one = FakeQuantize("int8", observer)
    for _ in range(2):
        with torch.inference_mode(), compute_encodings(one):
            one(X)
    assert not any(tensor.is_inference() for tensor in one.buffers())
    one.enable_observer()
    one(X.clone().requires_grad_()).sum().backward()
    one.learn("scale")
    one(X).sum().backward()
    torch.optim.SGD(one.parameters(), 0.1).step()


@pytest.mark.parametrize("observer", sorted(OBSERVERS))
def test_a_tensor_without_elements_passes(observer):
    """It has no range and nothing to round: an expert that got no token breaks nothing."""
    one, empty = FakeQuantize("int8", observer), torch.zeros(0, 8)
    with torch.no_grad(), compute_encodings(one):
        assert one(empty).shape == (0, 8)
        one(X)
    scale = one.scale.clone()
    assert one(empty).shape == (0, 8) and torch.equal(one.scale, scale)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_casting_a_model_moves_no_scale(dtype):
    """half() and float() leave scales, learned ones too, with their gradients; PyTorch casts all else."""
    model = network()
    prepared(model, X)
    learn_grids(model, "scale")
    model(X).sum().backward()
    before = {name: q.scale.detach().clone() for name, q in quantizers(model).items()}
    model.to(dtype)
    for name, quantizer in quantizers(model).items():
        assert torch.equal(quantizer.scale, before[name]) and quantizer.scale.dtype == torch.float32
        assert quantizer.log_ratio.dtype == quantizer.log_ratio.grad.dtype == torch.float32
    torch.optim.SGD([q.log_ratio for q in quantizers(model).values()], 0.1).step()
    assert model(X.to(dtype)).dtype == dtype


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_scales_of_half_types_are_the_cores(kind, symmetric):
    """The scale of a tensor of 16 bits has the bits of choose_qparams for that type: rounded up."""
    rng = np.random.default_rng(0)
    ends = np.exp2(rng.uniform(-30, 15, (2, 2000))).astype(np.float32)
    ends[:, 0], ends[:, 1] = 0, 3e38
    rules = ParamRules(float_type=kind)
    scale, zeros = choose_qparams(-ends[0], ends[1], qtype_by_name("int8"), symmetric, rules)
    low, high = torch.from_numpy(-ends[0]), torch.from_numpy(ends[1])
    found, found_zeros = range_to_params(low, high, "int8", symmetric, rules)
    assert np.array_equal(found.numpy(), scale)
    assert symmetric or np.array_equal(found_zeros.numpy(), zeros)


def test_a_half_module_reaches_onnx():
    """Its scales are float16 in the file, and ONNX Runtime computes what torch does.

    Half a step of float16 at 1, 2^-11: sums of 8 products are made in another order.
    """
    model, x = nn.Sequential(nn.Linear(8, 4)).half().eval(), X.half()
    prepared(model, x)
    exported = export_torch(model, x)
    types = {tensor.name: tensor.data_type for tensor in exported.graph.initializer}
    scales = [n.input[1] for n in exported.graph.node if n.op_type.endswith("QuantizeLinear")]
    assert scales and {types[name] for name in scales} == {10}  # onnx.TensorProto.FLOAT16
    found = run(exported, x)
    np.testing.assert_allclose(found, model(x).detach().numpy(), rtol=0, atol=2**-11)


@pytest.mark.parametrize("learned", ["scale", "range"])
def test_learned_scales_of_a_half_module_reach_onnx(learned):
    """Learned freely, a grid is used with the next scale of float16, and that is the scale in the file."""
    model, x = nn.Sequential(nn.Linear(8, 4)).half().eval(), X.half()
    prepared(model, x)
    learn_grids(model, learned)
    with torch.no_grad():
        for parameter in quantizers(model)["0.input_quantizer"].parameters():
            parameter.add_(0.37)
    model(x).float().sum().backward()
    assert all(p.grad.abs().sum() > 0 for p in quantizers(model)["0.input_quantizer"].parameters())
    exported = export_torch(model, x)
    quantize = next(n for n in exported.graph.node if n.op_type == "QuantizeLinear")
    scale = next(t for t in exported.graph.initializer if t.name == quantize.input[1])
    used, _ = quantizers(model)["0.input_quantizer"].qparams()
    assert float(onnx.numpy_helper.to_array(scale)) == float(used) == float(used.half())


@pytest.mark.grid
@pytest.mark.parametrize("learned", ["nothing", "scale"])
@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_a_module_trained_in_float32_is_exported_in_a_half_type(kind, learned):
    """Scales become the next numbers of the type, as `choose_qparams` rounds them.

    The file has the nodes of the float32 one; float16 computes the same within a step of the last layer.
    """
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))
    x = torch.rand(6, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    prepared(model.eval(), x, "tensorrt-int8")
    learn_grids(model.train(), learned)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    model(x).square().sum().backward()
    optimizer.step()
    model.eval()
    whole, dtype = export_torch(model, x), getattr(torch, kind)
    exported = export_torch(model.to(dtype), x.to(dtype))
    assert [n.op_type for n in exported.graph.node] == [n.op_type for n in whole.graph.node]
    stored = {t.name: onnx.numpy_helper.to_array(t) for t in exported.graph.initializer}
    before = {t.name: onnx.numpy_helper.to_array(t) for t in whole.graph.initializer}
    for one, other in zip(exported.graph.node, whole.graph.node, strict=True):
        if one.op_type == "QuantizeLinear":
            scale = before[other.input[1]].astype(np.float64)
            assert stored[one.input[1]].astype(np.float64) == round_scale(scale, kind)
    if kind == "float16":
        found, expected = run(exported, x.half()), run(whole, x)
        np.testing.assert_allclose(found, expected, rtol=0.02, atol=0.02)


def test_autocast_keeps_float32_scales():
    """Under autocast the model is a float32 one, and so are its scales, whatever a layer reads."""
    model = network()
    quantize_module(model, recipe())
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16), compute_encodings(model):
        model(X)
    assert {q.float_type for q in quantizers(model).values()} == {"float32"}


def old_weight_norm(layer: nn.Module) -> nn.Module:
    """Return the layer with torch's older weight_norm, a hook before forward."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return torch.nn.utils.weight_norm(layer)


@pytest.mark.parametrize(
    "changed",
    [
        parametrizations.weight_norm,
        parametrizations.spectral_norm,
        old_weight_norm,
        lambda layer: prune.l1_unstructured(layer, "weight", 0.5),
    ],
    ids=["weight-norm", "spectral-norm", "older-weight-norm", "pruned"],
)
def test_weights_made_of_other_parameters(changed):
    """The quantizer sees the weight as the layer uses it; training moves its parameters."""
    model = nn.Sequential(changed(nn.Conv1d(4, 4, 3)), nn.ReLU(), nn.Linear(6, 4)).eval()
    x = torch.rand(3, 4, 8)
    expected, weight = model(x), model[0].weight.detach().clone()
    prepared(model, x)
    quantizer = quantizers(model)["0.weight_quantizer"]
    scale = torch.maximum(weight.double().amax((1, 2)) / 127, weight.double().amin((1, 2)) / -128)
    assert torch.equal(quantizer.scale, scale.float())
    model.train()(x).square().mean().backward()
    trained = [p for p in model[0].parameters() if p.grad is not None]
    assert all(p.grad.abs().sum() > 0 for p in trained) and len(trained) >= 2
    torch.optim.SGD(trained, 0.1).step()
    model.eval()
    scale = quantizer.scale.clone()
    model(x)
    assert not torch.equal(quantizer.scale, scale)
    remove_fake_quantize(model)
    assert not torch.equal(model(x), expected)  # it has learned, and works without quantizers


def test_recurrent_weights_under_weight_norm():
    """The weight that an LSTM multiplies by is quantized, not the parameters that make it."""
    model = parametrizations.weight_norm(nn.LSTM(8, 8), "weight_hh_l0")
    plan = prepared(model, torch.rand(5, 2, 8))
    assert [p.tensor for p in plan.placements] == ["weight_ih_l0", "weight_hh_l0"]


def test_lazy_layers_are_run_first():
    """A layer whose weight has no shape yet is an error of one line that says so."""
    with pytest.raises(ModelError, match=r"layer '0', a LazyLinear, has no weight yet; run data"):
        quantize_module(nn.Sequential(nn.LazyLinear(4)))


@pytest.mark.parametrize("saturate", [True, False])
def test_torch_func_gives_the_same_bits(saturate):
    """grad, vjp and vmap of torch.func see the values and gradients that backward does."""
    x, weights = torch.randn(64) * 3, torch.arange(64.0)
    given = (x, torch.tensor(0.02), torch.tensor(3.0))

    def rounded(x, scale, zero_point):
        return fake_quantize(x, scale, zero_point, qtype="int8", saturate=saturate)

    tensors = [tensor.clone().requires_grad_() for tensor in given]
    expected = rounded(*tensors)
    (expected * weights).sum().backward()
    found = torch.func.grad(lambda *args: (rounded(*args) * weights).sum(), argnums=(0, 1, 2))(*given)
    assert all(torch.equal(tensor.grad, gradient) for tensor, gradient in zip(tensors, found, strict=True))
    assert torch.equal(torch.func.vjp(rounded, *given)[0], expected)
    mapped = torch.vmap(lambda row: rounded(row, *given[1:]))(x.reshape(4, 16))
    assert torch.equal(mapped.flatten(), expected)


@pytest.mark.parametrize("learned", ["nothing", "scale"])
def test_gradients_of_each_sample(learned):
    """torch.func takes a quantized module, learned grids too: the samples' gradients sum to backward's.

    1e-5: sums of six samples in another order.
    """
    model = network()
    prepared(model, X, recipe())
    learn_grids(model, learned)
    parameters = dict(model.named_parameters())

    def loss(given, x):
        return torch.func.functional_call(model, given, (x[None],)).square().sum()

    # LSQ's factor counts the elements that share a scale, here the elements of one sample.
    each = torch.vmap(torch.func.grad(loss), (None, 0))(parameters, X)
    model(X).square().sum().backward()
    weight = model[0]._parameters["weight"]
    torch.testing.assert_close(each["0.weight"].sum(0), weight.grad, rtol=1e-5, atol=1e-5)


def test_modules_made_on_the_meta_device():
    """load_state_dict(assign=True) makes of one a module that computes the same, and can be calibrated."""
    model = network()
    prepared(model, X)
    with torch.device("meta"):
        other = network()
    quantize_module(other, recipe())
    other.load_state_dict(model.state_dict(), assign=True)
    assert torch.equal(other(X), model(X))
    with torch.no_grad(), compute_encodings(other):
        other(X)
    assert torch.equal(other(X), model(X))


def test_layers_take_their_input_by_name():
    """conv(input=x) is folded and quantized as conv(x)."""
    layers, x = {"conv": nn.Conv2d(3, 4, 3), "norm": nn.BatchNorm2d(4)}, torch.rand(2, 3, 8, 8)
    model = made_of(lambda self, x: self.norm(input=self.conv(input=x)), **layers)
    prepared(model, x)
    assert model.conv.folded_norm is model.norm
    by_name = model(x)
    assert torch.equal(by_name, model.norm(model.conv(x)))


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore:`torch.jit:DeprecationWarning")
def test_a_trace_passes_its_own_check(tmp_path):
    """torch.jit.trace runs the module again without gradients and compares; its file is read back."""
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))
    x = torch.rand(6, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    prepared(model.eval(), x, "onnxruntime-int8")
    traced = torch.jit.trace(model, x)
    torch.jit.save(traced, tmp_path / "model.pt")
    assert torch.equal(traced(x), model(x))
    assert torch.equal(torch.jit.load(tmp_path / "model.pt")(x), model(x))


def test_pruning_is_made_permanent():
    """prune.remove makes the pruned weight the parameter again."""
    model = network()
    prepared(model, X)
    prune.l1_unstructured(model[0], "weight", 0.5)
    expected = model(X)
    prune.remove(model[0], "weight")
    assert torch.equal(model(X), expected) and (model[0].weight == 0).sum() == model[0].weight.numel() // 2
    assert "0.weight" in dict(model.named_parameters()) and not list(model[0].named_buffers(recurse=False))
    remove_fake_quantize(model)
    assert isinstance(model[0].weight, nn.Parameter)


def test_a_block_that_nothing_enters_is_told():
    """A call without `with` computes nothing, and a warning tells it."""
    with pytest.warns(UserWarning, match="never entered, so no scale was computed"):
        compute_encodings(network())
