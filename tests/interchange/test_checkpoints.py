"""Quantized checkpoints: numbers, scales and values are those of the libraries that wrote them."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from checkpoint_graphs import CHECKPOINTS, FLOAT, QUANTIZED
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from onnxfq.checkpoints import FORMS, QuantizedCheckpoint
from onnxfq.checkpoints.folder import Checkpoint
from onnxfq.checkpoints.layer import FloatLayer, join_rows
from onnxfq.checkpoints.packing import pack_nibbles, pack_words, unpack_words
from onnxfq.checkpoints.tensor_file import DTYPES, read_head, write_tensors
from onnxfq.errors import ModelError
from onnxfq.quantized.nbits import unpack_bits

TYPES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float32": np.float32}


def digest(values: NDArray) -> str:
    """Return the SHA-256 of the bytes of `values`."""
    return hashlib.sha256(np.ascontiguousarray(values).tobytes()).hexdigest()


@pytest.mark.parametrize("name", QUANTIZED)
def test_layers_are_those_of_their_library(name: str) -> None:
    """Values equal the library's own dequantization to the bit of its type; scales and zeros what it packed.

    `make_checkpoints.py` wrote the digests beside each checkpoint. -0 is counted as 0.
    """
    opened = QuantizedCheckpoint(CHECKPOINTS / name)
    expected = json.loads((CHECKPOINTS / name / "expected.json").read_text())
    assert sorted(opened.modules) == sorted(expected)
    for module, wanted in expected.items():
        layer = opened.read(module)
        dtype = TYPES[wanted["dtype"]]
        zeros_alike = layer.values.astype(dtype) + dtype(0)
        assert wanted["values"] in (digest(zeros_alike), digest(layer.values.astype(dtype)))
        if isinstance(layer, FloatLayer) or "scale" not in wanted or "block" in name:
            continue
        if "nvfp4" not in name:  # whose library divides by the global scale
            assert digest(layer.scale) == wanted["scale"]
        offset = 1 << (layer.qtype.bits - 1) if name.startswith("gptq") and layer.qtype.signed else 0
        assert digest(layer.zero_point + np.int32(offset)) == wanted["zero"]


def test_every_form_has_a_checkpoint() -> None:
    """Each form of the registry is read from a committed checkpoint, and no other form is claimed."""
    forms = {QuantizedCheckpoint(CHECKPOINTS / name).form for name in QUANTIZED}
    assert forms == set(FORMS)


def test_an_order_of_activations_stays_in_float() -> None:
    """Groups that are no blocks are told, and keep the values of their library."""
    opened = QuantizedCheckpoint(CHECKPOINTS / "gptq-act-order")
    assert all("desc_act" in opened.read(module).why for module in opened.modules)


def test_negative_scales_become_positive() -> None:
    """AutoRound's negative scales turn their numbers, and no value changes."""
    opened = QuantizedCheckpoint(CHECKPOINTS / "autoround")
    layers = [opened.read(module) for module in opened.modules]
    assert all((layer.scale > 0).all() for layer in layers)
    assert {note for layer in layers for note in layer.notes} == {
        "some scales are negative: the numbers there are turned, and their values stay"
    }


@pytest.mark.parametrize("name", ["ct-float8", "ct-nvfp4", "ct-int8", "ct-pack-asymmetric"])
def test_joined_rows_keep_every_value(name: str) -> None:
    """Layers joined along their output channels have the values of the parts."""
    opened = QuantizedCheckpoint(CHECKPOINTS / name)
    parts = [opened.read(f"model.layers.0.self_attn.{one}_proj") for one in "qkv"]
    joined = join_rows(parts, "qkv_proj")
    assert np.array_equal(joined.values, np.concatenate([part.values for part in parts]))
    assert np.array_equal(joined.rows(32, 64).values, parts[1].values)


def test_formats_do_not_join() -> None:
    """Layers of several number formats are refused by name."""
    four, eight = (QuantizedCheckpoint(CHECKPOINTS / name) for name in ("ct-pack-int4", "ct-int8"))
    parts = [one.read("model.layers.0.self_attn.q_proj") for one in (four, eight)]
    with pytest.raises(ModelError, match="joins layers of several formats"):
        join_rows(parts, "qkv_proj")


@settings(deadline=None)
@given(st.integers(2, 8), st.integers(1, 5), st.integers(1, 70), st.integers(0, 1 << 30))
def test_words_are_streams_of_bits(bits: int, rows: int, count: int, seed: int) -> None:
    """Word w of a row has bits 32 w to 32 w + 31 of its numbers, the lowest first; Python's int agrees."""
    numbers = np.random.default_rng(seed).integers(0, 1 << bits, (rows, count), np.uint8)
    words = pack_words(numbers, bits)
    for row, stored in zip(numbers.tolist(), words.view(np.uint32).tolist(), strict=True):
        stream = sum(number << (bits * at) for at, number in enumerate(row))
        assert sum(word << (32 * at) for at, word in enumerate(stored)) == stream
    assert np.array_equal(unpack_words(words, bits, count), numbers)


def test_nibbles_have_the_first_number_low() -> None:
    """Two numbers in a byte: the first is the low half."""
    codes = np.arange(16, dtype=np.uint8).reshape(2, 8)
    assert pack_nibbles(codes)[0, 0] == 0x10
    assert np.array_equal(unpack_bits(pack_nibbles(codes), 4), codes)


def test_files_are_those_of_safetensors(tmp_path: Path) -> None:
    """The library reads what is written here, and the other way round, in every type that it has."""
    torch_types = pytest.importorskip("safetensors.torch")
    known = {name: dtype for name, dtype in DTYPES.items() if name != "F8_E8M0"}
    arrays = {name: np.arange(12).reshape(3, 4).astype(dtype) for name, dtype in known.items()}
    write_tensors(tmp_path / "a.safetensors", arrays)
    loaded = torch_types.load_file(tmp_path / "a.safetensors")
    torch_types.save_file(loaded, tmp_path / "b.safetensors")
    back = {name: entry.array() for name, entry in read_head(tmp_path / "b.safetensors").items()}
    one, other = ({n: (a.dtype, a.tobytes()) for n, a in many.items()} for many in (back, arrays))
    assert one == other


def test_equal_tensors_give_equal_bytes(tmp_path: Path) -> None:
    """A file does not depend on the order of its tensors."""
    arrays = {"b": np.ones(3, np.float32), "a": np.zeros((), np.int8), "c": np.ones((0, 2), np.float16)}
    write_tensors(tmp_path / "a", arrays)
    write_tensors(tmp_path / "b", dict(reversed(arrays.items())))
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    shapes = {name: entry.array().shape for name, entry in read_head(tmp_path / "a").items()}
    assert shapes == {"a": (), "b": (3,), "c": (0, 2)}


def _head(content: object) -> bytes:
    text = content if isinstance(content, bytes) else json.dumps(content).encode()
    return struct.pack("<Q", len(text)) + text


def _sparse(path: Path) -> None:
    with path.open("wb") as stream:
        stream.truncate(4 << 30)


TENSOR = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
DAMAGED: dict[str, tuple[bytes | Callable[[Path], object], str]] = {
    "empty": (b"", "its head of -1 bytes"),
    "zeros of 4 GB": (_sparse, "its head of 0 bytes"),
    "head beyond the file": (struct.pack("<Q", 1 << 40), "does not fit its 8 bytes"),
    "head of no text": (_head(b"\xff\xfe"), "utf-8"),
    "head of no JSON": (_head(b"{"), "is not a file of safetensors"),
    "head of a list": (_head([]), "its head is not an object"),
    "a name twice": (_head(b'{"a":{},"a":{}}'), "'a' appears twice"),
    "deep nesting": (_head(b"[" * 100_000), "is not a file of safetensors"),
    "no entry": (_head({"a": 1}), "tensor 'a' has type None"),
    "unknown type": (_head({"a": {**TENSOR, "dtype": "F33"}}), "tensor 'a' has type 'F33'; nearest: F32"),
    "negative size": (_head({"a": {**TENSOR, "shape": [-2]}}), "tensor 'a' has shape [-2]"),
    "a size of truth": (_head({"a": {**TENSOR, "shape": [True]}}), "tensor 'a' has shape [True]"),
    "huge shape": (_head({"a": {**TENSOR, "shape": [1 << 59, 1 << 59]}}), "is at [0, 8] of 0 bytes"),
    "beyond the end": (_head({"a": TENSOR}) + b"1234", "is at [0, 8] of 4 bytes"),
    "another size": (_head({"a": {**TENSOR, "shape": [3]}}) + b"12345678", "of shape [3] and type F32 is at"),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_damaged_files(case: str, tmp_path: Path) -> None:
    """A damaged file is one line with its name and the remedy."""
    content, wanted = DAMAGED[case]
    path = tmp_path / "model.safetensors"
    path.write_bytes(content) if isinstance(content, bytes) else content(path)
    with pytest.raises(ModelError) as fault:
        read_head(path)
    message = str(fault.value)
    assert wanted in message and str(path) in message and message.endswith("download it again")
    assert "\n" not in message


def _change(folder: Path, **fields: object) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] |= fields
    (folder / "config.json").write_text(json.dumps(config))


def _index(folder: Path, file: str) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": file}}))


def _link_out(folder: Path) -> None:
    shutil.move(folder / "model.safetensors", folder.parent / "elsewhere.safetensors")
    (folder / "model.safetensors").symlink_to(folder.parent / "elsewhere.safetensors")


def _edit(folder: Path, change: Callable[[dict[str, NDArray]], object]) -> None:
    path = folder / "model.safetensors"
    arrays = {name: np.array(entry.array()) for name, entry in read_head(path).items()}
    change(arrays)
    write_tensors(path, arrays)


Q = "model.layers.0.self_attn.q_proj"
Change = Callable[[Path], object]
NO_NAME = "is not the name of a file in the folder"


def fields(**said: object) -> Change:
    """Say other fields of the quantization."""
    return lambda folder: _change(folder, **said)


def group(targets: str, **said: object) -> Change:
    """Say one group of modules."""
    return fields(config_groups={"g": {"targets": [targets], "weights": said}})


def tensors(change: Callable[[dict[str, NDArray]], object]) -> Change:
    """Change the tensors of the first projection."""
    return lambda folder: _edit(folder, change)


def _odd_bits(folder: Path) -> None:
    _change(folder, bits=5)
    _edit(folder, lambda arrays: arrays.pop(f"{Q}.g_idx"))


def _pipe(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    os.mkfifo(folder / "model.safetensors")


def renamed(old: str, new: str) -> Change:
    """Give a file another name."""
    return lambda folder: (folder / old).rename(folder / new)


FOREIGN: dict[str, dict[str, tuple[Change, str]]] = {
    "gptq": {
        "no config": (lambda f: (f / "config.json").unlink(), "has no config.json"),
        "an adapter": (
            renamed("config.json", "adapter_config.json"), "holds an adapter (LoRA) and no model; merge it",
        ),
        "config of text": (lambda f: (f / "config.json").write_text("hello"), "is not valid json"),
        "config of a list": (lambda f: (f / "config.json").write_text("[]"), "must hold an object"),
        "a pickle": (
            renamed("model.safetensors", "pytorch_model.bin"),
            "only pytorch_model.bin, a pickle, which is never read",
        ),
        "a missing shard": (lambda f: _index(f, "model-1.safetensors"), "no such file"),
        "a shard without its tensor": (lambda f: _index(f, "model.safetensors"), "lacks 'a'"),
        "a shard above": (lambda f: _index(f, "../model.safetensors"), NO_NAME),
        "an absolute shard": (lambda f: _index(f, "/etc/passwd"), NO_NAME),
        "a shard of NUL": (lambda f: _index(f, "a\0"), NO_NAME),
        "a shard of no name": (lambda f: _index(f, ""), NO_NAME),
        "a link out": (_link_out, "is a link that leads out of the folder"),
        "a pipe": (_pipe, "it is a device or a pipe"),
        "another method": (fields(quant_method="quip"), "is quantized by 'quip', which is not read"),
        "odd bits": (_odd_bits, "bits is 5 in config.json"),
        "bits 0": (fields(bits=0), "bits is 0 in config.json"),
        "bits of truth": (fields(bits=True), "bits is True in config.json"),
        "one group that is two": (fields(group_size=-1), "has 2 groups of 32 inputs"),
        "scales of another shape": (
            tensors(lambda a: a.update({f"{Q}.scales": a[f"{Q}.scales"][:1]})),
            "its layer needs int32 shape [1, 4]",
        ),
    },
    "awq": {
        "one group that is two": (fields(group_size=-1), "has 2 groups of 32 inputs"),
        "a missing tensor": (tensors(lambda a: a.pop(f"{Q}.qzeros")), "has no tensor"),
        "a scale of NaN": (tensors(lambda a: a[f"{Q}.scales"].fill(np.nan)), "holds NaN or infinities"),
        "another version": (fields(version="gemv"), "AWQ of version 'gemv'"),
    },
    "ct-int8": {
        "sparse weights": (
            fields(sparsity_config={"format": "sparse-24-bitmask"}), "has sparse weights",
        ),
        "no group": (fields(config_groups={}), "config_groups has 0 groups"),
        "a pattern without end": (
            group("re:(a+)+$", num_bits=8), "the pattern 're:(a+)+$' is not used: it repeats too much",
        ),
    },
    "ct-pack-int4": {
        "a group size that does not fit": (
            group("Linear", num_bits=4, group_size=5), "which do not fit group_size 5",
        ),
    },
    "modelopt-int4": {
        "a factor on the input": (
            tensors(lambda a: a.update({f"{Q}.pre_quant_scale": np.ones(32, np.float32)})),
            "multiplies its input by pre_quant_scale",
        ),
    },
    "modelopt-nvfp4": {
        "a global scale of 0": (
            tensors(lambda a: a.update({f"{Q}.weight_scale_2": np.zeros((), np.float32)})),
            "has no positive global scale",
        ),
    },
}  # fmt: skip
for _form, _size in itertools.product(("gptq", "awq"), (0, "16")):
    said = fields(group_size=_size), f"group_size is {_size!r} in config.json"
    FOREIGN[_form][f"group size {_size!r}"] = said


@pytest.mark.parametrize(("name", "case"), [(one, case) for one in FOREIGN for case in FOREIGN[one]])
def test_foreign_folders(name: str, case: str, tmp_path: Path) -> None:
    """A folder of another kind is refused in one line that names it."""
    change, wanted = FOREIGN[name][case]
    folder = tmp_path / name
    shutil.copytree(CHECKPOINTS / name, folder)
    change(folder)
    with pytest.raises(ModelError) as fault:
        opened = QuantizedCheckpoint(folder)
        for module in opened.modules:
            opened.read(module)
    assert wanted in str(fault.value)


def test_a_cache_of_links_is_read(tmp_path: Path) -> None:
    """The cache of Hugging Face keeps a folder of links to files beside it."""
    folder, blobs = tmp_path / "models--a" / "snapshots" / "1", tmp_path / "models--a" / "blobs"
    folder.mkdir(parents=True)
    blobs.mkdir()
    for number, path in enumerate((CHECKPOINTS / "gptq").iterdir()):
        shutil.copyfile(path, blobs / str(number))
        (folder / path.name).symlink_to(Path("../../blobs") / str(number))
    assert len(QuantizedCheckpoint(folder).modules) == 7


def test_a_float_checkpoint_is_not_quantized() -> None:
    """The float checkpoint is read as tensors, and refused as a quantized one."""
    assert Checkpoint.open(FLOAT).float_type == "bfloat16"
    with pytest.raises(ModelError, match="is not quantized"):
        QuantizedCheckpoint(FLOAT)


def test_groups_are_found_by_pattern(tmp_path: Path) -> None:
    """A group names modules, or patterns of them, before a class of modules."""
    folder = tmp_path / "ct"
    shutil.copytree(CHECKPOINTS / "ct-pack-int4", folder)
    weights = {"num_bits": 4, "strategy": "group", "group_size": 16}
    wrong = {"targets": ["Linear"], "weights": {"num_bits": 4, "group_size": 5}}
    right = {"targets": [r"re:.*\.(q|k|v|o)_proj$", "re:model.layers.\\d+.mlp.*"], "weights": weights}
    _change(folder, config_groups={"0": wrong, "1": right})
    opened = QuantizedCheckpoint(folder)
    assert [opened.read(module).block_size for module in opened.modules] == [16] * 7
