"""AIMET encodings 0.6.1 and 1.0.0: bit widths and offsets on unsigned integers.

x = (q + offset) * scale with q in [0, 2^bits - 1], so the zero point is -offset there. An offset of 1 -
2^(bits-1) with symmetric is AIMET's strict symmetric, which lacks the lowest number. AIMET's simulator rounds
to that grid, although the file gives it one more number.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from onnxfq.errors import nearest
from onnxfq.interchange.aimet.fields import BIAS_WIDTH, Item, product, strict
from onnxfq.interchange.external import EncodingsReader, ExternalEncodings, ExternalTensor
from onnxfq.numerics.qtypes import QTYPES, QType


def read_0_6_1(reading: EncodingsReader, parts: dict[str, dict[str, Any]], version: str) -> ExternalEncodings:
    """Return the encodings in a file of 0.6.1. Raises PlanError that names the entry at fault."""
    for section, part in parts.items():
        for name, entries in part.items():
            where = f"{section}.{name}"
            if isinstance(entries, dict):
                raise reading.fault(
                    where,
                    "is keyed by modules of torch; give the .encodings file of the ONNX export, the one "
                    "without _torch in its name",
                )
            if not isinstance(entries, list) or not entries or not all(isinstance(e, dict) for e in entries):
                raise reading.fault(
                    where, f"must be a list of encodings, got {entries!r:.40}; export it again"
                )
            _add_0_6_1([Item(reading, where, entry, name) for entry in entries])
    return reading.get_given(f"AIMET encodings {version}")


def _add_0_6_1(items: list[Item]) -> None:
    first = items[0]
    dtypes = {item.field("dtype", str) for item in items}
    widths = {item.field("bitwidth", int) for item in items}
    if len(dtypes) > 1 or len(widths) > 1:
        raise first.fault(f"mixes {sorted(dtypes)} of {sorted(widths)} bits")
    if dtypes == {"float"}:
        first.reading.in_float.append(first.name)
        return
    bits = _width(first, widths.pop())
    said = {_truth(item) for item in items}
    if len(said) > 1:
        raise first.fault("is symmetric in some channels only")
    columns = {name: _column(items, name) for name in ("scale", "offset")}
    _check_ends(items, columns, bits)
    if len(items) == 1:
        columns = {column: values[0] for column, values in columns.items()}
    _add_unsigned(first, columns["scale"], _Unsigned(bits, said.pop(), columns["offset"]))


def _column(items: list[Item], name: str) -> NDArray[np.float64]:
    first = items[0]
    return first.reading.numbers(f"{first.where}.{name}", [item.content.get(name) for item in items])


def _width(item: Item, bits: int) -> int:
    """Return a known bit width: 2 to 16, or 32 for biases. Raises PlanError for any other."""
    if not (2 <= bits <= 16 or bits == 32):
        what = f"has {bits} bits; 2 to 16 are known, export it with one of these"
        raise item.reading.fault(item.where, what)
    return bits


def _truth(item: Item) -> bool:
    """Return whether an entry of 0.6.1 is symmetric, which is the text True or False."""
    said = item.content.get("is_symmetric")
    if str(said).lower() not in ("true", "false"):
        raise item.fault(f"must be True or False, got {said!r:.40}", "is_symmetric")
    return str(said).lower() == "true"


def _check_ends(items: list[Item], columns: dict[str, NDArray[np.float64]], bits: int) -> None:
    """Raise PlanError if min and max contradict scale and offset."""
    steps = {"min": columns["offset"], "max": columns["offset"] + (2.0**bits - 1)}
    for end, step in steps.items():
        if any(end not in item.content for item in items):
            continue
        ends = _column(items, end)
        # Strict symmetric grids end a step earlier; a larger difference means another grid.
        off = np.abs(ends - step * columns["scale"]) > 1.5 * columns["scale"]
        if off.any():
            said = (step * columns["scale"])[off][0]
            raise items[0].fault(f"is {ends[off][0]:g}, but scale and offset give {said:g}", end)


class _Unsigned(NamedTuple):
    """A grid in 0.6.1 and 1.0.0: bit width, whether symmetric, offset on the unsigned integers."""

    bits: int
    symmetric: bool
    offset: NDArray[np.float64]

    @property
    def qtype(self) -> QType:
        """The integers of the grid: signed if their zero is 0.0, without the lowest if strict."""
        half = 1 << (self.bits - 1)  # the unsigned integer that corresponds to the signed 0
        if self.symmetric and (self.offset == -half).all():
            return QTYPES[f"int{self.bits}"]
        if self.symmetric and self.bits > 2 and (self.offset == 1 - half).all():
            return strict(self.bits)
        return QTYPES[f"uint{self.bits}"]


def _add_unsigned(item: Item, values: NDArray[np.float64], grid: _Unsigned, **blocks: Any) -> None:
    if grid.bits == 32:
        item.reading.unusable[item.name] = f"{item.where} {BIAS_WIDTH}"
        return
    if grid.offset.shape != values.shape:
        raise item.fault(f"has {values.size} scales and {grid.offset.size} offsets")
    scale = item.reading.scales(item.where, item.name, values.tolist())
    if scale is not None:
        zero = np.zeros(scale.shape) if grid.qtype.signed else 0.0 - grid.offset
        item.reading.add(ExternalTensor(item.name, item.where, grid.qtype, scale, zero, **blocks))


def read_1_0_0(item: Item) -> None:
    """Read an entry of 1.0.0."""
    if item.field("dtype", str).upper() == "FLOAT":
        item.reading.in_float.append(item.name)
        return
    kind = item.field("enc_type", str)
    add = _KINDS.get(kind)
    if add is None:
        raise item.fault(f"is {kind!r}, unknown{nearest(kind, _KINDS)}", "enc_type")
    values, offset = item.row("scale"), item.row("offset")
    if "zero_point_shift" in item.content:
        shift = np.atleast_1d(item.numbers("zero_point_shift"))
        if shift.shape != offset.shape:
            raise item.fault(f"has {offset.size} offsets and {shift.size} shifts")
        offset = offset + shift
    bits = _width(item, item.field("bw", int))
    add(item, values, _Unsigned(bits, item.field("is_sym", bool), offset))


def _read_per_tensor(item: Item, scale: NDArray[np.float64], grid: _Unsigned) -> None:
    if scale.size != 1 or grid.offset.size != 1:
        raise item.fault(f"is PER_TENSOR with {scale.size} scales")
    _add_unsigned(item, scale.reshape(()), grid._replace(offset=grid.offset.reshape(())))


def _read_per_block(item: Item, scale: NDArray[np.float64], grid: _Unsigned) -> None:
    _add_unsigned(item, scale, grid, block_size=item.block_size())


def _lpbq_1(item: Item, channels: NDArray[np.float64], _: _Unsigned) -> None:
    """Add blocks whose scales are an integer times the scale of their output channel; channels come first."""
    bits = _width(item, item.field("compressed_bw", int))
    item.field("per_block_int_scale", list)
    steps = item.numbers("per_block_int_scale")
    if steps.ndim != 1 or channels.ndim != 1 or not channels.size or steps.size % channels.size:
        raise item.fault(f"has {steps.size} block scales for {channels.size} channels")
    scale = product(steps.reshape(channels.size, -1), channels[:, None]).ravel()
    grid = _Unsigned(bits, True, np.full(scale.shape, -(2.0 ** (bits - 1))))
    _add_unsigned(item, scale.astype(np.float64), grid, block_size=item.block_size())


_KINDS: dict[str, Callable[[Item, NDArray[np.float64], _Unsigned], None]] = {
    "PER_TENSOR": _read_per_tensor,
    "PER_CHANNEL": _add_unsigned,
    "PER_BLOCK": _read_per_block,
    "LPBQ": _lpbq_1,
}
