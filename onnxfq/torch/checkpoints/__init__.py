"""Checkpoints of other libraries, one format a file: `load_checkpoint` and `save_checkpoint`.

| format   | written by                                                      |
|----------|-----------------------------------------------------------------|
| torch-ao | torch.ao's eager QAT: `prepare_qat`, with or without fusion      |
| horizon  | Horizon's plugin, whose documented keys are torch.ao's           |

Files are read as tensors only: nothing in a file is executed.
"""

from __future__ import annotations

import logging
import os
import pickle
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from onnxfq.checkpoints.tensor_file import read_head, write_tensors
from onnxfq.errors import ArgumentError, ModelError, nearest
from onnxfq.support.files import check_writable, replace_file
from onnxfq.torch.checkpoints import horizon, torch_ao
from onnxfq.torch.quantizer import quantizers

__all__ = ["FORMATS", "load_checkpoint", "save_checkpoint"]

log = logging.getLogger(__name__)

FORMATS: dict[str, ModuleType] = {"torch-ao": torch_ao, "horizon": horizon}
"""Format -> its file: `read`, (module, its state) -> (state of ours, keys that no quantizer needs), and
`write`, module -> (state of theirs, quantizers that it cannot hold)."""


def load_checkpoint(
    model: nn.Module, source: str | os.PathLike[str] | Mapping[str, Tensor], format: str
) -> tuple[str, ...]:
    """Load a checkpoint of another library into a module of `quantize_module`.

    Args:
        model: the module, quantized with the number formats of the checkpoint.
        source: a state dict, a file of `torch.save`, which is read without unpickling code, or .safetensors.
        format: a key of `FORMATS`.

    Returns the names of quantizers in the checkpoint that the module does not have, for example
    quantizers of outputs.
    Raises ModelError for an unknown format, an unreadable file, and a module that is not quantized or lacks
    values; SpecError for another number format. After an error the module may hold a part.
    """
    chosen = _format(format)
    if not quantizers(model):
        raise ModelError(f"{type(model).__name__} has no quantizers; call quantize_module first")
    ours, rest = chosen.read(model, read_state(source))
    try:
        model.load_state_dict(ours)
    except RuntimeError as error:
        if isinstance(error, ValueError):  # a state dict of ours in another number format
            raise
        line = " ".join(str(error).split())
        raise ModelError(f"the checkpoint does not fit {type(model).__name__}: {line[:300]}") from None
    if rest:
        log.warning("the module has no quantizers for %d of the checkpoint: %s", len(rest), ", ".join(rest))
    return tuple(rest)


def save_checkpoint(model: nn.Module, path: str | os.PathLike[str] | None, format: str) -> dict[str, Tensor]:
    """Return the state of a module of `quantize_module` with the keys of another library.

    Args:
        model: the module, with all scales.
        path: the file to write, by `torch.save`, or as .safetensors by its suffix; None writes none.
        format: a key of `FORMATS`.

    Quantizers for which the library has no key, for example the module's own inputs, are left out, and a
    log line names them. Raises ModelError for an unknown format or a missing scale.
    """
    state: dict[str, Tensor]
    state, rest = _format(format).write(model)
    if rest:
        log.warning("format %s has no key for %d quantizers: %s", format, len(rest), ", ".join(rest))
    write_state(state, path)
    return state


def _format(name: str) -> ModuleType:
    if name not in FORMATS:
        raise ModelError(f"unknown format of checkpoints {name!r}{nearest(str(name), FORMATS)}")
    return FORMATS[name]


def read_state(source: str | os.PathLike[str] | Mapping[str, Any]) -> dict[str, Any]:
    """Return the state dict of a file, or a copy of a given one; a trainer's file has it in "state_dict".

    Raises ModelError for a file that holds more than tensors or is missing or damaged.
    """
    if isinstance(source, Mapping):
        content: Any = source
    elif isinstance(source, (str, os.PathLike)):
        content = _read(Path(source))
    else:
        raise ArgumentError(f"a checkpoint is a path or a state dict, got {type(source).__name__}; pass one")
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
        raise ModelError(f"{path} does not hold tensors alone ({why}); save state_dict()") from None


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
