"""TensorRT calibration caches: a header, then `tensor: scale` with the scale as float32 hex.

    TRT-8501-EntropyCalibration2
    images: 3c010a14

The header names release and calibrator. The hex is the big-endian float32 step of int8, amax / 127. A zero
may be a single 0; any other number with fewer digits is cut off.
Names may contain blanks and colons: the last colon counts.
Source: NVIDIA's developer guide of TensorRT 8 to 10 (INT8 calibration) and its calibrators' files.
"""

from __future__ import annotations

import re
import struct

import numpy as np

from onnxfq.documents.encodings import Encoding, Encodings
from onnxfq.documents.plan import Placement, Plan
from onnxfq.errors import PlanError
from onnxfq.interchange.external import (
    EncodingsReader,
    ExternalEncodings,
    ExternalTensor,
    WrittenEncodings,
    select_held,
)
from onnxfq.numerics.qtypes import QTYPES

HEADER = re.compile(r"TRT-\w+-\w+")
DEFAULT_HEADER = "TRT-101300-EntropyCalibration2"
"""The algorithm name matches trtexec's calibrator, which ignores caches of other algorithms."""

_HEX = re.compile(r"[0-9a-fA-F]{8}|0")


def read_cache(text: str, source: str) -> ExternalEncodings:
    """Return the scales of a calibration cache, all of them int8, symmetric and per tensor.

    Raises PlanError that names the invalid line.
    """
    # A name may hold characters that Python takes for line ends: only "\n" ends a line.
    header, *lines = text.split("\n")
    if not HEADER.fullmatch(header.strip()):
        raise PlanError(
            f"{source}: line 1: is {header!r:.60}, but the header of a calibration cache is like "
            f"{DEFAULT_HEADER}; let TensorRT write it again"
        )
    reading = EncodingsReader(source)
    for number, line in enumerate(lines, 2):
        if not line.strip():
            continue
        where = f"line {number}"
        name, colon, value = line.rstrip("\r").rpartition(":")
        if not colon or not name or not _HEX.fullmatch(value.strip()):
            raise reading.fault(
                where,
                f"is {line!r:.60}, expected a tensor, a colon and a float32 in hex, as `x: 3c010a14`; let "
                "TensorRT write it again",
            )
        (exact,) = struct.unpack(">f", bytes.fromhex(value.strip().zfill(8)))
        scale = reading.scales(where, name, exact)
        if scale is not None:
            reading.add(ExternalTensor(name, where, QTYPES["int8"], scale, np.zeros(())))
    return reading.get_given(f"TensorRT calibration cache ({header.strip()})")


def write_cache(encodings: Encodings, plan: Plan) -> WrittenEncodings:
    """Return the text of a cache, and the reason for each tensor that does not fit.

    A cache holds one int8 scale for each activation: TensorRT makes the scales of weights itself, one for
    each output channel. Raises PlanError for a name with a line break.
    """
    lines = [DEFAULT_HEADER]
    held, lost = select_held(encodings, plan, _explain_lost)
    for _, encoding in held:
        if "\n" in encoding.tensor:
            raise PlanError(f"tensor {encoding.tensor!r}: a cache cannot hold a line break; rename it")
        lines.append(f"{encoding.tensor}: {struct.pack('>f', encoding.scale.item()).hex()}")
    return WrittenEncodings("\n".join(lines) + "\n", len(lines) - 1, lost)


def _explain_lost(placement: Placement, encoding: Encoding) -> str:
    """Return why a cache cannot hold an encoding; empty when it can."""
    spec = encoding.spec
    if placement.role != "activation":
        return "TensorRT makes the scales of weights itself"
    if spec.dynamic:
        return "its scales are dynamic"
    if spec.qtype.name != "int8":
        return f"{spec.qtype}, and a cache holds int8 only"
    if encoding.param_shape:
        return f"{encoding.scale.size} scales ({spec.granularity}), and a cache holds one a tensor"
    if encoding.zero_point.any():
        return f"zero point {encoding.zero_point.item()}, and a cache is symmetric"
    return ""
