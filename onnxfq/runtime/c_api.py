"""The custom-op library's C functions: loading it, calling one, and its errors as exceptions."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

from onnxfq.errors import DeviceMemoryError, OnnxfqError, RuntimeLibraryError, SpecError
from onnxfq.support.resources import custom_ops_library

_ERROR_BYTES = 512
_CUDA_FAULT = "CUDA cannot "
# How onnxruntime's allocator, CUDA, and cuDNN and cuBLAS say it.
_NO_MEMORY = ("Failed to allocate memory", "out of memory", "ALLOC_FAILED")


@cache
def c_library() -> ctypes.CDLL:
    """Return the library. Raises RuntimeLibraryError when it is missing or another version's."""
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

    Raises DeviceMemoryError for a GPU without room, RuntimeLibraryError for what else a GPU or its driver
    refuses, SpecError for a parameter that breaks its rule.
    """
    error = ctypes.create_string_buffer(_ERROR_BYTES)
    if getattr(c_library(), function)(*arguments, error, ctypes.c_size_t(_ERROR_BYTES)) != 0:
        raise _fault(error.value.decode())


def is_memory_fault(reason: str) -> bool:
    """Tell whether `reason`, of CUDA or of onnxruntime, is that memory could not be had."""
    return any(words in reason for words in _NO_MEMORY)


def _fault(message: str) -> OnnxfqError:
    if not message.startswith(_CUDA_FAULT):
        return SpecError(message)
    return DeviceMemoryError(message) if is_memory_fault(message) else RuntimeLibraryError(message)
