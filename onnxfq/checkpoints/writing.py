"""Writing of a checkpoint: a float checkpoint with other weights in it, in files of a few GB."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from onnxfq.checkpoints.folder import CONFIG, INDEX, SINGLE, Checkpoint, inside
from onnxfq.checkpoints.layer import QuantizedLayer
from onnxfq.checkpoints.tensor_file import write_tensors
from onnxfq.numerics.float_types import FLOATS, FloatType, holds
from onnxfq.numerics.qtypes import QTYPES

MOST_BYTES = 4 << 30
"""Bytes of tensors in one file."""

_COPIED = (".json", ".txt", ".model", ".jinja", ".tiktoken")
"""Endings of the files that belong to a tokenizer or to generation."""

Parts = dict[str, NDArray[Any]]


class WrittenLayer(NamedTuple):
    """A layer in a form.

    Attributes:
        parts: tensors by the end of their names.
        scheme: its entry in the configuration; layers with equal ones form a group.
        note: what differs from the numbers that were given.
    """

    parts: Parts
    scheme: dict[str, Any]
    note: str = ""


LayerWriter = Callable[[QuantizedLayer, FloatType], WrittenLayer | str]
"""Takes a layer and the type of the model; returns it in a form, or why the form cannot hold it."""

ConfigWriter = Callable[[Mapping[str, dict[str, Any]], list[str]], dict[str, dict[str, Any]]]
"""Takes the schemes by module and the modules in float; returns what is added to each JSON file."""


class CheckpointWriter:
    """Files of a new checkpoint, of which one at a time is in memory."""

    def __init__(self, folder: Path) -> None:
        """Start in an empty folder."""
        self._folder, self._held, self._bytes = folder, Parts(), 0
        self._files: list[tuple[str, list[str]]] = []
        self._total = 0

    def add(self, name: str, values: NDArray[Any]) -> None:
        """Add a tensor. Raises OSError."""
        if self._held and self._bytes + values.nbytes > MOST_BYTES:
            self._flush()
        self._held[name] = values
        self._bytes += values.nbytes
        self._total += values.nbytes

    def finish(self) -> None:
        """Write what is left, and the index if there are several files. Raises OSError."""
        self._flush()
        if len(self._files) == 1:
            (self._folder / self._files[0][0]).rename(self._folder / SINGLE)
            return
        placed: dict[str, str] = {}
        for number, (file, names) in enumerate(self._files, 1):
            final = f"model-{number:05}-of-{len(self._files):05}.safetensors"
            (self._folder / file).rename(self._folder / final)
            placed |= dict.fromkeys(names, final)
        content = {"metadata": {"total_size": self._total}, "weight_map": dict(sorted(placed.items()))}
        write_object(self._folder / INDEX, content)

    def _flush(self) -> None:
        file = f"part-{len(self._files)}.safetensors"
        write_tensors(self._folder / file, self._held)
        self._files.append((file, list(self._held)))
        self._held, self._bytes = Parts(), 0


def write_object(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON file as transformers does. Raises OSError."""
    path.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def copy_companions(base: Checkpoint, folder: Path, but: tuple[str, ...]) -> list[str]:
    """Copy the files of the tokenizer and of generation; return the names of the others. Raises OSError."""
    left = []
    for path in sorted(base.path.iterdir()):
        if path.name in (CONFIG, INDEX, *but) or path.suffix == ".safetensors":
            continue
        if path.suffix in _COPIED and path.is_file():
            shutil.copyfile(inside(base.path, path.name), folder / path.name)
        else:
            left.append(path.name)
    return left


def mx_exponents(layer: QuantizedLayer) -> NDArray[np.uint8]:
    """Return the scales of an MX format as its biased exponents."""
    return layer.scale.astype(ml_dtypes.float8_e8m0fnu).view(np.uint8)


def split_scales(layer: QuantizedLayer) -> tuple[NDArray[Any], np.float32]:
    """Return the e4m3 scales of NVFP4, and the factor that they share."""
    factor = np.float32(layer.global_scale or 1)
    return (layer.scale / factor).astype(QTYPES["float8e4m3fn"].dtype), factor


def fit_scale(scale: NDArray[np.float32], kind: FloatType) -> NDArray[Any]:
    """Return scales in the type of the model if it holds all of them, else as float32."""
    return scale.astype(FLOATS[kind].dtype) if holds(scale, kind) else scale
