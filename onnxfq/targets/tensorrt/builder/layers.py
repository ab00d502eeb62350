"""Layers of a TensorRT engine and their types, from the builder's log."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from onnxfq.targets.findings import Verdict

_LOW = frozenset({"Int8", "UInt8", "FP8", "Int4", "FP4", "FP4E2M1"})
_BITS = {
    **dict.fromkeys(("Int8", "UInt8", "FP8", "E8M0", "Bool"), 8),
    **dict.fromkeys(("Int4", "FP4", "FP4E2M1"), 4),
    **dict.fromkeys(("Half", "BFloat16"), 16),
    "Int64": 64,
}
# Kinds that move data or signal; they compute no part of a node.
_GLUE = frozenset({"signal", "wait", "kernel_marker", "shape_call", "memset", "copy", "jmp", "cjmp"})
# Kinds that multiply only if no other layer does; a runtime function pads a weight of odd size.
_HELPERS = ("kgen", "runtime_function")
_LATE_GEMM = "runtime_fusion"
_TENSOR = re.compile(r"\{ (.*?) \}")
_NODE = "[ONNX Layer: "


@dataclass(frozen=True)
class EngineOperand:
    """Tensor of a layer.

    Attributes:
        count: number of elements; None if it is open.
        dtype: type in the log.
        least: number of elements with one for each open size.
    """

    count: int | None
    dtype: str
    least: int = 1

    @property
    def is_data(self) -> bool:
        """Tell whether it is more than one number, so not a scale."""
        return self.count is None or self.count > 1

    @property
    def bytes(self) -> int:
        """Its size, with one for each open size."""
        return -(-self.least * _BITS.get(self.dtype, 32) // 8)

    @property
    def is_low(self) -> bool:
        """Tell whether it has 8 bits or fewer."""
        return self.dtype in _LOW


@dataclass(frozen=True)
class EngineLayer:
    """One layer of an engine.

    Attributes:
        nodes: names of the ONNX nodes that it computes, wholly or in part.
        added: inputs that it adds to its sums, where the listing tells them from the others.
    """

    name: str
    kind: str
    inputs: tuple[EngineOperand, ...]
    constants: tuple[EngineOperand, ...]
    outputs: tuple[EngineOperand, ...]
    nodes: tuple[str, ...]
    added: tuple[EngineOperand, ...] = ()

    @property
    def is_kernel(self) -> bool:
        """Tell whether it computes or moves data; others signal, wait, or count a size on the host."""
        counts = all(tensor.dtype == "Int64" and tensor.count == 1 for tensor in self.outputs)
        return self.kind not in _GLUE and not (counts and self.outputs and not self.nodes)

    @property
    def is_attention(self) -> bool:
        """Tell whether it is a whole attention in one kernel."""
        return "_gemm_mha" in self.name or "_gemv_mha" in self.name  # the latter for one query


def parse_layers(text: str) -> tuple[EngineLayer, ...]:
    """Return the layers of the message that begins with `LAYERS`, one per line."""
    layers = []
    for line in text.splitlines()[1:]:
        found = re.match(r"Name: (.*?), LayerType: ([^,]+)", line)
        if found is None:
            break
        nodes = node_names(line)
        inputs, constants, outputs = (_operands(line, name) for name in ("Inputs", "Constants", "Outputs"))
        layers.append(EngineLayer(found[1], found[2], inputs, constants, outputs, nodes))
    return tuple(layers)


def node_names(text: str) -> tuple[str, ...]:
    """Return the ONNX nodes that a listing names, each once; of `node | branch (if)` in a body the node."""
    ends = [part.partition("]") for part in text.split(_NODE)[1:]]
    return tuple(dict.fromkeys(name.split(" | ")[0] for name, closed, _ in ends if closed))


def verdict(layers: Sequence[EngineLayer], node: str, is_sum: bool = False) -> Verdict:
    """Return the precision of `node` in the engine of `layers`; of a residual sum, of its skip branch."""
    if is_sum:
        return _judge_sum([one for one in layers if node in one.nodes and one.is_kernel])
    layer = _find_layer(layers, node)
    if layer is None:
        return "missing"
    inputs = [operand for operand in layer.inputs if operand.is_data]
    constants = [operand for operand in layer.constants if operand.is_data]
    low = [operand for operand in inputs if operand.is_low]
    low_constants = [operand for operand in constants if operand.is_low]
    # A fourth operand is the mask. Queries that a network has learned are constant.
    if layer.is_attention and low and len(low) + len(low_constants) >= 3:
        return "low"
    if inputs and len(low) == len(inputs) and (len(inputs) > 1 or low_constants):
        return "low" if layer.kind != _LATE_GEMM else "mixed"
    if low_constants:
        return "weight-only"
    return "mixed" if low else "float"


def _judge_sum(layers: Sequence[EngineLayer]) -> Verdict:
    """Return "low" if a layer of a sum reads its skip branch in 8 bits; a product reads its own input too."""
    for layer in layers:
        low = [operand.is_low for operand in layer.added or layer.inputs if operand.is_data]
        if any(low) and (all(low) or layer.kind in _HELPERS):
            return "low"
    return "float" if layers else "missing"


def _find_layer(layers: Sequence[EngineLayer], node: str) -> EngineLayer | None:
    """Return the layer that multiplies for `node`; library kernels go before generated ones."""
    own = [layer for layer in layers if node in layer.nodes and layer.is_kernel]
    ranked = sorted(own, key=lambda layer: (layer.kind in _HELPERS, "_gemm" not in layer.name))
    return ranked[0] if ranked else None


def _operands(line: str, field: str) -> tuple[EngineOperand, ...]:
    found = re.search(
        field + r": \[(.*?)\](?:, (?:Constants|Outputs|TacticName|ParameterType|StreamId)|$)", line
    )
    operands = []
    for text in _TENSOR.findall(found[1]) if found else ():
        dtype, dims = re.search(r"Datatype: (\w+)", text), re.search(r"Dimensions: \[([^\]]*)\]", text)
        if dtype is not None:
            sizes = [size for size in (dims[1] if dims else "").split(",") if size.strip()]
            known = [int(size) for size in sizes if size.strip().isdecimal()]
            count = prod(known) if len(known) == len(sizes) else None
            operands.append(EngineOperand(count, dtype[1], prod(known)))
    return tuple(operands)
