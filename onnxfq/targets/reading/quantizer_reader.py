"""QuantizeLinear and DequantizeLinear nodes as TensorRT reads them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto

from onnxfq.graph.index import Shape
from onnxfq.graph.normalize.node_sites import NodeSite, SiteIndex
from onnxfq.graph.ops import MOVES

QUANTIZE_OPS = {
    "QuantizeLinear": 0,
    "TRT_FP8QuantizeLinear": TensorProto.FLOAT8E4M3FN,
    "TRT_INT4QuantizeLinear": TensorProto.INT4,
    "TRT_MXFP8QuantizeLinear": TensorProto.FLOAT8E4M3FN,
}
"""Op type -> output type; 0 if the node names it. ModelOpt writes the TRT_ operators."""
DEQUANTIZE_OPS = {
    "DequantizeLinear": 0,
    "TRT_FP8DequantizeLinear": TensorProto.FLOAT8E4M3FN,
    "TRT_INT4DequantizeLinear": TensorProto.INT4,
    "TRT_MXFP8DequantizeLinear": TensorProto.FLOAT8E4M3FN,
}
"""Op type -> input type; 0 if the input has it."""
DYNAMIC_OPS = frozenset({"TRT_FP4DynamicQuantize", "TRT_MXFP8DynamicQuantize", "TRT_DynamicQuantize"})
"""Operators that compute a quantized tensor and its scales."""

# Operators that quantized numbers may pass between Q and DQ.
_BETWEEN_PAIR = MOVES | {"MaxPool", "Relu"}


@dataclass(frozen=True, eq=False)
class Quantizer:
    """One Q or DQ node.

    Attributes:
        qtype: ONNX type of the quantized side; 0 if unknown.
        declared: whether zero point or output_dtype names the type.
        scale: values; None if they are not constant.
        zero_point: values; None if they are not constant or left out.
        axis: axis of a scale of rank 1, counted from the front if the rank of the data is known; None per
            tensor.
        block: elements per scale by the node's attribute; 0 for none.
    """

    site: NodeSite
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
        """Name of the input tensor."""
        return self.site.input(0)

    @property
    def shape(self) -> Shape | None:
        """Shape of the input tensor."""
        return self.site.index.shape(self.data)

    @property
    def is_constant(self) -> bool:
        """Tell whether the input is a constant: a weight."""
        return self.site.index.is_constant(self.data)

    @property
    def is_stored(self) -> bool:
        """Tell whether the numbers come from a stored constant, over operators that only move them."""
        index, name = self.site.index, self.data
        while (maker := index.maker(name)) is not None and maker.op in QUANTIZE_OPS.keys() | MOVES:
            name = maker.input(0)
        return name in index.stored

    @property
    def type_name(self) -> str:
        """Name of the quantized type for messages."""
        return type_name(self.qtype)

    @property
    def is_blocked(self) -> bool:
        """Tell whether its scales are for blocks; like TensorRT, by the rank of the scales."""
        return self.scale_shape is not None and len(self.scale_shape) > 1

    @property
    def starts_at_zero(self) -> bool:
        """Tell whether its least number stands for 0, so that it does the work of a Relu."""
        if self.zero_point is None:
            return bool(self.qtype == TensorProto.UINT8)
        return bool((self.zero_point == np.iinfo(self.zero_point.dtype).min).all())

    @property
    def float_type(self) -> int:
        """ONNX type of the float side; for a DQ its output_dtype, or the type of its scale."""
        given = 0 if self.quantizes else int(self.site.attrs.get("output_dtype", 0))
        return given or self.site.index.dtype(self.data if self.quantizes else self.site.input(1))


def type_name(code: int) -> str:
    """Return the name of an ONNX element type for messages, such as `uint16`."""
    return str(TensorProto.DataType.Name(code)).lower() if code else "of unknown type"


def quantizer(site: NodeSite | None) -> Quantizer | None:
    """Return the record of a Q or DQ node; None for other nodes, and for none."""
    if site is None or (site.op not in QUANTIZE_OPS and site.op not in DEQUANTIZE_OPS):
        return None
    index = site.index
    shape, scale_shape = index.shape(site.input(0)), index.shape(site.input(1))
    scale = index.value(site.input(1))
    if scale is not None:
        scale_shape = tuple(scale.shape)
    axis = None if not scale_shape else int(site.attrs.get("axis", 1))
    if axis is not None and axis < 0 and shape is not None:
        axis += len(shape)
    quantizes = site.op in QUANTIZE_OPS
    named = QUANTIZE_OPS[site.op] if quantizes else DEQUANTIZE_OPS[site.op]
    told = (
        named
        or (index.dtype(site.input(2)) if site.input(2) else 0)
        or (int(site.attrs.get("output_dtype", 0)) if quantizes else 0)
    )
    return Quantizer(
        site=site,
        qtype=told or (TensorProto.UINT8 if quantizes else _find_quantized_type(index, site.input(0))),
        declared=bool(told),
        scale=scale,
        scale_shape=scale_shape,
        zero_point=index.value(site.input(2)) if site.input(2) else None,
        axis=axis,
        block=int(site.attrs.get("block_size", 0)),
    )


def _find_quantized_type(index: SiteIndex, tensor: str) -> int:
    """Return the input type of a DQ, which ONNX infers for its own operators only."""
    known, maker = index.dtype(tensor), index.maker(tensor)
    while not known and maker is not None and maker.op in _BETWEEN_PAIR:
        tensor = maker.input(0)
        known, maker = index.dtype(tensor), index.maker(tensor)
    if maker is not None and maker.op in DYNAMIC_OPS:
        is_narrow = maker.op == "TRT_FP4DynamicQuantize" and tensor == maker.node.output[0]  # no scale
        return int(TensorProto.FLOAT4E2M1 if is_narrow else TensorProto.FLOAT8E4M3FN)
    if not known and maker is not None:
        made_by = quantizer(maker)
        return made_by.qtype if made_by is not None else 0
    return known


def find_source(site: NodeSite, tensor: str) -> NodeSite | None:
    """Return the node that makes the numbers of `tensor`, above all that keep its type; None for an input."""
    maker, code = site.index.maker(tensor), site.index.dtype(tensor)
    while maker is not None and maker.input(0) and site.index.dtype(maker.input(0)) == code:
        maker = site.index.maker(maker.input(0))
    return maker


def is_quantized(site: NodeSite, tensor: str) -> bool:
    """Tell whether a Q makes the numbers of `tensor`, directly or through nodes that keep the type."""
    source = find_source(site, tensor)
    return source is not None and source.op in QUANTIZE_OPS
