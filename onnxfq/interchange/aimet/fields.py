"""Shared parsing for AIMET's versions: entries and their fields, strict grids, products of scales."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnxfq.errors import PlanError, nearest
from onnxfq.interchange.external import EncodingsReader
from onnxfq.numerics.qtypes import QType, qtype_by_name

Entry = Mapping[str, Any]

BIAS_WIDTH = "is of 32 bits, the type of biases, which stay in float"


_KINDS = {str: "text", int: "an integer", bool: "true or false", list: "a list"}


class Item:
    """One entry of a file; every fault is a PlanError that names file, place and remedy."""

    def __init__(self, reading: EncodingsReader, where: str, content: Entry, name: str = "") -> None:
        """Take the entry at `where` of tensor `name`, by default the one that its field `name` says."""
        self.reading, self.where, self.content = reading, where, content
        self.name = name or self.field("name", str)

    def fault(self, what: str, field: str = "") -> PlanError:
        """Return the error for the entry, or for one of its fields."""
        return self.reading.fault(
            f"{self.where}.{field}" if field else self.where, f"{what}; export it again"
        )

    def field(self, name: str, kind: type) -> Any:
        """Return a required field of type `kind`. Raises PlanError when it is missing or of another type."""
        if name not in self.content:
            raise self.fault(f"lacks {name!r}{nearest(name, self.content)}")
        value = self.content[name]
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise self.fault(f"must be {_KINDS[kind]}, got {value!r:.40}", name)
        return value

    def numbers(self, name: str) -> NDArray[np.float64]:
        """Return a field as numbers. Raises PlanError when it is none."""
        return self.reading.numbers(f"{self.where}.{name}", self.content.get(name))

    def row(self, name: str) -> NDArray[np.float64]:
        """Return a required list of numbers."""
        self.field(name, list)
        return np.atleast_1d(self.numbers(name))

    def block_size(self) -> int:
        """Return the block size. Raises PlanError when it is less than 1."""
        size = int(self.field("block_size", int))
        if size < 1:
            raise self.fault(f"must be at least 1, got {size}", "block_size")
        return size


def strict(bits: int) -> QType:
    """Return the signed integers without the lowest."""
    most = (1 << (bits - 1)) - 1
    return qtype_by_name(f"int{bits}[{-most},{most}]")


def product(steps: NDArray[np.float64], scale: NDArray[np.float64]) -> NDArray[np.float32]:
    """Return steps * scale in float32, as in the DequantizeLinear that AIMET writes for it."""
    with np.errstate(over="ignore", invalid="ignore"):  # callers refuse scales that are not finite
        return np.asarray(steps.astype(np.float32) * scale.astype(np.float32), np.float32)
