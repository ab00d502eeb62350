"""Scales rounded to a half type, so that casting them is exact."""

from __future__ import annotations

import numpy as np

from onnxfq.documents.encodings import Encoding, Encodings
from onnxfq.numerics.float_types import HALF_TYPES, FloatName


def with_half_scales(encodings: Encodings, name: FloatName) -> Encodings:
    """Return `encodings` with float32 scales rounded to the half type if all of a tensor are normal in it.

    With "fp32" they stay unchanged, and so do formula-derived scales of block formats. Weights are encoded
    and activations rounded with the result, in the simulation too.
    """
    if name not in HALF_TYPES:
        return encodings
    return encodings.model_copy(
        update={"encodings": tuple(_round_encoding(e, name) for e in encodings.encodings)}
    )


def _round_encoding(encoding: Encoding, name: FloatName) -> Encoding:
    half = HALF_TYPES[name]
    scale = encoding.scale_array
    if encoding.spec.dynamic or encoding.spec.scale_type != "float32" or not scale.size:
        return encoding
    if scale.min() < half.smallest or scale.max() > half.largest:
        return encoding
    return encoding.model_copy(update={"scale": scale.astype(half.dtype).astype(np.float32)})
