"""Where the C kernels run on NumPy arrays: on the CPU in place, or on the GPU on copies."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from onnxfq.errors import SpecError, nearest
from onnxfq.runtime.c_library import call
from onnxfq.runtime.gpus import gpus

Device = Literal["cpu", "cuda"]
DEVICES: tuple[Device, ...] = ("cpu", "cuda")


class Place(Protocol):
    """Gives the kernels addresses of arrays, and calls the kernels."""

    def read(self, array: NDArray[Any]) -> int:
        """Return the address of an array that the kernel reads."""

    def written(self, array: NDArray[Any]) -> int:
        """Return the address of an array that the kernel writes, all of it."""

    def updated(self, array: NDArray[Any]) -> int:
        """Return the address of an array that the kernel reads and writes."""

    def call(self, kernel: str, *arguments: Any) -> None:
        """Run a kernel. Raises SpecError, or RuntimeLibraryError for what a GPU refuses."""

    def peek(self, array: NDArray[Any], columns: int) -> NDArray[Any]:
        """Return the first `columns` of each row of a written array [rows, ...], as they are by now."""


class _Cpu:
    def read(self, array: NDArray[Any]) -> int:
        return int(array.ctypes.data)

    written = updated = read

    def call(self, kernel: str, *arguments: Any) -> None:
        call(f"onnxfq_{kernel}", *arguments)

    def peek(self, array: NDArray[Any], columns: int) -> NDArray[Any]:
        return array[:, :columns].copy()


class _Cuda:
    """Memory of the current GPU, given back at the end; what was written is copied back before that."""

    def __init__(self) -> None:
        gpus()  # says what is wrong where there is none
        self._taken: list[ctypes.c_void_p] = []
        self._written: list[tuple[NDArray[Any], int]] = []

    def read(self, array: NDArray[Any]) -> int:
        address = self._take(array.nbytes)
        _copy(address, array.ctypes.data, array.nbytes)
        return address

    def written(self, array: NDArray[Any]) -> int:
        address = self._take(array.nbytes)
        self._written.append((array, address))
        return address

    def updated(self, array: NDArray[Any]) -> int:
        address = self.written(array)
        _copy(address, array.ctypes.data, array.nbytes)
        return address

    def _take(self, count: int) -> int:
        memory = ctypes.c_void_p()
        # A byte at least: of none there is no address.
        call("onnxfq_cuda_allocate", ctypes.c_int64(max(count, 1)), ctypes.byref(memory))
        self._taken.append(memory)
        return memory.value or 0

    def call(self, kernel: str, *arguments: Any) -> None:
        call(f"onnxfq_cuda_{kernel}", *arguments, ctypes.c_void_p())

    def peek(self, array: NDArray[Any], columns: int) -> NDArray[Any]:
        source = next(address for written, address in self._written if written is array)
        seen = np.empty((array.shape[0], columns), array.dtype)
        if seen.size:
            sizes = (columns * array.itemsize, array.strides[0], array.shape[0])
            to, from_ = ctypes.c_void_p(seen.ctypes.data), ctypes.c_void_p(source)
            call("onnxfq_cuda_copy_rows", to, from_, *(ctypes.c_int64(size) for size in sizes))
        return seen

    def copy_back(self) -> None:
        for array, address in self._written:
            _copy(array.ctypes.data, address, array.nbytes)

    def close(self) -> None:
        for memory in self._taken:
            call("onnxfq_cuda_free", memory)


def _copy(to: int, source: int, count: int) -> None:
    call("onnxfq_cuda_copy", ctypes.c_void_p(to), ctypes.c_void_p(source), ctypes.c_int64(count))


@contextmanager
def placed(device: Device) -> Iterator[Place]:
    """Give the place of `device` for one call.

    Raises RuntimeLibraryError when there is no such device, SpecError for an unknown name.
    """
    if device not in DEVICES:
        raise SpecError(f"unknown device {device!r}{nearest(device, DEVICES)}")
    if device == "cpu":
        yield _Cpu()
        return
    place = _Cuda()
    try:
        yield place
        place.copy_back()
    finally:
        place.close()
