"""Encodings whose scales are numbers of a half type, so that casting them changes nothing."""

from __future__ import annotations

import numpy as np

from onnxfq.documents.encodings import Encoding, Encodings
from onnxfq.numerics.float_types import HALF_TYPES, FloatName


def with_half_scales(encodings: Encodings, name: FloatName) -> Encodings:
    """Return `encodings` with every float32 scale rounded to the half type where it is a normal number there.

    With "fp32" they stay as they are. Weights are encoded and activations rounded with these, in the
    simulation too. Scales that a rule of a block format makes are left as they are.
    """
    if name not in HALF_TYPES:
        return encodings
    return encodings.model_copy(update={"encodings": tuple(_rounded(e, name) for e in encodings.encodings)})


def _rounded(encoding: Encoding, name: FloatName) -> Encoding:
    half = HALF_TYPES[name]
    scale = encoding.scale_array
    if encoding.spec.dynamic or encoding.spec.scale_type != "float32" or not scale.size:
        return encoding
    if scale.min() < half.smallest or scale.max() > half.largest:
        return encoding
    return encoding.model_copy(update={"scale": scale.astype(half.dtype).astype(np.float32)})
