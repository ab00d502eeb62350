"""AIMET's encodings files, versions 0.6.1, 1.0.0, 2.0.0 and 2.1.0, as its exporters write them.

In 0.6.1 and 1.0.0 a tensor has a width, whether it is symmetric, and an offset that is counted on the
unsigned integers: x = (q + offset) * scale with q in [0, 2^bits - 1], so the zero point is -offset there. An
offset of 1 - 2^(bits-1) with symmetric is AIMET's strict symmetric, which lacks the lowest number; its
simulator rounds to that grid, though the file gives it a number more.
From 2.0.0 on an entry is ONNX's QuantizeLinear: output_dtype, y_scale, y_zero_point, axis, block_size; 2.1.0
has scales that are quantized themselves, x * x_scale.
Source: AIMET's encoding format specification (Docs/techniques/encoding_spec.rst, Qualcomm).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnxfq.errors import SpecError, nearest
from onnxfq.interchange.given import Given, GivenTensor, Reading
from onnxfq.qtypes import QTYPES, QType, qtype_by_name

Entry = Mapping[str, Any]

_SECTIONS = ("activation_encodings", "param_encodings")
_INT32 = "is of 32 bits, the type of biases, which stay in float"


def is_aimet(content: object) -> bool:
    """Tell whether a JSON document is a file of AIMET's encodings."""
    if not isinstance(content, dict):
        return False
    return any(section in content for section in _SECTIONS) or {"version", "encodings"} <= set(content)


def read_aimet(content: dict[str, Any], source: str) -> Given:
    """Return what a file of encodings says. Raises PlanError that names the entry and field at fault."""
    reading = Reading(source)
    version = str(content.get("version", ""))
    if "encodings" in content:
        read, entries = _read_2, _listed(reading, "encodings", content["encodings"])
    else:
        parts = {section: content[section] for section in _SECTIONS if section in content}
        if all(isinstance(part, dict) for part in parts.values()):
            return _read_0_6_1(reading, parts, version or "0.6.1")
        read, entries = _read_1, (e for name, part in parts.items() for e in _listed(reading, name, part))
    for where, entry in entries:
        read(reading, where, _field(reading, where, entry, "name", str), entry)
    known = version or ("2.0.0" if "encodings" in content else "1.0.0")
    return reading.given(f"AIMET encodings {known}")


def _listed(reading: Reading, section: str, part: object) -> Iterator[tuple[str, Entry]]:
    if not isinstance(part, list):
        raise reading.fault(section, f"must be a list of encodings, got {part!r:.40}; export it again")
    for number, entry in enumerate(part):
        where = f"{section}.{number}"
        if not isinstance(entry, dict):
            raise reading.fault(where, f"must be a mapping of fields, got {entry!r:.40}; export it again")
        yield where, entry


_KINDS = {str: "text", int: "an integer", bool: "true or false", list: "a list"}


def _field(reading: Reading, where: str, entry: Entry, name: str, kind: type) -> Any:
    """Return a field that must be there and be of `kind`."""
    if name not in entry:
        raise reading.fault(where, f"lacks {name!r}{nearest(name, entry)}; export it again")
    value = entry[name]
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise reading.fault(f"{where}.{name}", f"must be {_KINDS[kind]}, got {value!r:.40}; export it again")
    return value


def _read_0_6_1(reading: Reading, parts: dict[str, dict[str, Any]], version: str) -> Given:
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
    return reading.given(f"AIMET encodings {version}")


def _add_0_6_1(reading: Reading, where: str, name: str, entries: list[Entry]) -> None:
    first = entries[0]
    dtypes = {_field(reading, where, entry, "dtype", str) for entry in entries}
    widths = {_field(reading, where, entry, "bitwidth", int) for entry in entries}
    if len(dtypes) > 1 or len(widths) > 1:
        raise reading.fault(where, f"mixes {sorted(dtypes)} of {sorted(widths)} bits; export it again")
    if dtypes == {"float"}:
        reading.in_float.append(name)
        return
    said = {_truth(reading, where, entry) for entry in entries}
    if len(said) > 1:
        raise reading.fault(where, "is symmetric in some channels only; export it again")
    columns = {
        field: reading.numbers(f"{where}.{field}", [entry.get(field) for entry in entries])
        for field in ("scale", "offset")
    }
    _check_ends(reading, where, entries, columns, first["bitwidth"])
    if len(entries) == 1:
        columns = {field: values[0] for field, values in columns.items()}
    grid = _Unsigned(first["bitwidth"], said.pop(), columns["offset"])
    _add_unsigned(reading, where, name, columns["scale"], grid, {})


def _truth(reading: Reading, where: str, entry: Entry) -> bool:
    """Return whether an entry of 0.6.1 is symmetric, which it spells as the text True or False."""
    said = entry.get("is_symmetric")
    if str(said).lower() not in ("true", "false"):
        raise reading.fault(
            f"{where}.is_symmetric", f"must be True or False, got {said!r:.40}; export it again"
        )
    return str(said).lower() == "true"


def _check_ends(
    reading: Reading, where: str, entries: list[Entry], columns: dict[str, NDArray[np.float64]], bits: int
) -> None:
    """Raise PlanError when min and max, which scale and offset say again, are those of another grid."""
    steps = {"min": columns["offset"], "max": columns["offset"] + (2.0**bits - 1)}
    for field, step in steps.items():
        if any(field not in entry for entry in entries):
            continue
        ends = reading.numbers(f"{where}.{field}", [entry[field] for entry in entries])
        # Strict symmetric grids end a step earlier; what is more is another grid.
        off = np.abs(ends - step * columns["scale"]) > 1.5 * columns["scale"]
        if off.any():
            said = (step * columns["scale"])[off][0]
            raise reading.fault(
                f"{where}.{field}", f"is {ends[off][0]:g}, and scale and offset say {said:g}; export it again"
            )


def _strict(bits: int) -> QType:
    """Return the signed integers without the lowest."""
    most = (1 << (bits - 1)) - 1
    return qtype_by_name(f"int{bits}[{-most},{most}]")


class _Unsigned:
    """A grid as 0.6.1 and 1.0.0 say it: width, whether symmetric, offset on the unsigned integers."""

    def __init__(self, bits: int, symmetric: bool, offset: NDArray[np.float64]) -> None:
        self.bits, self.symmetric, self.offset = bits, symmetric, offset

    @property
    def half(self) -> int:
        """The unsigned integer that is 0 of the signed ones."""
        return 1 << (self.bits - 1)

    @property
    def qtype(self) -> QType:
        """The integers of the grid: signed where their zero is 0.0, without the lowest where it is strict."""
        if self.symmetric and (self.offset == -self.half).all():
            return QTYPES[f"int{self.bits}"]
        if self.symmetric and self.bits > 2 and (self.offset == 1 - self.half).all():
            return _strict(self.bits)
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
        reading.unusable[name] = f"{where} {_INT32}"
        return
    if not 2 <= grid.bits <= 16:
        raise reading.fault(where, f"has {grid.bits} bits; 2 to 16 are known, export it with one of these")
    if grid.offset.shape != values.shape:
        raise reading.fault(
            where, f"has {values.size} scales and {grid.offset.size} offsets; export it again"
        )
    scale = reading.scales(where, name, values.tolist())
    if scale is not None:
        reading.add(GivenTensor(name, where, grid.qtype, scale, grid.zero_point, **blocks))


def _read_1(reading: Reading, where: str, name: str, entry: Entry) -> None:
    """Read an entry of 1.0.0."""
    if _field(reading, where, entry, "dtype", str).upper() == "FLOAT":
        reading.in_float.append(name)
        return
    kind = _field(reading, where, entry, "enc_type", str)
    add = _KINDS_1.get(kind)
    if add is None:
        raise reading.fault(
            f"{where}.enc_type", f"is {kind!r}, unknown{nearest(kind, _KINDS_1)}; export it again"
        )
    values = np.atleast_1d(reading.numbers(f"{where}.scale", _field(reading, where, entry, "scale", list)))
    offset = np.atleast_1d(reading.numbers(f"{where}.offset", _field(reading, where, entry, "offset", list)))
    if "zero_point_shift" in entry:
        offset = offset + reading.numbers(f"{where}.zero_point_shift", entry["zero_point_shift"])
    bits = _field(reading, where, entry, "bw", int)
    add(
        reading,
        where,
        name,
        entry,
        (values, _Unsigned(bits, _field(reading, where, entry, "is_sym", bool), offset)),
    )


_Values = tuple[NDArray[np.float64], _Unsigned]


def _per_tensor(reading: Reading, where: str, name: str, entry: Entry, values: _Values) -> None:
    scale, grid = values
    if scale.size != 1 or grid.offset.size != 1:
        raise reading.fault(where, f"is PER_TENSOR with {scale.size} scales; export it again")
    one = _Unsigned(grid.bits, grid.symmetric, grid.offset.reshape(()))
    _add_unsigned(reading, where, name, scale.reshape(()), one, {})


def _per_channel(reading: Reading, where: str, name: str, entry: Entry, values: _Values) -> None:
    _add_unsigned(reading, where, name, *values, {})


def _per_block(reading: Reading, where: str, name: str, entry: Entry, values: _Values) -> None:
    _add_unsigned(reading, where, name, *values, {"block_size": _block_size(reading, where, entry)})


def _lpbq_1(reading: Reading, where: str, name: str, entry: Entry, values: _Values) -> None:
    """Blocks whose scales are an integer times the scale of their output channel, which come first."""
    channels, _ = values
    bits = _field(reading, where, entry, "compressed_bw", int)
    steps = reading.numbers(
        f"{where}.per_block_int_scale", _field(reading, where, entry, "per_block_int_scale", list)
    )
    if steps.ndim != 1 or channels.ndim != 1 or not channels.size or steps.size % channels.size:
        raise reading.fault(
            where, f"has {steps.size} block scales for {channels.size} channels; export it again"
        )
    product = _product(steps.reshape(channels.size, -1), channels[:, None]).ravel()
    grid = _Unsigned(bits, True, np.full(product.shape, -(2.0 ** (bits - 1))))
    _add_unsigned(
        reading,
        where,
        name,
        product.astype(np.float64),
        grid,
        {"block_size": _block_size(reading, where, entry)},
    )


_KINDS_1: dict[str, Callable[[Reading, str, str, Entry, _Values], None]] = {
    "PER_TENSOR": _per_tensor,
    "PER_CHANNEL": _per_channel,
    "PER_BLOCK": _per_block,
    "LPBQ": _lpbq_1,
}


def _product(steps: NDArray[np.float64], scale: NDArray[np.float64]) -> NDArray[np.float32]:
    """Return steps * scale in float32, as the DequantizeLinear does that AIMET writes for it."""
    with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is no scale, and told as such
        return np.asarray(steps.astype(np.float32) * scale.astype(np.float32), np.float32)


def _block_size(reading: Reading, where: str, entry: Entry) -> int:
    size = _field(reading, where, entry, "block_size", int)
    if size < 1:
        raise reading.fault(f"{where}.block_size", f"must be at least 1, got {size}; export it again")
    return int(size)


def _read_2(reading: Reading, where: str, name: str, entry: Entry) -> None:
    """Read an entry of 2.0.0 or 2.1.0."""
    dtype = _field(reading, where, entry, "output_dtype", str)
    if dtype in ("int32", "uint32"):
        reading.unusable[name] = f"{where} {_INT32}"
        return
    try:
        qtype = qtype_by_name(dtype)
    except SpecError as fault:
        raise reading.fault(f"{where}.output_dtype", f"{fault}; export it again") from None
    fields: dict[str, Any] = {}
    if entry.get("block_size") is not None:
        fields["block_size"] = _block_size(reading, where, entry)
    if entry.get("axis") is not None:
        fields["axis"] = _field(reading, where, entry, "axis", int)
    values, shared = _scales_2(reading, where, entry, qtype)
    scale = reading.scales(where, name, values)
    if scale is None:
        return
    said = entry.get("y_zero_point")
    zero = np.zeros(scale.shape) if said is None else reading.numbers(f"{where}.y_zero_point", said)
    if zero.shape != scale.shape:
        if zero.size != 1:
            shapes = f"scales of shape {list(scale.shape)} and zero points of {list(zero.shape)}"
            raise reading.fault(where, f"has {shapes}; export it again")
        zero = np.full(scale.shape, zero.item())
    if scale.shape == (1,) and not fields:
        scale, zero = scale.reshape(()), zero.reshape(())
    if qtype.signed and not qtype.is_float and qtype.bits > 2 and (zero == -1).all():
        # What AIMET itself reads it as: strict symmetric.
        qtype, zero = _strict(qtype.bits), np.zeros(scale.shape)
    if scale.ndim > 1 and "block_size" not in fields:
        raise reading.fault(
            where, f"has scales of shape {list(scale.shape)} and no block_size; export it again"
        )
    reading.add(GivenTensor(name, where, qtype, scale, zero, global_scale=shared, **fields))


def _scales_2(reading: Reading, where: str, entry: Entry, qtype: QType) -> tuple[Any, float | None]:
    """Return (scales as numbers or lists, the factor that all share or None)."""
    if "per_block_int_scale" in entry:
        steps = reading.numbers(f"{where}.per_block_int_scale", entry["per_block_int_scale"])
        channels = reading.numbers(f"{where}.per_channel_float_scale", entry.get("per_channel_float_scale"))
        return _broadcast(reading, where, steps, channels, _other_axis(entry, steps)).tolist(), None
    if "y_scale" not in entry:
        raise reading.fault(where, f"lacks 'y_scale'{nearest('y_scale', entry)}; export it again")
    meta = entry["y_scale"]
    if not isinstance(meta, dict):
        return meta, None
    place = f"{where}.y_scale"
    steps = reading.numbers(f"{place}.x", meta.get("x"))
    factor = reading.numbers(f"{place}.x_scale", meta.get("x_scale"))
    if meta.get("block_size") is not None or np.any(reading.numbers(place, meta.get("x_zero_point", 0))):
        raise reading.fault(
            place, "has blocks or a zero point of its own, which is not known; export it as 2.0.0"
        )
    shared = None
    if meta.get("input_dtype") == "float8e4m3fn" and factor.size == 1 and qtype.name == "float4e2m1":
        shared = float(np.float32(factor.item()))
    return _broadcast(reading, where, steps, factor, meta.get("axis")).tolist(), shared


def _other_axis(entry: Entry, steps: NDArray[np.float64]) -> int | None:
    """Return the axis of the channels of a matrix whose blocks go along the other one."""
    axis = entry.get("axis")
    return (axis + 1) % 2 if isinstance(axis, int) and steps.ndim == 2 else None


def _broadcast(
    reading: Reading, where: str, steps: NDArray[np.float64], factor: NDArray[np.float64], axis: object
) -> NDArray[np.float32]:
    """Return steps * factor, a factor of one axis lying along `axis`."""
    if factor.ndim == 1 and steps.ndim > 1 and isinstance(axis, int) and -steps.ndim <= axis < steps.ndim:
        factor = factor.reshape([-1 if d == axis % steps.ndim else 1 for d in range(steps.ndim)])
    try:
        return _product(steps, factor)
    except ValueError:
        shapes = f"{list(steps.shape)} and {list(factor.shape)}"
        raise reading.fault(
            where, f"has scales of shapes {shapes}, which do not fit; export it again"
        ) from None
