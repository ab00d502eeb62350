"""The guard of masked attention moved behind its products, where it is in the way of no fused kernel.

torch's exporters write 0 for the NaN that a Softmax gives where every key is masked: Softmax, IsNaN, Where,
MatMul. TensorRT for RTX 1.7.1 fuses no attention with that between its products, and does with it behind.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx
from onnx import helper, numpy_helper

from onnxfq.graph.index import GraphIndex
from onnxfq.graph.io.external_tensors import is_stored
from onnxfq.graph.model import all_graphs, default_opset
from onnxfq.graph.names import Names
from onnxfq.graph.ops import STANDARD_DOMAINS

# Between the product of queries and keys and the mask: the scale.
_SCALES = ("Cast", "Div", "Identity", "Mul")
_STEPS = 4
_AXES_ARE_AN_INPUT = 18


@dataclass(frozen=True)
class _Guarded:
    """A masked attention. slot: where `add` reads the mask."""

    add: onnx.NodeProto
    slot: int
    nan: onnx.NodeProto
    where: onnx.NodeProto
    mix: onnx.NodeProto

    @property
    def mask(self) -> str:
        """Name of what is added to the scores."""
        return str(self.add.input[self.slot])


def move_guards(proto: onnx.ModelProto) -> str:
    """Let masked rows be found in the mask, not by NaN, in place; return what was done.

    proto: at opset 13 or above, names unique. Rows of the mask that are minus infinity throughout are added
    as 0, and what comes of them is replaced by 0 behind the second product: the same numbers to the bit.
    """
    index = GraphIndex.of_model(proto)
    constants, taken = index.constants, index.names
    moved = 0
    for graph in all_graphs(proto.graph):
        found = _guarded(graph, constants)
        for one in found:
            _move(one, graph, proto, taken)
        moved += len(found)
    return (
        f"{moved} guard(s) against masked rows moved behind their attention, so that it can be fused"
        if moved
        else ""
    )


def _guarded(graph: onnx.GraphProto, constants: dict[str, onnx.TensorProto]) -> list[_Guarded]:
    """Return every guarded attention of `graph` itself."""
    index = GraphIndex(graph)
    makers, readers = index.makers, index.readers
    kept = index.outputs | index.captured
    found = []
    for where in graph.node:
        nan = _made_by(makers, where, 0, "IsNaN") if where.op_type == "Where" else None
        soft = None if nan is None else _made_by(makers, nan, 0, "Softmax")
        add = None if soft is None else _made_by(makers, soft, 0, "Add")
        if nan is None or soft is None or add is None or where.input[2] != soft.output[0]:
            continue
        inner = (add.output[0], soft.output[0], nan.output[0], where.output[0])
        mixes = readers.get(where.output[0], [])
        slot = _mask_slot(add, makers)
        alone = len(readers[add.output[0]]) == len(readers[nan.output[0]]) == len(mixes) == 1
        if not alone or len(readers[soft.output[0]]) != 2 or kept.intersection(inner) or slot is None:
            continue
        mix = mixes[0]
        if (
            mix.op_type == "MatMul"
            and mix.input[0] == where.output[0]
            and _is_zero(constants.get(where.input[1]))
        ):
            found.append(_Guarded(add, slot, nan, where, mix))
    return found


def _made_by(
    makers: dict[str, onnx.NodeProto], node: onnx.NodeProto, slot: int, op: str
) -> onnx.NodeProto | None:
    maker = makers.get(node.input[slot])
    return maker if maker is not None and maker.op_type == op and maker.domain in STANDARD_DOMAINS else None


def _mask_slot(add: onnx.NodeProto, makers: dict[str, onnx.NodeProto]) -> int | None:
    """Return the input of `add` that is not the scores; None where it cannot be told which that is."""
    scores = [slot for slot in (0, 1) if _is_product(makers.get(add.input[slot]), makers, _STEPS)]
    return 1 - scores[0] if len(scores) == 1 else None


def _is_product(node: onnx.NodeProto | None, makers: dict[str, onnx.NodeProto], steps: int) -> bool:
    if node is None or not steps:
        return False
    if node.op_type == "MatMul":
        return True
    return node.op_type in _SCALES and any(
        _is_product(makers.get(name), makers, steps - 1) for name in node.input
    )


def _is_zero(tensor: onnx.TensorProto | None) -> bool:
    if tensor is None or is_stored(tensor) or any(size != 1 for size in tensor.dims):
        return False
    return not np.any(numpy_helper.to_array(tensor))


def _move(one: _Guarded, graph: onnx.GraphProto, proto: onnx.ModelProto, taken: Names) -> None:
    """Take the guard out of `graph`, and put it behind the second product."""

    def free(what: str) -> str:
        return taken.claim(f"{one.mask}/{what}")

    zero, output = one.where.input[1], one.mix.output[0]
    kind = next(t.data_type for t in proto.graph.initializer if t.name == zero)
    never, axis = free("never"), free("axis")
    proto.graph.initializer.append(helper.make_tensor(never, kind, [], [-np.inf]))
    most, masked, shown = (helper.make_node(op, [], [free(what)]) for op, what in _BEFORE)
    most.input.append(one.mask)
    if default_opset(proto) >= _AXES_ARE_AN_INPUT:
        proto.graph.initializer.append(numpy_helper.from_array(np.array([-1]), axis))
        most.input.append(axis)
    else:
        most.attribute.append(helper.make_attribute("axes", [-1]))
    masked.input.extend([most.output[0], never])
    shown.input.extend([masked.output[0], zero, one.mask])
    mixed = free("mix")
    guard = helper.make_node("Where", [masked.output[0], zero, mixed], [output])
    for node in (most, masked, shown):
        node.name = node.output[0]
    guard.name = free("guard")

    nodes = []
    for node in graph.node:
        if node.name in (one.nan.name, one.where.name):
            continue
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        if node.name == one.add.name:
            copy.input[one.slot] = shown.output[0]
            nodes += [most, masked, shown]
        nodes.append(copy)
        if node.name == one.mix.name:
            copy.input[0], copy.output[0] = one.where.input[2], mixed
            nodes.append(guard)
    del graph.node[:]
    graph.node.extend(nodes)


_BEFORE = (("ReduceMax", "most"), ("Equal", "masked"), ("Where", "shown"))
