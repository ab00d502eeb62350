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
    x: Tensor,
    scale: Tensor,
    zero_point: Tensor | None,
    grid: RoundingGrid,
    mask: bool = False,
    derivative: bool = False,
) -> tuple[Tensor, Tensor | None] | None:
    """Return y and, if `mask`, a bool tensor that is true for the elements inside the grid.

    With `derivative`, y is the derivative of each rounded element by the scale, as in LSQ, of float32 alone.
    `scale` and `zero_point` are float32 and broadcast against x.
    """
    known = takes(x) and x.dtype in (_TYPES[:1] if derivative else _TYPES)
    if not (known and grid.rounding == "half_even" and grid.qtype.has_kernel):
        return None
    y = torch.empty_like(x)
    inside = torch.empty_like(x, dtype=torch.bool) if mask else None
    if not all(one is None or _has_same_order(x, one) for one in (y, inside)):
        return None
    if zero_point is not None and (zero_point.numel() != 1 or scale.numel() != 1):
        scale, zero_point = torch.broadcast_tensors(scale, zero_point)
    shape, params = list(x.shape), [scale, zero_point]
    if scale.numel() == 1:
        shape, params = [x.numel()], [one if one is None else one.reshape(()) for one in params]
    elif not x.is_contiguous():
        order = _memory_order(x)
        shape = [shape[d] for d in order]
        params = [one if one is None else one.permute(order) for one in params]
    read = [one if one is None else _readable(one) for one in params]
    elements = c_elements(x.data_ptr(), y.data_ptr(), shape, _TYPES.index(x.dtype))
    switches = map(ctypes.c_int32, (derivative, _threads(x.numel())))
    scales = *map(_pointer, read), *c_shape(list(params[0].shape))
    rules = grid.qtype.name.encode(), c_blocks(), grid.arithmetic.encode(), ctypes.c_int64(grid.saturate)
    call("onnxfq_fake_quantize_step", elements, _pointer(inside), *switches, *scales, *rules)
    return y, inside


def apply_mask(gradient: Tensor, inside: Tensor) -> Tensor | None:
    """Return gradient * inside for a bool mask."""
    if not takes(gradient) or gradient.dtype != torch.float32:
        return None
    y = torch.empty_like(gradient)
    if not (_has_same_order(gradient, inside) and _has_same_order(gradient, y)):
        return None
    count = gradient.numel()
    pointers = map(_pointer, (gradient, inside, y))
    call("onnxfq_mask_gradient", *pointers, ctypes.c_int64(count), ctypes.c_int32(_threads(count)))
    return y


def is_transforming() -> bool:
    """Tell whether a torch.func transform (grad, vmap) is active, whose tensors have no memory."""
    return not torch.compiler.is_compiling() and torch._C._functorch.maybe_current_level() is not None


def is_watched() -> bool:
    """Tell whether torch compiles, transforms or watches operations."""
    watched = torch.compiler.is_compiling() or is_transforming()  # a compiler follows nothing else
    return watched or torch._C._len_torch_dispatch_stack() > 0


def takes(x: Tensor) -> bool:
    """Tell whether the kernels may read x: its memory is on the CPU, and nothing tracks operations on it."""
    return (
        not is_watched()
        and type(x) in (Tensor, nn.Parameter)
        and x.device.type == "cpu"
        and x.numel() > 0
        and not torch.jit.is_tracing()
        # Recorded for second derivatives, as in a backward pass with create_graph.
        and not (torch.is_grad_enabled() and x.requires_grad)
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


def _pointer(x: Tensor | None) -> ctypes.c_void_p:
    return ctypes.c_void_p(0 if x is None else x.data_ptr())
