"""CPU kernels of the library on torch tensors, bit-identical to `arithmetic.py` in one pass over memory.

Each function returns None if the kernels do not apply, and torch's operations do the work. The kernels need
the library and a CPU tensor of up to 32 bits; they know rounding half_even and the library's limits. They do
not run while torch compiles, exports, traces, records, transforms or watches operations.
"""

from __future__ import annotations

import ctypes
import logging
from functools import cache

import torch
from torch import Tensor, nn

from onnxfq.errors import RuntimeLibraryError
from onnxfq.numerics.float_types import FLOATS
from onnxfq.runtime.c_api import c_blocks, c_elements, c_library, c_shape, call
from onnxfq.torch.arithmetic import RoundingGrid

log = logging.getLogger(__name__)

_TYPES = [getattr(torch, name) for name in FLOATS]
# Least work that is worth a thread: about 0.1 ms.
_ELEMENTS_A_THREAD = 1 << 17


def fake_quantize(
    x: Tensor, scale: Tensor, zero_point: Tensor | None, grid: RoundingGrid, mask: bool
) -> tuple[Tensor, Tensor | None] | None:
    """Return y and, if `mask`, a bool tensor that is true for the elements inside the grid.

    `scale` and `zero_point` are float32 and broadcast against x.
    """
    if not usable(x, grid):
        return None
    y = torch.empty_like(x)
    inside = torch.empty_like(x, dtype=torch.bool) if mask else None
    if not (_has_same_order(x, y) and (inside is None or _has_same_order(x, inside))):
        return None
    _run(y, x, scale, zero_point, grid, inside)
    return y, inside


def derivative_by_scale(
    x: Tensor, scale: Tensor, zero_point: Tensor | None, grid: RoundingGrid
) -> Tensor | None:
    """Return the derivative of each rounded element by the scale, float32, as in LSQ."""
    if not usable(x, grid) or x.dtype != torch.float32:
        return None
    y = torch.empty_like(x)
    if not _has_same_order(x, y):
        return None
    _run(y, x, scale, zero_point, grid, derivative=True)
    return y


def apply_mask(gradient: Tensor, inside: Tensor) -> Tensor | None:
    """Return gradient * inside for a bool mask."""
    if not _plain(gradient) or gradient.dtype != torch.float32:
        return None
    y = torch.empty_like(gradient)
    if not (_has_same_order(gradient, inside) and _has_same_order(gradient, y)):
        return None
    count = gradient.numel()
    pointers = (ctypes.c_void_p(tensor.data_ptr()) for tensor in (gradient, inside, y))
    call("onnxfq_mask_gradient", *pointers, ctypes.c_int64(count), ctypes.c_int32(_threads(count)))
    return y


def usable(x: Tensor, grid: RoundingGrid) -> bool:
    """Tell whether the kernels can round x to this grid."""
    return _plain(x) and x.dtype in _TYPES and grid.rounding == "half_even" and grid.qtype.has_kernel


def is_transforming() -> bool:
    """Tell whether a torch.func transform (grad, vmap) is active, whose tensors have no memory."""
    return not torch.compiler.is_compiling() and torch._C._functorch.maybe_current_level() is not None


def _plain(x: Tensor) -> bool:
    """Tell whether x has its memory on the CPU, and nothing tracks operations on it."""
    return (
        not torch.compiler.is_compiling()
        and type(x) in (Tensor, nn.Parameter)
        and x.device.type == "cpu"
        and x.numel() > 0
        and not torch.jit.is_tracing()
        # Recorded for second derivatives, as in a backward pass with create_graph.
        and not (torch.is_grad_enabled() and x.requires_grad)
        and torch._C._len_torch_dispatch_stack() == 0
        and not is_transforming()
        and _is_aligned(x)
        and library_loads()
    )


@cache
def library_loads() -> bool:
    """Tell whether the library can be loaded; log the reason if not."""
    try:
        c_library()
    except RuntimeLibraryError as error:
        log.info("fake quantization runs as torch operations, several times slower: %s", error)
        return False
    return True


def _threads(count: int) -> int:
    return max(min(int(torch.get_num_threads()), count // _ELEMENTS_A_THREAD), 1)


def _memory_order(x: Tensor) -> list[int]:
    return sorted(range(x.ndim), key=lambda d: (-x.stride(d), d))


def _has_same_order(x: Tensor, y: Tensor) -> bool:
    """Tell whether x and y are gapless and store their elements in the same order."""
    if x.is_contiguous():
        return bool(y.is_contiguous())
    return bool(x.stride() == y.stride() and x.permute(_memory_order(x)).is_contiguous())


def _is_aligned(x: Tensor) -> bool:
    """Tell whether elements lie at multiples of their size; memory of another library may begin anywhere."""
    return bool(x.data_ptr() % x.element_size() == 0)


def _readable(x: Tensor) -> Tensor:
    return x.contiguous() if _is_aligned(x) else x.clone(memory_format=torch.contiguous_format)


def _run(
    y: Tensor,
    x: Tensor,
    scale: Tensor,
    zero_point: Tensor | None,
    grid: RoundingGrid,
    inside: Tensor | None = None,
    derivative: bool = False,
) -> None:
    """Write to y the rounded x, or with `derivative` its derivative by the scale; to `inside` the mask."""
    if zero_point is not None and (zero_point.numel() != 1 or scale.numel() != 1):
        scale, zero_point = torch.broadcast_tensors(scale, zero_point)
    shape, params = list(x.shape), list(scale.shape)
    if scale.numel() == 1:
        shape, params = [x.numel()], []
    elif not x.is_contiguous():
        order = _memory_order(x)
        shape, params = [shape[d] for d in order], [params[d] for d in order]
        scale = scale.permute(order)
        zero_point = None if zero_point is None else zero_point.permute(order)
    scale = _readable(scale)
    zero_point = None if zero_point is None else _readable(zero_point)
    call(
        "onnxfq_fake_quantize_step",
        c_elements(x.data_ptr(), y.data_ptr(), shape, _TYPES.index(x.dtype)),
        ctypes.c_void_p(0 if inside is None else inside.data_ptr()),
        ctypes.c_int32(derivative),
        ctypes.c_int32(_threads(x.numel())),
        ctypes.c_void_p(scale.data_ptr()),
        ctypes.c_void_p(0 if zero_point is None else zero_point.data_ptr()),
        *c_shape(params),
        grid.qtype.name.encode(),
        c_blocks(),
        grid.arithmetic.encode(),
        ctypes.c_int64(grid.saturate),
    )
