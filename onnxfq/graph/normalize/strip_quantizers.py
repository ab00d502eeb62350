"""Removal of existing quantizers, so that a model can be quantized again."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import cached_property
from math import inf
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from onnxfq.errors import ModelError, SpecError
from onnxfq.graph.bounds import UNKNOWN, Bounds
from onnxfq.graph.constants import make_tensor
from onnxfq.graph.external.tensor import tensor_array
from onnxfq.graph.index import GraphIndex
from onnxfq.graph.model import bodies, default_opset, list_graphs, list_nodes, replace_nodes
from onnxfq.graph.node_fields import attributes_of, input_name, numbers_type
from onnxfq.graph.normalize.shapes import with_shapes
from onnxfq.graph.normalize.steps import constant_value, evaluate_node
from onnxfq.graph.normalize.stored_scales import granularity_of
from onnxfq.graph.ops import FAKE_QUANTIZE_OPS, ONNX_QUANTIZERS, QUANTIZED_OPS, STANDARD_DOMAINS
from onnxfq.graph.prune import remove_unread
from onnxfq.graph.saturation import Range, ValueLimit, limit_of, saturate
from onnxfq.numerics.affine import fake_quantize, quantize
from onnxfq.numerics.granularity import PER_TENSOR, normalize_axis
from onnxfq.numerics.layout import expand_params
from onnxfq.numerics.qtypes import QTYPES, QType, qtype_by_name
from onnxfq.support.records import join_lines

log = logging.getLogger(__name__)

_QTYPES = {qtype.onnx_type: qtype for qtype in QTYPES.values() if qtype.onnx_type is not None}
_ROUNDING = frozenset({"QuantizeLinear", "DequantizeLinear", "FakeQuantize"})


def strip_quantizers(proto: onnx.ModelProto, source: str) -> tuple[str, dict[str, ValueLimit]]:
    """Remove Q/DQ pairs and fake-quant nodes from a normalised model, in place.

    Returns a note, and the Clip and Relu that ranges left by their outputs.

    The input of a pair replaces it, limited to the range of the pair where values may pass its ends; a factor
    between its scales becomes a Mul. Real numbers replace a quantized constant. Raises ModelError for a
    quantizer that is not part of a pair, such as QLinearConv or an integer operator between Q and DQ, and for
    a pair whose parts differ in zero points.
    """
    strip = _Strip(proto, source)
    return strip.run(), strip.limits


class _Strip:
    """The removal from one model; also the graph that `saturate` adds to."""

    def __init__(self, proto: onnx.ModelProto, source: str) -> None:
        self.proto, self.source, self.opset = proto, source, default_opset(proto)
        index = GraphIndex.of_model(proto)
        self.names, self.outputs, self.readers = index.names, index.outputs, index.readers
        self.makers: Mapping[str, onnx.NodeProto] = index.makers
        self.constants = index.constants | {
            node.output[0]: tensor for node in index.nodes if (tensor := constant_value(node)) is not None
        }
        self.fixed = set(self.constants)
        for node in index.nodes:
            if node.input and not bodies(node) and self.fixed.issuperset(filter(None, node.input)):
                self.fixed.update(node.output[:1])
        self.passed: set[str] = set()
        self.limits: dict[str, ValueLimit] = {}
        self.taken = self.limited = 0

    def run(self) -> str:
        for graph in reversed(list_graphs(self.proto.graph)):  # bodies first: nodes are copied with theirs
            nodes = [made for node in graph.node for made in self._replace(node)]
            if self.taken:
                replace_nodes(graph, nodes)
        graphs = list_graphs(self.proto.graph) if self.taken else []
        remove_unread(self.proto, graphs, self._made_constants)
        left = [node for node in list_nodes(self.proto.graph) if node.op_type in QUANTIZED_OPS]
        if left:
            raise self._refuse(left[0], "is not part of a Q/DQ pair and cannot be removed")
        if not self.taken:
            return ""
        kept = f"; {self.limited} that may saturate left a Relu or Clip" if self.limited else ""
        return f"{self.taken} quantizer(s) taken out{kept}"

    def array(self, name: str) -> NDArray[Any] | None:
        """Return the values of a tensor that depends on constants alone; None for another."""
        if name in self.constants:
            return tensor_array(self.constants[name])
        node = self.makers.get(name)
        if node is None or name not in self.fixed:
            return None
        inputs = {one: self.array(one) for one in node.input if one}
        known = {one: value for one, value in inputs.items() if value is not None}
        if len(known) < len(inputs):
            return None
        self.passed.add(name)
        if node.op_type in _ROUNDING:
            return self._round(node, [known.get(one) for one in node.input])
        if node.op_type in QUANTIZED_OPS or node.domain not in STANDARD_DOMAINS:
            return None
        try:
            return evaluate_node(node, known, self.proto)[0]
        except Exception as fault:  # an operator that ONNX's reference lacks, or any NumPy error
            log.debug("%s is not evaluated: %s", name, join_lines(fault))
            return None

    def constant(self, name: str, values: Any) -> str:
        """Add a constant and return its name, `name` if it is free."""
        tensor = make_tensor(self.names.claim(name), np.asarray(values))
        self.proto.graph.initializer.append(tensor)
        return str(tensor.name)

    def interval(self, node: onnx.NodeProto) -> Bounds:
        """Return the least and the largest number that a quantizer gives, as far as it is known."""
        quantizer, limits = self._find_quantizer(node)
        scale, zero_point = self._parameters(node)
        if scale is None or quantizer is None:
            return UNKNOWN
        found = _range(scale, zero_point, self._qtype(quantizer), limits)
        return float(found.low.min()), float(found.high.max())

    def _replace(self, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        if node.op_type not in FAKE_QUANTIZE_OPS | {"DequantizeLinear"}:
            return [node]
        self.taken += 1
        if node.op_type == "DynamicFakeQuantize":
            return [_name(node, node.input[0])]
        try:
            values = self.array(node.output[0])
            return self._take_out(node) if values is None else self._store(node, values)
        except SpecError as fault:
            raise self._refuse(node, f"cannot be removed: {fault}") from None

    def _store(self, node: onnx.NodeProto, values: NDArray[Any]) -> list[onnx.NodeProto]:
        """Store the numbers of a quantized constant under the name that its readers know."""
        name = node.output[0]
        if name in self.outputs:
            return [_name(node, self.constant(f"{name}/numbers", values))]
        self.proto.graph.initializer.append(make_tensor(name, values))
        return []

    def _take_out(self, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        """Return what stands for a pair or fake-quant node on a computed tensor."""
        quantizer, limits = self._find_quantizer(node)
        if quantizer is None:
            raise self._refuse(node, "is not part of a Q/DQ pair and cannot be removed")
        tensor, output = quantizer.input[0], node.output[0]
        if quantizer.op_type == "DynamicQuantizeLinear":  # the range follows the values
            return [_name(node, tensor)]
        scale, zero_point = self._parameters(quantizer)
        after, zero_after = self._parameters(node)
        if scale is None or after is None:
            if list(quantizer.input[1:]) != list(node.input[1:]):
                raise self._refuse(node, "computes its parameters and cannot be removed")
            return [_name(node, tensor)]
        one_grid = granularity_of(quantizer) == granularity_of(node) or scale.size == after.size == 1
        zeros = _offset(zero_point), _offset(zero_after)
        one_zero = zeros[0].ndim * zeros[1].ndim == 0 or zeros[0].shape == zeros[1].shape
        if not (one_grid and scale.size == after.size and one_zero and bool((zeros[0] == zeros[1]).all())):
            raise self._refuse(
                node, f"has other zero points or groups than {quantizer.op_type} {quantizer.name!r} in front"
            )
        found = self._align(quantizer, _range(scale, zero_point, self._qtype(quantizer), limits))
        made = []
        factor = np.asarray(after, np.float64).reshape(scale.shape) / np.asarray(scale, np.float64)
        limited = output if (factor == 1).all() else self.names.claim(f"{output}/limited")
        made = saturate(self, tensor, limited, found, name=node.name, read=self._read(limited))
        self.limited += bool(made)
        limit = limit_of(made[-1], found) if made else None
        if limit is not None:
            self.limits[limited] = limit
        if limited == output:
            return made or [_name(node, tensor)]
        aligned = self._align(quantizer, Range(factor, factor, factor)).low
        number = self.constant(f"{output}/factor", aligned)
        scaled = helper.make_node("Mul", [limited if made else tensor, number], [output], node.name)
        if made:
            made[-1].name = limited
        return [*made, scaled]

    def _align(self, quantizer: onnx.NodeProto, found: Range) -> Range:
        """Return a range in the type of the quantized tensor and a shape that broadcasts to it."""
        dtype = self._dtype(quantizer)
        parts = [found.low, found.high, found.step]
        if all((part == part.flat[0]).all() for part in parts):
            parts = [part.reshape(-1)[0] for part in parts]
        elif (granularity := granularity_of(quantizer)).is_blocked or granularity.axis is None:
            raise self._refuse(quantizer, "has a range for each block, which cannot become a Clip")
        elif granularity.axis != -1:
            shape = self._shapes.shape(quantizer.input[0])
            if shape is None:
                raise self._refuse(quantizer, "has a range for each channel of a tensor of unknown rank")
            behind = len(shape) - 1 - normalize_axis(granularity.axis, len(shape))
            parts = [part.reshape(-1, *(1,) * behind) for part in parts]
        with np.errstate(over="ignore"):
            return Range(*(np.asarray(part).astype(dtype) for part in parts))

    def _dtype(self, quantizer: onnx.NodeProto) -> np.dtype[Any]:
        scale = self.array(quantizer.input[1])
        assert scale is not None, "the parameters are known"
        if self.opset < 23:  # one type for the tensor and its scale
            return scale.dtype
        kind = self._shapes.types.get(quantizer.input[0], 0)
        return np.dtype(helper.tensor_dtype_to_np_dtype(kind)) if kind else scale.dtype

    @cached_property
    def _shapes(self) -> GraphIndex:
        return GraphIndex.of_model(with_shapes(self.proto))

    def _read(self, tensor: str) -> Bounds:
        """Return the values that the readers of `tensor` tell apart."""
        if tensor in self.outputs or not self.readers.get(tensor):
            return UNKNOWN
        ends = [(0.0, inf) if node.op_type == "Relu" else UNKNOWN for node in self.readers[tensor]]
        return min(end[0] for end in ends), max(end[1] for end in ends)

    def _find_quantizer(self, node: onnx.NodeProto) -> tuple[onnx.NodeProto | None, Bounds]:
        """Return the node that rounds for `node`, and the integers that a Clip between them leaves."""
        limits = UNKNOWN
        if node.op_type in FAKE_QUANTIZE_OPS:
            return node, limits
        maker = self.makers.get(node.input[0])
        while maker is not None and maker.op_type == "Clip":
            ends = [self.array(name) if name else None for name in [*maker.input[1:], "", ""][:2]]
            if any(name and end is None for name, end in zip(maker.input[1:], ends, strict=False)):
                return None, limits
            self.passed.add(maker.output[0])
            low, high = (
                other if end is None else float(end.reshape(()))
                for end, other in zip(ends, UNKNOWN, strict=True)
            )
            limits = max(limits[0], low), min(limits[1], high)
            maker = self.makers.get(maker.input[0])
        return (maker if maker is not None and maker.op_type in ONNX_QUANTIZERS else None), limits

    def _parameters(self, node: onnx.NodeProto) -> tuple[NDArray[Any] | None, NDArray[Any] | None]:
        """Return scale and zero point, the scale None if one of them is computed."""
        names = [*node.input[1:3], ""][:2]
        scale, zero_point = (self.array(name) if name else None for name in names)
        return (None if names[1] and zero_point is None else scale), zero_point

    def _qtype(self, node: onnx.NodeProto) -> QType:
        """Return the type of the numbers that `node` rounds to."""
        if node.op_type in FAKE_QUANTIZE_OPS:
            return qtype_by_name(attributes_of(node).get("qtype", b"").decode())
        zero_point = self.array(input_name(node, 2))
        given = None if zero_point is None else helper.np_dtype_to_tensor_dtype(zero_point.dtype)
        kind = numbers_type(node, given)
        if kind not in _QTYPES:
            raise SpecError(f"its numbers have type {kind}, which has no range")
        return _QTYPES[kind]

    def _round(self, node: onnx.NodeProto, inputs: list[NDArray[Any] | None]) -> NDArray[Any]:
        """Return the output of a quantizer of constants."""
        values, scale, *rest = inputs
        assert values is not None and scale is not None, "both are no optional inputs"
        zero_point = np.zeros((), np.float32) if not rest or rest[0] is None else rest[0]
        granularity = granularity_of(node) if scale.size > 1 else PER_TENSOR
        scale, zero_point = (one if one.size > 1 else one.reshape(()) for one in (scale, zero_point))
        if node.op_type == "DequantizeLinear":
            kind = attributes_of(node).get("output_dtype", 0)
            dtype = np.dtype(helper.tensor_dtype_to_np_dtype(kind)) if kind else scale.dtype
            grid = granularity if zero_point.ndim else PER_TENSOR
            steps = values.astype(np.float32)
            steps -= expand_params(zero_point.astype(np.float32), values.shape, grid)
            steps *= expand_params(scale.astype(np.float32), values.shape, granularity)
            return steps.astype(dtype, copy=False)
        given = {"qtype": self._qtype(node), "granularity": granularity}
        if node.op_type == "QuantizeLinear":  # a negative scale turns the numbers around
            turned = values * np.sign(expand_params(scale, values.shape, granularity)).astype(values.dtype)
            return quantize(turned, np.abs(scale), zero_point, **given)  # type: ignore[arg-type]
        named = {
            key: value for key, value in attributes_of(node).items() if key in ("rounding", "arithmetic")
        }
        modes = {key: value.decode() for key, value in named.items()}
        return fake_quantize(values, scale, zero_point, **given, **modes)  # type: ignore[arg-type]

    def _made_constants(self, node: onnx.NodeProto) -> bool:
        """Tell whether `node` is a quantizer, or computed the constants of one."""
        return node.op_type in ONNX_QUANTIZERS or not self.passed.isdisjoint(node.output)

    def _refuse(self, node: onnx.NodeProto, why: str) -> ModelError:
        return ModelError(
            f"{self.source}: {node.op_type} {node.name!r} {why}; give the float model, or --keep-existing"
        )


def _name(node: onnx.NodeProto, reads: str) -> onnx.NodeProto:
    """Return an Identity in place of `node`: runtimes remove it, and every name stays."""
    return helper.make_node("Identity", [reads], [node.output[0]], name=node.name)


def _offset(zero_point: NDArray[Any] | None) -> NDArray[np.float64]:
    """Return a zero point to compute with: a scalar if there is one for all elements; an absent one is 0."""
    if zero_point is None:
        return np.zeros(())
    return np.asarray(zero_point, np.float64).reshape(() if zero_point.size == 1 else zero_point.shape)


def _range(scale: NDArray[Any], zero_point: NDArray[Any] | None, qtype: QType, limits: Bounds) -> Range:
    """Return the real numbers of `qtype` within the integers of `limits`."""
    factor = np.asarray(scale, np.float64)
    offset = _offset(zero_point)
    if offset.shape not in ((), factor.shape):
        raise SpecError(f"its zero point has shape {list(offset.shape)}, its scale {list(factor.shape)}")
    ends = [(end - offset) * factor for end in (max(qtype.qmin, limits[0]), min(qtype.qmax, limits[1]))]
    step = np.abs(factor) * (
        1.0 if qtype.layout is None else qtype.qmax / 2 ** (qtype.layout.mantissa_bits + 1)
    )
    return Range(np.minimum(*ends), np.maximum(*ends), 1.001 * step)  # a scale is rounded
