"""AIMET encodings 0.6.1 and 1.0.0: bit widths and offsets on unsigned integers.

x = (q + offset) * scale with q in [0, 2^bits - 1], so the zero point is -offset there. An offset of 1 -
2^(bits-1) with symmetric is AIMET's strict symmetric, which lacks the lowest number. AIMET's simulator rounds
to that grid, although the file gives it one more number.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnxfq.errors import nearest
from onnxfq.interchange.aimet.fields import BIAS_WIDTH, Entry, block_size_of, field, product, strict
from onnxfq.interchange.external import Given, GivenTensor, Reading
from onnxfq.numerics.qtypes import QTYPES, QType


def read_0_6_1(reading: Reading, parts: dict[str, dict[str, Any]], version: str) -> Given:
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
            _add_0_6_1(reading, where, name, entries)
    return reading.get_given(f"AIMET encodings {version}")


def _add_0_6_1(reading: Reading, where: str, name: str, entries: list[Entry]) -> None:
    dtypes = {field(reading, where, entry, "dtype", str) for entry in entries}
    widths = {field(reading, where, entry, "bitwidth", int) for entry in entries}
    if len(dtypes) > 1 or len(widths) > 1:
        raise reading.fault(where, f"mixes {sorted(dtypes)} of {sorted(widths)} bits; export it again")
    if dtypes == {"float"}:
        reading.in_float.append(name)
        return
    bits = _width(reading, where, widths.pop())
    said = {_truth(reading, where, entry) for entry in entries}
    if len(said) > 1:
        raise reading.fault(where, "is symmetric in some channels only; export it again")
    columns = {
        column: reading.numbers(f"{where}.{column}", [entry.get(column) for entry in entries])
        for column in ("scale", "offset")
    }
    _check_ends(reading, where, entries, columns, bits)
    if len(entries) == 1:
        columns = {column: values[0] for column, values in columns.items()}
    grid = _Unsigned(bits, said.pop(), columns["offset"])
    _add_unsigned(reading, where, name, columns["scale"], grid, {})


def _width(reading: Reading, where: str, bits: int) -> int:
    """Return a known bit width: 2 to 16, or 32 for biases. Raises PlanError for any other."""
    if not (2 <= bits <= 16 or bits == 32):
        raise reading.fault(where, f"has {bits} bits; 2 to 16 are known, export it with one of these")
    return bits


def _truth(reading: Reading, where: str, entry: Entry) -> bool:
    """Return whether an entry of 0.6.1 is symmetric, which is the text True or False."""
    said = entry.get("is_symmetric")
    if str(said).lower() not in ("true", "false"):
        raise reading.fault(
            f"{where}.is_symmetric", f"must be True or False, got {said!r:.40}; export it again"
        )
    return str(said).lower() == "true"


def _check_ends(
    reading: Reading, where: str, entries: list[Entry], columns: dict[str, NDArray[np.float64]], bits: int
) -> None:
    """Raise PlanError if min and max contradict scale and offset."""
    steps = {"min": columns["offset"], "max": columns["offset"] + (2.0**bits - 1)}
    for end, step in steps.items():
        if any(end not in entry for entry in entries):
            continue
        ends = reading.numbers(f"{where}.{end}", [entry[end] for entry in entries])
        # Strict symmetric grids end a step earlier; a larger difference means another grid.
        off = np.abs(ends - step * columns["scale"]) > 1.5 * columns["scale"]
        if off.any():
            said = (step * columns["scale"])[off][0]
            raise reading.fault(
                f"{where}.{end}", f"is {ends[off][0]:g}, but scale and offset give {said:g}; export it again"
            )


class _Unsigned:
    """A grid in 0.6.1 and 1.0.0: bit width, whether symmetric, offset on the unsigned integers."""

    def __init__(self, bits: int, symmetric: bool, offset: NDArray[np.float64]) -> None:
        self.bits, self.symmetric, self.offset = bits, symmetric, offset

    @property
    def half(self) -> int:
        """The unsigned integer that corresponds to the signed 0."""
        return 1 << (self.bits - 1)

    @property
    def qtype(self) -> QType:
        """The integers of the grid: signed if their zero is 0.0, without the lowest if strict."""
        if self.symmetric and (self.offset == -self.half).all():
            return QTYPES[f"int{self.bits}"]
        if self.symmetric and self.bits > 2 and (self.offset == 1 - self.half).all():
            return strict(self.bits)
        return QTYPES[f"uint{self.bits}"]

    @property
    def zero_point(self) -> NDArray[np.float64]:
        """The zero points on `qtype`."""
        return np.zeros(self.offset.shape) if self.qtype.signed else 0.0 - self.offset


def _add_unsigned(
    reading: Reading,
    where: str,
    name: str,
    values: NDArray[np.float64],
    grid: _Unsigned,
    blocks: dict[str, Any],
) -> None:
    if grid.bits == 32:
        reading.unusable[name] = f"{where} {BIAS_WIDTH}"
        return
    if grid.offset.shape != values.shape:
        raise reading.fault(
            where, f"has {values.size} scales and {grid.offset.size} offsets; export it again"
        )
    scale = reading.scales(where, name, values.tolist())
    if scale is not None:
        reading.add(GivenTensor(name, where, grid.qtype, scale, grid.zero_point, **blocks))


def read_1_0_0(reading: Reading, where: str, name: str, entry: Entry) -> None:
    """Read an entry of 1.0.0."""
    if field(reading, where, entry, "dtype", str).upper() == "FLOAT":
        reading.in_float.append(name)
        return
    kind = field(reading, where, entry, "enc_type", str)
    add = _KINDS.get(kind)
    if add is None:
        raise reading.fault(
            f"{where}.enc_type", f"is {kind!r}, unknown{nearest(kind, _KINDS)}; export it again"
        )
    values = np.atleast_1d(reading.numbers(f"{where}.scale", field(reading, where, entry, "scale", list)))
    offset = np.atleast_1d(reading.numbers(f"{where}.offset", field(reading, where, entry, "offset", list)))
    if "zero_point_shift" in entry:
        shift = np.atleast_1d(reading.numbers(f"{where}.zero_point_shift", entry["zero_point_shift"]))
        if shift.shape != offset.shape:
            raise reading.fault(where, f"has {offset.size} offsets and {shift.size} shifts; export it again")
        offset = offset + shift
    bits = _width(reading, where, field(reading, where, entry, "bw", int))
    add(
        reading,
        where,
        name,
        entry,
        (values, _Unsigned(bits, field(reading, where, entry, "is_sym", bool), offset)),
    )


_Values = tuple[NDArray[np.float64], _Unsigned]


def _read_per_tensor(reading: Reading, where: str, name: str, entry: Entry, values: _Values) -> None:
    scale, grid = values
    if scale.size != 1 or grid.offset.size != 1:
        raise reading.fault(where, f"is PER_TENSOR with {scale.size} scales; export it again")
    one = _Unsigned(grid.bits, grid.symmetric, grid.offset.reshape(()))
    _add_unsigned(reading, where, name, scale.reshape(()), one, {})


def _read_per_channel(reading: Reading, where: str, name: str, entry: Entry, values: _Values) -> None:
    _add_unsigned(reading, where, name, *values, {})


def _read_per_block(reading: Reading, where: str, name: str, entry: Entry, values: _Values) -> None:
    _add_unsigned(reading, where, name, *values, {"block_size": block_size_of(reading, where, entry)})


def _lpbq_1(reading: Reading, where: str, name: str, entry: Entry, values: _Values) -> None:
    """Add blocks whose scales are an integer times the scale of their output channel; channels come first."""
    channels, _ = values
    bits = _width(reading, where, field(reading, where, entry, "compressed_bw", int))
    steps = reading.numbers(
        f"{where}.per_block_int_scale", field(reading, where, entry, "per_block_int_scale", list)
    )
    if steps.ndim != 1 or channels.ndim != 1 or not channels.size or steps.size % channels.size:
        raise reading.fault(
            where, f"has {steps.size} block scales for {channels.size} channels; export it again"
        )
    scale = product(steps.reshape(channels.size, -1), channels[:, None]).ravel()
    grid = _Unsigned(bits, True, np.full(scale.shape, -(2.0 ** (bits - 1))))
    _add_unsigned(
        reading,
        where,
        name,
        scale.astype(np.float64),
        grid,
        {"block_size": block_size_of(reading, where, entry)},
    )


_KINDS: dict[str, Callable[[Reading, str, str, Entry, _Values], None]] = {
    "PER_TENSOR": _read_per_tensor,
    "PER_CHANNEL": _read_per_channel,
    "PER_BLOCK": _read_per_block,
    "LPBQ": _lpbq_1,
}
