"""Packing of numbers of a few bits: streams of bits in words, AWQ's order, two numbers in a byte."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnxfq.quantized.nbits import unpack_bits

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""Column of each nibble of a word, the lowest first (llm-awq, MIT; gptqmodel's packing_utils)."""


def unpack_words(words: NDArray[np.int32], bits: int, count: int) -> NDArray[np.uint8]:
    """Return the first `count` numbers of each row of `words`, a stream of bits, the lowest first.

    GPTQ, AWQ of other widths than 4, and compressed-tensors 0.20 pack so; numbers may cross words.
    """
    rows = np.ascontiguousarray(words).view(np.uint8).reshape(len(words), -1)
    if 8 % bits == 0:
        return unpack_bits(rows, bits)[:, :count]
    stream = np.unpackbits(rows, axis=1, count=count * bits, bitorder="little")
    weights = np.left_shift(1, np.arange(bits)).astype(np.uint8)
    numbers = stream.reshape(len(rows), count, bits) @ weights
    return np.asarray(numbers, np.uint8)


def pack_words(numbers: NDArray[Any], bits: int) -> NDArray[np.int32]:
    """Return rows of numbers from 0 to 2^bits - 1 as words, the reverse of `unpack_words`."""
    stream = np.unpackbits(
        np.ascontiguousarray(numbers.astype(np.uint8))[..., None], axis=2, bitorder="little"
    )
    flat = stream[..., :bits].reshape(len(numbers), -1)
    filled = np.pad(flat, ((0, 0), (0, -flat.shape[1] % 32)))
    return np.packbits(filled, axis=1, bitorder="little").view("<i4")


def unpack_awq(words: NDArray[np.int32], count: int) -> NDArray[np.uint8]:
    """Return [rows, count] 4-bit numbers of AWQ's words."""
    stored = unpack_words(words, 4, words.shape[1] * 8).reshape(len(words), -1, 8)
    natural = np.empty_like(stored)
    natural[..., AWQ_ORDER] = stored
    return natural.reshape(len(words), -1)[:, :count]


def pack_nibbles(codes: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return pairs of 4-bit codes as bytes, the reverse of `unpack_bits`."""
    return np.ascontiguousarray((codes[..., 0::2] & 15) | (codes[..., 1::2] << 4)).astype(np.uint8)
