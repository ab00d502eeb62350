"""Quantized layers of an ONNX model: the numbers in front of DequantizeLinear and in MatMulNBits."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto

from onnxfq.checkpoints.layer import InputFormat, QuantizedLayer, with_positive_scales
from onnxfq.checkpoints.packing import unpack_words
from onnxfq.checkpoints.places import LinearPlace, attribute, list_paths
from onnxfq.checkpoints.rows import read_exponents
from onnxfq.errors import ModelError
from onnxfq.graph.external.tensor import tensor_array
from onnxfq.graph.index import GraphIndex
from onnxfq.numerics.float_types import BLOCK_FORMATS
from onnxfq.numerics.granularity import Granularity, normalize_axis
from onnxfq.numerics.qtypes import QTYPES, QType

_BEHIND = frozenset({"Cast", "Identity", "Transpose"})
_MX = "TRT_MXFP8DequantizeLinear"
_DEQUANTIZE = frozenset({"DequantizeLinear", _MX})
_BLOCKED_SUFFIX = re.compile(r"(/q|_Q\d+(G\d+)?|_DQ.*)$")


class StoredLayers:
    """Reader of the quantized matrices in the outermost graph of a model."""

    def __init__(self, proto: onnx.ModelProto) -> None:
        """Start with a model as `read_model` returns it."""
        self._nodes = list(proto.graph.node)
        index = GraphIndex(proto.graph)
        self._makers, self._constants = index.makers, index.stored

    @cached_property
    def _sources(self) -> dict[str, tuple[onnx.NodeProto, onnx.NodeProto | None, bool]]:
        """Weight's name -> (product, the node that dequantizes it, whether it is [K, N] there)."""
        sources: dict[str, tuple[onnx.NodeProto, onnx.NodeProto | None, bool]] = {}
        for node in self._nodes:
            if node.op_type == "MatMulNBits" and len(node.input) > 2:
                sources.setdefault(node.input[1], (node, None, False))
            if node.op_type not in ("MatMul", "Gemm"):
                continue
            name, turned = node.input[1], not attribute(node, "transB")
            while (maker := self._makers.get(name)) is not None and maker.op_type in _BEHIND:
                turned ^= maker.op_type == "Transpose"
                name = maker.input[0]
            is_pair = maker is not None and maker.op_type in _DEQUANTIZE
            if maker is not None and is_pair and maker.input[0] in self._constants:
                sources.setdefault(maker.input[0], (node, maker, turned))
        return sources

    def places(self) -> list[LinearPlace]:
        """Return the places of the quantized matrices, in the order of the graph."""
        places = []
        for name, (product, maker, turned) in self._sources.items():
            if maker is None:
                rows, columns = attribute(product, "N"), attribute(product, "K")
            else:
                shape = list(self._array(name).shape)
                if len(shape) != 2:
                    continue
                columns, rows = shape if turned else reversed(shape)
            paths = tuple(dict.fromkeys(list_paths(product, _BLOCKED_SUFFIX.sub("", name))))
            places.append(LinearPlace(name, turned, (product.name,), paths, rows, columns))
        return places

    def read(self, place: LinearPlace) -> QuantizedLayer:
        """Return the layer at a place. Raises ModelError for a form that no checkpoint has."""
        product, maker, _ = self._sources[place.tensor]
        module = place.paths[0] if place.paths else place.tensor
        if maker is None:
            return self._read_blocked_product(product, module)
        return self._read_pair(product, maker, module, place.turned)

    def _read_pair(
        self, product: onnx.NodeProto, maker: onnx.NodeProto, module: str, turned: bool
    ) -> QuantizedLayer:
        numbers = self._array(maker.input[0])
        scale, scale_type, shared = self._read_scale(maker)
        qtype = _find_qtype(numbers.dtype, module)
        is_shifted = any(maker.input[2:3]) and not qtype.is_float
        zero = self._array(maker.input[2]).astype(np.int32) if is_shifted else np.zeros((), np.int32)
        zero = np.full(scale.shape, zero.reshape(-1)[0]) if zero.size == 1 else zero
        block = attribute(maker, "block_size")
        axis = normalize_axis(attribute(maker, "axis", 1), 2)
        if scale.size == 1 and not block:
            scale, zero = scale.reshape(()), zero.reshape(())
        if scale.ndim and (axis == int(not turned)) != bool(block):
            raise ModelError(
                f"weight {maker.input[0]!r} has scales of {Granularity.of(axis, block)}, and checkpoints "
                "have them by output channel or in blocks along the inputs; it cannot be written"
            )
        if turned:
            numbers, scale, zero = numbers.T, scale.T, zero.T
        return with_positive_scales(
            np.array(scale, order="C"),
            module=module,
            numbers=np.ascontiguousarray(numbers if qtype.is_float else numbers.astype(qtype.storage_dtype)),
            qtype=qtype,
            zero_point=np.array(zero, order="C"),
            block_size=block or None,
            scale_type=scale_type,
            global_scale=shared,
            input=self._read_input(product.input[0]),
        )

    def _read_scale(self, maker: onnx.NodeProto) -> tuple[NDArray[np.float32], str, float | None]:
        """Return (scale, scale type, global scale): e4m3 scales are dequantized themselves."""
        inner = self._makers.get(maker.input[1])
        if inner is not None and inner.op_type == "DequantizeLinear":
            small, shared = self._array(inner.input[0]), self._array(inner.input[1])
            factor = np.float32(shared.reshape(-1)[0])
            return small.astype(np.float32) * factor, "e4m3", float(factor)
        stored = self._array(maker.input[1])
        if maker.op_type == _MX:
            return read_exponents(stored), "e8m0", None
        return stored.astype(np.float32), "float32", None

    def _read_blocked_product(self, node: onnx.NodeProto, module: str) -> QuantizedLayer:
        """Return the layer of a MatMulNBits. Source: its schema in ONNX Runtime 1.32."""
        columns, rows = attribute(node, "K"), attribute(node, "N")
        bits, block = attribute(node, "bits", 4), attribute(node, "block_size")
        packed = self._array(node.input[1])
        groups = -(-columns // max(block, 1))
        if bits not in (2, 4, 8) or packed.size * 8 != rows * groups * block * bits:
            raise ModelError(
                f"MatMulNBits {node.name!r} has {packed.size} bytes for {rows} x {columns} numbers of {bits} "
                "bits; write it again"
            )
        if any(node.input[4:5]):
            raise ModelError(
                f"MatMulNBits {node.name!r} has g_idx, an order of its inputs that checkpoints written here "
                "lack; quantize it in blocks of neighbours"
            )
        numbers = unpack_words(packed.reshape(rows, -1), bits, groups * block)[:, :columns]
        zero = np.full((rows, groups), 1 << (bits - 1), np.int32)
        if any(node.input[3:4]):
            stored = self._array(node.input[3])
            if stored.dtype != np.uint8:
                raise ModelError(
                    f"MatMulNBits {node.name!r} has zero points of {stored.dtype}, and checkpoints have "
                    "integers; quantize it again"
                )
            zero = unpack_words(stored.reshape(rows, -1), bits, groups).astype(np.int32)
        return with_positive_scales(
            self._array(node.input[2]).astype(np.float32).reshape(rows, groups),
            module=module,
            numbers=numbers,
            qtype=QTYPES[f"uint{bits}"],
            zero_point=zero,
            block_size=block,
        )

    def _read_input(self, tensor: str) -> InputFormat | None:
        """Return how an activation is quantized in front of a product; None for float."""
        maker = self._makers.get(tensor)
        while maker is not None and maker.op_type in _BEHIND | {"Reshape"}:
            maker = self._makers.get(maker.input[0])
        if maker is None or maker.op_type not in _DEQUANTIZE:
            return None
        source = self._makers.get(maker.input[0])
        if source is not None and source.op_type == "TRT_FP4DynamicQuantize":
            shared = self._array(source.input[1]).reshape(-1)
            return InputFormat(QTYPES["float4e2m1"], float(shared[0]), 0, 16, "e4m3")
        if source is not None and source.op_type == "TRT_MXFP8DynamicQuantize":
            return InputFormat(QTYPES["float8e4m3fn"], block_size=32, scale_type="e8m0")
        scale = self._constant(maker.input[1])
        if scale is None or scale.size != 1:
            return None
        zero = self._constant(maker.input[2]) if any(maker.input[2:3]) else None
        code = attribute(source, "output_dtype", TensorProto.UINT8) if source is not None else 0
        qtype = next((q for q in QTYPES.values() if q.full_range and q.onnx_type == code), None)
        if zero is not None:
            qtype = _find_qtype(zero.dtype, tensor)
        point = 0 if zero is None else int(zero.reshape(-1)[0])
        return None if qtype is None else InputFormat(qtype, float(scale.reshape(-1)[0]), point)

    def _constant(self, name: str) -> NDArray[Any] | None:
        tensor = self._constants.get(name)
        return None if tensor is None else np.asarray(tensor_array(tensor))

    def _array(self, name: str) -> NDArray[Any]:
        values = self._constant(name)
        if values is None:
            raise ModelError(f"{name!r} is computed while the model runs, and a checkpoint holds constants")
        return values


def _find_qtype(dtype: np.dtype[Any], what: str) -> QType:
    small = (q for q in QTYPES.values() if q.is_float and q.dtype == dtype)
    qtype = QTYPES.get(dtype.name) or next(small, None)
    if qtype is None:
        raise ModelError(f"{what!r} is quantized to {dtype}, which checkpoints do not have; use int8")
    return qtype


def restore_scale_type(layer: QuantizedLayer) -> QuantizedLayer:
    """Return a layer with the small scales of MXFP8 and NVFP4, if it is one; its values stay.

    A target without such scales stores them as float32.
    """
    if layer.scale_type != "float32":
        return layer
    if layer.qtype.name == "float8e4m3fn" and layer.block_size == BLOCK_FORMATS["MXFP8"].block_size:
        return replace(layer, scale_type="e8m0") if (np.frexp(layer.scale)[0] == 0.5).all() else layer
    if layer.qtype.name == "float4e2m1" and layer.block_size == BLOCK_FORMATS["NVFP4"].block_size:
        factor = _find_factor(np.unique(layer.scale))
        return layer if factor is None else replace(layer, scale_type="e4m3", global_scale=factor)
    return layer


def _find_factor(scales: NDArray[np.float32]) -> float | None:
    """Return a factor by which all of `scales`, in rising order, are e4m3 numbers; None if there is none.

    With the largest scale as each e4m3 number in turn, all others must come out exact.
    """
    e4m3 = QTYPES["float8e4m3fn"].dtype
    for largest in np.arange(0x7E, 0, -1, dtype=np.uint8).view(e4m3).astype(np.float32):
        near = np.float32(scales[-1] / largest)
        for factor in (near, np.nextafter(near, np.float32(0)), np.nextafter(near, np.float32(np.inf))):
            small = (scales / factor).astype(e4m3).astype(np.float32)
            if (small > 0).all() and (small * factor == scales).all():
                return float(factor)
    return None
