"""Horizon's FakeQuantize: its formula, and the observers of torch.ao that are installed."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

nn = pytest.importorskip("torch.nn")
pytest.importorskip("onnxscript")

import torch  # noqa: E402  only once it is known to be there
from torch.ao import quantization as peers

import onnxfq
from onnxfq import errors, load_recipe
from onnxfq.torch import compute_encodings, quantize_module, quantizers
from onnxfq.torch.compat.horizon import FakeQuantize


def batches(count=4):
    """Return batches whose range moves."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(64, generator=generator) * (i + 1) for i in range(count)]


def test_the_formula_is_horizons():
    """clamp(floor(x / scale + 0.5), quant_min, quant_max) * scale, with the scale of torch.ao's observer."""
    ours, limits = FakeQuantize(), {"dtype": torch.qint8, "quant_min": -128, "quant_max": 127}
    peer = peers.MovingAverageMinMaxObserver(qscheme=torch.per_tensor_symmetric, **limits)
    for x in batches():
        y = ours(x)
        peer(x)
        scale, _ = peer.calculate_qparams()
        assert torch.equal(ours.scale.reshape(1), scale)
        assert torch.equal(y, torch.floor(x / scale + 0.5).clamp(-128, 127) * scale)


def test_settings_are_readable():
    """quant_min, quant_max, dtype, qscheme and ch_axis equal torch.ao's; factories make modules with them."""
    factory = FakeQuantize.with_args(averaging_constant=0.1).with_args(dtype="qint16")
    first, second = factory(), factory()
    assert first is not second and first.quant_max == 32767
    ours = FakeQuantize(dtype="qint16", averaging_constant=0.5)
    assert (ours.quant_min, ours.quant_max, ours.ch_axis) == (-32768, 32767, -1)
    assert ours.qscheme == torch.per_tensor_symmetric and FakeQuantize().dtype == torch.qint8
    with pytest.raises(errors.SpecError, match="setting quant_min of a FakeQuantize has no effect"):
        ours.quant_min = 0
    channels = FakeQuantize(ch_axis=0)
    channels(torch.randn(3, 5))
    assert channels.scale.shape == (3,) and channels.qscheme == torch.per_channel_symmetric


def test_observers_of_torch_ao_and_of_a_user():
    """A class with arguments, a factory, an instance, and a module of two methods."""
    x = batches(1)[0]

    class Fixed(nn.Module):
        def forward(self, x):
            return x

        def calculate_qparams(self):
            return torch.tensor([0.25]), None

    for observer, keywords in (
        (peers.MinMaxObserver, {}),
        (peers.HistogramObserver, {"bins": 256}),
        (peers.MovingAverageMinMaxObserver.with_args(averaging_constant=0.5), {}),
        (peers.MinMaxObserver(dtype=torch.qint8, qscheme=torch.per_tensor_symmetric), {}),
    ):
        ours = FakeQuantize(observer, **keywords)
        ours(x)
        scale, _ = ours.observer.inner.calculate_qparams()
        assert torch.equal(ours.scale.reshape(1), scale)
    ours = FakeQuantize(Fixed)
    assert torch.equal(ours(x), torch.floor(x / 0.25 + 0.5).clamp(-128, 127) * 0.25)
    with pytest.raises(errors.SpecError, match="has no calculate_qparams"):
        FakeQuantize(nn.Identity)


def test_scales_move_in_training_only():
    """In evaluation mode the observer rests; set_qparams fixes the scale."""
    ours = FakeQuantize()
    first, second, *_ = batches()
    ours(first)
    before = ours.scale.clone()
    ours.eval()(second)
    assert torch.equal(ours.scale, before)
    ours.train()(second)
    assert not torch.equal(ours.scale, before)
    ours.set_qparams(0.5)
    ours(first)
    assert ours.scale.item() == 0.5


@pytest.mark.parametrize("count", [1, 7, 8, 65])
def test_the_packed_mask_gives_the_same_gradient(count):
    """compat_mask keeps one bit an element; saturate=False passes every gradient."""
    gradients = []
    for settings in ({"compat_mask": True}, {"compat_mask": False}, {"saturate": False}):
        ours = FakeQuantize(**settings)
        ours.set_qparams(0.01)
        x = torch.linspace(-3, 3, count).requires_grad_()
        ours(x).sum().backward()
        gradients.append(x.grad)
    assert torch.equal(gradients[0], gradients[1])
    assert torch.equal(gradients[2], torch.ones(count))


def test_in_place_writes_over_the_input():
    """in_place returns the input with the result in it, without a gradient."""
    ours = FakeQuantize(in_place=True)
    ours.set_qparams(0.1)
    x = batches(1)[0]
    expected = torch.floor(x / torch.tensor(0.1) + 0.5).clamp(-128, 127) * torch.tensor(0.1)
    assert ours(x) is x
    assert torch.equal(x, expected)


def test_quantize_module_takes_moving_average_rounding_and_rule():
    """Scales of activations follow the data in training, by torch.ao's rule, with Horizon's rounding."""
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    quantize_module(model, observer="moving_average:0.5", rounding="half_up", scale_rule="width")
    x = torch.randn(16, 4, generator=torch.Generator().manual_seed(0))
    with torch.no_grad(), compute_encodings(model.eval()):
        model(x)
    found = quantizers(model)["0.input_quantizer"]
    assert found.grid.rounding == "half_up" and found.scale.item() == pytest.approx(
        x.abs().max().item() / 127.5
    )
    before = found.scale.clone()
    model(x * 3)
    assert torch.equal(found.scale, before)
    model.train()(x * 3)
    assert found.scale.item() == pytest.approx(2 * before.item())  # half way from 1 to 3


@pytest.mark.parametrize("recipe", ["tensorrt-int8", "onnxruntime-int8"])
@pytest.mark.parametrize("calibrator", ["mse", "minmax", "moving_average:0.25"])
def test_training_without_calibration_moves_scales_as_torch_ao(recipe, calibrator):
    """The QAT default is torch.ao's moving average in training; `compute_encodings` fixes the scales."""
    model = nn.Sequential(nn.Linear(4, 4))
    quantize_module(
        model, load_recipe(recipe).override(activations={"calibrator": calibrator}), scale_rule="width"
    )
    found = quantizers(model)["0.input_quantizer"]
    peer = peers.MovingAverageMinMaxObserver(
        averaging_constant=0.25 if "moving" in calibrator else 0.01,
        dtype=found.dtype,
        qscheme=found.qscheme,
        quant_min=found.quant_min,
        quant_max=found.quant_max,
    )
    with pytest.raises(errors.StatisticsError, match="no scale yet"):
        model.eval()(torch.ones(1, 4))
    generator = torch.Generator().manual_seed(0)
    for i in range(4):
        x = torch.randn(16, 4, generator=generator) * (i + 1)
        model.train()(x)
        peer(x)
        scale, zero_point = peer.calculate_qparams()
        assert torch.equal(found.scale.reshape(1), scale)
        assert torch.equal(found.zero_point.reshape(1), zero_point)
    with torch.no_grad(), compute_encodings(model.eval()):
        model(x)
    fixed = found.scale.clone()
    model.train()(x * 9)
    assert torch.equal(found.scale, fixed)
    found.enable_observer()
    model(x * 9)
    assert found.scale > fixed


def test_wrong_settings_leave_the_module_alone():
    """An unknown rounding, or an argument that nothing takes, is an error before anything changes."""
    model = nn.Sequential(nn.Linear(4, 4))
    for settings in ({"rounding": "flor"}, {"observe": "minmax"}):
        with pytest.raises(errors.SpecError):
            quantize_module(model, **settings)
    assert not quantizers(model)


def test_rounding_and_arithmetic_of_recipes(tmp_path):
    """A recipe's simulation rounds in fake-quant models and modules; a Q/DQ model refuses it."""
    weight = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    node = helper.make_node("MatMul", ["x", "w"], ["y"], name="product")
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", [2, 4]), ("y", [2, 3]))]
    graph = helper.make_graph([node], "g", ends[:1], ends[1:], [numpy_helper.from_array(weight, "w")])
    model = onnxfq.load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10))
    x = np.random.default_rng(1).normal(size=(2, 4)).astype(np.float32)
    modes = {"rounding": "floor", "arithmetic": "reciprocal"}
    recipe = tmp_path / "r.yaml"
    recipe.write_text(f"simulation: {modes}")
    plan = onnxfq.make_plan(model, load_recipe(recipe))
    encodings = onnxfq.calibrate(model, plan, onnxfq.collect_statistics(model, plan, [{"x": x}]))
    made = onnxfq.insert_fake_quantize(model, plan, encodings)
    options = onnxruntime.SessionOptions()
    onnxfq.register_custom_ops(options)
    found = onnxruntime.InferenceSession(made.SerializeToString(), options).run(None, {"x": x})[0]
    sides = []
    for values, name in ((x, "x"), (weight, "w")):
        spec = encodings[name].spec
        given = {"qtype": spec.qtype, "axis": spec.granularity.axis, **modes}
        sides.append(onnxfq.fake_quantize(values, encodings[name].scale, **given))
    assert np.allclose(found, sides[0] @ sides[1], rtol=0, atol=1e-6)  # the order of sums
    layer = nn.Linear(4, 3, bias=False)
    layer.weight.data = torch.from_numpy(weight.T.copy())
    module = nn.Sequential(layer)
    quantize_module(module, recipe)
    with torch.no_grad(), compute_encodings(module):
        module(torch.from_numpy(x))
    assert np.allclose(module(torch.from_numpy(x)).detach(), found, rtol=0, atol=1e-6)
    refused = "simulation.rounding is floor, and QuantizeLinear has half_even only"
    with pytest.raises(errors.PlanError, match=refused):
        onnxfq.insert_qdq(model, plan, encodings)
    with pytest.raises(errors.RecipeError, match=refused):
        onnxfq.quantize("absent.onnx", None, recipe=recipe)
    for content, message in (
        ("simulation: {rounding: flor}", "unknown rounding 'flor'.*floor"),
        ("simulation: {saturated: false}", "saturate"),
    ):
        recipe.write_text(content)
        with pytest.raises(errors.RecipeError, match=message):
            load_recipe(recipe)
    recipe.write_text("simulation: {saturate: false}")
    with pytest.raises(errors.PlanError, match="integers only"):
        onnxfq.insert_fake_quantize(model, onnxfq.make_plan(model, load_recipe(recipe)), encodings)
    recipe.write_text("simulation: {rounding: floor}\nweights: {rounding: gptq}")
    with pytest.raises(errors.RecipeError, match="may move weight 'w', which gptq"):
        onnxfq.make_plan(model, load_recipe(recipe))


def test_arguments_are_attributes_and_keep_torchs_order():
    """Each argument can be read; integers in second and third place are the limits, as in torch.ao."""
    ours = FakeQuantize(saturate=False, compat_mask=False, channel_len=4, fast_training=False, ch_axis=0)
    assert (ours.saturate, ours.in_place, ours.compat_mask) == (False, False, False)
    assert (ours.channel_len, ours.fast_training) == (4, False) and ours.observer_kwargs == {"ch_axis": 0}
    ours = FakeQuantize(peers.MovingAverageMinMaxObserver, -8, 7).eval()
    assert (ours.quant_min, ours.quant_max, ours.in_place) == (-8, 7, False)
    ours.set_qparams(0.1, None)
    x = torch.tensor([0.31, -0.77, 5.0])
    y, kept = ours(x), x.clone()
    assert torch.equal(x, kept) and torch.equal(y, torch.tensor([3.0, -8.0, 7.0]) * torch.tensor(0.1))
    with pytest.raises(errors.ArgumentError, match="give quant_min and quant_max by name"):
        FakeQuantize(peers.MovingAverageMinMaxObserver, -8)
    assert FakeQuantize(dtype="qint16").dtype == "qint16"


@pytest.mark.parametrize("axis", [None, 0])
def test_state_dicts_have_torchs_keys(axis):
    """torch.ao's FakeQuantize and ours load each other's state; buffers keep their identity."""
    keywords = {} if axis is None else {"ch_axis": axis}
    scheme = torch.per_tensor_symmetric if axis is None else torch.per_channel_symmetric
    observer = (
        peers.MovingAverageMinMaxObserver if axis is None else peers.MovingAveragePerChannelMinMaxObserver
    )
    peer = peers.FakeQuantize(observer, -128, 127, dtype=torch.qint8, qscheme=scheme, **keywords)
    ours = FakeQuantize(**keywords)
    held = [id(buffer) for buffer in ours.buffers()]
    for i in range(3):
        x = torch.randn(4, 16, generator=torch.Generator().manual_seed(i)) * (i + 1)
        ours(x), peer(x)
        for found, expected in zip(ours.calculate_qparams(), peer.calculate_qparams(), strict=True):
            assert torch.equal(found.reshape(-1), expected)
    assert [id(buffer) for buffer in ours.buffers()] == held
    assert torch.equal(ours.activation_post_process.min_val, peer.activation_post_process.min_val)
    state, theirs = ours.state_dict(), peer.state_dict()
    assert set(state) - set(theirs) == {"format"} and not set(theirs) - set(state)
    assert all(torch.equal(state[key], theirs[key]) for key in theirs)
    assert all(state[key].dtype == theirs[key].dtype for key in theirs)
    loaded = FakeQuantize(**keywords)
    loaded.load_state_dict(theirs)
    assert torch.equal(loaded.eval()(x), ours.eval()(x))
    peer.load_state_dict({key: value for key, value in state.items() if key != "format"})
    with pytest.raises(errors.SpecError, match="has 65535 steps.*give 255.0"):
        FakeQuantize(dtype="qint16", **keywords).load_state_dict(theirs)


SCALES = [
    (0.05, None),
    (0.05, 0),
    (1, None),
    ([0.05], None),
    ([0.05], [0]),
    (np.float32(0.05), None),
    (torch.tensor(0.05), None),
    (torch.tensor([0.05]), torch.tensor([0])),
    ([0.1, 0.2, 0.3, 0.4], None),
    (torch.tensor([0.1, 0.2, 0.3, 0.4]), torch.zeros(4, dtype=torch.int32)),
]


@pytest.mark.parametrize(("dtype", "low", "high"), [("qint8", -128, 127), ("qint16", -32768, 32767)])
@pytest.mark.parametrize(("scale", "zero_point"), SCALES, ids=str)
def test_scales_are_given_in_any_form(scale, zero_point, dtype, low, high):
    """clamp(floor(x / scale + 0.5), low, high) * scale, for numbers, sequences and tensors."""
    channels = np.asarray(scale).size > 1
    quantizer = FakeQuantize(dtype=dtype, **({"ch_axis": 0} if channels else {})).eval()
    quantizer.set_qparams(scale, zero_point)
    x = torch.randn(4, 64, generator=torch.Generator().manual_seed(0)) * 20
    given = np.asarray(scale, np.float32).reshape(-1, 1) if channels else np.float32(np.asarray(scale).item())
    integers = np.clip(np.floor(x.numpy() / given + np.float32(0.5)), low, high)
    # 0 has no sign after an addition
    assert np.array_equal(quantizer(x).numpy(), integers * given + np.float32(0))
