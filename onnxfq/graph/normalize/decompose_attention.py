"""Decomposition of ONNX Attention into its matrix products, so that they can be quantized."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import onnx
from onnx import TensorProto, helper

from onnxfq.graph.index import GraphIndex, Shape
from onnxfq.graph.model import list_graphs, replace_nodes
from onnxfq.graph.names import Names
from onnxfq.graph.node_fields import attributes_of, input_name
from onnxfq.graph.ops import STANDARD_DOMAINS
from onnxfq.numerics.float_types import FLOAT_CODES
from onnxfq.support.attempts import attempt

# Permutations: [batch, positions, heads, size] to [batch, heads, positions, size] and back; keys transposed.
_SWAPPED = (0, 2, 1, 3)
_TURNED = (0, 1, 3, 2)

_FLOATS = FLOAT_CODES | {TensorProto.DOUBLE}

# Attributes that keep an Attention whole, and their neutral values.
_PLAIN = {"left_window_size": -1, "right_window_size": -1}


@dataclass(frozen=True)
class _Attention:
    """An Attention that can be decomposed.

    Attributes:
        node: the node itself.
        dtype: element type of queries, keys, values and output.
        merged_heads: whether the operands are [batch, positions, heads * size].
        heads: number of heads of the queries.
        shared: number of query heads for each head of keys and values.
        head: size of a head of queries and keys.
        value_head: size of a head of values.
        scale: factor of the scores.
        softcap: limit of the scores, 0 for none.
        masked: element type of the mask, 0 for none.
        causal: whether a query sees no later keys.
    """

    node: onnx.NodeProto
    dtype: int
    merged_heads: bool
    heads: int
    shared: int
    head: int
    value_head: int
    scale: float
    softcap: float
    masked: int
    causal: bool

    def input(self, slot: int) -> str:
        """Return the name of an input; empty if there is none."""
        return input_name(self.node, slot)


@dataclass
class Parts:
    """New nodes and constants, with names that start with `name` and are not in `taken`."""

    name: str
    taken: Names
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)

    def add(self, what: str, op: str, inputs: Sequence[str], output: str = "", **attributes: Any) -> str:
        """Append a node that makes `what` and has its name; return its output, `output` if given."""
        name = self.free(what)
        self.nodes.append(helper.make_node(op, inputs, [output or name], name=name, **attributes))
        return output or name

    def constant(self, what: str, values: Sequence[float], dtype: int = TensorProto.INT64) -> str:
        """Append a constant, one number of rank 0 or several of rank 1; return its name."""
        name = self.free(what)
        shape = [] if len(values) == 1 and dtype != TensorProto.INT64 else [len(values)]
        self.constants.append(helper.make_tensor(name, dtype, shape, values))
        return name

    def free(self, what: str) -> str:
        """Return an unused name for `what` and mark it as taken."""
        return self.taken.claim(f"{self.name}/{what}")


def write_out_attention(proto: onnx.ModelProto) -> str:
    """Replace each Attention of ai.onnx, in place, by MatMul, Softmax, MatMul; return a note.

    `proto` has shapes and unique names. The result follows the definition of Attention-23 and -24, except
    that the scale multiplies the queries instead of its root multiplying both sides. An Attention is left
    to `write_out_functions` if it has a window, lengths of keys, its scores as an output, a Softmax of
    another type, or open sizes that are needed. With dequantized operands it stays whole.
    """
    index = GraphIndex.of_model(proto)
    dequantized = {name for name, node in index.makers.items() if node.op_type == "DequantizeLinear"}
    taken = index.names
    count = 0
    for graph in list_graphs(proto.graph):
        nodes: list[onnx.NodeProto] = []
        before = count
        for node in graph.node:
            known = node.op_type == "Attention" and node.domain in STANDARD_DOMAINS
            known = known and dequantized.isdisjoint(node.input[:3])
            what = f"writing out Attention {node.name!r}"
            parts = attempt(what, partial(_write_out, node, index, taken), lambda: None) if known else None
            if parts is None:
                nodes.append(node)
                continue
            nodes += parts.nodes
            proto.graph.initializer.extend(parts.constants)
            count += 1
        if count > before:
            replace_nodes(graph, nodes)
    return f"{count} Attention written as MatMul, Softmax, MatMul, to have both quantized" if count else ""


def _write_out(node: onnx.NodeProto, index: GraphIndex, taken: Names) -> Parts | None:
    """Return the nodes and constants that compute `node`; None if it must stay whole."""
    parts, found = Parts(node.name, taken), _read(node, index)
    if found is None:
        return None
    _write(found, parts)
    return parts


def _read(node: onnx.NodeProto, index: GraphIndex) -> _Attention | None:
    """Return the parsed node; None if it is not an Attention or must stay whole."""
    given = attributes_of(node)
    operands = [shape for name in node.input[:3] if (shape := index.shape(name)) is not None]
    if len(operands) < 3 or input_name(node, 6) or any(node.output[3:]):
        return None
    if any(given.get(name, plain) != plain for name, plain in _PLAIN.items()):
        return None
    dtype = index.types[node.input[0]]
    if dtype not in _FLOATS or given.get("softmax_precision", dtype) != dtype:
        return None
    sizes = _sizes(operands, given)
    mask = _mask(input_name(node, 3), operands[1], index, past=bool(input_name(node, 4)))
    if sizes is None or mask is None:
        return None
    return _Attention(
        node,
        dtype,
        len(operands[0]) == 3,
        *sizes,
        scale=given.get("scale", 1 / math.sqrt(sizes[2])),
        softcap=given.get("softcap", 0.0),
        masked=mask,
        causal=bool(given.get("is_causal", 0)),
    )


def _sizes(operands: Sequence[Shape], given: Mapping[str, Any]) -> tuple[int, int, int, int] | None:
    """Return (query heads, query heads for each key head, size of a head, size of a value head); or None."""
    ranks = set(map(len, operands))
    if ranks == {4}:
        heads, *others = (shape[1] for shape in operands)
        sizes = [shape[3] for shape in operands]
    elif ranks == {3}:
        heads, *others = given["q_num_heads"], given["kv_num_heads"], given["kv_num_heads"]
        counts = (heads, *others)
        sizes = [s if s is None else s // n for n, (_, _, s) in zip(counts, operands, strict=True)]
    else:
        return None
    head, _, value_head = sizes
    shared = others[0]
    if heads is None or head is None or value_head is None or shared is None or shared != others[1]:
        return None
    return None if heads % shared else (heads, heads // shared, head, value_head)


def _mask(name: str, keys: Shape, index: GraphIndex, *, past: bool) -> int | None:
    """Return the type of the mask, 0 for no mask; None unless its length is known to match the keys.

    Attention pads a shorter mask; Add would refuse or repeat it.
    """
    if not name:
        return 0
    shape = index.shape(name)
    if not shape:
        return None
    length, known = shape[-1], None if past else keys[-2]
    if length == 1 != known or (known is not None and length is not None and length != known):
        return None
    return index.types[name]


def _write(attention: _Attention, parts: Parts) -> None:
    """Append the nodes that compute `attention`."""
    q, k, v = (_split(attention, parts, slot) for slot in range(3))
    k, v = (_with_past(attention, parts, now, slot) for now, slot in ((k, 1), (v, 2)))
    bias = _bias(attention, parts, q, k)
    k, v = (_repeat_heads(attention, parts, one, slot) for one, slot in ((k, 1), (v, 2)))
    if attention.scale != 1:
        scale = parts.constant("scale", [attention.scale], attention.dtype)
        q = parts.add("scaled", "Mul", [q, scale])
    turned = parts.add("keys_turned", "Transpose", [k], perm=_TURNED)
    scores = parts.add("scores", "MatMul", [q, turned])
    if attention.softcap > 0:
        cap = parts.constant("softcap", [attention.softcap], attention.dtype)
        bent = parts.add("bent", "Tanh", [parts.add("capped", "Div", [scores, cap])])
        scores = parts.add("capped_scores", "Mul", [bent, cap])
    if bias:
        scores = parts.add("masked_scores", "Add", [scores, bias])
    weights = parts.add("weights", "Softmax", [scores], axis=-1)
    if attention.masked:  # NaN in a row that sees no key; 0 by definition, and in torch's exports
        nothing = parts.add("sees_nothing", "IsNaN", [weights])
        zero = parts.constant("zero", [0.0], attention.dtype)
        weights = parts.add("seen_weights", "Where", [nothing, zero, weights])
    output = attention.node.output[0]
    if not attention.merged_heads:
        parts.add("mix", "MatMul", [weights, v], output)
        return
    mixed = parts.add("mix", "MatMul", [weights, v])
    swapped = parts.add("mix_swapped", "Transpose", [mixed], perm=_SWAPPED)
    whole = parts.constant("mix_shape", [0, 0, attention.heads * attention.value_head])
    parts.add("mix_merged", "Reshape", [swapped, whole], output)


_OPERANDS = ("queries", "keys", "values")


def _split(attention: _Attention, parts: Parts, slot: int) -> str:
    """Return operand `slot` as [batch, heads, positions, size]."""
    given, what = attention.input(slot), _OPERANDS[slot]
    if not attention.merged_heads:
        return given
    heads = attention.heads if slot == 0 else attention.heads // attention.shared
    shape = parts.constant(
        f"{what}_shape", [0, 0, heads, attention.value_head if slot == 2 else attention.head]
    )
    apart = parts.add(f"{what}_apart", "Reshape", [given, shape])
    return parts.add(what, "Transpose", [apart], perm=_SWAPPED)


def _with_past(attention: _Attention, parts: Parts, now: str, slot: int) -> str:
    """Append keys or values to the past ones; the result is also an output if requested."""
    past, output = attention.input(slot + 3), [*attention.node.output, "", ""][slot]
    what = f"all_{_OPERANDS[slot]}"
    if past:
        return parts.add(what, "Concat", [past, now], output, axis=2)
    return parts.add(what, "Identity", [now], output) if output else now


def _repeat_heads(attention: _Attention, parts: Parts, given: str, slot: int) -> str:
    """Return keys or values with one head for each query head."""
    if attention.shared == 1:
        return given
    what, size = _OPERANDS[slot], attention.value_head if slot == 2 else attention.head
    axis = parts.constant(f"{what}_axis", [2])
    single = parts.add(f"{what}_single", "Unsqueeze", [given, axis])
    times = parts.constant(f"{what}_times", [1, 1, attention.shared, 1, 1])
    several = parts.add(f"{what}_several", "Expand", [single, times])
    shape = parts.constant(f"{what}_repeated_shape", [0, attention.heads, -1, size])
    return parts.add(f"{what}_repeated", "Reshape", [several, shape])


def _bias(attention: _Attention, parts: Parts, queries: str, keys: str) -> str:
    """Return the addend of the scores, minus infinity for hidden keys; empty if there is none."""
    mask = attention.input(3)
    if attention.masked == TensorProto.BOOL:
        zero, never = (
            parts.constant(what, [value], attention.dtype)
            for what, value in (("look", 0.0), ("never", -math.inf))
        )
        mask = parts.add("mask", "Where", [mask, zero, never])
    elif attention.masked not in (0, attention.dtype):
        mask = parts.add("mask", "Cast", [mask], to=attention.dtype)
    if not attention.causal:
        return mask
    causal = _causal(attention, parts, queries, keys)
    return parts.add("bias", "Add", [mask, causal]) if mask else causal


def _causal(attention: _Attention, parts: Parts, queries: str, keys: str) -> str:
    """Return [queries, keys] with minus infinity right of the diagonal, which starts after the past keys."""
    lengths = [
        parts.add(f"{what}_length", "Shape", [x], start=2, end=3)
        for what, x in (("query", queries), ("key", keys))
    ]
    square = parts.add("score_shape", "Concat", lengths, axis=0)
    never = helper.make_tensor("", TensorProto.FLOAT, [1], [-math.inf])
    everywhere = parts.add("never_anywhere", "ConstantOfShape", [square], value=never)
    first = parts.constant("first_later", [1])
    if attention.input(4):
        past = parts.add("past_length", "Shape", [attention.input(4)], start=2, end=3)
        first = parts.add("first_later_key", "Add", [first, past])
    later = parts.add("later", "Trilu", [everywhere, first], upper=1)
    if attention.dtype == TensorProto.FLOAT:
        return later
    return parts.add("causal", "Cast", [later], to=attention.dtype)
