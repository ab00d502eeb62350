"""Split projections: one product per part, so that TensorRT keeps the weight in low precision.

Measured on TensorRT for RTX 1.7.1 with int8 and float8, with and without quantized activations, with 32 to
256 channels. Its builder divides such a product itself: it moves the Split, and the Reshape behind each part,
up into the weight. A weight behind DequantizeLinear then becomes float, and the product runs in float, or
mixed if its input has 8 bits. Divided here, each part has its own integers and scales and stays in low
precision; the results are equal, because each output channel has a separate scale and sum. int4 in blocks,
a product with a part that is not reshaped, and one with a pair behind it stay in low precision unchanged.
NVFP4 becomes float in half models alone, but its casts are not yet there when this runs. A projection that is
reshaped first, to [.., parts, heads, size], is divided too (`packed_parts`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import accumulate

import numpy as np
import onnx_graphsurgeon as gs
from onnx import TensorProto
from onnx.helper import np_dtype_to_tensor_dtype

from onnxfq.graph.constant_integers import Numbers, evaluate_integers, read_slice
from onnxfq.graph.constants import constant_array
from onnxfq.graph.edit import Editor
from onnxfq.graph.model import list_graphs
from onnxfq.graph.patterns.attention import only_readers
from onnxfq.support.attempts import attempt
from onnxfq.targets.tensorrt.rewrites.packed_parts import Packed, match_packed

_TYPES = (TensorProto.INT8, TensorProto.FLOAT8E4M3FN)
_FLOAT4 = TensorProto.FLOAT4E2M1


@dataclass(frozen=True, eq=False)
class _Divisible:
    """Product of one weight, the nodes up to its split, and the parts.

    Attributes:
        weight: the nodes from the constants of the weight to the product, the last one its input.
        axis: channel axis of the weight.
        then: nodes after the product; the last one produces the tensor that is split.
        packed: how this tensor is reshaped before it is split, if it is.
        splits: nodes that split this tensor, or that make the parts of a packed one.
        parts: (first channel, end channel, tensor) of each part.
    """

    product: gs.Node
    weight: tuple[gs.Node, ...]
    axis: int
    then: tuple[gs.Node, ...]
    packed: Packed | None
    splits: tuple[gs.Node, ...]
    parts: tuple[tuple[int, int, gs.Tensor], ...]


def divide_products(editor: Editor) -> int:
    """Divide all split projections of a Q/DQ graph and its bodies, in place; return their number."""
    divided = 0
    for scope in list_graphs(editor.graph):
        outputs = {id(tensor) for tensor in scope.outputs}
        for node in list(scope.nodes):
            found = attempt(
                f"dividing {node.op} {node.name!r}", partial(_divisible, node, outputs), lambda: None
            )
            if found is not None:
                _divide(editor, scope, found)
                divided += 1
    return divided


def _divisible(node: gs.Node, outputs: set[int]) -> _Divisible | None:
    if node.op not in ("Gemm", "MatMul") or len(node.inputs) < 2 or node.attrs.get("alpha", 1.0) != 1.0:
        return None
    weight = _weight_path(node.inputs[1])
    if not weight or any(len(made.outputs[0].outputs) != 1 for made in weight):
        return None
    # Axis of N if the product reads [K, N]: Gemm may transpose it, and so may a Transpose.
    axis = 1 ^ bool(node.attrs.get("transB", 0)) ^ (weight[-1].op == "Transpose")
    dequantize = next(made for made in reversed(weight) if made.op == "DequantizeLinear")
    if not _has_channels(dequantize, axis):
        return None
    channels = dequantize.inputs[0].shape[axis]
    if node.op == "Gemm" and len(node.inputs) > 2 and not _is_channel_constant(node.inputs[2], channels):
        return None
    then, whole = _way(node, channels, outputs)
    packed = match_packed(whole, channels, outputs)
    if packed is not None:
        width = channels // packed.count
        found = sorted(packed.makers.items())
        parts = tuple((i * width, (i + 1) * width, maker.outputs[0]) for i, maker in found)
        return _Divisible(node, weight, axis, then, packed, tuple(maker for _, maker in found), parts)
    splits = _splits(whole)
    parts = _parts(splits, whole, channels)
    if len(parts) < 2 or id(whole) in outputs or not all(_is_reshaped(part[2], outputs) for part in parts):
        return None
    return _Divisible(node, weight, axis, then, None, splits, parts)


def _weight_path(tensor: gs.Tensor) -> tuple[gs.Node, ...]:
    """Return the nodes that dequantize a constant into `tensor`; empty if there are others.

    8 bits: DequantizeLinear, Transpose. NVFP4: DequantizeLinear of the scales and of the codes, Cast in a
    half model, Transpose.
    """
    path: list[gs.Node] = []
    node = _maker(tensor)
    if node is not None and node.op == "Transpose" and node.attrs.get("perm") in (None, [1, 0]):
        path, node = [node], _maker(node.inputs[0])
    if node is not None and node.op == "Cast":
        path, node = [node, *path], _maker(node.inputs[0])
    if node is None or node.op != "DequantizeLinear" or not isinstance(node.inputs[0], gs.Constant):
        return ()
    path = [node, *path]
    scales = _maker(node.inputs[1])
    if (scales is not None) != (_onnx_type(node.inputs[0]) == _FLOAT4):
        return ()
    if scales is None:
        return tuple(path) if _onnx_type(node.inputs[0]) in _TYPES else ()
    constants = scales.op == "DequantizeLinear" and all(isinstance(t, gs.Constant) for t in scales.inputs)
    return (scales, *path) if constants else ()


def _maker(tensor: gs.Tensor) -> gs.Node | None:
    return tensor.inputs[0] if tensor.inputs else None


def _onnx_type(tensor: gs.Tensor) -> int:
    """Return the element type; graphsurgeon holds types that NumPy lacks as ONNX's number or as a dtype."""
    kind = tensor.dtype
    return kind if isinstance(kind, int) else int(np_dtype_to_tensor_dtype(np.dtype(kind)))


def _has_channels(weight: gs.Node, axis: int) -> bool:
    """Tell whether the scales of a DequantizeLinear [K, N] belong to channels on `axis`, or to all of it."""
    codes, scale, *zero_points = weight.inputs
    if len(codes.shape) != 2 or not all(isinstance(one, gs.Constant) for one in zero_points):
        return False
    along = int(weight.attrs.get("axis", 1)) % 2
    if weight.attrs.get("block_size"):
        return _onnx_type(codes) == _FLOAT4 and along != axis
    by_channel = len(scale.shape) == 1 and along == axis
    return isinstance(scale, gs.Constant) and (by_channel or not scale.shape)


def _is_channel_constant(tensor: gs.Tensor, channels: int) -> bool:
    """Tell whether `tensor` is a constant with one value per channel, along the last axis only."""
    return isinstance(tensor, gs.Constant) and tuple(tensor.shape)[-1:] == (channels,) == (
        tuple(size for size in tensor.shape if size != 1) or (1,)
    )


def _way(node: gs.Node, channels: int, outputs: set[int]) -> tuple[tuple[gs.Node, ...], gs.Tensor]:
    """Return the Add of a bias and Reshapes that keep the channels behind `node`, and their result."""
    then: list[gs.Node] = []
    tensor = node.outputs[0]
    for reader in only_readers(tensor):
        biased = reader.op == "Add" and any(_is_channel_constant(read, channels) for read in reader.inputs)
        kept = reader.op == "Reshape" and reader.inputs[0] is tensor and _ends_in(reader, channels)
        if id(tensor) in outputs or not (biased or kept):
            break
        then.append(reader)
        tensor = reader.outputs[0]
    return tuple(then), tensor


def _ends_in(reshape: gs.Node, channels: int) -> bool:
    """Tell whether the last size of `reshape` is `channels`, in a form that can be changed."""
    last = _last_sizes(reshape)
    if last is reshape.inputs[1] and not isinstance(last, gs.Constant):
        return False
    numbers = evaluate_integers(last) or []
    return numbers[-1:] == [channels] and (last is reshape.inputs[1] or len(numbers) == 1)


def _last_sizes(reshape: gs.Node) -> gs.Tensor:
    """Return the last tensor joined to the shape of a Reshape, or the whole shape."""
    shape = reshape.inputs[1]
    maker = _maker(shape)
    return maker.inputs[-1] if maker is not None and maker.op == "Concat" else shape


def _splits(whole: gs.Tensor) -> tuple[gs.Node, ...]:
    """Return the readers of `whole`, except readers of its size for the split."""
    readers = tuple(whole.outputs)
    splits = tuple(reader for reader in readers if reader.op != "Shape")
    asked = [reader for reader in readers if reader.op == "Shape"]
    return splits if _lead_to(asked, splits) else ()


def _lead_to(nodes: list[gs.Node], ends: tuple[gs.Node, ...]) -> bool:
    """Tell whether only `ends` use the results of `nodes`."""
    left, seen = [*nodes], {id(end) for end in ends}
    while left:
        node = left.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        readers = [reader for output in node.outputs for reader in output.outputs]
        if not readers:
            return False
        left += readers
    return True


def _parts(
    splits: tuple[gs.Node, ...], whole: gs.Tensor, channels: int
) -> tuple[tuple[int, int, gs.Tensor], ...]:
    """Return the parts that `splits` cut from the last axis of `whole`; empty if they do anything else."""
    if len(splits) == 1 and splits[0].op == "Split":
        return _split(splits[0], whole, channels)
    if not splits or any(node.op != "Slice" or node.inputs[0] is not whole for node in splits):
        return ()
    found = [_read_slice(node, whole, channels) for node in splits]
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
        sizes = evaluate_integers(node.inputs[1])
    if sizes is None or len(sizes) != len(node.outputs) or not all(size and size > 0 for size in sizes):
        return ()
    ends = list(accumulate(size or 0 for size in sizes))
    return tuple(zip([0, *ends], ends, node.outputs, strict=False)) if ends[-1] == channels else ()


def _read_slice(node: gs.Node, whole: gs.Tensor, channels: int) -> tuple[int, int, gs.Tensor] | None:
    found = read_slice(node)
    if found is None or not _is_last(found[2], whole):
        return None
    start, end, _ = slice(*found[:2]).indices(channels)
    return (start, end, node.outputs[0]) if start < end else None


def _is_reshaped(part: gs.Tensor, outputs: set[int]) -> bool:
    readers = [reader for reader in part.outputs if reader.op != "Shape"]
    return bool(readers) and id(part) not in outputs and all(reader.op == "Reshape" for reader in readers)


def _divide(editor: Editor, scope: gs.Graph, found: _Divisible) -> None:
    """Replace the splits by the nodes of all parts; the tensors of the parts keep their names."""
    made = [_make_part(editor, found, number, *part) for number, part in enumerate(found.parts)]
    for node in found.splits:
        node.outputs.clear()
    for nodes, (_, _, tensor) in zip(made, found.parts, strict=True):
        nodes[-1].outputs = [tensor]
    first = next(node for node in scope.nodes if any(node is split for split in found.splits))
    editor.insert_after_node(scope, first, [node for nodes in made for node in nodes])
    _drop(scope, list(found.splits))


def _drop(scope: gs.Graph, dead: list[gs.Node]) -> None:
    """Remove `dead` nodes from `scope`, and nodes that computed for them alone."""
    while dead:
        node = dead.pop()
        makers = [_maker(tensor) for tensor in node.inputs]
        node.inputs.clear()
        node.outputs.clear()
        del scope.nodes[next(i for i, one in enumerate(scope.nodes) if one is node)]
        for maker in makers:
            if maker is None or not any(one is maker for one in scope.nodes):
                continue  # in an outer graph, or already removed
            if not any(one.outputs or any(one is end for end in scope.outputs) for one in maker.outputs):
                dead += [] if any(one is maker for one in dead) else [maker]


def _make_part(
    editor: Editor, found: _Divisible, number: int, start: int, end: int, out: gs.Tensor
) -> list[gs.Node]:
    """Make the nodes that compute channels `start` to `end` of the whole into `out`."""

    def piece(tensor: gs.Tensor, axis: int) -> gs.Tensor:
        if not tensor.shape:
            return tensor
        values = np.take(constant_array(tensor), np.arange(start, end), axis)
        return editor.constant(f"{tensor.name}/part_{number}", values)

    def follow(node: gs.Node, inputs: list[gs.Tensor]) -> gs.Tensor:
        tensor = node.outputs[0]
        shape = None if tensor.shape is None else [*tensor.shape]
        result = editor.variable(f"{tensor.name}/part_{number}")
        result.dtype, result.shape = tensor.dtype, shape
        nodes.append(gs.Node(node.op, f"{node.name}/part_{number}", dict(node.attrs), inputs, [result]))
        nodes[-1].domain = node.domain
        return result

    nodes: list[gs.Node] = []
    made: dict[int, gs.Tensor] = {}
    for node in found.weight:
        channel = found.axis ^ (node.op == "Transpose")
        inputs = [
            made[id(read)] if id(read) in made else piece(read, found.axis if len(read.shape) == 2 else 0)
            for read in node.inputs
        ]
        weight = made[id(node.outputs[0])] = follow(node, inputs)
        if weight.shape is not None:
            weight.shape[channel] = end - start
    last = follow(
        found.product, [found.product.inputs[0], weight, *(piece(b, -1) for b in found.product.inputs[2:])]
    )
    for node in found.then:
        if node.op == "Add":
            bias = next(read for read in node.inputs if isinstance(read, gs.Constant))
            inputs = [piece(bias, -1) if read is bias else last for read in node.inputs]
        else:
            inputs = [last, _resize_shape(editor, node, number, end - start, nodes)]
        last.shape = _replace_width(last.shape, end - start)
        last = follow(node, inputs)
    if found.packed is not None:
        last.shape = _replace_width(last.shape, end - start)
        last = _unpack(editor, found.packed, number, last, follow, nodes)
    last.dtype, last.shape = out.dtype, out.shape
    return nodes


def _unpack(
    editor: Editor,
    packed: Packed,
    number: int,
    part: gs.Tensor,
    follow: Callable[[gs.Node, list[gs.Tensor]], gs.Tensor],
    nodes: list[gs.Node],
) -> gs.Tensor:
    """Return `part` reshaped and transposed like the whole, without the axis of the parts."""
    shape = packed.reshape.inputs[1]
    rank = len(evaluate_integers(shape) or ())
    kept = [axis for axis in range(rank) if axis != packed.axis]
    if isinstance(shape, gs.Constant):
        values = np.asarray(constant_array(shape))[kept]
        sizes = editor.constant(f"{shape.name}/part_{number}", values)
    else:
        places = editor.constant(f"{shape.name}/places", np.asarray(kept, np.int64))
        sizes = editor.variable(f"{shape.name}/part_{number}", shape)
        sizes.shape = [rank - 1]
        nodes.append(
            gs.Node("Gather", f"{packed.reshape.name}/shape_{number}", {"axis": 0}, [shape, places], [sizes])
        )
    last = follow(packed.reshape, [part, sizes])
    last.shape = _without(last.shape, packed.axis)
    if packed.transpose is None:
        return last
    order = list(packed.transpose.attrs.get("perm", [*range(rank)][::-1]))
    last = follow(packed.transpose, [last])
    nodes[-1].attrs["perm"] = [axis - (axis > packed.axis) for axis in order if axis != packed.axis]
    last.shape = _without(last.shape, order.index(packed.axis))
    return last


def _without(shape: list[int | str] | None, axis: int) -> list[int | str] | None:
    return None if shape is None else [*shape[:axis], *shape[axis + 1 :]]


def _replace_width(shape: list[int | str] | None, width: int) -> list[int | str] | None:
    return None if shape is None else [*shape[:-1], width]


def _resize_shape(
    editor: Editor, reshape: gs.Node, number: int, width: int, nodes: list[gs.Node]
) -> gs.Tensor:
    """Return the shape of `reshape` with `width` as its last size."""
    shape, last = reshape.inputs[1], _last_sizes(reshape)
    if last is shape:
        values = np.array(constant_array(shape))
        values[-1] = width
        return editor.constant(f"{shape.name}/part_{number}", values)
    only = np.asarray([width], np.int64)
    size = editor.constant(f"{last.name}/part_{number}", only)
    resized = editor.variable(f"{shape.name}/part_{number}", shape)
    join = shape.inputs[0]
    inputs = [*join.inputs[:-1], size]
    nodes.append(gs.Node("Concat", f"{join.name}/part_{number}", dict(join.attrs), inputs, [resized]))
    return resized
