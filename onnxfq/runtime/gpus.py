"""GPUs for the library's CUDA kernels, without ONNX Runtime."""

from __future__ import annotations

import ctypes
import sys
from dataclasses import dataclass

from onnxfq.errors import RuntimeLibraryError
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
