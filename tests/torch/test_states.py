"""State dicts, plain exports and checkpoints of other libraries: nothing gets another meaning in silence."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

nn = pytest.importorskip("torch.nn")
pytest.importorskip("onnxscript")

LIBRARY = pytest.importorskip("safetensors.torch")

import onnx
import torch
import torch.ao.quantization as ao
from quantized_modules import prepared

import onnxfq
from onnxfq.errors import ArgumentError, ModelError, OutputError, RecipeError, SpecError
from onnxfq.numerics.spec import QuantSpec
from onnxfq.torch import (
    FakeQuantize,
    checkpoints,
    compute_encodings,
    export_torch,
    fake_quantize,
    load_checkpoint,
    quantize_module,
    quantizers,
    save_checkpoint,
)

X = torch.randn(8, 1, 8, 8, generator=torch.Generator().manual_seed(0))
QUIET = pytest.mark.filterwarnings("ignore:torch.ao.quantization is deprecated:DeprecationWarning")
PLAIN = ao.QConfig(
    activation=ao.FakeQuantize.with_args(observer=ao.MovingAverageMinMaxObserver),
    weight=ao.default_weight_fake_quant,
)


class Net(nn.Module):
    """A convolution with BatchNorm, and two layers, between torch.ao's stubs."""

    def __init__(self) -> None:
        super().__init__()
        self.quant, self.dequant = ao.QuantStub(), ao.DeQuantStub()
        self.conv, self.norm, self.relu = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU()
        self.fc, self.head = nn.Linear(144, 8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return four numbers for each image."""
        x = self.relu(self.norm(self.conv(self.quant(x))))
        return self.dequant(self.head(self.fc(x.flatten(1)).relu()))


def network() -> nn.Module:
    """Return the same float network at every call, with statistics of BatchNorm."""
    torch.manual_seed(0)
    model = Net()
    model(X)
    return model.eval()


def calibrated(recipe: Any = "tensorrt-int8") -> nn.Module:
    """Return the network with the scales of one batch."""
    model = network()
    prepared(model, X, recipe)
    return model


def trained_by_torch(qconfig: Any, fused: bool = True) -> nn.Module:
    """Return the network after steps of torch.ao's own QAT."""
    model = network().train()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if fused:
            ao.fuse_modules_qat(model, [["conv", "norm", "relu"]], inplace=True)
        model.qconfig = qconfig
        ao.prepare_qat(model, inplace=True)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for _ in range(4):
        optimizer.zero_grad()
        model(X).square().sum().backward()
        optimizer.step()
    model.eval()(X)
    return model.apply(ao.disable_observer)


@pytest.mark.sample
def test_a_state_of_another_format_is_refused() -> None:
    """int8 into uint8 would clip all negatives; the line names quantizer, both formats and the remedy."""
    line = (
        "conv.input_quantizer is uint8 asymmetric per-tensor, and the state dict has int8 symmetric.*recipe"
    )
    with pytest.raises(SpecError, match=line):
        calibrated("onnxruntime-int8").load_state_dict(calibrated().state_dict())
    with pytest.raises(RuntimeError):  # the class that torch raises
        calibrated("onnxruntime-int8").load_state_dict(calibrated().state_dict(), strict=False)
    axis = FakeQuantize(QuantSpec(qtype="int8", axis=1))
    axis(torch.randn(4, 3))
    with pytest.raises(SpecError, match="per-axis 0, and the state dict has int8 symmetric per-axis 1"):
        FakeQuantize(QuantSpec(qtype="int8", axis=0)).load_state_dict(axis.state_dict())


def test_a_state_without_scales_is_refused_where_scales_are() -> None:
    """A model that was never calibrated would erase the ranges; into a new module it loads."""
    empty = network()
    quantize_module(empty)
    with pytest.raises(SpecError, match="has no scale for .*, which has one; calibrate before saving"):
        calibrated().load_state_dict(empty.state_dict())
    other = network()
    quantize_module(other)
    other.load_state_dict(empty.state_dict())


def test_a_state_without_formats_loads_with_one_warning() -> None:
    """States as torch.ao writes them; numbers that the grid cannot have are refused."""
    model, other = calibrated(), network()
    quantize_module(other)
    state = {name: value for name, value in model.state_dict().items() if not name.endswith(".format")}
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("default")
        other.load_state_dict(state)
    assert len(found) == 1 and "without their number format" in str(found[0].message)
    assert torch.equal(other(X), model(X))
    state["fc.input_quantizer.zero_point"] = torch.tensor(3)
    with warnings.catch_warnings(), pytest.raises(SpecError, match="fc.input_quantizer|must be"):
        warnings.simplefilter("ignore")
        other.load_state_dict(state)


@pytest.mark.parametrize(("recipe", "dynamo"), [("tensorrt-int8", True), ("onnxruntime-int8", False)])
def test_plain_exports_warn_and_convert(recipe: str, dynamo: bool, tmp_path: Path) -> None:
    """torch.onnx.export names export_torch; `convert` gives pairs with the scales of export_torch."""
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).eval()
    x = torch.randn(16, 8, generator=torch.Generator().manual_seed(1))
    quantize_module(model, recipe)
    # The newer exporter fails with an error of its own, after trying other ways.
    with pytest.raises(Exception, match=None if dynamo else "no scale yet"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.onnx.export(model, (x,), tmp_path / "m.onnx", dynamo=dynamo, verbose=False)
    with torch.no_grad(), compute_encodings(model):
        model(x)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("default")
        torch.onnx.export(model, (x,), tmp_path / "m.onnx", dynamo=dynamo, verbose=False)
    told = [str(one.message) for one in found if "onnxfq" in str(one.message)]
    assert len(told) == 1 and "onnxfq.torch.export_torch" in told[0] and "onnxfq convert" in told[0]
    (finding, *_) = onnxfq.check(tmp_path / "m.onnx", "tensorrt").findings
    assert "run `onnxfq convert`" in finding.message
    made = onnxfq.convert(tmp_path / "m.onnx", target="tensorrt")
    assert made.changes["FakeQuantize node made a Q/DQ pair"] == 4
    assert {node.domain for node in made.qdq.graph.node} == {""}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        expected = export_torch(model, x)
    if recipe == "tensorrt-int8":
        assert scales(made.qdq) == scales(expected)


def scales(model: onnx.ModelProto) -> list[bytes]:
    """Return the scales of all QuantizeLinear and DequantizeLinear nodes."""
    held = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    names = {node.input[1] for node in model.graph.node if node.op_type.endswith("QuantizeLinear")}
    return sorted(np.asarray(held[name]).tobytes() for name in names)


@pytest.mark.grid
@QUIET
@pytest.mark.parametrize("fused", [True, False], ids=["fused", "separate"])
@pytest.mark.parametrize("kind", ["x86", "qnnpack", "plain"])
def test_checkpoints_of_torch_ao(kind: str, fused: bool, tmp_path: Path) -> None:
    """A state of prepare_qat gives torch's numbers in our module, and back in torch's, by files of two kinds.

    torch quantizes the output of the last layer too, by its own quantizer, which is applied to ours. With a
    separate BatchNorm it also quantizes between the convolution and the norm: one step of the output.
    """
    qconfig = PLAIN if kind == "plain" else ao.get_default_qat_qconfig(kind)
    theirs = trained_by_torch(qconfig, fused)
    if fused:
        torch.save(theirs.state_dict(), tmp_path / "theirs.pt")
    else:
        LIBRARY.save_file(theirs.state_dict(), tmp_path / "theirs.safetensors")
    (file,) = tmp_path.iterdir()
    ours = network()
    quantize_module(ours, qconfig, example_inputs=X, fold_batchnorm=fused, arithmetic="reciprocal")
    rest = load_checkpoint(ours, file, "torch-ao")
    between = () if fused else ("conv.activation_post_process",)
    assert rest == (*between, "head.activation_post_process")
    last = theirs.head.activation_post_process
    tolerance = 0.0 if fused else 1.01 * float(last.scale)
    torch.testing.assert_close(last(ours(X)), theirs(X), rtol=0, atol=tolerance)
    saved = save_checkpoint(ours, tmp_path / f"ours{file.suffix}", "torch-ao")
    left_out = {key for key in theirs.state_dict() if key.startswith(rest)}
    assert set(saved) == set(theirs.state_dict()) - left_out
    path = tmp_path / f"ours{file.suffix}"
    read = torch.load(path, weights_only=True) if fused else LIBRARY.load_file(path)
    assert read.keys() == saved.keys()
    assert all(torch.equal(read[k], v) and read[k].dtype == v.dtype for k, v in saved.items())
    other = trained_by_torch(qconfig, fused)
    for parameter in other.parameters():
        parameter.data.zero_()
    expected = theirs(X)
    other.load_state_dict(read, strict=False)
    assert torch.equal(other(X), expected)


def test_one_memory_under_two_names_is_written_twice(tmp_path: Path) -> None:
    """The library refuses tensors that share memory, and views; a checkpoint has both."""
    weight = torch.arange(12.0).reshape(3, 4)
    state = {"a": weight, "b": weight, "c": weight.T}
    for names, words in (("ab", "share memory"), ("c", "size and stride|contiguous")):
        with pytest.raises((RuntimeError, ValueError), match=words):
            LIBRARY.save_file({name: state[name] for name in names}, tmp_path / "refused.safetensors")
    checkpoints.write_state(state, tmp_path / "state.safetensors")
    read = checkpoints.read_state(tmp_path / "state.safetensors")
    assert read.keys() == state.keys()
    assert all(torch.equal(read[name], value) for name, value in state.items())


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.float64, torch.int64, torch.bool]
)
def test_types_of_safetensors(dtype: torch.dtype, tmp_path: Path) -> None:
    """The library reads every type that a state may have, scalars and empty tensors too, and we its file."""
    state = {name: torch.ones(shape).to(dtype) for name, shape in (("a", (2, 3)), ("b", ()), ("c", (0, 4)))}
    checkpoints.write_state(state, tmp_path / "ours.safetensors")
    LIBRARY.save_file(state, tmp_path / "theirs.safetensors")
    theirs = LIBRARY.load_file(tmp_path / "ours.safetensors")
    for read in (theirs, checkpoints.read_state(tmp_path / "theirs.safetensors")):
        assert read.keys() == state.keys()
        assert all(read[name].dtype == dtype and read[name].shape == one.shape for name, one in state.items())
        assert all(torch.equal(read[name].float(), one.float()) for name, one in state.items())


@QUIET
def test_checkpoints_that_do_not_fit() -> None:
    """Other limits of integers, a module without quantizers or scales, a graph-mode state, Horizon's rule."""
    theirs = trained_by_torch(ao.get_default_qat_qconfig("x86")).state_dict()
    asymmetric, empty = network(), network()
    quantize_module(asymmetric, "onnxruntime-int8")
    quantize_module(empty, "tensorrt-int8")
    graph, bare = {"activation_post_process_0.scale": X}, {"conv.weight": X}
    eight = calibrated("onnxruntime-int8")
    for kind, words, call in (
        (SpecError, "has 255 steps.*give 127.0", lambda: load_checkpoint(asymmetric, theirs, "torch-ao")),
        (ModelError, "call quantize_module first", lambda: load_checkpoint(network(), theirs, "torch-ao")),
        (ModelError, "'torchao'; nearest: torch-ao", lambda: load_checkpoint(empty, theirs, "torchao")),
        (ModelError, "has no scale yet", lambda: save_checkpoint(empty, None, "torch-ao")),
        (ModelError, "prepare_qat_fx", lambda: load_checkpoint(empty, graph, "torch-ao")),
        (ModelError, "has no quantizer for 'conv", lambda: load_checkpoint(empty, bare, "torch-ao")),
        (SpecError, "Horizon's grids are symmetric", lambda: save_checkpoint(eight, None, "horizon")),
        (SpecError, "is not 0, and Horizon", lambda: load_checkpoint(empty, theirs, "horizon")),
    ):
        with pytest.raises(kind, match=words):
            call()


@QUIET
def test_horizons_keys_go_both_ways(tmp_path: Path) -> None:
    """Symmetric quantizers of torch.ao stand for Horizon's, whose plugin has the same keys."""
    symmetric = {"dtype": torch.qint8, "quant_min": -128, "quant_max": 127}
    symmetric |= {"observer": ao.MovingAverageMinMaxObserver, "qscheme": torch.per_tensor_symmetric}
    both = ao.FakeQuantize.with_args(**symmetric)
    qconfig = ao.QConfig(activation=both, weight=both)
    theirs = trained_by_torch(qconfig)
    ours = network()
    quantize_module(ours, qconfig, example_inputs=X, arithmetic="reciprocal")
    load_checkpoint(ours, theirs.state_dict(), "horizon")
    assert torch.equal(theirs.head.activation_post_process(ours(X)), theirs(X))
    again = network()
    quantize_module(again, qconfig, example_inputs=X, arithmetic="reciprocal")
    save_checkpoint(ours, tmp_path / "ours.pt", "horizon")
    load_checkpoint(again, tmp_path / "ours.pt", "horizon")
    assert torch.equal(again(X), ours(X))


def test_files_are_never_unpickled(tmp_path: Path) -> None:
    """A pickled module, a damaged file and a missing one are refused; nothing in them runs.

    Damaged are an empty file, text, a header without tensors and a header beyond the end. The output is
    checked before it is written, as for every file.
    """
    model, path = calibrated(), tmp_path / "damaged.safetensors"
    (tmp_path / "text.pt").write_text("no tensors")
    torch.save(network(), tmp_path / "module.pt")
    for name in ("module.pt", "text.pt"):
        with pytest.raises(ModelError, match="does not hold tensors alone"):
            load_checkpoint(model, tmp_path / name, "torch-ao")
    for content in (b"", b"no tensors", b"\x08\0\0\0\0\0\0\0{}      ", b"\xff" * 64):
        path.write_bytes(content)
        with pytest.raises(ModelError, match="is not a file of safetensors|holds no tensors by name"):
            load_checkpoint(model, path, "torch-ao")
    with pytest.raises(OutputError, match="damaged.safetensors is a file"):
        save_checkpoint(model, path / "state.safetensors", "torch-ao")
    with pytest.raises(ModelError, match="no such file"):
        load_checkpoint(model, tmp_path / "absent.pt", "torch-ao")
    with pytest.raises(ArgumentError, match="a path or a state dict"):
        load_checkpoint(model, 5, "torch-ao")
    with pytest.raises(ModelError, match="holds no tensors by name"):
        load_checkpoint(model, {"epoch": 3}, "torch-ao")


@QUIET
def test_qconfigs_are_recipes() -> None:
    """Formats, layers by name, pattern and type, and None for float, as torch.ao looks them up."""
    x86 = ao.get_default_qat_qconfig("x86")
    mapping = ao.QConfigMapping().set_global(x86).set_object_type(nn.Conv2d, None)
    mapping.set_module_name("head", PLAIN)
    written = {"": x86, "object_type": [(nn.Conv2d, None)], "module_name": [("head", PLAIN)]}
    for given in (mapping, written):
        plan = quantize_module(network(), given, example_inputs=X)
        assert {p.tensor: str(p.spec) for p in plan.placements} == {
            "fc.input": "uint7 asymmetric per-tensor",
            "fc.weight": "int8 symmetric per-axis 0",
            "head.input": "uint8 asymmetric per-tensor",
            "head.weight": "int8 symmetric per-tensor",
        }
        assert [(one.name, str(one.why)) for one in plan.skipped] == [("conv", "its QConfig is None")]
    only = quantize_module(network(), {"module_name_regex": [("h.*", PLAIN)]})
    assert {p.tensor for p in only.placements} == {"head.input", "head.weight"}
    for given, words in (
        ({"modules": []}, "no section 'modules'"),
        ({"": None}, "every QConfig is None"),
        (ao.float16_dynamic_qconfig, "quantizes nothing"),
    ):
        with pytest.raises(RecipeError, match=words):
            quantize_module(network(), given)


@QUIET
@pytest.mark.parametrize("name", ["x86", "qnnpack"])
def test_training_with_a_qconfig_moves_scales_as_torch_ao(name: str) -> None:
    """A layer whose input both quantize gets the same scales, batch by batch."""
    qconfig = ao.get_default_qat_qconfig(name)
    theirs = nn.Sequential(ao.QuantStub(), nn.Linear(8, 4)).train()
    theirs.qconfig = qconfig
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ao.prepare_qat(theirs, inplace=True)
    ours = nn.Sequential(nn.Linear(8, 4)).train()
    ours[0].load_state_dict({name: theirs[1].state_dict()[name] for name in ("weight", "bias")})
    quantize_module(ours, qconfig, arithmetic="reciprocal")
    generator = torch.Generator().manual_seed(0)
    for i in range(4):
        x = torch.randn(16, 8, generator=generator) * (i + 1)
        theirs(x), ours(x)
        peers = {"0.input": theirs[0].activation_post_process, "0.weight": theirs[1].weight_fake_quant}
        for path, peer in peers.items():
            scale, zero_point = quantizers(ours)[f"{path}_quantizer"].qparams()
            torch.testing.assert_close(scale.reshape(-1), peer.scale, rtol=1e-6, atol=0)  # float32 or float64
            assert torch.equal(zero_point.reshape(-1), peer.zero_point)


def test_switches_hold_and_are_tensors_as_torch_aos() -> None:
    """Each stops its part and nothing else, and may change between two steps; the plain bools follow.

    Reading, writing in place, torch's own functions and its operator take them.
    """
    one = FakeQuantize("int8", "moving_average:0.1")
    one(X)
    assert one.fake_quant_enabled.dtype == torch.uint8 and one.fake_quant_enabled.shape == (1,)
    for off, on in (
        (lambda: one.fake_quant_enabled.fill_(0), lambda: one.fake_quant_enabled.fill_(1)),
        (lambda: one.apply(ao.disable_fake_quant), lambda: one.apply(ao.enable_fake_quant)),
        (one.disable_fake_quant, one.enable_fake_quant),
    ):
        off()
        scale = one.scale.clone()
        assert one(9 * X) is not None and one(X) is X and one.fake_quant_enabled[0] == 0
        assert not one.is_rounding and one.scale != scale
        on()
        assert one.is_rounding and not torch.equal(one(X), X)
    for off, on in (
        (lambda: one.observer_enabled.fill_(0), lambda: one.observer_enabled.fill_(1)),
        (lambda: one.apply(ao.disable_observer), lambda: one.apply(ao.enable_observer)),
        (one.disable_observer, one.enable_observer),
    ):
        off()
        scale = one.scale.clone()
        assert torch.equal(one(9 * X), fake_quantize(9 * X, scale, qtype="int8"))
        assert torch.equal(one.scale, scale) and not one.is_observing and one.is_rounding
        on()
        one(9 * X)
        assert one.is_observing and one.scale != scale
    one.observer_enabled = one.fake_quant_enabled = True
    ends = torch.tensor(float("inf")), torch.tensor(float("-inf"))
    settings = (torch.ones(1), torch.zeros(1, dtype=torch.int), 0.01, 0, 255, 0, False)
    torch.fused_moving_avg_obs_fake_quant(X, one.observer_enabled, one.fake_quant_enabled, *ends, *settings)
    assert one.activation_post_process is one.observer
    assert torch.equal(one.calculate_qparams()[0], one.scale)
    assert torch.equal(one.activation_post_process.max_val, one.observer.rmax)
