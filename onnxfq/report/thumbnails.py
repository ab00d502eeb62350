"""Thumbnails of the samples that suffer most, as PNG inside the page."""

from __future__ import annotations

import base64
import struct
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnxfq.data import Feed
from onnxfq.documents.scores import Evaluation
from onnxfq.quantizing.pipeline import QuantizeResult

SIDE = 96
"""Most pixels of a side."""


def with_thumbnails(result: QuantizeResult) -> Evaluation:
    """Return the evaluation of a result with pictures of the worst samples that are images."""
    kept = None if result.candidate is None else result.candidate.session.feeds
    samples = {} if kept is None else {kept.number(sample): sample for sample in kept.feeds}
    candidates = []
    for score in result.evaluation.candidates:
        drawn = [(one, draw_thumbnail(samples.get(one.sample, {}))) for one in score.worst_samples]
        worst = tuple(one.model_copy(update={"picture": picture}) for one, picture in drawn)
        candidates.append(score.model_copy(update={"worst_samples": worst}))
    return result.evaluation.model_copy(update={"candidates": tuple(candidates)})


def draw_thumbnail(sample: Feed) -> str:
    """Return the first image of a sample as a data URL of PNG; empty without one.

    An image has rank 4, with 1 or 3 channels in front or behind. The smallest value becomes black, the
    largest white. Every n-th pixel is taken, so that no side is longer than SIDE.
    """
    pixels = next((image for image in map(_find_pixels, sample.values()) if image is not None), None)
    if pixels is None:
        return ""
    step = -(-max(pixels.shape[:2]) // SIDE)
    pixels = np.nan_to_num(pixels[::step, ::step].astype(np.float64))
    low, high = float(pixels.min()), float(pixels.max())
    scaled = np.rint((pixels - low) * (255.0 / (high - low or 1.0))).astype(np.uint8)
    return "data:image/png;base64," + base64.b64encode(_encode_png(scaled)).decode()


def _find_pixels(array: NDArray[Any]) -> NDArray[Any] | None:
    """Return the first image of an array as [height, width, channels]."""
    if array.ndim != 4 or array.dtype.kind not in "fiu" or not array.size:
        return None
    image: NDArray[Any] = array[0]
    if array.shape[1] in (1, 3):
        return image.transpose(1, 2, 0)
    return image if array.shape[3] in (1, 3) else None


def _encode_png(pixels: NDArray[np.uint8]) -> bytes:
    """Return a PNG of [height, width, 1 or 3 channels]. Source: PNG Specification, third edition."""
    height, width, channels = pixels.shape
    header = struct.pack(">IIBBBBB", width, height, 8, 0 if channels == 1 else 2, 0, 0, 0)
    rows = np.pad(pixels.reshape(height, -1), ((0, 0), (1, 0)))  # a 0 in front: no filter
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows.tobytes(), 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        for kind, body in chunks
    )
