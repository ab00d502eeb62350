"""`SourceGraph`: a quantized model with the constants, and the pairs, that its float form is made of."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import onnx
from numpy.typing import ArrayLike, NDArray
from onnx import numpy_helper

from onnxfq.graph.bounds import UNKNOWN, Bounds
from onnxfq.graph.constants import make_tensor
from onnxfq.graph.external.tensor import tensor_array
from onnxfq.graph.index import GraphIndex
from onnxfq.graph.model import bodies, default_opset, list_graphs
from onnxfq.graph.normalize.shapes import with_shapes
from onnxfq.graph.normalize.steps import evaluate_node
from onnxfq.graph.ops import FAKE_QUANTIZE_OPS, QUANTIZED_OPS, STANDARD_DOMAINS
from onnxfq.numerics.qtypes import QTYPES
from onnxfq.quantized.number_grids import joined_slots
from onnxfq.quantized.rounding import ROUNDING
from onnxfq.support.records import join_lines

log = logging.getLogger(__name__)

# ONNX types of quantized numbers.
_NUMBERS = frozenset(one.onnx_type for one in QTYPES.values() if one.onnx_type)


@dataclass(frozen=True)
class Pair:
    """A quantizer whose numbers a DequantizeLinear reads over Clips at most, or a FakeQuantize.

    Attributes:
        quantizer: the node that rounds.
        ends: the integers that a Clip between both leaves.
    """

    quantizer: onnx.NodeProto
    ends: Bounds = UNKNOWN


class SourceGraph:
    """A copy of a normalised model that is read, and grows by constants.

    Attributes:
        real: tensor -> its float tensor, if it differs or the model has quantized numbers there.
        pairs: those that are read as a whole, by the output of the last node.
        absorbed: tensors inside of pairs that nothing else reads.
        folded: tensors of quantized numbers that depend on constants alone.
        passed: float tensors that were computed from constants, for a quantizer.
    """

    def __init__(
        self, proto: onnx.ModelProto, source: str, *, enters_bodies: bool, keeps_names: bool
    ) -> None:
        """Copy a normalised model.

        Args:
            proto: the model.
            source: its name in messages.
            enters_bodies: whether bodies are read too.
            keeps_names: whether all pairs are read as a whole.
        """
        self.source, self.keeps_names, self.opset = source, keeps_names, default_opset(proto)
        self.proto = onnx.ModelProto()
        self.proto.CopyFrom(proto)
        self.graph = self.proto.graph
        self.index = GraphIndex(*(list_graphs(self.graph) if enters_bodies else [self.graph]))
        self.constants, self.outputs = dict(self.index.stored), self.index.outputs
        self.names = self.index.names
        self.real: dict[str, str] = {}
        self.pairs: dict[str, Pair] = {}
        self.absorbed, self.folded, self.passed = set[str](), set[str](), set[str]()

    @cached_property
    def shapes(self) -> GraphIndex:
        """The source with inferred types and shapes."""
        return GraphIndex.of_model(with_shapes(self.proto))

    def name(self, tensor: str) -> str:
        """Return the float tensor that replaces `tensor` of the source."""
        return self.real.get(tensor, tensor)

    def array(self, name: str) -> NDArray[Any] | None:
        """Return the values of a constant; None for a computed or absent tensor."""
        tensor = self.constants.get(name)
        return None if tensor is None else tensor_array(tensor)

    def constant(self, name: str, values: ArrayLike, kind: Any = np.float32) -> str:
        """Add a constant of float type `kind` and return its name, `name` if no constant has it."""
        free = name if name not in self.constants else self.names.claim(name)
        self.names.add(free)
        self.graph.initializer.append(make_tensor(free, np.asarray(values, kind)))
        self.constants[free] = self.graph.initializer[-1]
        return free

    def value(self, name: str) -> NDArray[Any] | None:
        """Return the values of a tensor that depends on constants alone; None for another."""
        values = self.array(self.name(name))
        if values is not None or name not in self._fixed:
            return values
        node = self.index.makers[name]
        given = {one: self.value(one) for one in node.input if one}
        if any(values is None for values in given.values()):
            return None
        self.passed.add(name)
        if node.op_type in ROUNDING:
            return ROUNDING[node.op_type](node, [given.get(one) for one in node.input])
        if node.op_type in QUANTIZED_OPS or node.domain not in STANDARD_DOMAINS:
            return None
        try:
            return evaluate_node(node, given, self.proto)[0]
        except Exception as fault:  # an operator that ONNX's reference lacks, or any NumPy error
            log.debug("%s is not evaluated: %s", name, join_lines(fault))
            return None

    @cached_property
    def _fixed(self) -> set[str]:
        """The tensors that depend on constants alone."""
        fixed = set(self.constants)
        for node in self.index.nodes:
            if node.input and not bodies(node) and fixed.issuperset(filter(None, node.input)):
                fixed.update(node.output[:1])
        return fixed

    def fold(self, node: onnx.NodeProto) -> bool:
        """Compute a node that quantizes a constant, or moves its numbers, at once; tell whether it did."""
        if node.op_type == "DynamicQuantizeLinear":  # its numbers stand for x in units of 1
            for name, value in zip(node.output[1:], (1.0, 0.0), strict=False):
                self.real[name] = self.constant(f"{name}/unit", value)
        if node.op_type == "QuantizeLinear" and (self.keeps_names or node.input[0] in self.constants):
            numbers = self.value(node.output[0])
            outputs = [] if numbers is None else [numbers]
            self.passed -= {*node.output}
        elif any(name and name not in self.constants for name in node.input):
            return False
        elif joined_slots(node)[1] and any(
            self.constants[node.input[slot]].data_type in _NUMBERS for slot in joined_slots(node)[0]
        ):
            given = {name: self.array(name) for name in node.input if name}
            outputs = evaluate_node(node, given, self.proto)
        else:
            return False
        for name, values in zip(filter(None, node.output), outputs, strict=bool(outputs)):
            self.constants[name] = numpy_helper.from_array(values, name)
            self.folded.add(name)
        return bool(outputs)

    def find_pairs(self, nodes: Iterable[onnx.NodeProto]) -> None:
        """Find the pairs that are read as a whole, and the tensors inside that nothing else reads."""
        nodes, inside = list(nodes), set[str]()
        for node in nodes:
            if node.op_type in FAKE_QUANTIZE_OPS:
                self.pairs[node.output[0]] = Pair(node)
            elif node.op_type == "DequantizeLinear" and node.input[0] not in self.constants:
                pair, links = self._find_quantizer(node)
                if pair is not None and (self.keeps_names or self._is_special(node, pair.quantizer)):
                    self.pairs[node.output[0]] = pair
                    inside |= links
        within = set(self.pairs)
        for node in reversed(nodes):
            for name in inside.intersection(node.output) - self.outputs:
                readers = self.index.readers.get(name, [])
                if within.issuperset(made for reader in readers for made in reader.output[:1]):
                    self.absorbed.add(name)
                    within.add(name)

    def _is_special(self, *nodes: onnx.NodeProto) -> bool:
        """Tell whether a pair has several scales, or computes one."""
        scales = [self.array(name) for node in nodes for name in node.input[1:3] if name]
        return any(values is None or values.size > 1 for values in scales)

    def _find_quantizer(self, node: onnx.NodeProto) -> tuple[Pair | None, set[str]]:
        """Return the QuantizeLinear that a DequantizeLinear reads, over Clips alone, and what is between."""
        low, high = UNKNOWN
        maker, links = self.index.makers.get(node.input[0]), {node.input[0]}
        while maker is not None and maker.op_type == "Clip":
            ends = [self.value(name) if name else None for name in [*maker.input[1:], "", ""][:2]]
            if any(name and end is None for name, end in zip(maker.input[1:], ends, strict=False)):
                return None, set()
            low = low if ends[0] is None else max(low, float(ends[0].reshape(())))
            high = high if ends[1] is None else min(high, float(ends[1].reshape(())))
            links.add(maker.input[0])
            maker = self.index.makers.get(maker.input[0])
        is_pair = maker is not None and maker.op_type == "QuantizeLinear"
        return (Pair(maker, (low, high)), links) if is_pair and maker is not None else (None, set())
