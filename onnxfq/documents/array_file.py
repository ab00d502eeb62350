"""Arrays of encodings: read-only in memory, flat lists in JSON, or many of them in an .npz next to it."""

from __future__ import annotations

import hashlib
import json
from math import prod
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pydantic
from numpy.typing import NDArray

from onnxfq.errors import PlanError
from onnxfq.support.arrays import MOST_ARRAYS, UNREADABLE, load_npz
from onnxfq.support.files import replace_file
from onnxfq.support.outputs import write_together
from onnxfq.support.reading import read_bytes
from onnxfq.support.records import Record, join_lines, parse

INLINE_LIMIT = 100_000
"""Largest number of scales in the JSON; a hundred thousand take 2 MB there."""


class ArrayFile(Record):
    """Reference to the .npz with the scales.

    Attributes:
        file: its name, in the folder of the JSON.
        sha256: of its bytes.
    """

    file: str
    sha256: str


def array_path(path: str | Path) -> Path:
    """Return the path of the array file for the JSON at `path`."""
    path = Path(path)
    return path.with_name(path.name.removesuffix(".json").removesuffix(".encodings") + ".encodings.npz")


def write_with_arrays(path: str | Path, content: dict[str, Any]) -> None:
    """Write a JSON and its array file, both whole or not at all.

    Args:
        path: of the JSON.
        content: of the JSON, with arrays as scale and zero_point of each of its "encodings". Arrays with a
            shape go to the array file, one after the other, the rest stays in the JSON. Zero points of
            symmetric specs are 0, and are not written.
    """
    parts: dict[str, list[NDArray[Any]]] = {"scale": [], "zero_point": []}
    for one in content["encodings"]:
        for name, arrays in parts.items():
            values = one.pop(name)
            if not one["param_shape"]:
                one[name] = values.ravel().tolist()
            elif name == "scale" or not one["spec"]["symmetric"]:
                arrays.append(values.ravel())
    flat = {name: np.concatenate([np.zeros(0, np.int8), *arrays]) for name, arrays in parts.items()}
    path, beside = Path(path), array_path(path)
    with write_together([path, beside]), replace_file(path) as text, replace_file(beside) as packed:
        with packed.open("wb") as stream:
            np.savez(stream, allow_pickle=False, **flat)
        digest = hashlib.sha256(packed.read_bytes()).hexdigest()
        reference = {"file": beside.name, "sha256": digest}
        text.write_text(json.dumps(content | {"arrays": reference}, indent=2) + "\n", encoding="utf-8")


def restore_arrays(content: Any, path: Path) -> Any:
    """Return `content` of the JSON at `path` with the arrays of its array file, if it names one.

    Raises PlanError if that file is missing, damaged or does not belong to the JSON.
    """
    if not isinstance(content, dict) or "arrays" not in content:
        return content
    content = dict(content)
    flat = _read(parse(content.pop("arrays"), ArrayFile, PlanError, f"{path}: arrays"), path)
    used = dict.fromkeys(flat, 0)

    def take(name: str, count: int) -> NDArray[Any]:
        used[name] += count
        return flat[name][used[name] - count : used[name]]

    try:
        for one in content["encodings"]:
            if "scale" not in one:
                count = prod(one["param_shape"])
                one["scale"] = take("scale", count)
                fixed = one["spec"].get("symmetric", True)
                one["zero_point"] = np.zeros(one["scale"].size) if fixed else take("zero_point", count)
    except (KeyError, TypeError, AttributeError, ValueError):
        return content  # validation reports the fault
    if any(used[name] != values.size for name, values in flat.items()):
        raise PlanError(
            f"{path}: its shapes do not fit the scales in {array_path(path).name}; save the encodings again"
        )
    return content


def _read(reference: ArrayFile, path: Path) -> dict[str, NDArray[Any]]:
    packed = path.with_name(Path(reference.file).name)
    try:
        if hashlib.sha256(read_bytes(packed, MOST_ARRAYS)).hexdigest() != reference.sha256:
            raise PlanError(
                f"{packed} is not the file that {path.name} was saved with; copy both together, or calibrate "
                "again"
            )
        return load_npz(packed, ("scale", "zero_point"))
    except FileNotFoundError:
        raise PlanError(
            f"no such file: {packed}, which holds the scales of {path.name}; copy both together, or "
            "calibrate again"
        ) from None
    except UNREADABLE as fault:
        raise PlanError(f"cannot read {packed}: {join_lines(fault)}; calibrate again") from None


def _to_numbers(values: Any) -> NDArray[Any]:
    try:
        numbers = np.asarray(values)
    except (ValueError, OverflowError):
        numbers = np.asarray(None)
    if numbers.size and numbers.dtype.kind not in "fiu":
        raise ValueError(f"must be a list of numbers, got {values!r:.40}")
    return numbers


def _lock(values: NDArray[Any], info: pydantic.ValidationInfo) -> NDArray[Any]:
    """Return `values` read-only, in param_shape if the count fits."""
    shape = info.data.get("param_shape", ())
    if values.size == prod(shape) and min(shape, default=0) >= 0:
        values = values.reshape(shape)
    values.flags.writeable = False
    return values


def _to_scale(values: Any, info: pydantic.ValidationInfo) -> NDArray[np.float32]:
    return _lock(cast(_to_numbers(values), np.float32), info)


def _to_zero_point(values: Any, info: pydantic.ValidationInfo) -> NDArray[Any]:
    """Return int32, or float32 for fractional zero points; validation reports values that do not fit."""
    numbers, spec = _to_numbers(values), info.data.get("spec")
    fractional = spec is not None and spec.zero_point == "fractional"
    dtype = np.float32 if fractional else np.int32
    if not np.count_nonzero(numbers):
        return _lock(np.zeros(numbers.shape, dtype), info)  # zero pages that are never written
    made = cast(numbers, dtype)
    exact = fractional or numbers.dtype == dtype or np.array_equal(made, numbers)
    return _lock(made if exact else numbers.copy(), info)


def cast(numbers: NDArray[Any], dtype: type) -> NDArray[Any]:
    """Return a copy of type `dtype`; values outside its range become values that validation rejects."""
    if numbers.dtype == dtype:
        return numbers.copy()
    with np.errstate(over="ignore", invalid="ignore"):
        return numbers.astype(dtype, order="C")


def _spell(values: NDArray[Any], info: pydantic.SerializationInfo) -> Any:
    return values if info.context == KEEP_ARRAYS else tuple(values.ravel().tolist())


KEEP_ARRAYS = "keep arrays"
"""Context that keeps arrays in serialization, for an array file; otherwise flat tuples in C order."""

ScaleField = Annotated[
    NDArray[np.float32], pydantic.PlainValidator(_to_scale), pydantic.PlainSerializer(_spell)
]
ZeroPointField = Annotated[
    NDArray[Any], pydantic.PlainValidator(_to_zero_point), pydantic.PlainSerializer(_spell)
]
