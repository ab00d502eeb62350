"""TensorRT's calibration caches: a header, then `tensor: scale` with the scale as the hex of its float32.

    TRT-8501-EntropyCalibration2
    images: 3c010a14

The header names release and calibrator. The hex is the big-endian float32 that a step of int8 stands for,
amax / 127; a zero may be 0 alone, and fewer digits are a file that was cut off.
Names may hold blanks and colons: the last colon counts.
Source: NVIDIA's developer guide of TensorRT 8 to 10 (INT8 calibration) and its calibrators' files.
"""

from __future__ import annotations

import re
import struct

import numpy as np

from onnxfq.documents.encodings import Encoding, Encodings
from onnxfq.documents.plan import Plan
from onnxfq.errors import PlanError
from onnxfq.interchange.exported import Written, calibrated_placements
from onnxfq.interchange.external import Given, GivenTensor, Reading
from onnxfq.numerics.qtypes import QTYPES

HEADER = re.compile(r"TRT-\w+-\w+")
DEFAULT_HEADER = "TRT-101300-EntropyCalibration2"
"""The algorithm is that of trtexec's own calibrator, which passes over caches of another."""

_WEIGHT = "TensorRT makes the scales of weights itself"
_HEX = re.compile(r"[0-9a-fA-F]{8}|0")


def is_cache(text: str) -> bool:
    """Tell whether `text` begins as a calibration cache does."""
    return text.startswith("TRT-")


def read_cache(text: str, source: str) -> Given:
    """Return the scales of a calibration cache, all of them int8, symmetric and per tensor.

    Raises PlanError that names the line of what is no entry.
    """
    # A name may hold what Python takes for the end of a line: only one character is.
    header, *lines = text.split("\n")
    if not HEADER.fullmatch(header.strip()):
        raise PlanError(
            f"{source}: line 1: is {header!r:.60}, and the header of a calibration cache is as "
            f"{DEFAULT_HEADER}; let TensorRT write it again"
        )
    reading = Reading(source)
    for number, line in enumerate(lines, 2):
        if not line.strip():
            continue
        where = f"line {number}"
        name, colon, value = line.rstrip("\r").rpartition(":")
        if not colon or not name or not _HEX.fullmatch(value.strip()):
            raise reading.fault(
                where,
                f"is {line!r:.60}, wanted is a tensor, a colon and a float32 in hex, as `x: 3c010a14`; let "
                "TensorRT write it again",
            )
        (exact,) = struct.unpack(">f", bytes.fromhex(value.strip().zfill(8)))
        scale = reading.scales(where, name, exact)
        if scale is not None:
            reading.add(GivenTensor(name, where, QTYPES["int8"], scale, np.zeros(())))
    return reading.given(f"TensorRT calibration cache ({header.strip()})")


def write_cache(encodings: Encodings, plan: Plan) -> Written:
    """Return the text of a cache, and why it cannot hold the tensors that it lacks.

    A cache holds one int8 scale of an activation: TensorRT makes scales of weights itself, one for each
    output channel. Raises PlanError for a name that has a line break.
    """
    lines = [DEFAULT_HEADER]
    lost: dict[str, str] = {}
    for placement in calibrated_placements(encodings, plan):
        encoding = encodings[placement.tensor]
        why = _WEIGHT if placement.role == "weight" else _why_not(encoding)
        if why:
            lost[encoding.tensor] = why
        elif "\n" in encoding.tensor:
            raise PlanError(f"tensor {encoding.tensor!r}: a line of a cache holds no such name; rename it")
        else:
            lines.append(f"{encoding.tensor}: {struct.pack('>f', encoding.scale.item()).hex()}")
    return Written("\n".join(lines) + "\n", len(lines) - 1, lost)


def _why_not(encoding: Encoding) -> str:
    """Return why a cache cannot hold the encoding of an activation; empty when it can."""
    spec = encoding.spec
    if spec.dynamic:
        return "its scales are made while the model runs"
    if spec.qtype.name != "int8":
        return f"{spec.qtype}, and a cache is of int8"
    if encoding.param_shape:
        return f"{encoding.scale.size} scales ({spec.granularity}), and a cache holds one a tensor"
    if encoding.zero_point.any():
        return f"zero point {encoding.zero_point.item()}, and a cache is symmetric"
    return ""
