"""FakeQuantize, its observers and compute_encodings: torch's bits, the core's scales, switches that hold."""

from __future__ import annotations

import copy
import io

import numpy as np
import pytest

nn = pytest.importorskip("torch.nn")
pytest.importorskip("onnxscript")

import torch  # noqa: E402  only once it is known to be there
from quantized_modules import recipe
from torch.ao.quantization import observer as peers

import onnxfq
from onnxfq.calibration.statistics import TensorStatistics
from onnxfq.errors import SpecError, StatisticsError
from onnxfq.numerics.layout import Layout, expand_params
from onnxfq.numerics.spec import QuantSpec
from onnxfq.stages.calibrate import calibrate
from onnxfq.torch import FakeQuantize, compute_encodings, fake_quantize, is_initialized, learn_grids
from onnxfq.torch.observers import Histogram, MovingAverage, group_limits

# torch announces that torch.ao will go.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*reduce_range:UserWarning")


def batches(count: int = 5, *shape: int, seed: int = 0) -> list[torch.Tensor]:
    """Return normal tensors, each of another width."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(*(shape or (4, 8)), generator=generator) * (i + 1) for i in range(count)]


@pytest.mark.sample
@pytest.mark.parametrize("constant", [0.01, 0.3])
def test_ranges_have_torchs_bits(constant):
    """Moving averages, per tensor and per channel, and ranges of all tensors have the bits of torch.ao's."""
    tensor, channel = QuantSpec(qtype="int8"), QuantSpec(qtype="int8", axis=1)
    average = {"averaging_constant": constant}
    pairs = [
        (MovingAverage(tensor, constant), peers.MovingAverageMinMaxObserver(**average)),
        (MovingAverage(channel, constant), peers.MovingAveragePerChannelMinMaxObserver(**average, ch_axis=1)),
        (FakeQuantize("int8").observer, peers.MinMaxObserver()),
    ]
    for x in batches(20):
        for ours, theirs in pairs:
            ours(x), theirs(x)
    for ours, theirs in pairs:
        assert torch.equal(ours.rmin, theirs.min_val) and torch.equal(ours.rmax, theirs.max_val)


BLOCKS = [{}, {"axis": 1}, {"axis": -1, "block_size": 3}, {"axis": 0, "block_size": 9}]


@pytest.mark.parametrize("blocks", [*BLOCKS, {"block_shape": (2, -1, 3)}])
def test_group_limits(blocks):
    """The ends of each group are its elements' ends, the short last block's too."""
    spec = QuantSpec(qtype="int4", **blocks)
    x = torch.randn(5, 4, 7, generator=torch.Generator().manual_seed(3))
    low, high = group_limits(x, spec)
    shape = Layout(spec.granularity, x.shape).scale_shape
    ids = expand_params(np.arange(low.numel()).reshape(shape), x.shape, spec.granularity)
    for i in range(low.numel()):
        group = x.numpy()[ids == i]
        assert (low.flatten()[i], high.flatten()[i]) == (group.min(), group.max())


def test_histogram_is_the_cores():
    """The statistics are equal in every field to the core's of the same tensors, whatever the batches."""
    one = Histogram(QuantSpec(qtype="int8"))
    data = [*batches(), torch.tensor([0.0, -0.0, float("nan"), float("inf"), 1e-40])]
    for x in data:
        one(x)
    found = one.statistics()
    expected = TensorStatistics.from_array(torch.cat([x.flatten() for x in data]).numpy())
    for field in ("rmin", "rmax", "elements", "nans", "infinities", "zeros"):
        assert getattr(found, field) == getattr(expected, field), field
    np.testing.assert_array_equal(found.bins, expected.bins)
    np.testing.assert_array_equal(found.counts, expected.counts)


class Double(nn.Module):
    """Two linear layers with a ReLU, and a fake quantizer in front of each."""

    def __init__(self, spec, observer="histogram", calibrator="minmax"):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 4)
        self.one, self.two = (FakeQuantize(spec, observer, calibrator=calibrator) for _ in range(2))

    def forward(self, x):
        """Return four numbers a row."""
        return self.second(self.two(torch.relu(self.first(self.one(x)))))


@pytest.mark.grid
@pytest.mark.parametrize("calibrator", ["minmax", "percentile:99", "entropy", "mse"])
@pytest.mark.parametrize("qtype", ["int8", "uint8", "int4"])
def test_scales_equal_onnxruntimes_calibration(calibrator, qtype, tmp_path):
    """Torch and ONNX Runtime calibration of the same tensors give the same scales and zero points.

    The input is the same tensor to the bit. The first layer's output is summed in another order, so for the
    second layer the statistics of torch's own tensors go through the core.
    """
    spec = QuantSpec(qtype=qtype, symmetric=qtype[0] == "i")
    model = Double(spec, calibrator=calibrator).eval()
    data = batches(6, 32, 8)
    seen = []
    model.two.register_forward_pre_hook(lambda module, args: seen.append(args[0].detach().numpy()))
    with torch.no_grad(), compute_encodings(model):
        for x in data:
            model(x)
    plain = nn.Sequential(model.first, nn.ReLU(), model.second)
    path = tmp_path / "model.onnx"
    onnxfq.export_torch(plain, (data[0],), path, input_names=["x"])
    loaded = onnxfq.load(path)
    plan = onnxfq.make_plan(loaded, recipe(qtype).override(activations={"calibrator": calibrator}))
    statistics = onnxfq.collect_statistics(loaded, plan, [{"x": x.numpy()} for x in data])
    encoding = calibrate(loaded, plan, statistics)["x"]
    assert model.one.scale.numpy() == encoding.scale
    assert model.one.zero_point.numpy() == encoding.zero_point
    merged = TensorStatistics()
    for x in seen:
        merged = merged.merge(TensorStatistics.from_array(x))
    rmin, rmax = onnxfq.calibration.calibrators.Calibrator.parse(calibrator)(merged, spec)
    scale, zero_point = onnxfq.choose_qparams(rmin, rmax, spec.qtype, spec.symmetric)
    assert (model.two.scale.numpy(), model.two.zero_point.numpy()) == (scale, zero_point)


@pytest.mark.parametrize("observer", ["minmax", "latest", "moving_average:0.5"])
@pytest.mark.parametrize("power_of_two", [False, True])
def test_live_scales_equal_choose_qparams(observer, power_of_two):
    """Scales made by torch operations at every input have the bits of the core's rule for the range."""
    for symmetric in (True, False):
        spec = QuantSpec(qtype="int8", axis=1, symmetric=symmetric, power_of_two=power_of_two)
        one = FakeQuantize(spec, observer)
        for x in batches():
            one(x)
            rules = onnxfq.ParamRules(power_of_two=power_of_two)
            limits = one.observer.rmin.numpy(), one.observer.rmax.numpy()
            scale, zero_point = onnxfq.choose_qparams(*limits, one.spec.qtype, symmetric, rules)
            np.testing.assert_array_equal(one.scale.numpy(), scale)
            np.testing.assert_array_equal(one.zero_point.numpy(), zero_point)


def test_is_initialized_and_the_error_before():
    """Before any scale is known rounding is an error with the remedy; afterwards it is not."""
    model = Double("int8", "minmax")
    assert not is_initialized(model)
    model.one.disable_observer()
    with pytest.raises(StatisticsError, match="no scale yet; run data .* inside compute_encodings"):
        model(torch.ones(1, 8))
    with compute_encodings(model):
        model(torch.ones(1, 8))
    assert is_initialized(model)
    assert not model.one.observer_enabled and model.one.fake_quant_enabled


def test_compute_encodings_names_what_it_lacks():
    """A quantizer that saw nothing, or NaN, is named; switches and scales are as before when it raises."""
    model = Double("int8", "histogram")
    with pytest.raises(StatisticsError, match="quantizer 'one': the observer saw no finite value"):
        with compute_encodings(model):
            pass
    assert model.one.observer_enabled and model.one.fake_quant_enabled
    with pytest.raises(StatisticsError, match="quantizer 'one': 1 NaN and 0 infinite"):
        with compute_encodings(model):
            model(torch.tensor([[float("nan")] + [1.0] * 7]))
    with pytest.raises(ZeroDivisionError), compute_encodings(model):
        model(torch.ones(1, 8))
        raise ZeroDivisionError
    assert not is_initialized(model)


def test_set_qparams():
    """Scale and zero point are taken as given, per axis too, and their rules are checked."""
    one = FakeQuantize(QuantSpec(qtype="uint4", symmetric=False, axis=0))
    one.set_qparams([0.5, 0.25], [3, 4])
    x, given = torch.randn(2, 9), (torch.tensor([0.5, 0.25]), torch.tensor([3, 4]))
    assert torch.equal(one(x), fake_quantize(x, *given, qtype="uint4", axis=0))
    for message, args in (
        ("finite and positive", (-1.0,)),
        (r"in \[0, 15\] for uint4, found 16", (1.0, 16)),
        (r"must be an integer in \[0, 15\] for uint4, found 0.5", (1.0, 0.5)),
        (r"must have scale's shape \[2\]", ([1.0, 1.0], [0, 0, 0])),
    ):
        with pytest.raises(SpecError, match=message):
            one.set_qparams(*args)
    with pytest.raises(SpecError, match="of int8 symmetric per-tensor must be 0, found 2"):
        FakeQuantize("int8").set_qparams(1.0, 2)
    held = one.scale.numpy()  # an array shares the memory, which cannot grow then
    one.set_qparams([0.5, 0.25, 2.0], [3, 4, 0])
    assert one.scale.tolist() == [0.5, 0.25, 2.0] and one.scale.untyped_storage().nbytes() == 12
    assert held.tolist() == [0.5, 0.25]


def test_set_range():
    """Ends of AIMET's documentation, of which 0.39 ... 9.41 are the integers 52, 255, 68 and 97."""
    one = FakeQuantize(QuantSpec(qtype="uint8", symmetric=False))
    one.set_range(-10.0, 41.0)
    y = one(torch.tensor([[0.39, 51.0], [3.521, 9.41]]))
    torch.testing.assert_close(y, torch.tensor([[0.4, 41.0], [3.6, 9.4]]))
    scale, zero_point = one.qparams()
    assert (y / scale + zero_point).round().int().tolist() == [[52, 255], [68, 97]]
    with pytest.raises(SpecError, match=r"the lower first, found 2.0 to 1.0"):
        one.set_range(2.0, 1.0)


def test_with_args_and_repr():
    """A factory makes modules with changed arguments; the text of a module says what it does."""
    factory = FakeQuantize.with_args("int4", rounding="half_up").with_args(arithmetic="reciprocal")
    one = factory(observer=None)
    one.set_qparams(0.25)
    text = repr(one)
    parts = "int4 symmetric per-tensor", "half_up", "reciprocal", "scale=0.25", "fake_quant_enabled=True"
    assert all(part in text for part in parts)
    assert factory() is not factory()
    assert "no scale yet" in repr(factory())


@pytest.mark.parametrize("learned", ["nothing", "scale", "scale_zero_point", "range"])
def test_state_dict_round_trip(learned):
    """A new module takes the state whole: scales of any shape, switches, what is learned."""
    spec = QuantSpec(qtype="uint8", symmetric=False, axis=1)
    one = FakeQuantize(spec)
    one(batches()[0])
    one.learn(learned)
    one.observer_enabled, one.fake_quant_enabled = False, True
    file = io.BytesIO()
    torch.save(one.state_dict(), file)
    file.seek(0)
    other = FakeQuantize(spec)
    other.load_state_dict(torch.load(file, map_location="cpu"))
    x = batches()[1]
    assert torch.equal(one(x), other(x))
    assert (other.learned, other.observer_enabled) == (learned, False)
    assert [n for n, _ in other.named_parameters()] == [n for n, _ in one.named_parameters()]
    assert torch.equal(copy.deepcopy(one)(x), one(x))


@pytest.mark.parametrize("learned", ["scale", "scale_zero_point", "range"])
def test_learning_lowers_the_error(learned):
    """From a range far too wide, learning the grid lowers the error, and fixed() holds it still."""
    x = batches(1, 64, 16)[0]
    one = FakeQuantize(QuantSpec(qtype="uint4", symmetric=False))
    one(x * 3)
    one.learn(learned)
    assert torch.equal(one(x), one(x)) and list(one.parameters())
    before = (one(x) - x).square().mean()
    optimizer = torch.optim.Adam(one.parameters(), 0.05)
    for _ in range(100):
        optimizer.zero_grad()
        (one(x) - x).square().mean().backward()
        optimizer.step()
    after = one(x)
    assert (after - x).square().mean() < before / 2
    names = [name for name, _ in one.named_parameters()]
    with one.freeze_grid():
        assert not list(one.parameters())
        assert torch.equal(one(x), after)
    assert [name for name, _ in one.named_parameters()] == names and one.learned == learned


def test_learn_refuses():
    """Learning before a scale is known, unknown things and zero points that are 0 are errors of one line."""
    one = FakeQuantize("int8")
    with pytest.raises(StatisticsError, match="calibrate first"):
        one.learn()
    one(torch.ones(3))
    with pytest.raises(SpecError, match="unknown thing to learn 'scales'; nearest: scale"):
        one.learn("scales")
    with pytest.raises(SpecError, match="is 0; learn the scale alone"):
        one.learn("scale_zero_point")
    model = Double(QuantSpec(qtype="int8"), "minmax")
    model(torch.ones(1, 8))
    learn_grids(model, "scale_zero_point")
    assert model.one.learned == "scale"


def test_unknown_observers():
    """An unknown observer and one that cannot do the spec are errors with the remedy."""
    with pytest.raises(SpecError, match="unknown observer 'minmux'; nearest: minmax"):
        FakeQuantize("int8", "minmux")
    with pytest.raises(SpecError, match="'histogram' is per tensor"):
        FakeQuantize(QuantSpec(qtype="int8", axis=0), "histogram")
    with pytest.raises(SpecError, match="constant must be above 0"):
        FakeQuantize("int8", "moving_average:2")


@pytest.mark.parametrize(
    ("observer", "backend"),
    [("moving_average", "inductor"), ("minmax", "aot_eager"), ("latest", "aot_eager")],
)
def test_compiles_while_observing(observer, backend):
    """One graph without a break, observer and all; scales and gradients equal the plain module's."""
    plain, other = Double("int8", observer), Double("int8", observer)
    compiled = torch.compile(other, fullgraph=True, backend=backend)
    for x in batches():
        for model in (plain, compiled):
            model(x).sum().backward()
        assert torch.equal(plain.one.scale, other.one.scale)
    # The layers sum in another order once compiled; values near 30.
    torch.testing.assert_close(plain.first.weight.grad, other.first.weight.grad, rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_learned_symmetric_ends_are_aimets(bits):
    """AIMET: scale (max - min) / (2^bits - 1), offset -2^(bits - 1), rounding as the identity."""
    x, steps, half = batches(1, 20, 25)[0], 2**bits - 1, 2 ** (bits - 1)
    quantizer = FakeQuantize(QuantSpec(qtype=f"int{bits}"))
    quantizer(x)
    held = quantizer.scale.clone()
    quantizer.learn("range")
    torch.testing.assert_close(quantizer.qparams()[0], held, rtol=2.0**-22, atol=0)
    low, high = (end.detach().clone().requires_grad_() for end in (quantizer.rmin, quantizer.rmax))
    quantizer(x).square().sum().backward()
    v = x / ((high - low) / steps)
    rounded = (v + (v.round() - v).detach()).clamp(-half, half - 1)
    (rounded * (high - low) / steps).square().sum().backward()
    width = low.detach() * low.grad + high.detach() * high.grad  # by the chain rule
    torch.testing.assert_close(quantizer.log_ratio.grad, width, rtol=1e-4, atol=1e-3)  # sums in another order


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("bitwidth", "setting bitwidth of a FakeQuantize has no effect; make a new FakeQuantize"),
        ("symmetric", "make a new FakeQuantize with another spec"),
        ("min", "setting min of a FakeQuantize has no effect; use set_range"),
        ("amax", "use set_range"),
        ("spec", "spec of a FakeQuantize is fixed"),
        ("fake_quant_enable", "a FakeQuantize has no fake_quant_enable to set; nearest: fake_quant_enabled"),
    ],
)
def test_attributes_without_effect(name: str, words: str) -> None:
    """One line that says what to do; names of torch's own tools stay free."""
    made = FakeQuantize("int8")
    with pytest.raises(SpecError, match=words):
        setattr(made, name, nn.Parameter(torch.ones(())))
    made.qconfig = None
    assert name not in dict(made.named_parameters())


@pytest.mark.parametrize("how", ["set_range", "set_qparams", "disable_observer"])
def test_given_scales_are_not_overwritten_silently(how: str) -> None:
    """`compute_encodings` asks for a decision, and then keeps or replaces the scale as AIMET does."""
    model, x = nn.Sequential(FakeQuantize("int8")), torch.linspace(-1, 2, 8)
    (quantizer,) = model
    if how == "set_range":
        quantizer.set_range(-1.0, 1.0)
    elif how == "set_qparams":
        quantizer.set_qparams(0.5)
    else:
        with compute_encodings(model):
            model(x / 2)
        quantizer.disable_observer()
    before = quantizer.qparams()
    with pytest.raises(StatisticsError, match="quantizer '0' has a scale that was set or frozen by hand"):
        with compute_encodings(model):
            model(x)
    quantizer.allow_overwrite(False)
    with compute_encodings(model):
        model(x)
    assert quantizer.qparams() == before
    quantizer.allow_overwrite()
    with compute_encodings(model):
        model(x)
    assert quantizer.qparams() != before
