"""`Checkpoint`: a folder of safetensors with its configuration; every name in it stays inside the folder."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnxfq.checkpoints.tensor_file import TensorEntry, read_head
from onnxfq.errors import ModelError, nearest
from onnxfq.numerics.float_types import FLOATS, FloatType
from onnxfq.support.reading import is_inside
from onnxfq.support.records import read_content

CONFIG = "config.json"
MODELOPT_CONFIG = "hf_quant_config.json"
INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
_ADAPTER = "adapter_config.json"


@dataclass(frozen=True)
class Checkpoint:
    """A folder of safetensors.

    Attributes:
        path: of the folder.
        config: content of config.json.
        entries: the tensors by name, which stay in their files.
    """

    path: Path
    config: Mapping[str, Any]
    entries: Mapping[str, TensorEntry] = field(repr=False)

    @staticmethod
    def open(path: str | Path) -> Checkpoint:
        """Read configuration and heads of a folder. Raises ModelError in one line for any fault."""
        folder = Path(path)
        if not (folder / CONFIG).is_file():
            has_adapter = (folder / _ADAPTER).exists()
            raise ModelError(
                f"{folder} holds an adapter (LoRA) and no model; merge it into its model and save that"
                if has_adapter
                else f"{folder} has no {CONFIG}; give the folder of a checkpoint, as "
                "save_pretrained writes it"
            )
        config = _read_object(inside(folder, CONFIG))
        entries: dict[str, TensorEntry] = {}
        for name, wanted in _list_files(folder).items():
            held = read_head(inside(folder, name))
            missing = [tensor for tensor in wanted if tensor not in held]
            if missing:
                raise ModelError(
                    f"{folder / name} lacks {missing[0]!r}, which {INDEX} puts there; download it again"
                )
            twice = next((tensor for tensor in held if tensor in entries), None)
            if twice is not None:
                raise ModelError(f"{folder}: tensor {twice!r} is in two files; keep one of the two")
            entries |= held
        if not entries:
            raise ModelError(f"{folder} holds no tensors; download the whole checkpoint")
        return Checkpoint(folder, config, entries)

    @cached_property
    def quantization(self) -> Mapping[str, Any]:
        """The quantization in config.json, or in ModelOpt's own file; empty for a float checkpoint."""
        given = self.config.get("quantization_config")
        if given is None and (self.path / MODELOPT_CONFIG).exists():
            return _read_object(inside(self.path, MODELOPT_CONFIG))
        return given if isinstance(given, Mapping) else {}

    @property
    def float_type(self) -> FloatType:
        """Type of the weights that config.json names; float32 if it names none."""
        said = str(self.config.get("dtype", self.config.get("torch_dtype", "float32"))).rpartition(".")[2]
        return next((name for name in FLOATS if name == said), "float32")

    def __contains__(self, name: object) -> bool:
        """Tell whether there is a tensor `name`."""
        return name in self.entries

    def array(self, name: str) -> NDArray[Any]:
        """Return the values of tensor `name`, mapped from its file. Raises ModelError if it is missing."""
        entry = self.entries.get(name)
        if entry is None:
            raise ModelError(f"{self.path} has no tensor {name!r}{nearest(name, self.entries)}")
        return entry.array()

    def floats(self, name: str) -> NDArray[np.float32]:
        """Return the values of tensor `name` as float32; they must be finite. Raises ModelError."""
        values = self.array(name).astype(np.float32)
        if not np.isfinite(values).all():
            raise ModelError(f"{self.path}: tensor {name!r} holds NaN or infinities; download it again")
        return values

    def modules(self, ending: str) -> Iterator[str]:
        """Yield the modules that have a tensor `ending`, in the order of the files."""
        for name in self.entries:
            if name.endswith(f".{ending}"):
                yield name.removesuffix(f".{ending}")


@dataclass(frozen=True)
class StoredModule:
    """The tensors of one layer, by the ends of their names.

    Attributes:
        files: the checkpoint.
        path: of the module.
    """

    files: Checkpoint
    path: str

    def place(self, part: str) -> str:
        """Return the name of a tensor."""
        return f"{self.path}.{part}"

    def __contains__(self, part: object) -> bool:
        """Tell whether there is a tensor `part`."""
        return f"{self.path}.{part}" in self.files

    def array(self, part: str) -> NDArray[Any]:
        """Return `Checkpoint.array`."""
        return self.files.array(self.place(part))

    def floats(self, part: str) -> NDArray[np.float32]:
        """Return `Checkpoint.floats`."""
        return self.files.floats(self.place(part))

    def sized(self, part: str, shape: tuple[int, ...], *dtypes: Any) -> NDArray[Any]:
        """Return the values of a tensor. Raises ModelError unless it has this shape and such a type."""
        values = self.array(part)
        if values.shape != shape or (dtypes and values.dtype not in [np.dtype(one) for one in dtypes]):
            raise ModelError(
                f"{self.files.path}: tensor {self.place(part)!r} is {values.dtype} of shape "
                f"{list(values.shape)}, and its layer needs "
                f"{' or '.join(str(np.dtype(d)) for d in dtypes) or 'a'} shape {list(shape)}; "
                "download it again"
            )
        return values

    def fault(self, what: str, remedy: str = "download it again") -> ModelError:
        """Return the error of a layer."""
        return ModelError(f"{self.files.path}: layer {self.path!r} {what}; {remedy}")


def float_type_of(dtype: np.dtype[Any], other: FloatType = "float32") -> FloatType:
    """Return the name of a float type; `other` for any other type."""
    return next((name for name, info in FLOATS.items() if info.dtype == dtype), other)


def inside(folder: Path, name: str) -> Path:
    """Return the path of file `name` of a folder.

    Raises ModelError for a name that leads out of it: with a folder, or by a link that ends elsewhere.
    """
    if name != os.path.basename(name) or name in ("", ".", "..") or "\0" in name:
        raise ModelError(f"{folder}: {name!r} is not the name of a file in the folder; repair {INDEX}")
    path = folder / name
    if not is_inside(path, folder):
        raise ModelError(f"{path} is a link that leads out of the folder; copy the file into it")
    return path


def _list_files(folder: Path) -> dict[str, list[str]]:
    """Return the tensor files of a folder with the tensors that the index puts there."""
    if not os.path.lexists(folder / INDEX):
        if os.path.lexists(folder / SINGLE):
            return {SINGLE: []}
        pickles = sorted(p.name for p in folder.glob("*.bin")) + sorted(p.name for p in folder.glob("*.pt"))
        why = f"only {pickles[0]}, a pickle, which is never read" if pickles else "none"
        raise ModelError(
            f"{folder} has no {SINGLE} and no {INDEX}, {why}; save the model with safe_serialization"
        )
    placed = _read_object(inside(folder, INDEX)).get("weight_map")
    if not isinstance(placed, Mapping) or not all(isinstance(file, str) for file in placed.values()):
        raise ModelError(f"{folder / INDEX}: weight_map must map tensors to files; download it again")
    files: dict[str, list[str]] = {}
    for tensor, file in placed.items():
        files.setdefault(file, []).append(tensor)
    return files


def _read_object(path: Path) -> Mapping[str, Any]:
    content = read_content(path, ModelError)
    if not isinstance(content, Mapping):
        raise ModelError(f"{path} must hold an object, not {content!r:.40}; download it again")
    return content
