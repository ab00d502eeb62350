"""Products in forms that ONNX Runtime has in integers: no factors of a Gemm, and MatMul for Einsum.

Tried on ONNX Runtime 1.31.1: it runs every Einsum in float, and a Gemm with alpha or beta other than 1.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import onnx_graphsurgeon as gs

from onnxfq.graph.constants import constant_array
from onnxfq.graph.edit import Editor
from onnxfq.graph.model import Model, list_graphs, list_nodes
from onnxfq.graph.ops import einsum_product, is_weighted

_FACTORS = {"alpha": 1, "beta": 2}
"""Factor of a Gemm -> the constant input that takes it."""


def write_products(model: Model) -> Model:
    """Return `model` with Einsums that are one MatMul written so, and factors of Gemms in their constants."""
    if not {"Einsum", "Gemm"} & {node.op_type for node in model.proto.graph.node}:
        return model
    graph, count = model.graph(), 0
    editor, folded = Editor(graph), set[str]()
    for scope in list_graphs(graph):
        for node in [node for node in scope.nodes if is_weighted(node)]:
            form = _read_form(str(node.attrs["equation"])) if node.op == "Einsum" else None
            if form is not None:
                _write_matmul(editor, scope, node, form)
                count += 1
            if node.op == "Gemm" and _fold_factors(editor, node):
                folded.add(node.name)
    written = model.with_graph(graph) if count or folded else model
    for gemm in [node for node in list_nodes(written.proto.graph) if node.name in folded]:
        kept = [one for one in gemm.attribute if one.name not in _FACTORS]
        gemm.ClearField("attribute")
        gemm.attribute.extend(kept)
    return written


def _fold_factors(editor: Editor, node: gs.Node) -> bool:
    """Multiply the constants of a Gemm with its factors; tell whether it needs none any more."""
    factors = [(slot, float(node.attrs.get(name, 1.0))) for name, slot in _FACTORS.items()]
    found = [(slot, factor) for slot, factor in factors if factor != 1.0 and slot < len(node.inputs)]
    if not found or not all(isinstance(node.inputs[slot], gs.Constant) for slot, _ in found):
        return False
    for slot, factor in found:
        values = constant_array(node.inputs[slot])
        scaled = np.multiply(values, np.asarray(factor, values.dtype), dtype=values.dtype)
        node.inputs[slot] = editor.constant(f"{node.inputs[slot].name}/times {factor:g}", scaled)
    return True


class _Form(NamedTuple):
    """Orders of the axes of both operands and of the result of a MatMul; None for the given one."""

    orders: tuple[list[int] | None, list[int] | None, list[int] | None]


def _read_form(equation: str) -> _Form | None:
    """Return how an Einsum is a MatMul; None if it needs more than Transposes around."""
    product = einsum_product(equation)
    if product is None or len(product.summed) != 1 or "." in equation:
        return None
    left, right = product.operands
    rows, columns = ([c for c in one if c not in other] for one, other in ((left, right), (right, left)))
    batch = [c for c in left if c in right and c in product.kept]
    if not rows or not columns or (len(rows) > 1 and (batch or len(columns) > 1)):
        return None
    if len(columns) > 1 and batch:
        return None
    first = [*batch, *rows, product.summed]
    second = [*batch, *columns[:-1], product.summed, columns[-1]]
    made = [*batch, *rows[:-1], *columns[:-1], rows[-1], columns[-1]]
    wanted = ((left, first), (right, second), (made, product.kept))
    orders = [[list(given).index(c) for c in order] for given, order in wanted]
    return _Form(tuple(None if one == sorted(one) else one for one in orders))  # type: ignore[arg-type]


def _write_matmul(editor: Editor, scope: gs.Graph, node: gs.Node, form: _Form) -> None:
    """Make a MatMul of `node`, with Transposes of its operands and of its result."""
    *operands, last = form.orders
    for slot, order in enumerate(operands):
        given = node.inputs[slot]
        if order is not None and isinstance(given, gs.Constant):
            node.inputs[slot] = editor.constant(
                f"{given.name}/turned", constant_array(given).transpose(order)
            )
        elif order is not None:
            turned = editor.variable(f"{given.name}/turned")
            turned.dtype = given.dtype
            turned.shape = None if given.shape is None else [given.shape[axis] for axis in order]
            turn = gs.Node("Transpose", f"{node.name}/turn{slot}", {"perm": order}, [given], [turned])
            scope.nodes.insert(_place(scope, node), turn)
            node.inputs[slot] = turned
    node.op, node.attrs = "MatMul", {}
    if last is not None:
        result = node.outputs[0]
        made = editor.variable(f"{result.name}/product")
        made.dtype = result.dtype
        turn = gs.Node("Transpose", f"{node.name}/turn", {"perm": last}, [made], [])
        node.outputs = [made]
        turn.outputs = [result]
        scope.nodes.insert(_place(scope, node) + 1, turn)


def _place(scope: gs.Graph, node: gs.Node) -> int:
    return next(at for at, one in enumerate(scope.nodes) if one is node)
