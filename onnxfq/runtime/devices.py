"""Devices of the C kernels: GPUs, and memory for NumPy arrays, in place on the CPU, copied on GPUs."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from onnxfq.errors import RuntimeLibraryError, SpecError, nearest
from onnxfq.runtime.c_api import c_library, call

_NAME_BYTES = 256
_DRIVERS = {"linux": "libcuda.so.1", "win32": "nvcuda.dll"}


@dataclass(frozen=True)
class Gpu:
    """A GPU.

    Attributes:
        capability: 90 for 9.0.
        memory: in bytes.
        driver: CUDA version of the driver, 13000 for 13.0.
        runtime: CUDA version of the kernels, likewise.
    """

    index: int
    name: str
    capability: int
    memory: int
    driver: int
    runtime: int

    def __str__(self) -> str:
        """Return a one-line description."""
        versions = (
            f"driver for CUDA {_format_version(self.driver)}, kernels of CUDA {_format_version(self.runtime)}"
        )
        return f"{self.name}, sm_{self.capability}, {self.memory >> 30} GB, {versions}"


def cuda_built() -> bool:
    """Tell whether the library holds CUDA kernels."""
    return bool(c_library().onnxfq_cuda_built())


def gpus() -> tuple[Gpu, ...]:
    """Return the GPUs of this machine. Raises RuntimeLibraryError in one line if none can be used."""
    if not cuda_built():
        raise RuntimeLibraryError(
            "the custom-op library was built without CUDA kernels; put nvcc on the PATH and run "
            "`pip install .` again"
        )
    count = ctypes.c_int()
    call("onnxfq_cuda_device_count", ctypes.byref(count))
    return tuple(_gpu(index) for index in range(count.value))


def use_gpu(index: int) -> None:
    """Select the GPU for kernels of the calling thread; the first one by default."""
    call("onnxfq_cuda_use_device", ctypes.c_int(index))


def gpus_of_driver() -> int:
    """Return the number of GPUs that the NVIDIA driver reports, usable or not; 0 without a driver."""
    try:
        driver = ctypes.CDLL(_DRIVERS[sys.platform])
        count = ctypes.c_int()
        failed = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
    except (KeyError, OSError, AttributeError):
        return 0
    return 0 if failed else count.value


def _gpu(index: int) -> Gpu:
    name = ctypes.create_string_buffer(_NAME_BYTES)
    memory = ctypes.c_int64()
    capability, driver, runtime = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    numbers = [ctypes.byref(number) for number in (capability, memory, driver, runtime)]
    call("onnxfq_cuda_device", ctypes.c_int(index), name, ctypes.c_size_t(_NAME_BYTES), *numbers)
    return Gpu(index, name.value.decode(), capability.value, memory.value, driver.value, runtime.value)


def _format_version(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}"


Device = Literal["cpu", "cuda"]
DEVICES: tuple[Device, ...] = ("cpu", "cuda")


class Rows:
    """A matrix of int64 in the memory of the CPU that kernels read and write while its place is open."""

    def __init__(self, count: int, size: int, head: NDArray[np.int64]) -> None:
        """Make `count` rows of `size` numbers: `head` followed by zeros."""
        self._array = np.zeros((count, size), np.int64)
        self._array[:, : head.size] = head
        self.address = int(self._array.ctypes.data)

    def read(self, start: int, stop: int, columns: int) -> NDArray[np.int64]:
        """Return the current first `columns` of rows `start` to `stop`."""
        return self._array[start:stop, :columns].copy()


class Place:
    """Memory of the CPU: addresses of arrays for kernels, and calls of kernels."""

    def read(self, array: NDArray[Any]) -> int:
        """Return the address of an array that the kernel reads."""
        return int(array.ctypes.data)

    def written(self, array: NDArray[Any]) -> int:
        """Return the address of an array that the kernel writes completely."""
        return self.read(array)

    def updated(self, array: NDArray[Any]) -> int:
        """Return the address of an array that the kernel reads and writes."""
        return self.read(array)

    def call(self, kernel: str, *arguments: Any) -> None:
        """Run a kernel. Raises SpecError, or RuntimeLibraryError for errors of a GPU."""
        call(f"onnxfq_{kernel}", *arguments)

    def rows(self, count: int, size: int, head: NDArray[np.int64]) -> Rows:
        """Return `count` separate rows of `size` int64: `head` followed by zeros."""
        return Rows(count, size, head)


class _Cuda(Place):
    """Memory of the current GPU, freed at the end; written arrays are copied back first."""

    def __init__(self) -> None:
        gpus()  # raises if there is none
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
        # At least one byte: an empty allocation has no address.
        call("onnxfq_cuda_allocate", ctypes.c_int64(max(count, 1)), ctypes.byref(memory))
        self._taken.append(memory)
        return memory.value or 0

    def call(self, kernel: str, *arguments: Any) -> None:
        call(f"onnxfq_cuda_{kernel}", *arguments, ctypes.c_void_p())

    def rows(self, count: int, size: int, head: NDArray[np.int64]) -> Rows:
        return _CudaRows(self._take(count * size * head.itemsize), count, size, head)

    @contextmanager
    def opened(self) -> Iterator[Place]:
        try:
            yield self
            for array, address in self._written:
                _copy(array.ctypes.data, address, array.nbytes)
        finally:
            for memory in self._taken:
                call("onnxfq_cuda_free", memory)


class _CudaRows(Rows):
    def __init__(self, address: int, count: int, size: int, head: NDArray[np.int64]) -> None:
        self.address = address
        self._stride = size * head.itemsize
        call("onnxfq_cuda_clear", ctypes.c_void_p(address), ctypes.c_int64(count * self._stride))
        heads = np.tile(head, (count, 1))
        self._copy(address, self._stride, heads.ctypes.data, head.nbytes, head.nbytes, count)

    def read(self, start: int, stop: int, columns: int) -> NDArray[np.int64]:
        seen = np.empty((stop - start, columns), np.int64)
        source = self.address + start * self._stride
        self._copy(
            seen.ctypes.data, seen.strides[0], source, self._stride, columns * seen.itemsize, len(seen)
        )
        return seen

    @staticmethod
    def _copy(to: int, to_stride: int, source: int, stride: int, count: int, rows: int) -> None:
        if count and rows:
            sizes = (ctypes.c_int64(size) for size in (stride, count, rows))
            target = (ctypes.c_void_p(to), ctypes.c_int64(to_stride))
            call("onnxfq_cuda_copy_rows", *target, ctypes.c_void_p(source), *sizes)


def _copy(to: int, source: int, count: int) -> None:
    call("onnxfq_cuda_copy", ctypes.c_void_p(to), ctypes.c_void_p(source), ctypes.c_int64(count))


@contextmanager
def open_place(device: Device) -> Iterator[Place]:
    """Yield the memory of `device` for one call.

    Raises RuntimeLibraryError if there is no such device, SpecError for an unknown name.
    """
    if device not in DEVICES:
        raise SpecError(f"unknown device {device!r}{nearest(device, DEVICES)}")
    if device == "cpu":
        yield Place()
        return
    with _Cuda().opened() as place:
        yield place
