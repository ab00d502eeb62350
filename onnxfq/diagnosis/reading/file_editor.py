"""`FileEditor`: repairs of a quantized file; what no repair names keeps its bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from onnxfq.calibration.calibrators import MINMAX
from onnxfq.calibration.calibrators.groups import group_ranges
from onnxfq.diagnosis.reading.graph_editor import GraphEditor
from onnxfq.diagnosis.reading.quantizers import ActivationQuantizer, StoredConstant
from onnxfq.diagnosis.reading.stored_weight import WeightNumbers, round_weight
from onnxfq.diagnosis.reading.values import GridFit
from onnxfq.graph.index import GraphIndex
from onnxfq.graph.node_fields import input_name
from onnxfq.graph.ops import BIASED_PRODUCTS
from onnxfq.graph.prune import keep_constants
from onnxfq.numerics.affine import quantize
from onnxfq.numerics.qparams import choose_qparams
from onnxfq.numerics.qtypes import QTYPES
from onnxfq.numerics.spec import QuantSpec

_INTEGER_BIASES = {"QGemm": 6, "QLinearConv": 8}
# Op type -> the slot of its int32 bias, in units of the product of both scales.


Edit = Callable[["FileEditor"], None]
"""Changes a file by its editor."""

Edits = tuple[Edit, ...]
"""A repair: what changes a file, in this order."""


def edit_file(proto: onnx.ModelProto, edits: Iterable[Edit]) -> onnx.ModelProto:
    """Return a copy of a file that edits changed in their order."""
    editor = FileEditor(proto)
    for edit in edits:
        edit(editor)
    return editor.proto


class FileEditor(GraphEditor):
    """A copy of a file, its grids, weights and biases, which repairs change."""

    def set_grid(self, quantizer: ActivationQuantizer, fit: GridFit) -> None:
        """Give the quantizers with the scale of `quantizer` another grid; biases keep their real values."""
        scale = quantizer.scale
        with self._same_biases(scale):
            self.store(scale, np.asarray(fit.scale))
        if fit.zero != quantizer.grid.zero:
            zero = np.full(self.constants[scale].dims, fit.zero).astype(quantizer.grid.kind)
            self._give(scale, scale, self.add(f"{scale}/zero_point", zero))

    def _give(self, old: str, scale: str, zero: str) -> None:
        """Give the readers of a scale another one, and a zero point."""
        for node in self.graph.node:
            for slot in [at for at, name in enumerate(node.input) if name == old]:
                node.input[slot : slot + 2] = [scale, zero]

    def divide(self, quantizer: ActivationQuantizer, factors: NDArray[np.float32]) -> None:
        """Divide the channels of a tensor by factors, of a shape that broadcasts, in front of its pair."""
        node = next(node for node in self.graph.node if node.name == quantizer.node)
        name = self.add(f"{quantizer.tensor}/factors", (1 / factors).astype(quantizer.grid.floats))
        divided = self.names.claim(f"{quantizer.tensor}/divided")
        mul = helper.make_node("Mul", [node.input[0], name], [divided], divided)
        self.graph.node.insert(list(self.graph.node).index(node), mul)
        node.input[0] = divided

    def set_weight(self, constant: StoredConstant, values: NDArray[np.float32], axis: int | None) -> None:
        """Round a stored weight to other values; the biases of its readers keep their real values.

        axis: of the channels that have a scale each; None for one scale.
        """
        old, zero = self.array(constant.scale), self.array(constant.zero_point)
        weight = round_weight(values, constant.codes, axis)
        self.store(constant.data, weight.numbers if constant.floats is None else values)
        with self._same_biases(constant.scale):
            if old is not None and old.size == weight.scale.size:
                self.store(constant.scale, weight.scale)
            else:
                self._widen(constant, weight, axis or 0)
        if zero is not None and zero.size == weight.zero.size:
            self.store(constant.zero_point, weight.zero)

    def widen(self, constant: StoredConstant, values: NDArray[np.float32]) -> None:
        """Store the weight of a MatMulNBits as other values in 8 bits, in the same blocks."""
        granularity = constant.grid.transpose().granularity
        spec = QuantSpec(qtype=QTYPES["int8"], symmetric=True, granularity=granularity)
        scale, zero = choose_qparams(*group_ranges(values.T, spec, MINMAX), spec.qtype, symmetric=True)
        numbers = quantize(values.T, scale, zero, qtype=spec.qtype, granularity=granularity)
        block, old = granularity.block_size or len(values), self.array(constant.scale)
        rows = np.pad(numbers, ((0, 0), (0, -len(values) % block))).view(np.uint8) ^ np.uint8(1 << 7)
        names = [self.add(f"{constant.data}/int8", rows.reshape(len(rows), -1, block))]
        names += [self.add(f"{constant.scale}/int8", scale.astype(np.asarray(old).dtype)), ""]
        for node in [one for one in self.graph.node if constant.data in one.input]:
            node.input[1:4] = names if len(node.input) > 4 else names[:2]
            kept = [one for one in node.attribute if one.name != "bits"]
            del node.attribute[:]
            node.attribute.extend([*kept, helper.make_attribute("bits", 8)])
        keep_constants(self.graph, GraphIndex.of_model(self.proto).used)

    def scale_weight(self, constant: StoredConstant, factor: float) -> None:
        """Divide the scale of a stored weight by a factor; biases keep their real values."""
        with self._same_biases(constant.scale):
            self.store(constant.scale, np.asarray(self.array(constant.scale)) / factor)

    @contextmanager
    def _same_biases(self, scale: str) -> Iterator[None]:
        """Keep the real values of biases whose unit an edit of a scale changes."""
        biases = [(node, self._bias_values(node)) for node in self.graph.node if scale in self._scales(node)]
        yield
        for node, values in biases:
            self._store_bias(node, values)

    def _widen(self, constant: StoredConstant, weight: WeightNumbers, axis: int) -> None:
        """Give a weight with one scale a scale for each channel."""
        zero = weight.zero.astype(weight.numbers.dtype)
        scale = self.add(f"{constant.scale}/channels", weight.scale)
        self._give(constant.scale, scale, self.add(f"{constant.scale}/zero_points", zero))
        self.set_axes(scale, axis)

    def set_bias(self, layer: str, values: NDArray[np.float32]) -> None:
        """Give a layer, by its name, a bias of these real values."""
        node = next(node for node in self.graph.node if node.name == layer)
        slot = _INTEGER_BIASES.get(node.op_type, 2)
        if not input_name(node, slot):
            kind = np.int32 if node.op_type in _INTEGER_BIASES else np.float32
            node.input[slot : slot + 1] = [self.add(f"{layer}/bias", np.zeros(values.shape, kind))]
        self._store_bias(node, values)

    def _scales(self, node: onnx.NodeProto) -> list[str]:
        """Return the names of the scales of data and weight of a layer with a bias, as far as it has them."""
        if node.op_type in _INTEGER_BIASES:
            return [node.input[1], node.input[4]]
        if node.op_type not in BIASED_PRODUCTS or not input_name(node, 2):
            return []
        pairs = [self.maker(node.input[slot]) for slot in (0, 1)]
        return [pair.input[1] for pair in pairs if pair is not None and pair.op_type == "DequantizeLinear"]

    def _bias_scale(self, node: onnx.NodeProto) -> NDArray[np.float64] | None:
        """Return the product of the scales of data and weight of a layer."""
        scales = [self.array(name) for name in self._scales(node)]
        if len(scales) < 2 or scales[0] is None or scales[1] is None or scales[0].size != 1:
            return None
        return np.asarray(scales[0], np.float64).reshape(()) * np.asarray(scales[1], np.float64).reshape(-1)

    def _find_bias(self, node: onnx.NodeProto) -> tuple[str, onnx.NodeProto | None]:
        """Return the constant that holds the bias of a layer, and the DequantizeLinear that reads it."""
        name = input_name(node, _INTEGER_BIASES.get(node.op_type, 2))
        pair = self.maker(name)
        return (name, None) if pair is None or pair.op_type != "DequantizeLinear" else (pair.input[0], pair)

    def _bias_values(self, node: onnx.NodeProto) -> NDArray[np.float64] | None:
        """Return the real values of a stored bias; None if it is not stored in integers."""
        name, pair = self._find_bias(node)
        stored = self.array(name)
        scale = self._bias_scale(node) if pair is None else self.array(pair.input[1])
        if stored is None or stored.dtype.kind == "f" or scale is None:
            return None
        return np.asarray(stored, np.float64) * np.asarray(scale, np.float64)

    def _store_bias(self, node: onnx.NodeProto, values: NDArray[np.generic] | None) -> None:
        """Store the real values of a bias, in integers if the layer has them; None stores nothing."""
        name, pair = self._find_bias(node)
        stored, scale = self.array(name), self._bias_scale(node)
        if values is None or stored is None:
            return
        if stored.dtype.kind == "f":
            self.store(name, np.asarray(values))
            return
        if pair is not None:
            scale = self._scale_bias(pair, scale)
        if scale is not None:
            steps = np.rint(np.asarray(values, np.float64) / scale)
            self.store(name, np.clip(steps, -(2**31), 2**31 - 1))

    def _scale_bias(self, pair: onnx.NodeProto, scale: NDArray[np.float64] | None) -> NDArray[np.float64]:
        """Give the pair of a bias a scale, by default its own, and return it."""
        name = pair.input[1]
        own = np.asarray(self.array(name), np.float64)
        if scale is not None and own.size == scale.size:
            self.store(name, scale)
        elif scale is not None and scale.size > 1:
            pair.input[1] = self.add(f"{name}/channels", scale.astype(np.float32))
            if input_name(pair, 2):
                pair.input[2] = self.add(f"{pair.input[2]}/channels", np.zeros(scale.size, np.int32))
            self.set_axis(pair, 0)
        return own if scale is None else scale
