"""Quantization by amax in an exported graph: a node of `export_torch`, or the pair itself."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor

from onnxfq.errors import SpecError
from onnxfq.numerics.qtypes import qtype_of_integers
from onnxfq.torch.compat.nvidia.tensor_quant import E4M3_MOST, LEAST, integer_bound
from onnxfq.torch.onnx_node import graph_node
from onnxfq.torch.qat_gradients import fake_quantize


def check_pairs(num_bits: Any, unsigned: bool, narrow_range: bool) -> None:
    """Raise SpecError for a grid that QuantizeLinear of plain torch.onnx.export does not have."""
    if not isinstance(num_bits, (tuple, list)) and (num_bits != 8 or narrow_range):
        bits = f"{num_bits}{' narrow' * narrow_range}"
        raise SpecError(f"torch.onnx.export writes 8 bits of the full range, got {bits}; use export_torch")


def quantize_for_export(
    x: Tensor, amax: Tensor, num_bits: Any, unsigned: bool, narrow_range: bool, *, pairs: bool
) -> Tensor:
    """Return x quantized, as nodes of the graph that is exported.

    Args:
        x: the tensor.
        amax: known largest magnitude, one value or one for each index of one axis.
        num_bits: bits of the integers, or (4, 3).
        unsigned: integers from 0.
        narrow_range: the lowest integer is minus the highest.
        pairs: write QuantizeLinear and DequantizeLinear for plain torch.onnx.export.

    Raises SpecError for an amax of several axes, and for float8 pairs by the older exporter.
    """
    with warnings.catch_warnings():
        # The tracing exporter warns that a shape becomes a constant: amax is one.
        warnings.simplefilter("ignore", torch.jit.TracerWarning)
        axes = [d for d, n in enumerate(amax.shape) if n > 1]
    if len(axes) > 1:
        raise SpecError(f"ONNX has one axis for scales, found amax {list(amax.shape)}; calibrate by one")
    axis = axes[0] + x.ndim - amax.ndim if axes else None
    floats = isinstance(num_bits, (tuple, list))
    bound = E4M3_MOST if floats else integer_bound(num_bits, unsigned)
    scale = amax.float().clamp(min=LEAST).flatten() / bound
    scale = scale if axes else scale.reshape(())
    if not pairs:
        low = 0 if unsigned else -int(bound) - (not narrow_range)
        qtype = "float8e4m3fn" if floats else qtype_of_integers(low, int(bound))
        return fake_quantize(x, scale, qtype=qtype, axis=axis)
    if floats and torch.jit.is_tracing():
        raise SpecError("torch.onnx.export has no float8 with dynamo=False; leave that out")
    kind = torch.float8_e4m3fn if floats else torch.uint8 if unsigned else torch.int8
    zero = torch.zeros_like(scale, dtype=kind)
    given = {"axis": axis} if axes else {}
    integers = graph_node("QuantizeLinear", (x.float(), scale, zero), given, zero.dtype)
    return graph_node("DequantizeLinear", (integers, scale, zero), given, torch.float32).to(x.dtype)
