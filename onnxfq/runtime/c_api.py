"""C functions of the custom-op library: loading, calls, errors as exceptions."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any

from onnxfq.errors import DeviceMemoryError, OnnxfqError, RuntimeLibraryError, SpecError
from onnxfq.support.resources import custom_ops_library

_ERROR_BYTES = 512
_CUDA_FAULT = "CUDA cannot "
# Messages of onnxruntime's allocator, of CUDA, and of cuDNN and cuBLAS.
_NO_MEMORY = ("Failed to allocate memory", "out of memory", "ALLOC_FAILED", "bad_alloc")


@cache
def c_library() -> ctypes.CDLL:
    """Return the library. Raises RuntimeLibraryError if it is missing or has another version."""
    path = custom_ops_library()
    try:
        library = ctypes.CDLL(str(path))
        for size in (library.onnxfq_bin_count, library.onnxfq_state_size):
            size.restype = ctypes.c_int64
        library.onnxfq_cuda_built.restype = ctypes.c_int
    except (OSError, AttributeError) as error:
        raise RuntimeLibraryError(f"{path} cannot be used: {error}; run `pip install .` again") from error
    return library


def call(function: str, *arguments: Any) -> None:
    """Call a function that reports errors as text.

    Raises DeviceMemoryError for a GPU without room, RuntimeLibraryError for other errors of a GPU or its
    driver, SpecError for a parameter that breaks its rule.
    """
    error = ctypes.create_string_buffer(_ERROR_BYTES)
    if getattr(c_library(), function)(*arguments, error, ctypes.c_size_t(_ERROR_BYTES)) != 0:
        raise _fault(error.value.decode())


def is_memory_fault(reason: str) -> bool:
    """Tell whether `reason`, an error of CUDA or onnxruntime, reports a failed allocation."""
    return any(words in reason for words in _NO_MEMORY)


def _fault(message: str) -> OnnxfqError:
    if not message.startswith(_CUDA_FAULT):
        return SpecError(message)
    return DeviceMemoryError(message) if is_memory_fault(message) else RuntimeLibraryError(message)


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
    """Return the two arguments of a shape: pointer and length."""
    return (ctypes.c_int64 * len(shape))(*shape), ctypes.c_size_t(len(shape))


def c_elements(x: int, y: int, shape: Sequence[int], kind: int) -> Any:
    """Return the argument for the elements of x and y.

    Args:
        x: address to read.
        y: address to write.
        shape: of both.
        kind: their type, an index of `float_types.FLOATS`.
    """
    sizes, rank = c_shape(shape)
    return ctypes.byref(_Elements(x, y, sizes, rank, kind))


def c_blocks(
    axis: int | None = None, block_size: int | None = None, block_shape: Sequence[int] | None = None
) -> Any:
    """Return which elements share a scale; without arguments the shapes of x and scale define it."""
    shape, rank = c_shape(() if block_shape is None else block_shape)
    return ctypes.byref(_Blocks(int(axis is not None), axis or 0, block_size or 0, shape, rank))
