"""Every QuantizeLinear and DequantizeLinear of a model with what TensorRT reads from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray
from onnx import TensorProto

from onnxfq.graph.ops import MOVES
from onnxfq.targets.tensorrt.rules.scopes import Scope, Shape, Site

QUANTIZE_OPS = {
    "QuantizeLinear": 0,
    "TRT_FP8QuantizeLinear": TensorProto.FLOAT8E4M3FN,
    "TRT_INT4QuantizeLinear": TensorProto.INT4,
    "TRT_MXFP8QuantizeLinear": TensorProto.FLOAT8E4M3FN,
}
"""Op type -> the type it gives; 0 where the node tells. TensorRT's own names are ModelOpt's."""
DEQUANTIZE_OPS = {
    "DequantizeLinear": 0,
    "TRT_FP8DequantizeLinear": TensorProto.FLOAT8E4M3FN,
    "TRT_INT4DequantizeLinear": TensorProto.INT4,
    "TRT_MXFP8DequantizeLinear": TensorProto.FLOAT8E4M3FN,
}
"""Op type -> the type it takes; 0 where its input tells."""
DYNAMIC_OPS = frozenset({"TRT_FP4DynamicQuantize", "TRT_MXFP8DynamicQuantize", "TRT_DynamicQuantize"})
"""Operators that give a quantized tensor and the scales they have chosen for it."""

# What quantized numbers may go through between Q and DQ.
_BETWEEN_PAIR = MOVES | {"MaxPool", "Relu"}


@dataclass(frozen=True, eq=False)
class Quantizer:
    """One Q or DQ node.

    qtype: ONNX type of the quantized side, 0 when unknown. declared: whether zero point or output_dtype
    names it. scale, zero_point: values, None where they are not constants or left out.
    axis: of a scale of rank 1, counted from the front where the rank of the data is known; None per
    tensor. block: elements a scale as the node says, 0 for none.
    """

    site: Site
    qtype: int
    declared: bool
    scale: NDArray[Any] | None
    scale_shape: Shape | None
    zero_point: NDArray[Any] | None
    axis: int | None
    block: int

    @property
    def quantizes(self) -> bool:
        """Tell whether it is a Q."""
        return self.site.op in QUANTIZE_OPS

    @property
    def data(self) -> str:
        """Name of the tensor that it takes."""
        return self.site.input(0)

    @property
    def shape(self) -> Shape | None:
        """Shape of the tensor that it takes."""
        return self.site.scope.shape(self.data)

    @property
    def is_constant(self) -> bool:
        """Tell whether it takes a constant: a weight."""
        return self.site.scope.is_constant(self.data)

    @property
    def type_name(self) -> str:
        """The quantized type for a message."""
        return type_name(self.qtype)

    @property
    def is_blocked(self) -> bool:
        """Tell whether its scales are for blocks: as TensorRT does, by the rank of the scales."""
        return self.scale_shape is not None and len(self.scale_shape) > 1

    @property
    def float_type(self) -> int:
        """ONNX type of the float side: what a DQ gives is output_dtype or the type of its scale."""
        given = 0 if self.quantizes else int(self.site.attribute("output_dtype", 0))
        scope = self.site.scope
        return given or scope.dtype(self.data if self.quantizes else self.site.input(1))


def type_name(code: int) -> str:
    """Return an ONNX element type for a message, as `uint16`."""
    return str(TensorProto.DataType.Name(code)).lower() if code else "of unknown type"


def quantizer(site: Site) -> Quantizer | None:
    """Return what a Q or DQ node says; None for other nodes."""
    if site.op not in QUANTIZE_OPS and site.op not in DEQUANTIZE_OPS:
        return None
    scope = site.scope
    shape, scale_shape = scope.shape(site.input(0)), scope.shape(site.input(1))
    scale = scope.value(site.input(1))
    if scale is not None:
        scale_shape = tuple(scale.shape)
    axis = None if not scale_shape else int(site.attribute("axis", 1))
    if axis is not None and axis < 0 and shape is not None:
        axis += len(shape)
    quantizes = site.op in QUANTIZE_OPS
    named = QUANTIZE_OPS[site.op] if quantizes else DEQUANTIZE_OPS[site.op]
    told = (
        named
        or (scope.dtype(site.input(2)) if site.input(2) else 0)
        or (int(site.attribute("output_dtype", 0)) if quantizes else 0)
    )
    return Quantizer(
        site=site,
        qtype=told or (TensorProto.UINT8 if quantizes else _quantized_type(scope, site.input(0))),
        declared=bool(told),
        scale=scale,
        scale_shape=scale_shape,
        zero_point=scope.value(site.input(2)) if site.input(2) else None,
        axis=axis,
        block=int(site.attribute("block_size", 0)),
    )


def _quantized_type(scope: Scope, tensor: str) -> int:
    """Return the type of what a DQ reads, which ONNX infers for its own operators only."""
    known = scope.dtype(tensor)
    maker = scope.maker(tensor)
    while not known and maker is not None and maker.op in _BETWEEN_PAIR:
        scope, tensor = maker.scope, maker.input(0)
        known, maker = scope.dtype(tensor), scope.maker(tensor)
    if maker is not None and maker.op in DYNAMIC_OPS:
        return int(
            TensorProto.FLOAT4E2M1 if maker.op == "TRT_FP4DynamicQuantize" else TensorProto.FLOAT8E4M3FN
        )
    if not known and maker is not None:
        made_by = quantizer(maker)
        return made_by.qtype if made_by is not None else 0
    return known
