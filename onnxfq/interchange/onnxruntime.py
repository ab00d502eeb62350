"""onnxruntime's quantization files: TensorQuantOverrides, and the ranges of its calibrators.

Overrides are the value of extra_options["TensorQuantOverrides"] for `quantize_static`. A tensor has a list of
dictionaries, one for the tensor or one for each channel. Their fields are quant_type, scale and zero_point,
rmin and rmax, symmetric, reduce_range and axis. Ranges are the calibration.json of `write_calibration_table`,
and the cache of `quantize_static`.
Source: onnxruntime.quantization (tensor_quant_overrides.py, calibrate.py), Microsoft, MIT.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnxfq.errors import SpecError, nearest
from onnxfq.interchange.external import EncodingsReader, ExternalEncodings, ExternalTensor
from onnxfq.numerics.qtypes import QType, qtype_by_name

_COMMON = ("quant_type", "symmetric", "reduce_range", "axis")
_FIELDS = (*_COMMON, "scale", "zero_point", "rmin", "rmax", "convert")
# get_qmin_qmax_for_qType of onnxruntime.quantization with reduce_range.
_REDUCED = {"int8": "int8[-64,64]", "uint8": "uint8[0,127]", "int16": "int16[-16384,16384]"}
_REDUCED |= {"uint16": "uint16[0,32767]", "int4": "int4[-4,3]", "uint4": "uint4[0,7]"}


def is_overrides(content: object) -> bool:
    """Tell whether a document is a dictionary of overrides: names with lists of dictionaries."""
    return (
        isinstance(content, Mapping)
        and bool(content)
        and all(
            isinstance(entries, Sequence)
            and not isinstance(entries, str)
            and all(isinstance(entry, Mapping) for entry in entries)
            for entries in content.values()
        )
    )


def is_ranges(content: object) -> bool:
    """Tell whether a JSON document holds the ranges of a calibrator."""
    if not isinstance(content, Mapping) or not content:
        return False
    whole = content.get("CLS") == "TensorsData"
    return whole or all(isinstance(e, Mapping) and e.get("CLS") == "TensorData" for e in content.values())


def read_overrides(content: Mapping[str, Any], source: str) -> ExternalEncodings:
    """Return the tensors in a dictionary of overrides. Raises PlanError that names tensor and field."""
    reading = EncodingsReader(source)
    for name, entries in content.items():
        if any(entries):
            _add(reading, str(name), [dict(entry) for entry in entries])
    return reading.get_given("onnxruntime TensorQuantOverrides")


def _add(reading: EncodingsReader, name: str, entries: list[dict[str, Any]]) -> None:
    first = entries[0]
    for number, entry in enumerate(entries):
        for field in entry:
            if field not in _FIELDS:
                raise reading.fault(f"{name}.{number}.{field}", f"no such field{nearest(field, _FIELDS)}")
            if field in _COMMON and entry[field] != first.get(field):
                raise reading.fault(f"{name}.{number}.{field}", "differs from channel 0; make them equal")
    if "convert" in first:
        raise reading.fault(
            f"{name}.convert", "is a second type for some readers, and a tensor has one type here; remove it"
        )
    for pair in (("scale", "zero_point"), ("rmin", "rmax")):
        if any((pair[0] in entry) != (pair[1] in entry) for entry in entries):
            raise reading.fault(name, f"has one of {pair[0]} and {pair[1]}; give both or neither")
    axis = first.get("axis")
    if axis is None and len(entries) > 1:
        raise reading.fault(name, f"has {len(entries)} channels and no axis; add axis to the first")
    columns = {
        field: _column(reading, name, field, entries, axis is not None)
        for field in ("scale", "zero_point", "rmin", "rmax")
        if field in first
    }
    qtype, symmetric = _qtype(reading, name, first), first.get("symmetric")
    if "rmin" in columns and symmetric and qtype is not None and not qtype.signed:
        # Its zero point is the middle, for every scale.
        amax = np.maximum(np.abs(columns["rmin"]), np.abs(columns["rmax"]))
        columns = {"scale": 2.0 * amax / qtype.qmax, "zero_point": np.full(amax.shape, (qtype.qmax + 1) // 2)}
    scale = zero = limits = None
    if "scale" in columns:
        scale, zero = reading.scales(name, name, columns["scale"].tolist()), columns["zero_point"]
        if scale is None:
            return
    elif "rmin" in columns:
        limits = columns["rmin"], columns["rmax"]
    reading.add(
        ExternalTensor(
            name, name, qtype, scale, zero, axis=axis, limits=limits, mirrored=True, symmetric=symmetric
        )
    )


def _column(
    reading: EncodingsReader, name: str, field: str, entries: list[dict[str, Any]], channels: bool
) -> NDArray[np.float64]:
    """Return a field of all channels, [C], or of the tensor, []."""
    if any(field not in entry for entry in entries):
        raise reading.fault(f"{name}.{field}", "is in some channels only; give it in all")
    # A dictionary may hold NumPy's numbers.
    values = [number.tolist() if hasattr(number := entry[field], "tolist") else number for entry in entries]
    column = reading.numbers(f"{name}.{field}", values).reshape(len(entries), -1)
    if column.shape[1] != 1:
        raise reading.fault(f"{name}.{field}", f"has {column.shape[1]} numbers in one entry; give one")
    return column[:, 0] if channels else column[0, 0].reshape(())


def _qtype(reading: EncodingsReader, name: str, entry: dict[str, Any]) -> QType | None:
    """Return the number format of quant_type: a QuantType of onnxruntime, or its name."""
    said = entry.get("quant_type")
    if said is None:
        if entry.get("reduce_range"):
            raise reading.fault(f"{name}.reduce_range", "needs quant_type too; add it")
        return None
    text = str(getattr(said, "name", said)).rpartition(".")[2].lower().removeprefix("q")
    try:
        reduced = entry.get("reduce_range") and "scale" not in entry
        return qtype_by_name(_REDUCED.get(text, text) if reduced else text)
    except SpecError as fault:
        raise reading.fault(f"{name}.quant_type", f"{fault}; give one as QInt8") from None


def read_ranges(content: Mapping[str, Any], source: str) -> ExternalEncodings:
    """Return the ranges in a calibrator's file. Raises PlanError that names the tensor at fault."""
    reading = EncodingsReader(source)
    data = content.get("data") if content.get("CLS") == "TensorsData" else content
    if not isinstance(data, Mapping):
        raise reading.fault("data", f"must map tensors to ranges, got {data!r:.40}; calibrate again")
    if content.get("smooth_quant"):
        raise reading.fault(
            "smooth_quant", "is true: the ranges belong to a model with other weights; calibrate without it"
        )
    for name, entry in data.items():
        where = str(name)
        if not isinstance(entry, Mapping) or "lowest" not in entry or "highest" not in entry:
            raise reading.fault(where, "has no lowest and highest; calibrate again")
        low, high = (_array(reading, f"{where}.{end}", entry[end]) for end in ("lowest", "highest"))
        if low.size != 1 or high.size != 1:
            raise reading.fault(where, f"has the ranges of {low.size} channels; calibrate per tensor")
        low, high = low.reshape(()), high.reshape(())
        if not (np.isfinite([low, high]).all() and low <= high):
            reading.unusable[str(name)] = f"{where} has the invalid range [{low:g}, {high:g}]"
            continue
        reading.add(ExternalTensor(str(name), where, limits=(low, high)))
    method = content.get("calibration_method")
    told = method.get("value", "") if isinstance(method, Mapping) else ""
    kind = f" ({str(told).rpartition('.')[2]})" if told else ""
    return reading.get_given(f"onnxruntime calibration{kind}")


def _array(reading: EncodingsReader, where: str, value: object) -> NDArray[np.float64]:
    inner = value.get("data") if isinstance(value, Mapping) else value
    return reading.numbers(where, inner)
