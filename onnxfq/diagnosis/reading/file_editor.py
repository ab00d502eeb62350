"""`FileEditor`: repairs of a quantized file; what no repair names keeps its bytes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from onnxfq.diagnosis.reading.graph_editor import GraphEditor
from onnxfq.diagnosis.reading.quantizers import ActivationQuantizer, StoredConstant
from onnxfq.diagnosis.reading.stored_weight import RequantizedWeight, is_per_axis
from onnxfq.diagnosis.reading.values import GridFit
from onnxfq.graph.node_fields import input_name

_INTEGER_BIASES = {"QGemm": 6, "QLinearConv": 8}
# Op type -> the slot of its int32 bias, in units of the product of both scales.


class FileEditor(GraphEditor):
    """A copy of a file, its grids, weights and biases, which repairs change."""

    def set_grid(self, quantizer: ActivationQuantizer, fit: GridFit) -> None:
        """Give the quantizers with the scale of `quantizer` another grid; biases keep their real values."""
        with self._same_biases(quantizer.scale):
            self._set_grid(quantizer, fit)

    def _set_grid(self, quantizer: ActivationQuantizer, fit: GridFit) -> None:
        scale = quantizer.scale
        self.store(scale, np.asarray(fit.scale, np.float32).reshape(self.shape(scale)))
        if fit.zero != quantizer.grid.zero:
            zero = np.asarray(fit.zero).astype(quantizer.grid.kind)
            shape = self.shape(quantizer.zero_point) if quantizer.zero_point else ()
            name = self.add(f"{scale}/zero_point", zero.reshape(shape))
            for node in self.graph.node:
                for slot, read in enumerate(node.input):
                    if read == scale and slot + 1 < len(node.input):
                        node.input[slot + 1] = name
                    elif read == scale:
                        node.input.append(name)

    def divide(self, quantizer: ActivationQuantizer, factors: NDArray[np.float32]) -> None:
        """Divide the channels of a tensor by factors, of a shape that broadcasts, in front of its pair."""
        node = next(node for node in self.graph.node if node.name == quantizer.node)
        name = self.add(f"{quantizer.tensor}/factors", (1 / factors).astype(quantizer.grid.floats))
        divided = self.names.claim(f"{quantizer.tensor}/divided")
        mul = helper.make_node("Mul", [node.input[0], name], [divided], divided)
        self.graph.node.insert(list(self.graph.node).index(node), mul)
        node.input[0] = divided

    def set_weight(self, constant: StoredConstant, weight: RequantizedWeight) -> None:
        """Give a stored weight other numbers and scales; the biases of its readers keep their real values."""
        with self._same_biases(constant.scale):
            self._set_weight(constant, weight)

    def _set_weight(self, constant: StoredConstant, weight: RequantizedWeight) -> None:
        stored = self.array(constant.data)
        if stored is not None and stored.dtype.kind == "f":
            self.store(constant.data, weight.values)
        else:
            self.store(constant.data, weight.numbers)
        old = self.array(constant.scale)
        if old is not None and (old.shape == weight.scale.shape or old.size == weight.scale.size):
            self.store(constant.scale, weight.scale.reshape(old.shape))
        else:
            self._widen(constant, weight)
        zero = self.array(constant.zero_point)
        if zero is not None and zero.size == weight.zero.size:
            self.store(constant.zero_point, weight.zero.reshape(zero.shape))

    def scale_weight(self, constant: StoredConstant, factor: float) -> None:
        """Divide the scale of a stored weight by a factor; biases keep their real values."""
        with self._same_biases(constant.scale):
            self.store(constant.scale, np.asarray(self.array(constant.scale)) / factor)

    @contextmanager
    def _same_biases(self, scale: str) -> Iterator[None]:
        """Keep the real values of biases whose unit an edit of a scale changes."""
        biases = [(node, self._bias_values(node)) for node in self.graph.node if self._reads(node, scale)]
        yield
        for node, values in biases:
            self._store_bias(node, values)

    def _widen(self, constant: StoredConstant, weight: RequantizedWeight) -> None:
        """Give a weight with one scale a scale for each channel."""
        names = [
            self.add(f"{constant.scale}/channels", weight.scale),
            self.add(f"{constant.scale}/zero_points", weight.zero),
        ]
        for node in self.graph.node:
            for slot, read in enumerate(list(node.input)):
                if read == constant.scale:
                    node.input[slot] = names[0]
                    if slot + 1 < len(node.input):
                        node.input[slot + 1] = names[1]
                    if node.op_type in ("QuantizeLinear", "DequantizeLinear"):
                        self.set_axis(node, weight.axis or 0)

    def set_bias(self, layer: str, values: NDArray[np.float32]) -> None:
        """Give a layer, by its name, a bias of these real values."""
        node = next(node for node in self.graph.node if node.name == layer)
        slot = _INTEGER_BIASES.get(node.op_type, 2)
        if not input_name(node, slot):
            kind = np.int32 if node.op_type in _INTEGER_BIASES else np.float32
            name = self.add(f"{layer}/bias", np.zeros(values.shape, kind))
            if slot < len(node.input):
                node.input[slot] = name
            else:
                node.input.append(name)
        self._store_bias(node, values)

    def _reads(self, node: onnx.NodeProto, scale: str) -> bool:
        """Tell whether a layer with a bias has an operand with this scale."""
        if node.op_type in _INTEGER_BIASES:
            return scale in (node.input[1], node.input[4])
        if node.op_type not in ("Conv", "ConvTranspose", "Gemm") or not input_name(node, 2):
            return False
        pairs = [self.maker(node.input[slot]) for slot in (0, 1)]
        return any(p is not None and p.op_type == "DequantizeLinear" and p.input[1] == scale for p in pairs)

    def _bias_scale(self, node: onnx.NodeProto) -> NDArray[np.float64] | None:
        """Return the product of the scales of data and weight of a layer."""
        if node.op_type in _INTEGER_BIASES:
            scales = [self.array(node.input[slot]) for slot in (1, 4)]
        else:
            pairs = [self.maker(node.input[slot]) for slot in (0, 1)]
            are_pairs = all(pair is not None and pair.op_type == "DequantizeLinear" for pair in pairs)
            scales = [self.array(pair.input[1]) if pair and are_pairs else None for pair in pairs]
        if scales[0] is None or scales[1] is None or scales[0].size != 1:
            return None
        return np.asarray(scales[0], np.float64).reshape(()) * np.asarray(scales[1], np.float64).reshape(-1)

    def _bias_values(self, node: onnx.NodeProto) -> NDArray[np.float64] | None:
        """Return the real values of a stored bias; None if it is not stored in integers."""
        scale: NDArray[Any] | None
        if node.op_type in _INTEGER_BIASES:
            scale = self._bias_scale(node)
            stored = self.array(input_name(node, _INTEGER_BIASES[node.op_type]))
        else:
            pair = self.maker(node.input[2])
            if pair is None or pair.op_type != "DequantizeLinear":
                return None
            stored, scale = self.array(pair.input[0]), self.array(pair.input[1])
        if stored is None or scale is None:
            return None
        return np.asarray(stored, np.float64) * np.asarray(scale, np.float64)

    def _store_bias(self, node: onnx.NodeProto, values: NDArray[np.generic] | None) -> None:
        """Store the real values of a bias, in integers if the layer has them; None stores nothing."""
        if values is None:
            return
        scale = self._bias_scale(node)
        if node.op_type in _INTEGER_BIASES:
            if scale is not None:
                self.store(input_name(node, _INTEGER_BIASES[node.op_type]), to_int32(values, scale))
            return
        pair = self.maker(node.input[2])
        if pair is None:
            if input_name(node, 2) in self._tensors:
                self.store(node.input[2], np.asarray(values))
        elif pair.op_type == "DequantizeLinear":
            if scale is None:
                scale = np.asarray(self.array(pair.input[1]), np.float64)
            name = pair.input[1]
            if np.prod(self.shape(name)) == scale.size:
                self.store(name, scale.reshape(self.shape(name)))
            elif is_per_axis(scale):
                pair.input[1] = self.add(f"{name}/channels", scale.astype(np.float32))
                self._match_zero_point(pair, scale.size)
                self.set_axis(pair, 0)
            self.store(pair.input[0], to_int32(values, scale))

    def _match_zero_point(self, pair: onnx.NodeProto, count: int) -> None:
        if input_name(pair, 2):
            pair.input[2] = self.add(f"{pair.input[2]}/channels", np.zeros(count, np.int32))


def to_int32(values: NDArray[np.generic], scale: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the integers of a bias in units of its scale, within int32."""
    return np.clip(np.rint(np.asarray(values, np.float64) / scale), -(2**31), 2**31 - 1).astype(np.int64)
