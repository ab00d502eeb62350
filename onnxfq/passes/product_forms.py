"""Products in forms that runtimes have in integers: no factors of a Gemm, and MatMul for Einsum.

ONNX Runtime 1.31.1 runs every Einsum in float, and a Gemm with alpha or beta other than 1. OpenVINO 2026.4.1
loses the name of an Einsum, and multiplies the result of a Gemm with a factor in float.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from string import ascii_letters
from typing import NamedTuple

import numpy as np
import onnx_graphsurgeon as gs

from onnxfq.graph.constants import constant_array
from onnxfq.graph.edit import Editor
from onnxfq.graph.model import Model, list_graphs, list_nodes
from onnxfq.graph.ops import MatrixProduct, einsum_product, is_weighted

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
            form = _read_form(node) if node.op == "Einsum" else None
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
    """Moves that make a MatMul of an Einsum.

    Attributes:
        slots: the input of the Einsum that each operand of the MatMul is.
        orders: of the axes of both operands, and of the result; None for the given one.
        shapes: what both operands become behind their order, and the result in front of its own; None for no
            change.
    """

    slots: tuple[int, int]
    orders: tuple[Sequence[int] | None, ...]
    shapes: tuple[Sequence[int] | None, ...] = (None, None, None)


def _read_form(node: gs.Node) -> _Form | None:
    """Return how an Einsum is a MatMul; None if it needs more than Transposes and Reshapes around."""
    product = einsum_product(_spell_out(str(node.attrs["equation"]), node.inputs))
    if product is None or "." in "".join(product.operands):
        return None
    return _read_turned(product) or _read_flat(product, node.inputs)


def _spell_out(equation: str, inputs: Sequence[gs.Tensor]) -> str:
    """Return an equation with letters for the axes of an ellipsis that one operand of known rank has."""
    terms = equation.replace(" ", "").partition("->")[0].split(",")
    found = [(term, given.shape) for term, given in zip(terms, inputs, strict=True) if "..." in term]
    if len(found) != 1 or found[0][1] is None or "->" not in equation:
        return equation
    ((term, shape),) = found
    free = [letter for letter in ascii_letters if letter not in equation]
    return equation.replace("...", "".join(free[: len(shape) - len(term) + 3]))


def _read_turned(product: MatrixProduct) -> _Form | None:
    """Return the form with Transposes alone."""
    left, right = product.operands
    rows, columns = ([c for c in one if c not in other] for one, other in ((left, right), (right, left)))
    batch = [c for c in left if c in right and c in product.kept]
    if len(product.summed) != 1 or not rows or not columns or (len(rows) > 1 and (batch or len(columns) > 1)):
        return None
    if len(columns) > 1 and batch:
        return None
    first = [*batch, *rows, product.summed]
    second = [*batch, *columns[:-1], product.summed, columns[-1]]
    made = [*batch, *rows[:-1], *columns[:-1], rows[-1], columns[-1]]
    return _Form((0, 1), (_order(left, first), _order(right, second), _order(made, product.kept)))


def _read_flat(product: MatrixProduct, inputs: Sequence[gs.Tensor]) -> _Form | None:
    """Return the form that makes a matrix of a constant that shares summed axes alone with the other side."""
    slot = next((at for at in (1, 0) if isinstance(inputs[at], gs.Constant)), None)
    if slot is None:
        return None
    stored, data = product.operands[slot], product.operands[1 - slot]
    rows, columns = [c for c in data if c not in stored], [c for c in stored if c not in data]
    if not rows or not columns or {*stored} - {*product.summed, *columns}:
        return None
    sizes = dict(zip(stored, inputs[slot].shape, strict=True))
    orders = (
        _order(data, [*rows, *product.summed]),
        _order(stored, [*product.summed, *columns]),
        _order([*rows, *columns], product.kept),
    )
    kept = [0] * len(rows)  # sizes that a Reshape copies
    shapes = (
        [*kept, -1] if len(product.summed) > 1 else None,
        [math.prod(sizes[c] for c in product.summed), math.prod(sizes[c] for c in columns)],
        [*kept, *(sizes[c] for c in columns)] if len(columns) > 1 else None,
    )
    return _Form((1 - slot, slot), orders, shapes)


def _order(given: Iterable[str], wanted: Iterable[str]) -> list[int] | None:
    order = [list(given).index(c) for c in wanted]
    return None if order == sorted(order) else order


def _write_matmul(editor: Editor, scope: gs.Graph, node: gs.Node, form: _Form) -> None:
    """Make a MatMul of `node`, with moves of its operands and of its result."""
    operands = []
    for at, slot in enumerate(form.slots):
        given, order, shape = node.inputs[slot], form.orders[at], form.shapes[at]
        if isinstance(given, gs.Constant) and (order, shape) != (None, None):
            values = constant_array(given)
            turned = values if order is None else values.transpose(order)
            made = turned if shape is None else turned.reshape(shape)
            given = editor.constant(f"{given.name}/turned", made)
        elif not isinstance(given, gs.Constant):
            for move in _list_moves(editor, f"{node.name}/turn{slot}", order, shape):
                scope.nodes.insert(_place(scope, node), move)
                moved = editor.variable(f"{given.name}/turned")
                moved.dtype = given.dtype
                if move.op == "Transpose" and given.shape is not None:
                    moved.shape = [given.shape[axis] for axis in move.attrs["perm"]]
                move.inputs, move.outputs, given = [given, *move.inputs], [moved], moved
        operands.append(given)
    node.op, node.attrs, node.inputs = "MatMul", {}, operands
    moves = _list_moves(editor, f"{node.name}/turn", form.orders[2], form.shapes[2], first=True)
    for move in reversed(moves):  # from the result to the product
        (result,) = node.outputs
        made = editor.variable(f"{result.name}/product")
        made.dtype = result.dtype
        node.outputs, move.inputs = [made], [made, *move.inputs]
        move.outputs = [result]
        scope.nodes.insert(_place(scope, node) + 1, move)


def _list_moves(
    editor: Editor, name: str, order: Sequence[int] | None, shape: Sequence[int] | None, first: bool = False
) -> list[gs.Node]:
    """Return a Transpose and a Reshape, the Reshape in front if it is `first`; neither without need."""
    moves = [] if order is None else [gs.Node("Transpose", name, {"perm": list(order)})]
    if shape is not None:
        sizes = editor.constant(f"{name}/shape", np.array(shape, np.int64))
        moves.insert(0 if first else len(moves), gs.Node("Reshape", f"{name}/reshape", {}, [sizes]))
    return moves


def _place(scope: gs.Graph, node: gs.Node) -> int:
    return next(at for at, one in enumerate(scope.nodes) if one is node)
