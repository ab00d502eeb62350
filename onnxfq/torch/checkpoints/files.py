"""Files of state dicts, read as tensors only: nothing in a file is executed."""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from onnxfq.errors import ArgumentError, ModelError
from onnxfq.interchange.checkpoints.tensor_file import read_head, write_tensors
from onnxfq.support.files import check_writable, replace_file


def read_state(source: str | os.PathLike[str] | Mapping[str, Any]) -> dict[str, Any]:
    """Return the state dict of a file, or a copy of a given one; a trainer's file has it in "state_dict".

    Raises ModelError for a file that holds more than tensors or is missing or damaged.
    """
    if isinstance(source, Mapping):
        content: Any = source
    elif isinstance(source, (str, os.PathLike)):
        content = _read(Path(source))
    else:
        raise ArgumentError(
            f"a checkpoint is a path or a state dict, found {type(source).__name__}; pass state_dict()"
        )
    inner = content.get("state_dict") if isinstance(content, Mapping) else None
    content = inner if isinstance(inner, Mapping) else content
    if not isinstance(content, Mapping) or not any(isinstance(value, Tensor) for value in content.values()):
        raise ModelError("the checkpoint holds no tensors by name; save the module's state_dict()")
    return dict(content)


def _read(path: Path) -> Any:
    if not path.is_file():
        raise ModelError(f"no such file: {path}; check the path")
    if path.suffix == ".safetensors":
        return {name: _as_tensor(entry.array()) for name, entry in read_head(path).items()}
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, KeyError, ValueError, OSError) as error:
        why = str(error).partition("\n")[0][:120]
        raise ModelError(
            f"{path} does not hold tensors alone, and nothing else is read from it ({why}); save state_dict()"
        ) from None


def write_state(state: Mapping[str, Tensor], path: str | os.PathLike[str] | None) -> None:
    """Write a state dict. Raises OutputError if the path cannot be written."""
    if path is None:
        return
    check_writable(Path(path))
    with replace_file(Path(path)) as temporary:
        if Path(path).suffix == ".safetensors":
            write_tensors(Path(temporary), {name: _as_array(value) for name, value in state.items()})
        else:
            torch.save(dict(state), temporary)


def _as_tensor(values: NDArray[Any]) -> Tensor:
    """Return a copy as a tensor; NumPy and torch name their types alike, and share memory as bytes."""
    numbers = torch.from_numpy(np.array(values).reshape(-1).view(np.uint8))
    return numbers.view(getattr(torch, values.dtype.name)).reshape(values.shape)


def _as_array(values: Tensor) -> NDArray[Any]:
    numbers: NDArray[Any] = values.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return numbers.view(np.dtype(str(values.dtype).removeprefix("torch."))).reshape(tuple(values.shape))
