"""Keys behind their rotary embedding: GroupQueryAttention rotates inside, where nothing can be observed.

Source: the schemas of both operators, com.microsoft, in ONNX Runtime 1.32.
"""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from onnxfq.graph.edit import Editor
from onnxfq.graph.model import Model
from onnxfq.placement.caches import ATTENTION, PASTS
from onnxfq.targets.genai.matmul_nbits import DOMAIN

_ENDS, _COS, _SIN, _POSITIONS, _NORMS = 5, 7, 8, 9, 14
"""Inputs of GroupQueryAttention: last position, tables of angles, positions, norms inside."""

_ROTATED = "/rotated_outside"
"""End of the names of the nodes that `rotate_outside` makes."""

_PARTS = ("query", "key", "value")


def rotate_outside(model: Model) -> Model:
    """Return `model` with rotary embeddings in front of each GroupQueryAttention; itself without any.

    The attention then reads queries, keys and values as three tensors, and keys as its cache holds them. One
    with another form stays as it is.
    """
    if not any(node.op_type == ATTENTION for node in model.proto.graph.node):
        return model
    graph = model.graph()
    editor, positions, nodes = Editor(graph), dict[str, gs.Tensor](), list[gs.Node]()
    for node in graph.nodes:
        if node.op == ATTENTION and node.domain == DOMAIN:
            nodes += _rotate(editor, node, positions)
        nodes.append(node)
    graph.nodes = nodes
    return model.with_graph(graph)


def _rotate(editor: Editor, node: gs.Node, positions: dict[str, gs.Tensor]) -> list[gs.Node]:
    """Let `node` read rotated parts; return the nodes that compute them, none for another form."""
    heads = [int(node.attrs[name]) for name in ("num_heads", "kv_num_heads", "kv_num_heads")]
    rotates, joined = bool(node.attrs.get("do_rotary", 0)), node.inputs[1].is_empty()
    size = _last_axis(node.inputs[0]) // (sum(heads) if joined else heads[0])
    if not (rotates or joined) or not size or not all(one.is_empty() for one in node.inputs[_NORMS:]):
        return []
    parts, nodes = list(node.inputs[:3]), list[gs.Node]()
    if joined:
        packed, widths = parts[0], [count * size for count in heads]
        parts = [_make(editor, node, part, packed, width) for part, width in zip(_PARTS, widths, strict=True)]
        sizes = editor.constant(f"{node.name}/widths", np.array(widths, np.int64))
        inputs = [packed, sizes]
        nodes.append(gs.Node("Split", f"{node.name}/split{_ROTATED}", {"axis": 2}, inputs, list(parts)))
    if rotates:
        at, more = _positions(editor, node, positions)
        nodes += more
        for slot, part in enumerate(_PARTS[:2]):
            attrs = {
                "num_heads": heads[slot],
                "interleaved": int(node.attrs.get("rotary_interleaved", 0)),
                "rotary_embedding_dim": 2 * _last_axis(node.inputs[_COS]),
            }
            inputs = [parts[slot], at, node.inputs[_COS], node.inputs[_SIN]]
            parts[slot] = _make(editor, node, f"rotated_{part}", node.inputs[0], heads[slot] * size)
            name = f"{node.name}/{part}{_ROTATED}"
            nodes.append(gs.Node("RotaryEmbedding", name, attrs, inputs, [parts[slot]], domain=DOMAIN))
    node.inputs = [*parts, *node.inputs[3:]]
    node.attrs["do_rotary"] = 0
    node.name += _ROTATED  # under its own name it would keep its attributes
    return nodes


def _make(editor: Editor, node: gs.Node, part: str, like: gs.Tensor, width: int) -> gs.Variable:
    variable = editor.variable(f"{node.name}/{part}", node.inputs[PASTS[1]])
    variable.shape = [*(like.shape or [None] * 3)[:2], width]
    return variable


def _last_axis(tensor: gs.Tensor) -> int:
    """Return the size of the last axis, by the weight of a product if nothing declares it; 0 if unknown."""
    size = tensor.shape[-1] if tensor.shape else None
    if isinstance(size, int):
        return size
    maker = tensor.inputs[0] if tensor.inputs else None
    if maker is None or maker.op not in ("MatMul", "Add"):
        return 0
    return max(_last_axis(operand) for operand in maker.inputs[1 if maker.op == "MatMul" else 0 :])


def _positions(editor: Editor, node: gs.Node, known: dict[str, gs.Tensor]) -> tuple[gs.Tensor, list[gs.Node]]:
    """Return the positions [batch, tokens] of the new tokens, given or counted, and the nodes that count."""
    if not all(one.is_empty() for one in node.inputs[_POSITIONS : _POSITIONS + 1]):
        return node.inputs[_POSITIONS], []
    ends = node.inputs[_ENDS]
    if ends.name in known:
        return known[ends.name], []
    nodes: list[gs.Node] = []

    def number(name: str, value: int | list[int]) -> gs.Constant:
        return editor.constant(f"onnxfq/positions/{name}", np.array(value, np.int64))

    def compute(op: str, *inputs: gs.Tensor, **attrs: int) -> gs.Variable:
        result = editor.variable(f"onnxfq/positions/{op}")
        result.dtype = np.dtype(np.int64)
        nodes.append(gs.Node(op, result.name, attrs, list(inputs), [result]))
        return result

    zero, one = number("zero", 0), number("one", 1)
    count = compute("Gather", compute("Shape", node.inputs[0]), one)
    last = compute("Reshape", compute("Cast", ends, to=7), number("column", [-1, 1]))
    # Rows of a prompt that end earlier are padded on the right, and begin at 0 as well.
    first = compute("Max", compute("Sub", last, compute("Sub", count, one)), zero)
    known[ends.name] = compute("Add", first, compute("Range", zero, count, one))
    return known[ends.name], nodes


def rotate_inside(editor: Editor) -> None:
    """Undo `rotate_outside` in the graph of `editor`, in place."""
    for node in [node for node in editor.graph.nodes if node.op == ATTENTION]:
        makers = [tensor.inputs[0] if tensor.inputs else None for tensor in node.inputs[:2]]
        ops = {maker.op for maker in makers if maker is not None}
        if not node.name.endswith(_ROTATED) or "Sub" in ops:
            continue  # keys without their mean stay rotated outside
        if "RotaryEmbedding" in ops:
            node.inputs = [*(maker.inputs[0] for maker in makers if maker is not None), *node.inputs[2:]]
            node.attrs["do_rotary"] = 1
        split = node.inputs[0].inputs[0] if node.inputs[0].inputs else None
        if split is not None and split.name.endswith(_ROTATED):
            node.inputs = [split.inputs[0], gs.Variable.empty(), gs.Variable.empty(), *node.inputs[3:]]
        node.name = node.name.removesuffix(_ROTATED)
    editor.graph.cleanup(remove_unused_graph_inputs=False)
