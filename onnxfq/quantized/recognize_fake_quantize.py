"""Recognition of fake quantization in plain arithmetic, as older training code exports it.

    x -> Div by s or Mul by 1/s -> [Add z] -> Round -> [Add z] -> [Clip] -> [Sub z] -> Mul by s

Such a chain becomes a `FakeQuantize` node. The Clip is before or after the Round, and the chain has one
scale. A Round without this chain is left unchanged.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from onnxfq.graph.constants import constant_array
from onnxfq.graph.edit import Editor, custom_node, import_domain
from onnxfq.graph.model import Model
from onnxfq.graph.normalize.opset import edit_model
from onnxfq.numerics.qtypes import QType, qtype_of_integers


def qtype_of_limits(low: float, high: float) -> QType | None:
    """Return the integer type of exactly these limits, or the narrowest one that holds them, limited."""
    if low != int(low) or high != int(high) or not low <= 0 <= high or low == high:
        return None
    found = qtype_of_integers(int(low), int(high))
    return found if found.has_kernel else None


def recognize_rounding(model: Model) -> Model:
    """Return `model` with each chain replaced by one node of the same results, saturated by its Clip."""
    return edit_model(model, _replace_chains)


def _replace_chains(graph: gs.Graph, opset: int) -> bool:
    editor = Editor(graph)
    chains = [chain for node in graph.nodes if node.op == "Round" for chain in [_chain(node)] if chain]
    for chain in chains:
        _replace(editor, graph, chain)
    if chains:
        import_domain(graph)
        graph.cleanup(remove_unused_graph_inputs=False).toposort()
    return bool(chains)


@dataclass(frozen=True)
class _Chain:
    source: gs.Tensor
    last: gs.Node
    scale: float
    zero_point: float
    qtype: QType
    arithmetic: str


def _chain(rounding: gs.Node) -> _Chain | None:
    limits, offset = None, 0.0
    node = _producer(rounding)
    if node is not None and node.op == "Clip":
        limits, node = _limits(node), _producer(node)
    if node is not None and node.op in ("Add", "Sub") and _scalar(node) is not None:
        offset, node = _read_signed(node), _producer(node)
    step = None if node is None or node.op not in ("Div", "Mul") else _scalar(node)
    if node is None or step is None or step <= 0:
        return None
    source = _data(node)
    scale = step if node.op == "Div" else float(np.float32(1) / np.float32(step))
    arithmetic = "divide" if node.op == "Div" else "reciprocal"
    after, back = _reader(rounding), 0.0
    if after is not None and after.op in ("Add", "Sub") and limits is None and offset == 0.0:
        value = _scalar(after)
        following = _reader(after)
        if value is not None and following is not None and following.op == "Clip":
            offset, after = _read_signed(after), following
    if after is not None and after.op == "Clip" and limits is None:
        limits, after = _limits(after), _reader(after)
    if after is not None and after.op in ("Add", "Sub") and _scalar(after) is not None:
        back, after = -_read_signed(after), _reader(after)
    if after is None or after.op != "Mul" or limits is None or back != offset:
        return None
    deployed = _scalar(after)
    if deployed is None or not np.isclose(deployed, scale, rtol=1e-6, atol=0.0):
        return None
    qtype = qtype_of_limits(*limits)
    if qtype is None or offset != int(offset) or not qtype.qmin <= offset <= qtype.qmax:
        return None
    return _Chain(source, after, deployed, offset, qtype, arithmetic)


def _replace(editor: Editor, graph: gs.Graph, chain: _Chain) -> None:
    name, made = chain.source.name, chain.last.outputs[0]
    scale = editor.constant(f"{name}/scale", np.asarray(chain.scale, np.float32))
    zero = editor.constant(f"{name}/zero_point", np.asarray(chain.zero_point, np.float32))
    chain.last.outputs.clear()
    attrs = {"qtype": str(chain.qtype), "arithmetic": chain.arithmetic}
    node = custom_node(
        "FakeQuantize", f"{name}/fq", attrs=attrs, inputs=[chain.source, scale, zero], outputs=[made]
    )
    editor.insert_after(chain.source, [node])


def _producer(node: gs.Node) -> gs.Node | None:
    data = _data(node)
    return data.inputs[0] if data is not None and len(data.inputs) == 1 else None


def _data(node: gs.Node) -> gs.Tensor | None:
    data = [t for t in node.inputs if isinstance(t, gs.Variable) and not t.is_empty()]
    return data[0] if len(data) == 1 else None


def _reader(node: gs.Node) -> gs.Node | None:
    readers = node.outputs[0].outputs
    return readers[0] if len(readers) == 1 else None


def _scalar(node: gs.Node) -> float | None:
    """Return the single constant that a node of two inputs combines with its data; None if there is none.

    The constant of a Div or Sub must be the second input.
    """
    if len(node.inputs) != 2 or not isinstance(node.inputs[1], gs.Constant):
        if node.op in ("Div", "Sub") or len(node.inputs) != 2 or not isinstance(node.inputs[0], gs.Constant):
            return None
    constant = next(t for t in node.inputs if isinstance(t, gs.Constant))
    values = np.asarray(constant_array(constant), np.float64)
    return float(values.reshape(())) if values.size == 1 else None


def _read_signed(node: gs.Node) -> float:
    value = _scalar(node)
    assert value is not None
    return -value if node.op == "Sub" else value


def _limits(node: gs.Node) -> tuple[float, float] | None:
    ends = node.inputs[1:3]
    if len(ends) != 2 or not all(isinstance(end, gs.Constant) for end in ends):
        return None
    low, high = (float(np.asarray(constant_array(end), np.float64).reshape(())) for end in ends)
    return low, high
