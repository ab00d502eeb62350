"""Reader of AIMET's encodings files, versions 0.6.1, 1.0.0, 2.0.0 and 2.1.0, as its exporters write them.

Source: AIMET's encoding format specification (Docs/techniques/encoding_spec.rst, Qualcomm).

Versions 2.0.0 and 2.1.0: output_dtype, y_scale, y_zero_point, axis and block_size have the meaning of
QuantizeLinear. LPBQ is an integer for each block times a scale for each channel; in 2.1.0 y_scale may be x *
x_scale itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnxfq.errors import SpecError, nearest
from onnxfq.interchange.aimet.fields import BIAS_WIDTH, Entry, Item, product, strict
from onnxfq.interchange.aimet.v0_v1 import read_0_6_1, read_1_0_0
from onnxfq.interchange.external import EncodingsReader, ExternalEncodings, ExternalTensor
from onnxfq.numerics.qtypes import QType, qtype_by_name


def read_2(item: Item) -> None:
    """Read an entry of 2.0.0 or 2.1.0."""
    reading, where, name = item.reading, item.where, item.name
    dtype = item.field("output_dtype", str)
    if dtype in ("int32", "uint32"):
        reading.unusable[name] = f"{where} {BIAS_WIDTH}"
        return
    try:
        qtype = qtype_by_name(dtype)
    except SpecError as fault:
        raise item.fault(str(fault), "output_dtype") from None
    fields: dict[str, Any] = {}
    if item.content.get("block_size") is not None:
        fields["block_size"] = item.block_size()
    if item.content.get("axis") is not None:
        fields["axis"] = item.field("axis", int)
    values, shared = _scales(item, qtype)
    scale = reading.scales(where, name, values)
    if scale is None:
        return
    given = item.content.get("y_zero_point") is not None
    zero = item.numbers("y_zero_point") if given else np.zeros(scale.shape)
    if zero.shape != scale.shape:
        if zero.size != 1:
            shapes = f"scales of shape {list(scale.shape)} and zero points of {list(zero.shape)}"
            raise item.fault(f"has {shapes}")
        zero = np.full(scale.shape, zero.item())
    if scale.shape == (1,) and not fields:
        scale, zero = scale.reshape(()), zero.reshape(())
    if qtype.signed and not qtype.is_float and qtype.bits > 2 and (zero == -1).all():
        # AIMET itself reads this as strict symmetric.
        qtype, zero = strict(qtype.bits), np.zeros(scale.shape)
    if scale.ndim > 1 and "block_size" not in fields:
        raise item.fault(f"has scales of shape {list(scale.shape)} and no block_size")
    reading.add(ExternalTensor(name, where, qtype, scale, zero, global_scale=shared, **fields))


def _scales(item: Item, qtype: QType) -> tuple[Any, float | None]:
    """Return (scales as numbers or lists, the factor that all share or None)."""
    entry = item.content
    if "per_block_int_scale" in entry:
        steps, channels = item.numbers("per_block_int_scale"), item.numbers("per_channel_float_scale")
        return _broadcast(item, steps, channels, _find_other_axis(entry, steps)).tolist(), None
    if "y_scale" not in entry:
        raise item.fault(f"lacks 'y_scale'{nearest('y_scale', entry)}")
    meta = entry["y_scale"]
    if not isinstance(meta, dict):
        return meta, None
    inner = Item(item.reading, f"{item.where}.y_scale", meta, item.name)
    steps, factor = inner.numbers("x"), inner.numbers("x_scale")
    offset = item.reading.numbers(inner.where, meta.get("x_zero_point", 0))
    if meta.get("block_size") is not None or np.any(offset):
        what = "has blocks or a separate zero point, which is not supported; export it as 2.0.0"
        raise item.reading.fault(inner.where, what)
    shared = None
    if meta.get("input_dtype") == "float8e4m3fn" and factor.size == 1 and qtype.name == "float4e2m1":
        shared = float(np.float32(factor.item()))
    return _broadcast(item, steps, factor, meta.get("axis")).tolist(), shared


def _find_other_axis(entry: Entry, steps: NDArray[np.float64]) -> int | None:
    """Return the axis of the channels of a matrix whose blocks run along the other one."""
    axis = entry.get("axis")
    return (axis + 1) % 2 if isinstance(axis, int) and steps.ndim == 2 else None


def _broadcast(
    item: Item, steps: NDArray[np.float64], factor: NDArray[np.float64], axis: object
) -> NDArray[np.float32]:
    """Return steps * factor; a one-dimensional factor runs along `axis`."""
    if factor.ndim == 1 and steps.ndim > 1 and isinstance(axis, int) and -steps.ndim <= axis < steps.ndim:
        factor = factor.reshape([-1 if d == axis % steps.ndim else 1 for d in range(steps.ndim)])
    try:
        return product(steps, factor)
    except ValueError:
        shapes = f"{list(steps.shape)} and {list(factor.shape)}"
        raise item.fault(f"has scales of shapes {shapes}, which do not fit") from None


_SECTIONS = ("activation_encodings", "param_encodings")


def is_aimet(content: object) -> bool:
    """Tell whether a JSON document is a file of AIMET's encodings."""
    if not isinstance(content, dict):
        return False
    return any(section in content for section in _SECTIONS) or {"version", "encodings"} <= set(content)


def read_aimet(content: dict[str, Any], source: str) -> ExternalEncodings:
    """Return the encodings in a file. Raises PlanError that names the entry and field at fault."""
    reading = EncodingsReader(source)
    version = str(content.get("version", ""))
    if "encodings" in content:
        read, items = read_2, _read_items(reading, "encodings", content["encodings"])
    else:
        parts = {section: content[section] for section in _SECTIONS if section in content}
        if all(isinstance(part, dict) for part in parts.values()):
            return read_0_6_1(reading, parts, version or "0.6.1")
        entries = (item for name, part in parts.items() for item in _read_items(reading, name, part))
        read, items = read_1_0_0, entries
    for item in items:
        read(item)
    known = version or ("2.0.0" if "encodings" in content else "1.0.0")
    return reading.get_given(f"AIMET encodings {known}")


def _read_items(reading: EncodingsReader, section: str, part: object) -> Iterator[Item]:
    if not isinstance(part, list):
        raise reading.fault(section, f"must be a list of encodings, got {part!r:.40}; export it again")
    for number, entry in enumerate(part):
        where = f"{section}.{number}"
        if not isinstance(entry, dict):
            raise reading.fault(where, f"must be a mapping of fields, got {entry!r:.40}; export it again")
        yield Item(reading, where, entry)
