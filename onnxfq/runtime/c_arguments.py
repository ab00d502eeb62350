"""Arguments of the custom-op library's C functions: structs, and shapes as pointer and length."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any


class _Elements(ctypes.Structure):
    """Struct ElementsArg of c_api.h."""

    _fields_ = [
        ("x", ctypes.c_void_p),
        ("y", ctypes.c_void_p),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("rank", ctypes.c_size_t),
        ("type", ctypes.c_int32),
    ]


class _Blocks(ctypes.Structure):
    """Struct BlocksArg of c_api.h."""

    _fields_ = [
        ("has_axis", ctypes.c_int32),
        ("axis", ctypes.c_int64),
        ("block_size", ctypes.c_int64),
        ("block_shape", ctypes.POINTER(ctypes.c_int64)),
        ("block_rank", ctypes.c_size_t),
    ]


def c_shape(shape: Sequence[int]) -> tuple[ctypes.Array[ctypes.c_int64], ctypes.c_size_t]:
    """Return the two arguments that a shape is."""
    return (ctypes.c_int64 * len(shape))(*shape), ctypes.c_size_t(len(shape))


def c_elements(x: int, y: int, shape: Sequence[int], kind: int) -> Any:
    """Return what is read, what is written, their shape and their type, an index of `float_types.FLOATS`.

    x, y: addresses.
    """
    sizes, rank = c_shape(shape)
    return ctypes.byref(_Elements(x, y, sizes, rank, kind))


def c_blocks(
    axis: int | None = None, block_size: int | None = None, block_shape: Sequence[int] | None = None
) -> Any:
    """Return how many elements share a scale; without arguments the shapes of x and scale say it."""
    shape, rank = c_shape(() if block_shape is None else block_shape)
    return ctypes.byref(_Blocks(int(axis is not None), axis or 0, block_size or 0, shape, rank))
