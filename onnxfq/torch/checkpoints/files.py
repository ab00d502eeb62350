"""Files of state dicts, read as tensors only: nothing in a file is executed."""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from onnxfq.errors import ArgumentError, ModelError, RuntimeLibraryError
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
        library = _safetensors()
        try:
            return library.torch.load_file(path)
        except (OSError, library.SafetensorError) as error:
            raise ModelError(f"{path} is not a .safetensors file: {error}; save it again") from None
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
            held = {name: x.detach().contiguous().clone() for name, x in state.items()}
            # Its save_file would write beside the temporary, which has no folder here.
            Path(temporary).write_bytes(_safetensors().torch.save(held))
        else:
            torch.save(dict(state), temporary)


def _safetensors() -> Any:
    if find_spec("safetensors") is None:
        raise RuntimeLibraryError(
            "files of .safetensors need safetensors; run pip install safetensors, or use a file of torch.save"
        )
    import_module("safetensors.torch")
    return import_module("safetensors")
