"""Counts of an engine from its layers, see `engine_figures`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from onnxfq.targets.engine_figures import EngineComparison, EngineFigures
from onnxfq.targets.reading.context import CheckContext
from onnxfq.targets.reading.quantizer_reader import DYNAMIC_OPS, QUANTIZE_OPS
from onnxfq.targets.tensorrt.builder.layers import EngineLayer

_FLOATS = {"Half": "float16", "BFloat16": "bfloat16", "Float": "float32"}
_QUANTIZING = QUANTIZE_OPS.keys() | DYNAMIC_OPS


def compare_layers(
    reading: CheckContext, device: str, layers: Sequence[EngineLayer], plain: Sequence[EngineLayer]
) -> EngineComparison:
    """Return the counts of both engines, with and without pairs.

    Args:
        reading: the model.
        device: GPU architecture, such as SM89.
        layers: of the engine of the model.
        plain: of the engine without pairs.
    """
    op_types = {site.name: site.op for site in reading.sites}
    return EngineComparison(
        device=device, quantized=count_layers(layers, op_types), plain=count_layers(plain, op_types)
    )


def count_layers(layers: Sequence[EngineLayer], op_types: Mapping[str, str]) -> EngineFigures:
    """Return the counts of an engine; op_types: operator by node."""
    kernels = [layer for layer in layers if layer.is_kernel]
    quantizing = [k for k in kernels if k.nodes and all(op_types.get(n, "") in _QUANTIZING for n in k.nodes)]
    outputs = [tensor for kernel in kernels for tensor in kernel.outputs]
    written = Counter(_FLOATS[tensor.dtype] for tensor in outputs if tensor.dtype in _FLOATS)
    return EngineFigures(
        kernels=len(kernels),
        attentions=sum(kernel.is_attention for kernel in kernels),
        quantizing=len(quantizing),
        written=sum(tensor.bytes for tensor in outputs),
        weights=sum(tensor.bytes for kernel in kernels for tensor in kernel.constants),
        floats=max(written, key=lambda name: written[name], default=""),
    )
