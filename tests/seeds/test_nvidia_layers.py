"""pytorch-quantization's layers against torch.nn's on quantized tensors, and what torch does with them."""

from __future__ import annotations

import copy
import io
import pickle
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

nn = pytest.importorskip("torch.nn")
pytest.importorskip("onnxscript")

import onnx  # only once it is known to be there
import torch
from quantized_modules import normal, run
from torch.nn.utils.rnn import pack_sequence

from onnxfq import errors
from onnxfq.torch import export_torch
from onnxfq.torch.compat import nvidia
from onnxfq.torch.compat.nvidia import QuantDescriptor, TensorQuantizer, quant_modules
from onnxfq.torch.compat.nvidia.nn.modules import _utils as utils
from onnxfq.torch.compat.nvidia.tensor_quant import fake_tensor_quant

HERE = "onnxfq.torch.compat.nvidia"
PAGE = Path(__file__).parents[2] / "docs" / "migrating.md"


def on_grid(x, axis=None):
    """Return x on the grid of its own amax, of all or of each index of an axis."""
    rest = [d for d in range(x.ndim) if d != axis] if axis is not None else list(range(x.ndim))
    return fake_tensor_quant(x, x.detach().abs().amax(rest, keepdim=True), narrow_range=False)


def quantizers(model):
    """Return the quantizers of a model."""
    return [module for module in model.modules() if isinstance(module, TensorQuantizer)]


@torch.no_grad()
def calibrate(model, x, **settings):
    """Give every quantizer its amax, by the loop of the original's users; `settings` are of histograms."""
    for quantizer in quantizers(model):
        quantizer.disable_quant()
        quantizer.enable_calib()
    model(x)
    for quantizer in quantizers(model):
        largest = isinstance(quantizer._calibrator, nvidia.MaxCalibrator)
        quantizer.load_calib_amax(strict=False, **({} if largest else settings))
        quantizer._amax = quantizer._amax.to("cpu")
        quantizer.disable_calib()
        quantizer.enable_quant()
    return model


LAYERS = [
    ("Linear", (5, 3), (2, 5)),
    ("Conv1d", (2, 3, 2), (1, 2, 6)),
    ("Conv2d", (2, 3, 2), (1, 2, 6, 6)),
    ("Conv3d", (2, 3, 2), (1, 2, 4, 4, 4)),
    ("ConvTranspose1d", (2, 3, 2), (1, 2, 6)),
    ("ConvTranspose2d", (2, 3, 2), (1, 2, 6, 6)),
    ("ConvTranspose3d", (2, 3, 2), (1, 2, 3, 3, 3)),
    ("MaxPool2d", (2,), (1, 2, 6, 6)),
    ("AvgPool3d", (2,), (1, 2, 4, 4, 4)),
    ("AdaptiveAvgPool1d", (2,), (1, 2, 6)),
    ("InstanceNorm2d", (2,), (1, 2, 6, 6)),
]


@pytest.mark.parametrize(("name", "arguments", "shape"), LAYERS)
def test_layers_quantize_input_and_weight(name, arguments, shape):
    """A quantized layer is the float layer on quantized input and weight, and starts as it.

    So is one by the detour of many repositories: a new object, attributes of a float one, then quantizers.
    """
    made = []
    for kind in (getattr(nvidia, f"Quant{name}"), getattr(nn, name)):
        torch.manual_seed(0)
        made.append(kind(*arguments))
    (layer, plain), x = made, normal(*shape)
    assert isinstance(layer, getattr(nn, name)) and type(layer).__name__ == f"Quant{name}"
    assert getattr(nvidia.nn, f"Quant{name}") is type(layer)
    own = {key: value for key, value in layer.state_dict().items()}
    assert own.keys() == plain.state_dict().keys()
    assert all(torch.equal(value, plain.state_dict()[key]) for key, value in own.items())
    other = type(layer).__new__(type(layer))
    for key, value in vars(plain).items():
        setattr(other, key, value)
    has_weight = name.startswith(("Linear", "Conv"))
    assert has_weight == isinstance(other, utils.QuantMixin) != isinstance(other, utils.QuantInputMixin)
    given = utils.pop_quant_desc_in_kwargs(type(layer), input_only=not has_weight)
    other.init_quantizer(*given) if has_weight else other.init_quantizer(given)
    other._input_quantizer._calibrator._torch_hist = True
    assert torch.equal(other(x), layer(x)) and not torch.equal(other(x), plain(x))
    if has_weight:
        plain.weight.data = on_grid(plain.weight.data, 1 if "Transpose" in name else 0)
    assert torch.equal(layer(x), plain(on_grid(x)))


@pytest.mark.parametrize(
    "options", [{"padding": 1, "padding_mode": "circular"}, {"groups": 2, "dilation": 2}]
)
def test_options_of_the_float_layer(options):
    """Padding modes, groups and devices are torch's."""
    layer = nvidia.QuantConv2d(2, 4, 3, **options)
    plain = nn.Conv2d(2, 4, 3, **options)
    plain.load_state_dict(layer.state_dict())
    plain.weight.data = on_grid(plain.weight.data, 0)
    x = normal(1, 2, 7, 7)
    assert torch.equal(layer(x), plain(on_grid(x)))
    assert nvidia.QuantLinear(2, 2, device="meta").weight.is_meta
    up = nvidia.QuantConvTranspose2d(2, 2, 3, stride=2)
    assert up(x, output_size=[16, 16]).shape == (1, 2, 16, 16)


@pytest.mark.sample
def test_the_weight_is_the_parameter():
    """It is initialized, written, frozen, optimized and pruned as the float layer's."""
    layer = nvidia.QuantConv2d(2, 3, 3)
    nn.init.constant_(layer.weight, 1.0)
    assert layer.state_dict()["weight"].eq(1).all() and type(layer.weight) is nn.Parameter
    layer.weight.data.mul_(3)
    assert layer._parameters["weight"].eq(3).all()
    optimizer = torch.optim.SGD([layer.weight], lr=0.1)
    layer(normal(1, 2, 5, 5)).sum().backward()
    before = layer.weight.detach().clone()
    optimizer.step()
    assert not torch.equal(layer.weight, before)
    layer.weight.requires_grad = False
    assert not layer._parameters["weight"].requires_grad
    torch.nn.utils.prune.l1_unstructured(layer, "weight", 0.5)
    layer(normal(1, 2, 5, 5))
    assert int((layer.weight == 0).sum()) == layer.weight.numel() // 2
    normed = torch.nn.utils.parametrizations.weight_norm(nvidia.QuantLinear(3, 2))
    normed(normal(2, 3)).sum().backward()
    assert normed.parametrizations.weight.original0.grad is not None


@pytest.mark.parametrize("name", ["QuantLinear", "QuantConv2d", "QuantLSTMCell"])
def test_calibrated_states_and_whole_modules_are_saved(name):
    """A new layer takes a calibrated state under the original's keys; whole modules are saved and copied."""
    arguments, shape = ((3, 4, 2), (1, 3, 5, 5)) if "Conv" in name else ((3, 4), (2, 3))
    made, new = (getattr(nvidia, name)(*arguments) for _ in range(2))
    x = normal(*shape)
    calibrate(made, x)
    made._input_quantizer.pre_quant_scale = 3.0
    keys = {f"_{kind}_quantizer._amax" for kind in ("input", "weight")}
    assert keys | {"_input_quantizer._pre_quant_scale"} < set(made.state_dict())
    files = io.BytesIO(), io.BytesIO()
    for file, content in zip(files, (made.state_dict(), made), strict=True):
        torch.save(content, file)
        file.seek(0)
    new.load_state_dict(torch.load(files[0], weights_only=True))
    read = torch.load(files[1], weights_only=False)
    first = lambda y: y[0] if isinstance(y, tuple) else y  # noqa: E731  the cell returns two
    for twin in (new, read, copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
        assert type(twin) is getattr(nvidia, name) and torch.equal(first(twin(x)), first(made(x)))


def test_what_layers_refuse():
    """Integers, unknown keywords and other descriptors are refused with the original's kind of error."""
    with pytest.raises(ValueError, match="Only fake quantization"):
        nvidia.QuantLinear(3, 4, quant_desc_weight=QuantDescriptor(fake_quant=False))
    with pytest.raises(TypeError, match="Unused keys: descriptor"):
        nvidia.QuantLSTM(3, 4, num_layers=2, descriptor=1)
    with pytest.raises(ValueError, match="not an instance of QuantDescriptor"):
        nvidia.QuantLinear.set_default_quant_desc_input(8)
    with pytest.raises(ValueError, match="proj_size is not supported"):
        nvidia.QuantLSTM(3, 4, proj_size=2)


def test_defaults_are_of_a_class():
    """A default counts for layers of the class that are made later; a quantizer may be exchanged."""

    class Own(nvidia.QuantLinear):
        pass

    Own.set_default_quant_desc_input(QuantDescriptor(num_bits=4))
    Own.set_default_quant_desc_weight(QuantDescriptor(num_bits=5, axis=1))
    made, other = Own(2, 2), nvidia.QuantLinear(2, 2)
    assert made.input_quantizer.num_bits == 4 and made.weight_quantizer.axis == 1
    assert other.input_quantizer.num_bits == 8 and other.weight_quantizer.axis == 0
    made.input_quantizer = TensorQuantizer(QuantDescriptor(num_bits=2))
    assert made._input_quantizer.num_bits == 2


def test_a_layer_of_ones_own():
    """The mixin of the original's tutorial makes quantizers for a module of the user."""

    class Scaled(nn.Module, utils.QuantMixin):
        def __init__(self, **keywords):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))
            self.init_quantizer(*utils.pop_quant_desc_in_kwargs(type(self), **keywords))

        def forward(self, x):
            return self._input_quantizer(x) * self._weight_quantizer(self.weight)

    x = normal(2, 3)
    assert torch.equal(Scaled()(x), on_grid(x) * on_grid(torch.ones(3)))
    assert Scaled(quant_desc_weight=QuantDescriptor(axis=0)).weight_quantizer.axis == 0


PATHS = """
calib: MaxCalibrator HistogramCalibrator calibrate_weights
calib.calibrator: _Calibrator
calib.histogram: HistogramCalibrator calibrate_weights
calib.max: MaxCalibrator
nn: QuantConv2d Conv2d QuantLinear QuantConvTranspose2d QuantLSTM LSTM TensorQuantizer Clip
nn._functions:
nn.functional: clip
nn.modules:
nn.modules._utils: QuantMixin QuantInputMixin pop_quant_desc_in_kwargs
nn.modules.clip: Clip
nn.modules.quant_conv: QuantConv1d QuantConv2d QuantConv3d QuantConvTranspose2d
nn.modules.quant_instancenorm: QuantInstanceNorm1d QuantInstanceNorm2d
nn.modules.quant_linear: QuantLinear Linear
nn.modules.quant_pooling: QuantMaxPool2d QuantAvgPool2d QuantAdaptiveAvgPool2d
nn.modules.quant_rnn: QuantLSTM QuantLSTMCell
nn.modules.tensor_quantizer: TensorQuantizer
optim:
optim.helper: match_parameters group_parameters freeze_parameters
quant_modules: initialize deactivate
tensor_quant: QuantDescriptor fake_tensor_quant tensor_quant QUANT_DESC_8BIT_PER_TENSOR
utils: reduce_amax
utils.amp_wrapper: half_function float_function promote_function
utils.quant_logging: reset_logger_handler
utils.reduce_amax: reduce_amax
"""
"""The modules that the original's folder has, as published, and the names that their users import."""

WITHOUT = "nn._functions.quant_rnn"


def test_every_path_of_the_original_imports():
    """Each path is a file here and has its names; the page says so, and names the one that does not.

    Both calibrators have the base class that code asks for, and that calibrators of users derive from.
    """
    for line in PATHS.strip().splitlines():
        path, _, names = line.partition(":")
        module = import_module(f"{HERE}.{path}")
        assert all(hasattr(module, name) for name in names.split()), path
        # Type checkers and editors find files alone.
        origin = find_spec(f"{HERE}.{path}").origin
        assert origin.removesuffix(".py").removesuffix("/__init__").endswith(path.replace(".", "/"))
    with pytest.raises(ModuleNotFoundError):
        import_module(f"{HERE}.{WITHOUT}")
    claim = f"| `pytorch_quantization` and every path below it but `{WITHOUT}` | the same path below"
    assert claim in PAGE.read_text(encoding="utf-8")
    with pytest.raises(AttributeError, match="QuantConv4d"):
        _ = nvidia.QuantConv4d
    base = nvidia.calib.calibrator._Calibrator
    assert issubclass(nvidia.MaxCalibrator, base) and issubclass(nvidia.HistogramCalibrator, base)


@pytest.fixture
def restored():
    """Take back all that a test replaces."""
    yield
    nvidia.deactivate()


def test_initialize_acts_at_the_call(restored):
    """torch.nn has quantized classes until deactivate, however often it is called; norms and MaxPool stay."""
    before = {name: getattr(nn, name) for name in ("Linear", "LSTM", "AvgPool2d", "LayerNorm", "MaxPool2d")}
    nvidia.initialize()
    nvidia.initialize()
    changed = {name for name, made in before.items() if getattr(nn, name) is not made}
    assert changed == {"Linear", "LSTM", "AvgPool2d"}
    assert type(nn.Linear(2, 2)) is nvidia.QuantLinear and type(nn.LSTM(2, 2)) is nvidia.QuantLSTM
    nvidia.deactivate()
    assert {name: getattr(nn, name) for name in before} == before


def test_initialize_holds_for_a_block(restored):
    """A block ends with what was there before it; own modules have a map; unknown names are errors."""
    home = type("home", (), {"Twice": nn.Linear})
    before = nn.Conv2d
    with nvidia.initialize(["Linear"], [(home, "Twice", nvidia.QuantLinear)]):
        made = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Linear(2, 2), home.Twice(2, 2))
        with nvidia.initialize():
            assert nn.Linear is nvidia.QuantLinear
        assert nn.Linear is not nvidia.QuantLinear
    assert nn.Conv2d is before and home.Twice is nn.Linear
    assert [type(layer) for layer in made] == [nvidia.QuantConv2d, nn.Linear, nvidia.QuantLinear]
    for wrong in ((["Conv4d"],), (None, [(home, "Thrice", nvidia.QuantLinear)]), (3,), (None, [3])):
        with pytest.raises(errors.OnnxfqError):
            nvidia.initialize(*wrong)


def test_the_helper_and_its_map(restored):
    """The helper replaces and restores by itself; users look up classes in its map, and add their own."""
    helper = quant_modules.QuantModuleReplacementHelper()
    helper.prepare_state(["Conv2d"])
    helper.apply_quant_modules()
    assert nn.Linear is nvidia.QuantLinear and nn.Conv2d is not nvidia.QuantConv2d
    helper.restore_float_modules()
    assert nn.Linear is not nvidia.QuantLinear
    entries, before = quant_modules._DEFAULT_QUANT_MAP, nn.MaxPool2d
    by_class = {getattr(entry.orig_mod, entry.mod_name): entry.replace_mod for entry in entries}
    assert by_class[nn.Conv2d] is nvidia.QuantConv2d and by_class[nn.Linear] is nvidia.QuantLinear
    entries.append(type(entries[0])(nn, "MaxPool2d", nvidia.nn.QuantMaxPool2d))
    try:
        with quant_modules.initialize():
            assert nn.MaxPool2d is nvidia.nn.QuantMaxPool2d
    finally:
        entries.pop()
    assert nn.MaxPool2d is before


@pytest.mark.parametrize(
    "settings", [{"method": "mse"}, {"method": "entropy"}, {"method": "percentile", "percentile": 99.9}]
)
def test_the_loops_of_the_tutorial(settings):
    """Histogram inputs by each method and weights by max; the amax is the calibrator's, printed by a line."""
    desc = QuantDescriptor(calib_method="histogram")
    model = nn.Sequential(nvidia.QuantConv2d(3, 8, 3, quant_desc_input=desc), nn.ReLU())
    calibrate(model, normal(8, 3, 16, 16), **settings)
    found = model[0]._input_quantizer
    assert torch.equal(found._amax, found._calibrator.compute_amax(**settings))
    assert torch.equal(model[0]._weight_quantizer._amax, model[0].weight.abs().amax((1, 2, 3), keepdim=True))
    assert f"amax={float(found._amax):.4f} calibrator=HistogramCalibrator" in f"{'name':40}: {found}"


@pytest.mark.parametrize(
    "options", [{}, {"num_layers": 2, "bidirectional": True}, {"batch_first": True, "bias": False}], ids=str
)
def test_lstm_without_quantizers_is_torchs(options):
    """With its quantizers disabled the LSTM is torch's, for padded, packed and unbatched input."""
    layer = nvidia.QuantLSTM(3, 4, **options)
    plain = nn.LSTM(3, 4, **options)
    plain.load_state_dict(layer.state_dict())
    for quantizer in quantizers(layer):
        quantizer.disable()
    sequences = [normal(n, 3, seed=n) for n in (2, 5, 3)]
    packed = pack_sequence(sequences, enforce_sorted=False)
    state = tuple(normal(plain.num_layers * (1 + plain.bidirectional), 3, 4, seed=s) for s in (8, 9))
    close = {"rtol": 1e-5, "atol": 1e-6}  # sums in another order
    for given in (
        (torch.stack([s[:2] for s in sequences], int(not plain.batch_first)),),
        (packed,),
        (packed, state),
    ):
        (y, found), (wanted, end) = layer(*given), plain(*given)
        y, wanted = getattr(y, "data", y), getattr(wanted, "data", wanted)
        torch.testing.assert_close((y, *found), (wanted, *end), **close)
    torch.testing.assert_close(layer(sequences[1])[0], plain(sequences[1])[0], **close)


def test_lstm_quantizes_input_and_state_as_one():
    """A step sees [input, hidden] and [weight_ih, weight_hh] on one grid each."""
    layer = nvidia.QuantLSTM(3, 4, bias=False)
    x, hidden, cell = normal(1, 2, 3), normal(1, 2, 4, seed=1), normal(1, 2, 4, seed=2)
    plain = nn.LSTM(3, 4, bias=False)
    both = on_grid(torch.cat([layer.weight_ih_l0, layer.weight_hh_l0], 1).detach(), 0)
    plain.weight_ih_l0.data, plain.weight_hh_l0.data = both[:, :3].clone(), both[:, 3:].clone()
    seen = on_grid(torch.cat([x[0], hidden[0]], 1))
    wanted = plain(seen[None, :, :3].contiguous(), (seen[None, :, 3:].contiguous(), cell))
    found = layer(x, (hidden, cell))
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)  # sums in another order
    one = nvidia.QuantLSTMCell(3, 4, bias=False)
    one.weight_ih.data, one.weight_hh.data = layer.weight_ih_l0.data, layer.weight_hh_l0.data
    assert torch.equal(one(x[0], (hidden[0], cell[0]))[0], found[0][0])
    assert torch.equal(
        one(x[0, 0], (hidden[0, 0], cell[0, 0]))[0], one(x[0, :1], (hidden[0, :1], cell[0, :1]))[0][0]
    )


class Net(nn.Module):
    """Layers of several kinds in a row."""

    def __init__(self):
        super().__init__()
        self.conv, self.up = nvidia.QuantConv2d(2, 4, 3), nvidia.QuantConvTranspose2d(4, 4, 3)
        self.pool, self.head = nvidia.QuantAdaptiveAvgPool2d(2), nvidia.QuantLinear(16, 3)

    def forward(self, x):
        """Return three numbers an image."""
        return self.head(self.pool(self.up(self.conv(x).relu())).flatten(1))


@pytest.fixture
def network():
    """A calibrated network with its input."""
    torch.manual_seed(0)
    x = normal(2, 2, 6, 6)
    return calibrate(Net().eval(), x), x


@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
def test_a_calibrated_network_exports(network, exporter):
    """The Q/DQ model has a pair for every quantizer, and the module's numbers."""
    model, x = network
    made = export_torch(model, (x,), exporter=exporter)
    kinds = [node.op_type for node in made.graph.node]
    # 3 weights are integers.
    assert kinds.count("QuantizeLinear") == 4 and kinds.count("DequantizeLinear") == 7
    assert np.allclose(run(made, x), model(x).detach(), atol=1e-6)  # the order of sums
    model.head.weight_quantizer = TensorQuantizer()
    with pytest.raises(errors.StatisticsError, match="'head._weight_quantizer' has no amax; calibrate"):
        export_torch(model, (x,), exporter=exporter)


@pytest.mark.grid
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.parametrize("bits", [8, (4, 3)])
@pytest.mark.parametrize("dynamo", [True, False])
def test_plain_exports_in_a_block(network, tmp_path, dynamo, bits):
    """enable_onnx_export lets torch.onnx.export write pairs; other widths name export_torch."""
    model, x = network
    for quantizer in quantizers(model):
        quantizer.num_bits = bits
        if bits != 8:  # ONNX's float8 pairs of this test are per tensor
            value = quantizer.amax.max()
            quantizer._buffers.pop("_amax")
            quantizer.amax = value
    file = tmp_path / "model.onnx"
    options = {"dynamo": dynamo, "opset_version": 19 if dynamo else 17, "verbose": False}
    if bits != 8 and not dynamo:
        pytest.skip("the tracing exporter ends at opset 20 and has no float8 constants")
    with nvidia.enable_onnx_export():
        torch.onnx.export(model, (x,), file, **options)
        written = onnx.load(file)
        assert {node.domain for node in written.graph.node} <= {""}
        assert [node.op_type for node in written.graph.node].count("QuantizeLinear") == 7
        if bits == 8:
            assert np.allclose(run(written, x), model(x).detach(), atol=1e-6)  # the order of sums
        quantizers(model)[0].num_bits = 4
        with pytest.raises(Exception, match="export_torch"):
            torch.onnx.export(model, (x,), file, **options)


@pytest.fixture
def early():
    """The switch of early releases, as users set it."""
    TensorQuantizer.use_fb_fake_quant = True
    yield
    TensorQuantizer.use_fb_fake_quant = False


@pytest.mark.whole
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.usefixtures("early")
@pytest.mark.parametrize("dynamo", [True, False])
def test_the_switch_of_early_releases_exports(tmp_path, dynamo):
    """use_fb_fake_quant lets torch.onnx.export write pairs; forward and export_torch stay as they are."""
    model, x = nn.Sequential(nvidia.QuantConv2d(3, 4, 3)).eval(), normal(1, 3, 8, 8)
    file, settings = tmp_path / "m.onnx", {"opset_version": 18, "dynamo": dynamo}
    assert model(x).shape == (1, 4, 6, 6)  # by the amax of each input
    with pytest.raises(Exception, match="no amax; calibrate it"):  # torch wraps the error
        torch.onnx.export(model, (x,), file, **settings)
    calibrate(model, x)
    torch.onnx.export(model, (x,), file, **settings)
    written = [node.op_type for node in onnx.load(file).graph.node]
    assert written.count("QuantizeLinear") == written.count("DequantizeLinear") == 2
    model[0]._weight_quantizer.num_bits = 4
    with pytest.raises(Exception, match="writes 8 bits of the full range, got 4; use export_torch"):
        torch.onnx.export(model, (x,), file, **settings)
    for block in (quant_modules.enable_onnx_export, torch.no_grad):
        with block():
            graph = export_torch(model, (x,)).graph
        assert [node.op_type for node in graph.node].count("DequantizeLinear") == 2
        assert onnx.TensorProto.INT4 in {tensor.data_type for tensor in graph.initializer}


def test_an_lstm_exports_unrolled():
    """Each step of the example is in the graph, with its pairs; the batch is dynamic."""
    x = normal(2, 4, 3)
    layer = calibrate(nvidia.QuantLSTM(3, 5, batch_first=True).eval(), x)
    made = export_torch(layer, (x,))
    assert sum(node.op_type == "QuantizeLinear" for node in made.graph.node) == 4
    twice = torch.cat([x, -x])
    assert np.allclose(run(made, twice), layer(twice)[0].detach(), atol=1e-6)  # the order of sums


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's compiler warns about itself
def test_traces_compiles_and_transforms(network):
    """Tracers, compilers and transforms of torch take the layers; torch.jit.script says what to use."""
    model, x = network
    assert torch.equal(torch.fx.symbolic_trace(model)(x), model(x))
    assert torch.equal(torch.compile(model, fullgraph=True, backend="aot_eager")(x), model(x))
    assert torch.equal(torch.export.export(model, (x,)).module()(x), model(x))
    values = dict(model.named_parameters())

    def loss(values, x):
        return torch.func.functional_call(model, values, (x[None],)).sum()

    each = torch.func.vmap(torch.func.grad(loss), (None, 0))(values, x)
    model(x).sum().backward()
    torch.testing.assert_close(each["head.weight"].sum(0), model.head.weight.grad)
    with pytest.raises(errors.ModelError, match=r"use torch\.export"):
        torch.jit.script(model)


def test_half_types_and_autocast(network):
    """bfloat16 models and autocast run, and the result has their type."""
    model, x = network
    assert copy.deepcopy(model).bfloat16()(x.bfloat16()).dtype == torch.bfloat16
    with torch.autocast("cpu", torch.bfloat16):
        assert model(x).dtype == torch.bfloat16


def test_helpers_of_optimizers(network):
    """Parameters are grouped and frozen by regular expressions; weights are rounded in place."""
    model, x = network
    helper = nvidia.helper
    groups = helper.group_parameters(model, [["conv.*weight"], ["head"]], lrs=[0.1, 0.2], momentums=[0.9, 0])
    optimizer = torch.optim.SGD(groups, lr=1.0)
    assert [len(g["params"]) for g in optimizer.param_groups] == [1, 2]
    assert [g["lr"] for g in optimizer.param_groups] == [0.1, 0.2]
    helper.freeze_parameters(model, ["up"])
    assert not model.up.weight.requires_grad and model.head.weight.requires_grad
    before = model(x)
    helper.quant_weight_inplace(model)
    assert torch.equal(model.conv.weight, model.conv.weight_quantizer(model.conv.weight))
    torch.testing.assert_close(model(x), before)
    for wrong in ({"patterns_list": ["head"]}, {"patterns_list": [["head"]], "lrs": [1, 2]}):
        with pytest.raises(TypeError):
            helper.group_parameters(model, **wrong)
