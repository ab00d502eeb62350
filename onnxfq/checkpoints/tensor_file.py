"""Files of safetensors: a bounded head in JSON, and tensors mapped from the file; nothing in it is run.

A file is the length of its head as 8 bytes, the head, and the bytes of the tensors in C order, little-endian.
Source: the format of safetensors 0.8, whose own reader for NumPy does not know the 8-bit floats.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from onnxfq.errors import ModelError, nearest
from onnxfq.support.reading import open_input
from onnxfq.support.records import join_lines, read_json

MOST_HEAD = 100_000_000
"""Largest head in bytes, as the library has it."""

DTYPES: dict[str, np.dtype[Any]] = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "F8_E8M0": np.dtype(ml_dtypes.float8_e8m0fnu),
    **{f"I{8 * n}": np.dtype(f"<i{n}") for n in (1, 2, 4, 8)},
    **{f"U{8 * n}": np.dtype(f"<u{n}") for n in (1, 2, 4, 8)},
    "BOOL": np.dtype(np.bool_),
}
"""Types by their names in a head."""
_NAMES = {dtype: name for name, dtype in DTYPES.items()}

_MOST_AXES = 64
_LENGTH = struct.Struct("<Q")


@dataclass(frozen=True)
class TensorEntry:
    """A tensor in a file.

    Attributes:
        path: the file.
        dtype: of its elements.
        offset: first byte in the file.
    """

    path: Path
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int

    def array(self) -> NDArray[Any]:
        """Return the values, mapped from the file and read-only. Raises ModelError if it is gone."""
        if not prod(self.shape):
            return np.zeros(self.shape, self.dtype)
        try:
            values: NDArray[Any] = np.memmap(self.path, self.dtype, "r", self.offset, self.shape)
        except (OSError, ValueError) as fault:
            raise ModelError(f"cannot read {self.path}: {fault}; download it again") from None
        return values


def read_head(path: Path) -> dict[str, TensorEntry]:
    """Return the tensors of a file by name. Raises ModelError in one line for a file of another form."""
    try:
        with open_input(path) as stream:
            size = os.fstat(stream.fileno()).st_size
            begin = stream.read(_LENGTH.size)
            length = _LENGTH.unpack(begin)[0] if len(begin) == _LENGTH.size else -1
            if not 0 < length <= min(MOST_HEAD, size - _LENGTH.size):
                raise ValueError(f"its head of {length} bytes does not fit its {size} bytes")
            content = read_json(stream.read(length).decode("utf-8"))
        if not isinstance(content, dict):
            raise ValueError("its head is not an object")
        first = _LENGTH.size + length
        return {
            name: _read_entry(name, entry, path, first, size - first)
            for name, entry in content.items()
            if name != "__metadata__"
        }
    except FileNotFoundError:
        raise ModelError(f"no such file: {path}; download the whole checkpoint") from None
    except OSError as fault:
        raise ModelError(f"cannot read {path}: {fault.strerror or fault}; give another file") from None
    except (ValueError, RecursionError) as fault:
        raise ModelError(
            f"{path} is not a file of safetensors: {join_lines(fault)[:200]}; download it again"
        ) from None


def _read_entry(name: str, entry: object, path: Path, first: int, size: int) -> TensorEntry:
    """Return one entry of a head. Raises ValueError for types, shapes and places that do not fit."""
    fields = entry if isinstance(entry, Mapping) else {}
    kind, shape, place = (fields.get(key) for key in ("dtype", "shape", "data_offsets"))
    if not isinstance(kind, str) or kind not in DTYPES:
        raise ValueError(f"tensor {name!r} has type {kind!r:.20}{nearest(str(kind), DTYPES)}")
    sizes, places = _read_sizes(shape), _read_sizes(place)
    if sizes is None or places is None or len(places) != 2 or len(sizes) > _MOST_AXES:
        raise ValueError(f"tensor {name!r} has shape {shape!r:.40} and place {place!r:.40}")
    begin, end = places
    if end > size or end - begin != prod(sizes) * DTYPES[kind].itemsize:
        raise ValueError(f"tensor {name!r} of shape {shape} and type {kind} is at {place} of {size} bytes")
    return TensorEntry(path, DTYPES[kind], tuple(sizes), first + begin)


def _read_sizes(values: object) -> list[int] | None:
    """Return a list of sizes; None for anything else."""
    if not isinstance(values, list) or any(isinstance(n, bool) or not isinstance(n, int) for n in values):
        return None
    return values if all(0 <= n < 1 << 60 for n in values) else None


def write_tensors(path: Path, tensors: Mapping[str, NDArray[Any]]) -> None:
    """Write `tensors` to `path`; equal tensors give equal bytes. Raises OSError."""
    ordered = sorted(tensors.items(), key=lambda item: (-item[1].dtype.itemsize, item[0]))  # aligned
    head: dict[str, Any] = {"__metadata__": {"format": "pt"}}  # transformers asks for it
    offset = 0
    for name, values in ordered:
        place = [offset, offset + values.nbytes]
        head[name] = {"dtype": _NAMES[values.dtype], "shape": list(values.shape), "data_offsets": place}
        offset += values.nbytes
    text = json.dumps(head, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as stream:
        for part in (_LENGTH.pack(len(text)), text, *_contents(values for _, values in ordered)):
            stream.write(part)


def _contents(arrays: Iterator[NDArray[Any]]) -> Iterator[Any]:
    for values in arrays:
        yield np.ascontiguousarray(values).reshape(-1).view(np.uint8).data
