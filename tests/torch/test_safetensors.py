"""Checkpoints as .safetensors files, against the library itself and torch.ao."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

nn = pytest.importorskip("torch.nn")
pytest.importorskip("onnxscript")

import torch
import torch.ao.quantization as ao

from onnxfq.errors import ModelError, OutputError
from onnxfq.torch import checkpoints, load_checkpoint, quantize_module, save_checkpoint

X = torch.randn(16, 8, generator=torch.Generator().manual_seed(0))
QCONFIG = ao.QConfig(
    activation=ao.FakeQuantize.with_args(observer=ao.MovingAverageMinMaxObserver),
    weight=ao.default_weight_fake_quant,
)


def network() -> nn.Module:
    """Return the same two float layers at every call."""
    torch.manual_seed(0)
    return nn.Sequential(ao.QuantStub(), nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def theirs() -> nn.Module:
    """Return the network with torch.ao's quantizers, after one batch."""
    model = network().train()
    model.qconfig = QCONFIG
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ao.prepare_qat(model, inplace=True)
    model(X)
    return model.eval().apply(ao.disable_observer)


def ours() -> nn.Module:
    """Return the network with our quantizers, without scales."""
    model = network().eval()
    quantize_module(model, QCONFIG, arithmetic="reciprocal")
    return model


def test_files_of_safetensors_go_both_ways(tmp_path: Path) -> None:
    """A file of the library gives torch's numbers; ours gives them back in torch.ao's module."""
    library = pytest.importorskip("safetensors.torch")
    original = theirs()
    library.save_file(original.state_dict(), tmp_path / "theirs.safetensors")
    model = ours()
    rest = load_checkpoint(model, tmp_path / "theirs.safetensors", "torch-ao")
    assert rest == ("3.activation_post_process",)
    assert torch.equal(original[3].activation_post_process(model(X)), original(X))
    saved = save_checkpoint(model, tmp_path / "ours.safetensors", "torch-ao")
    read = library.load_file(tmp_path / "ours.safetensors")
    assert read.keys() == saved.keys()
    assert all(
        torch.equal(read[name], value) and read[name].dtype == value.dtype for name, value in saved.items()
    )
    other = theirs()
    for parameter in other.parameters():
        parameter.data.zero_()
    other.load_state_dict(read, strict=False)
    assert torch.equal(other(X), original(X))


def test_one_memory_under_two_names_is_written_twice(tmp_path: Path) -> None:
    """The library refuses tensors that share memory, and views; a checkpoint has both."""
    library = pytest.importorskip("safetensors.torch")
    weight = torch.arange(12.0).reshape(3, 4)
    state = {"a": weight, "b": weight, "c": weight.T}
    for names, words in (("ab", "share memory"), ("c", "size and stride|contiguous")):
        with pytest.raises((RuntimeError, ValueError), match=words):
            library.save_file({name: state[name] for name in names}, tmp_path / "refused.safetensors")
    checkpoints.write_state(state, tmp_path / "state.safetensors")
    read = checkpoints.read_state(tmp_path / "state.safetensors")
    assert read.keys() == state.keys()
    assert all(torch.equal(read[name], value) for name, value in state.items())


@pytest.mark.parametrize("content", [b"", b"no tensors", b"\x08\0\0\0\0\0\0\0{}      ", b"\xff" * 64])
def test_damaged_files_are_one_line(content: bytes, tmp_path: Path) -> None:
    """An empty file, text, a header without tensors and a header beyond the end."""
    (tmp_path / "damaged.safetensors").write_bytes(content)
    with pytest.raises(ModelError, match="is not a file of safetensors|holds no tensors by name"):
        load_checkpoint(ours(), tmp_path / "damaged.safetensors", "torch-ao")


def save(model: nn.Module, path: Path) -> None:
    """Save a module that has scales."""
    load_checkpoint(model, theirs().state_dict(), "torch-ao")
    save_checkpoint(model, path, "torch-ao")


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.float64, torch.int64, torch.bool]
)
def test_types(dtype: torch.dtype, tmp_path: Path) -> None:
    """The library reads every type that a state may have, scalars and empty tensors too, and we its file."""
    library = pytest.importorskip("safetensors.torch")
    state = {name: torch.ones(shape).to(dtype) for name, shape in (("a", (2, 3)), ("b", ()), ("c", (0, 4)))}
    checkpoints.write_state(state, tmp_path / "ours.safetensors")
    library.save_file(state, tmp_path / "theirs.safetensors")
    for read in (
        library.load_file(tmp_path / "ours.safetensors"),
        checkpoints.read_state(tmp_path / "theirs.safetensors"),
    ):
        assert read.keys() == state.keys()
        assert all(read[name].dtype == dtype and read[name].shape == one.shape for name, one in state.items())
        assert all(torch.equal(read[name].float(), one.float()) for name, one in state.items())


def test_a_file_in_place_of_a_folder_is_told_first(tmp_path: Path) -> None:
    """The output is checked before it is written, as for every file."""
    (tmp_path / "taken").touch()
    with pytest.raises(OutputError, match="taken is a file"):
        save(ours(), tmp_path / "taken" / "state.safetensors")
