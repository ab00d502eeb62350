"""A product that is split into heads, written as a product for each part, so that TensorRT keeps its weight.

TensorRT divides such a product itself: it moves the Split, and the Reshape behind each part, up into the
weight. Of a weight behind DequantizeLinear that leaves a float one, and the product runs in float, or mixed
where its input has 8 bits. Divided here each part has its own integers and scales, and all of it stays low;
the numbers are the same, for an output channel has a scale and a sum of its own. Tried on TensorRT for RTX
1.7.1 with int8 and float8, with and without quantized activations, with 32 to 256 channels. int4 in blocks,
a product with a part that is not reshaped, and one with a pair behind it stay low as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import onnx_graphsurgeon as gs
from onnx import TensorProto

from onnxfq.graph.constant_integers import Numbers, known_numbers
from onnxfq.graph.constants import constant_array, make_constant
from onnxfq.graph.edit import Editor
from onnxfq.graph.model import all_graphs
from onnxfq.graph.patterns.projections import only_readers

_TYPES = frozenset({np.dtype(np.int8), TensorProto.INT8, TensorProto.FLOAT8E4M3FN})


@dataclass(frozen=True, eq=False)
class _Divisible:
    """A product of one weight, what follows it up to where it is split, and the parts.

    weight: the DequantizeLinear. turn: the Transpose behind it. axis: of the weight, that of its channels.
    then: what follows the product, the last of it gives what is split. splits: the nodes that split it.
    parts: (first channel, first one beyond, tensor) of each.
    """

    product: gs.Node
    weight: gs.Node
    turn: gs.Node | None
    axis: int
    then: tuple[gs.Node, ...]
    splits: tuple[gs.Node, ...]
    parts: tuple[tuple[int, int, gs.Tensor], ...]


def divide_products(editor: Editor) -> int:
    """Divide all such products of a Q/DQ graph and its bodies, in place; return how many there were."""
    divided = 0
    for scope in all_graphs(editor.graph):
        outputs = {id(tensor) for tensor in scope.outputs}
        for node in list(scope.nodes):
            found = _divisible(node, outputs)
            if found is not None:
                _divide(editor, scope, found)
                divided += 1
    return divided


def _divisible(node: gs.Node, outputs: set[int]) -> _Divisible | None:
    if node.op not in ("Gemm", "MatMul") or len(node.inputs) < 2 or node.attrs.get("alpha", 1.0) != 1.0:
        return None
    weight, turn = _maker(node.inputs[1]), None
    if weight is not None and weight.op == "Transpose" and weight.attrs.get("perm") in (None, [1, 0]):
        weight, turn = _maker(weight.inputs[0]), weight
    if weight is None or weight.op != "DequantizeLinear" or not _is_plain(weight):
        return None
    if any(len(made.outputs[0].outputs) != 1 for made in (weight, turn) if made is not None):
        return None
    # Of [K, N] as the product reads it: Gemm may turn it, and so may a Transpose.
    axis = 1 ^ bool(node.attrs.get("transB", 0)) ^ (turn is not None)
    channels = weight.inputs[0].shape[axis]
    scale, zero_point = weight.inputs[1], weight.inputs[2:]
    by_channel = len(scale.shape) == 1 and weight.attrs.get("axis", 1) % 2 == axis
    if (len(scale.shape) and not by_channel) or not all(isinstance(z, gs.Constant) for z in zero_point):
        return None
    if node.op == "Gemm" and len(node.inputs) > 2 and not _along_channels(node.inputs[2], channels):
        return None
    then, whole = _way(node, channels, outputs)
    splits = _splits(whole)
    parts = _parts(splits, whole, channels)
    if len(parts) < 2 or id(whole) in outputs or not all(_is_reshaped(part[2], outputs) for part in parts):
        return None
    return _Divisible(node, weight, turn, axis, then, splits, parts)


def _maker(tensor: gs.Tensor) -> gs.Node | None:
    return tensor.inputs[0] if tensor.inputs else None


def _is_plain(weight: gs.Node) -> bool:
    """Tell whether `weight` dequantizes an 8-bit constant [K, N] that has no blocks."""
    constants = weight.inputs[:2]
    if not all(isinstance(tensor, gs.Constant) for tensor in constants) or weight.attrs.get("block_size"):
        return False
    return constants[0].dtype in _TYPES and len(constants[0].shape) == 2


def _along_channels(tensor: gs.Tensor, channels: int) -> bool:
    """Tell whether `tensor` is a constant that the last axis alone of a product has, one for each channel."""
    return isinstance(tensor, gs.Constant) and tuple(tensor.shape)[-1:] == (channels,) == (
        tuple(size for size in tensor.shape if size != 1) or (1,)
    )


def _way(node: gs.Node, channels: int, outputs: set[int]) -> tuple[tuple[gs.Node, ...], gs.Tensor]:
    """Return the Add of a bias and Reshapes that keep the channels behind `node`, and what they give."""
    then: list[gs.Node] = []
    tensor = node.outputs[0]
    for reader in only_readers(tensor):
        biased = reader.op == "Add" and any(_along_channels(read, channels) for read in reader.inputs)
        kept = reader.op == "Reshape" and reader.inputs[0] is tensor and _ends_in(reader, channels)
        if id(tensor) in outputs or not (biased or kept):
            break
        then.append(reader)
        tensor = reader.outputs[0]
    return tuple(then), tensor


def _ends_in(reshape: gs.Node, channels: int) -> bool:
    """Tell whether the last size that `reshape` is given is `channels`, where it can be changed."""
    last = _last_sizes(reshape)
    if last is reshape.inputs[1] and not isinstance(last, gs.Constant):
        return False
    numbers = known_numbers(last) or []
    return numbers[-1:] == [channels] and (last is reshape.inputs[1] or len(numbers) == 1)


def _last_sizes(reshape: gs.Node) -> gs.Tensor:
    """Return the last of what is joined to the shape of a Reshape, or all of it."""
    shape = reshape.inputs[1]
    maker = _maker(shape)
    return maker.inputs[-1] if maker is not None and maker.op == "Concat" else shape


def _splits(whole: gs.Tensor) -> tuple[gs.Node, ...]:
    """Return the readers of `whole` but for those that ask for its size to know where to split it."""
    readers = tuple(whole.outputs)
    splits = tuple(reader for reader in readers if reader.op != "Shape")
    asked = [reader for reader in readers if reader.op == "Shape"]
    return splits if all(_leads_to(one, splits) for one in asked) else ()


def _leads_to(node: gs.Node, ends: tuple[gs.Node, ...]) -> bool:
    """Tell whether nothing but `ends` has a use for what `node` gives."""
    if any(node is end for end in ends):
        return True
    readers = [reader for output in node.outputs for reader in output.outputs]
    return bool(readers) and all(_leads_to(reader, ends) for reader in readers)


def _parts(
    splits: tuple[gs.Node, ...], whole: gs.Tensor, channels: int
) -> tuple[tuple[int, int, gs.Tensor], ...]:
    """Return what `splits` make of the last axis of `whole`; empty where they do anything else."""
    if len(splits) == 1 and splits[0].op == "Split":
        return _split(splits[0], whole, channels)
    if not splits or any(node.op != "Slice" or node.inputs[0] is not whole for node in splits):
        return ()
    found = [_sliced(node, whole, channels) for node in splits]
    parts = sorted((part for part in found if part is not None), key=lambda part: part[0])
    edges = [0, *(end for _, end, _ in parts)]
    joined = all(start == edge for (start, _, _), edge in zip(parts, edges, strict=False))
    return tuple(parts) if len(parts) == len(splits) and joined and edges[-1] == channels else ()


def _is_last(axis: int, tensor: gs.Tensor) -> bool:
    return axis == -1 or (tensor.shape is not None and axis == len(tensor.shape) - 1)


def _split(node: gs.Node, whole: gs.Tensor, channels: int) -> tuple[tuple[int, int, gs.Tensor], ...]:
    if not _is_last(node.attrs.get("axis", 0), whole):
        return ()
    sizes: Numbers | None = [channels // len(node.outputs)] * len(node.outputs)
    if len(node.inputs) > 1:
        sizes = known_numbers(node.inputs[1])
    if sizes is None or len(sizes) != len(node.outputs) or not all(size and size > 0 for size in sizes):
        return ()
    ends = list(accumulate(size or 0 for size in sizes))
    return tuple(zip([0, *ends], ends, node.outputs, strict=False)) if ends[-1] == channels else ()


def _sliced(node: gs.Node, whole: gs.Tensor, channels: int) -> tuple[int, int, gs.Tensor] | None:
    given = [known_numbers(tensor) for tensor in node.inputs[1:]]
    numbers = [one[0] for one in given if one is not None and len(one) == 1]
    if len(given) < 3 or len(numbers) != len(given) or numbers[3:] not in ([], [1]):
        return None
    first, last, axis = numbers[:3]
    if first is None or last is None or axis is None or not _is_last(axis, whole):
        return None
    start, end, _ = slice(first, last).indices(channels)
    return (start, end, node.outputs[0]) if start < end else None


def _is_reshaped(part: gs.Tensor, outputs: set[int]) -> bool:
    readers = [reader for reader in part.outputs if reader.op != "Shape"]
    return bool(readers) and id(part) not in outputs and all(reader.op == "Reshape" for reader in readers)


def _divide(editor: Editor, scope: gs.Graph, found: _Divisible) -> None:
    """Put the nodes of all parts in front of what split them; the tensors of the parts keep their names."""
    made = [_of_part(editor, found, number, *part) for number, part in enumerate(found.parts)]
    for node in found.splits:
        node.outputs.clear()
    for nodes, (_, _, tensor) in zip(made, found.parts, strict=True):
        nodes[-1].outputs = [tensor]
    first = next(node for node in scope.nodes if any(node is split for split in found.splits))
    editor.insert_after_node(scope, first, [node for nodes in made for node in nodes])
    _drop(scope, list(found.splits))


def _drop(scope: gs.Graph, dead: list[gs.Node]) -> None:
    """Take `dead` nodes of `scope` out, and what was computed for them alone."""
    while dead:
        node = dead.pop()
        makers = [_maker(tensor) for tensor in node.inputs]
        node.inputs.clear()
        node.outputs.clear()
        del scope.nodes[next(i for i, one in enumerate(scope.nodes) if one is node)]
        for maker in makers:
            if maker is None or not any(one is maker for one in scope.nodes):
                continue  # of an outer graph, or taken out before
            if not any(_is_used(output, scope) for output in maker.outputs):
                dead += [] if any(one is maker for one in dead) else [maker]


def _is_used(tensor: gs.Tensor, scope: gs.Graph) -> bool:
    return bool(tensor.outputs) or any(tensor is output for output in scope.outputs)


def _of_part(
    editor: Editor, found: _Divisible, number: int, start: int, end: int, out: gs.Tensor
) -> list[gs.Node]:
    """Make the nodes that compute channels `start` to `end` of the whole, which stand in `out`."""

    def piece(tensor: gs.Tensor, axis: int) -> gs.Constant:
        values = np.take(constant_array(tensor), np.arange(start, end), axis) if tensor.shape else None
        if values is None:
            return tensor
        return editor.constant(f"{tensor.name}/part_{number}", lambda name: make_constant(name, values))

    def follow(node: gs.Node, inputs: list[gs.Tensor]) -> gs.Tensor:
        tensor = node.outputs[0]
        shape = None if tensor.shape is None else [*tensor.shape]
        result = editor.variable(f"{tensor.name}/part_{number}")
        result.dtype, result.shape = tensor.dtype, shape
        nodes.append(gs.Node(node.op, f"{node.name}/part_{number}", dict(node.attrs), inputs, [result]))
        nodes[-1].domain = node.domain
        return result

    nodes: list[gs.Node] = []
    quantized, *params = found.weight.inputs
    weight = follow(found.weight, [piece(quantized, found.axis), *(piece(one, 0) for one in params)])
    weight.shape = [end - start if axis == found.axis else size for axis, size in enumerate(quantized.shape)]
    if found.turn is not None:
        weight = follow(found.turn, [weight])
        weight.shape = [weight.shape[0], end - start]
    last = follow(
        found.product, [found.product.inputs[0], weight, *(piece(b, -1) for b in found.product.inputs[2:])]
    )
    for node in found.then:
        if node.op == "Add":
            bias = next(read for read in node.inputs if isinstance(read, gs.Constant))
            inputs = [piece(bias, -1) if read is bias else last for read in node.inputs]
        else:
            inputs = [last, _resized(editor, node, number, end - start, nodes)]
        last.shape = _of_width(last.shape, end - start)
        last = follow(node, inputs)
    last.dtype, last.shape = out.dtype, out.shape
    return nodes


def _of_width(shape: list[int | str] | None, width: int) -> list[int | str] | None:
    return None if shape is None else [*shape[:-1], width]


def _resized(editor: Editor, reshape: gs.Node, number: int, width: int, nodes: list[gs.Node]) -> gs.Tensor:
    """Return the shape of `reshape` with `width` as its last size."""
    shape, last = reshape.inputs[1], _last_sizes(reshape)
    if last is shape:
        values = np.array(constant_array(shape))
        values[-1] = width
        return editor.constant(f"{shape.name}/part_{number}", lambda name: make_constant(name, values))
    only = np.asarray([width], np.int64)
    size = editor.constant(f"{last.name}/part_{number}", lambda name: make_constant(name, only))
    resized = editor.variable(f"{shape.name}/part_{number}", shape)
    join = shape.inputs[0]
    inputs = [*join.inputs[:-1], size]
    nodes.append(gs.Node("Concat", f"{join.name}/part_{number}", dict(join.attrs), inputs, [resized]))
    return resized
