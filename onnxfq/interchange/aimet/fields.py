"""Shared parsing for AIMET's versions: fields of an entry, strict grids, products of scales."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnxfq.errors import nearest
from onnxfq.interchange.external import Reading
from onnxfq.numerics.qtypes import QType, qtype_by_name

Entry = Mapping[str, Any]

BIAS_WIDTH = "is of 32 bits, the type of biases, which stay in float"


_KINDS = {str: "text", int: "an integer", bool: "true or false", list: "a list"}


def field(reading: Reading, where: str, entry: Entry, name: str, kind: type) -> Any:
    """Return a required field of type `kind`. Raises PlanError when it is missing or of another type."""
    if name not in entry:
        raise reading.fault(where, f"lacks {name!r}{nearest(name, entry)}; export it again")
    value = entry[name]
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise reading.fault(f"{where}.{name}", f"must be {_KINDS[kind]}, got {value!r:.40}; export it again")
    return value


def block_size_of(reading: Reading, where: str, entry: Entry) -> int:
    """Return the block size of an entry. Raises PlanError when it is less than 1."""
    size = field(reading, where, entry, "block_size", int)
    if size < 1:
        raise reading.fault(f"{where}.block_size", f"must be at least 1, got {size}; export it again")
    return int(size)


def strict(bits: int) -> QType:
    """Return the signed integers without the lowest."""
    most = (1 << (bits - 1)) - 1
    return qtype_by_name(f"int{bits}[{-most},{most}]")


def product(steps: NDArray[np.float64], scale: NDArray[np.float64]) -> NDArray[np.float32]:
    """Return steps * scale in float32, as in the DequantizeLinear that AIMET writes for it."""
    with np.errstate(over="ignore", invalid="ignore"):  # callers refuse scales that are not finite
        return np.asarray(steps.astype(np.float32) * scale.astype(np.float32), np.float32)
