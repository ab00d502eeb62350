"""How each operator passes the factor of a channel on: one table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from onnxfq.graph.channels.ties import FIXED, Ids, Ties, reshape_ids
from onnxfq.graph.index import GraphIndex, Shape
from onnxfq.graph.node_fields import attributes_of, input_name
from onnxfq.graph.ops import SIZES, STANDARD_DOMAINS

_FLOATS = {onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.DOUBLE}


@dataclass(frozen=True)
class Fold:
    """A constant that takes up factors: it is multiplied by `plus` and divided by `minus`.

    Attributes:
        constant: its name.
        node: the node that reads it.
        op_type: its operator.
        plus: variables of the output channels, broadcastable to the constant.
        minus: variables of the input channels, likewise.
        summed: the tensor whose channels the node sums over with this constant; empty if it sums none.
        inputs: variables of that tensor's channels, [C]; empty without it.
        layout: index of that tensor's channel, of the shape of `minus`; empty without it.
        axis: axis of these channels in that tensor.
        widens: whether a single number becomes one for each channel.
    """

    constant: str
    node: str
    op_type: str
    plus: Ids
    minus: Ids
    summed: str = ""
    inputs: Ids = field(default_factory=lambda: np.zeros(0, np.int64))
    layout: Ids = field(default_factory=lambda: np.zeros(0, np.int64))
    axis: int = 0
    widens: bool = False


class Context:
    """Variables of the tensors of one graph while its nodes are read in order."""

    def __init__(self, index: GraphIndex, outside: frozenset[str]) -> None:
        """Start without tensors; those in `outside` get a factor of their own from a new Mul."""
        self.index, self.outside = index, outside
        self.ties = Ties()
        self.folds: list[Fold] = []
        self.ids: dict[str, Ids] = {}
        self.own: dict[str, Ids] = {}

    def of(self, tensor: str) -> Ids:
        """Return the variables of `tensor`; fixed ones if it is not followed."""
        if tensor not in self.ids:
            shape = self.index.shape(tensor)
            self.ids[tensor] = np.full([1] * len(shape or ()), FIXED, np.int64)
        return self.ids[tensor]

    def is_weight(self, tensor: str) -> bool:
        """Tell whether `tensor` is a constant of floats that can take factors."""
        found = self.index.constants.get(tensor)
        return found is not None and found.data_type in _FLOATS and tensor not in self.index.outputs

    def shape(self, tensor: str) -> Shape:
        """Return the shape of a tensor of known rank; rules read no others."""
        shape = self.index.shape(tensor)
        assert shape is not None
        return shape

    def rank(self, tensor: str) -> int:
        """Return the rank of such a tensor."""
        return len(self.shape(tensor))

    def fold(
        self, node: onnx.NodeProto, constant: str, plus: Ids, minus: Ids | None = None, **more: Any
    ) -> None:
        """Let a constant of `node` take up factors; without `minus` it is divided by none."""
        minus = np.full((1,) * plus.ndim, FIXED, np.int64) if minus is None else minus
        self.folds.append(Fold(constant, node.name, node.op_type, plus, minus, **more))


Rule = Callable[[onnx.NodeProto, dict[str, Any], Context], Ids | None]
"""Reads a node: ties and folds, and returns the variables of its first output; None passes no factors on."""


def read_node(
    node: onnx.NodeProto,
    context: Context,
    rules: Mapping[str, Callable[..., Ids | None]] | None = None,
    what: str = "factors of channels",
) -> None:
    """Apply the rule of `node`; without one, or if it refuses, fix its inputs to the factor 1.

    Args:
        node: of the graph, all nodes before it read.
        context: the variables so far.
        rules: by op type, behind its domain if that is not ONNX's; None for RULES.
        what: a rule passes on, in words.
    """
    if node.op_type in SIZES:
        return
    kind = node.op_type if node.domain in STANDARD_DOMAINS else f"{node.domain}.{node.op_type}"
    rule = (RULES if rules is None else rules).get(kind)
    attrs = attributes_of(node)
    known = all(context.index.shape(name) is not None for name in (*node.input, *node.output) if name)
    ids = rule(node, attrs, context) if rule is not None and known else None
    if ids is not None:
        context.ids[node.output[0]] = ids
    else:
        why = f"{node.op_type} {node.name!r} does not pass {what} on"
        for name in filter(None, node.input):
            context.ties.fix(context.of(name), why)


def _pass_on(node: onnx.NodeProto, attrs: dict[str, Any], context: Context) -> Ids | None:
    """Read f with f(s x) = s f(x) for s > 0, element by element or within a channel."""
    ids = context.of(node.input[0])
    return ids if ids.ndim == context.rank(node.output[0]) else None


def _clip(node: onnx.NodeProto, attrs: dict[str, Any], context: Context) -> Ids | None:
    """Limits of 0 and infinity bind every multiple of a channel alike."""
    limits = [attrs.get("min", -np.inf), attrs.get("max", np.inf)]
    limits += [context.index.number(name) for name in node.input[1:] if name]
    top = float(np.finfo(np.float32).max)
    free = all(value is not None and (value == 0.0 or abs(value) >= top) for value in limits)
    return _pass_on(node, attrs, context) if free else None


def _pad(node: onnx.NodeProto, attrs: dict[str, Any], context: Context) -> Ids | None:
    """Padding with 0 or with values of the same channel keeps the factor."""
    ids, pads = context.of(node.input[0]), context.index.array(node.input[1])
    if pads is None or len(node.input) > 3 and node.input[3]:
        return _pass_on(node, attrs, context) if ids.size == 1 else None
    is_filled = attrs.get("mode", b"constant") == b"constant"
    if is_filled and input_name(node, 2) and context.index.number(node.input[2]) != 0.0:
        return None
    before, after = pads.reshape(2, -1).tolist()
    for axis, more in enumerate(zip(before, after, strict=True)):
        if ids.shape[axis] == 1 or not any(more):
            continue
        if min(more) < 0 or not is_filled:
            return None
        # New channels of zeros may have any factor.
        ends = [context.ties.fresh((*ids.shape[:axis], n, *ids.shape[axis + 1 :])) for n in more]
        ids = np.concatenate([ends[0], ids, ends[1]], axis)
    return ids


def _resize(node: onnx.NodeProto, attrs: dict[str, Any], context: Context) -> Ids | None:
    outside = attrs.get("coordinate_transformation_mode", b"half_pixel") == b"tf_crop_and_resize"
    before, after = context.shape(node.input[0]), context.shape(node.output[0])
    ids = context.of(node.input[0])
    sizes = zip(ids.shape, before, after, strict=True)
    kept = all(size == 1 or (one is not None and one == other) for size, one, other in sizes)
    return _pass_on(node, attrs, context) if kept and not outside else None


def _reduce(node: onnx.NodeProto, attrs: dict[str, Any], context: Context) -> Ids | None:
    """Sums, means and extremes within a channel keep its factor."""
    ids = context.of(node.input[0])
    over = {axis % ids.ndim for axis in context.index.axes(node)}
    if not over or any(ids.shape[axis] != 1 for axis in over):
        return None
    return ids if attrs.get("keepdims", 1) else np.squeeze(ids, tuple(over))


def _reshape(node: onnx.NodeProto, attrs: dict[str, Any], context: Context) -> Ids | None:
    before, after = context.shape(node.input[0]), context.shape(node.output[0])
    return reshape_ids(context.of(node.input[0]), before, after)


def _concat(node: onnx.NodeProto, attrs: dict[str, Any], context: Context) -> Ids | None:
    parts = [context.of(name) for name in node.input]
    axis = attrs["axis"] % parts[0].ndim
    sizes = [context.shape(name)[axis] for name in node.input]
    widest = [max(part.shape[a] for part in parts) for a in range(parts[0].ndim)]
    if all(part.shape[axis] == 1 for part in parts):  # not along the channels
        return context.ties.join(parts)
    if any(size is None for size in sizes):
        return None
    full = [
        np.broadcast_to(part, [*widest[:axis], size, *widest[axis + 1 :]])
        for part, size in zip(parts, sizes, strict=True)
    ]
    return np.concatenate(full, axis)


def _split(node: onnx.NodeProto, attrs: dict[str, Any], context: Context) -> Ids | None:
    ids = context.of(node.input[0])
    axis, start = attrs.get("axis", 0) % ids.ndim, 0
    for name in node.output:
        size = context.shape(name)[axis]
        if ids.shape[axis] == 1:
            context.ids[name] = ids
        elif size is None:
            return None
        else:
            context.ids[name] = np.take(ids, range(start, start + size), axis)
            start += size
    return context.ids[node.output[0]]


def _slice(node: onnx.NodeProto, attrs: dict[str, Any], context: Context) -> Ids | None:
    ids = context.of(node.input[0])
    if ids.size == 1:
        return _pass_on(node, attrs, context)
    given = [context.index.array(name) for name in node.input[1:]]
    unknown = [name for name, value in zip(node.input[1:], given, strict=True) if name and value is None]
    if len(given) < 2 or unknown:
        return None
    starts, ends, axes, steps = ([] if v is None else v.tolist() for v in [*given, None, None][:4])
    axes, steps = axes or [*range(len(starts))], steps or [1] * len(starts)
    places: list[slice] = [slice(None)] * ids.ndim
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        if ids.shape[axis % ids.ndim] != 1:
            end = None if step < 0 and end < -ids.shape[axis % ids.ndim] else end
            places[axis % ids.ndim] = slice(start, end, step)
    return ids[tuple(places)]


def _gather(node: onnx.NodeProto, attrs: dict[str, Any], context: Context) -> Ids | None:
    """Read a constant choice of channels, or any choice along an axis whose indices share a factor."""
    ids, wanted = context.of(node.input[0]), context.index.array(node.input[1])
    axis = attrs.get("axis", 0) % ids.ndim
    if ids.shape[axis] == 1:
        return ids.reshape((*ids.shape[:axis], *(1,) * context.rank(node.input[1]), *ids.shape[axis + 1 :]))
    return None if wanted is None else np.take(ids, wanted, axis)


def _expand(node: onnx.NodeProto, attrs: dict[str, Any], context: Context) -> Ids | None:
    ids, rank = context.of(node.input[0]), context.rank(node.output[0])
    return align(ids, rank) if rank >= ids.ndim else None


def _depth_to_space(node: onnx.NodeProto, attrs: dict[str, Any], context: Context) -> Ids | None:
    """Read a pixel shuffle: the channels that make one output channel share a factor."""
    ids, size = context.of(node.input[0]), attrs["blocksize"] ** 2
    if ids.shape[1] == 1:
        return _pass_on(node, attrs, context)
    column_first = attrs.get("mode", b"DCR") == b"CRD"
    groups = ids.reshape(-1, size) if column_first else ids.reshape(size, -1).T
    context.ties.tie(groups[:, :1], groups)
    return groups[:, 0].reshape(1, -1, 1, 1)


def _add(node: onnx.NodeProto, attrs: dict[str, Any], context: Context) -> Ids | None:
    """Make all terms share a factor; a constant term is multiplied by it."""
    terms = [name for name in node.input if name not in context.index.constants]
    rank = context.rank(node.output[0])
    if not terms:
        return None
    whole = context.ties.join([align(context.of(name), rank) for name in terms])
    for name in node.input:
        if name in context.index.constants and not fold_elements(node, name, whole, context):
            return None
    return whole


def _mul(node: onnx.NodeProto, attrs: dict[str, Any], context: Context) -> Ids | None:
    """Read a product: a constant factor takes any factors up; of two tensors one keeps the factor 1."""
    rank = context.rank(node.output[0])
    constants = [name for name in node.input if name in context.index.constants]
    if len(constants) == 2 or (node.op_type == "Div" and node.input[0] in constants):
        return None
    if constants:
        (data,) = (name for name in node.input if name not in constants)
        return _mul_constant(node, data, constants[0], context)
    one, other = (align(context.of(name), rank) for name in node.input)
    if node.op_type == "Mul" and context.ties.is_fixed(one):
        one, other = other, one
    context.ties.fix(other, f"{node.op_type} {node.name!r} multiplies two tensors, and one of them keeps 1")
    return one


def _mul_constant(node: onnx.NodeProto, data: str, constant: str, context: Context) -> Ids | None:
    ids, shape = context.of(data), context.shape(node.output[0])
    values = context.index.array(constant)
    if values is None or len(shape) != ids.ndim:
        return None
    fitting = (1,) * (len(shape) - values.ndim) + values.shape
    wide = [place for place, extent in enumerate(fitting) if extent != 1]
    if len(fitting) > len(shape) or len(wide) > 1:
        return None
    axis = wide[0] if wide else _summed_axis(node.output[0], len(shape), context)
    size = None if axis is None else shape[axis]
    free = context.is_weight(constant) and size is not None
    if not wide and not (free and context.ties.is_fixed(ids)):
        return ids  # a single number passes every factor on
    if not free or (wide and fitting[axis or 0] != size):
        return None
    made = context.ties.fresh(tuple(size if place == axis else 1 for place in range(len(shape))))  # type: ignore[misc]
    plus, minus = (made, ids) if node.op_type == "Mul" else (ids, made)
    if wide:
        plus, minus = _trim(plus, values), _trim(minus, values)
    context.fold(node, constant, plus, minus, widens=not wide)
    return made


def _summed_axis(tensor: str, rank: int, context: Context) -> int | None:
    """Return the axis that the readers of `tensor` with weights sum over; None if they differ."""
    found = {
        1 if node.op_type in ("Conv", "ConvTranspose") else rank - 1
        for node in context.index.readers.get(tensor, ())
        if node.op_type in ("Conv", "ConvTranspose", "MatMul", "Gemm") and node.input[0] == tensor
    }
    return found.pop() if len(found) == 1 else None


def align(ids: NDArray[Any], rank: int) -> NDArray[Any]:
    """Return an array with axes of size 1 in front, up to `rank`."""
    return ids.reshape((1,) * (rank - ids.ndim) + ids.shape)


def _trim(ids: Ids, values: NDArray[Any]) -> Ids:
    """Return `ids` without leading axes that `values` lacks."""
    return ids.reshape(ids.shape[ids.ndim - values.ndim :])


def fold_elements(node: onnx.NodeProto, constant: str, plus: Ids, context: Context) -> bool:
    """Fold factors into a constant that is added element by element."""
    values = context.index.array(constant)
    if values is None:
        return False
    if (plus == FIXED).all() or not np.any(values):
        return True
    lacking = plus.shape[: plus.ndim - values.ndim] if values.ndim < plus.ndim else ()
    own = plus.shape[len(lacking) :]
    fits = all(size == 1 for size in lacking) and all(
        have == 1 or have == size for have, size in zip(own, values.shape[-len(own) or None :], strict=False)
    )
    if not fits or not context.is_weight(constant):
        return False
    context.fold(node, constant, _trim(align(plus, max(plus.ndim, values.ndim)), values))
    return True


def _linear(node: onnx.NodeProto, attrs: dict[str, Any], context: Context) -> Ids | None:
    """Read a product with a constant weight: channels of input and output have separate factors."""
    data, (weight, turned) = node.input[0], find_weight(node.input[1], context)
    if weight not in context.index.constants:
        return _matmul(node, context) if node.op_type == "MatMul" else None
    rank, dims = context.rank(data), tuple(context.index.constants[weight].dims)
    if data in context.index.constants or not context.is_weight(weight):
        return None
    convolution, group = node.op_type in ("Conv", "ConvTranspose"), attrs.get("group", 1)
    if convolution:
        if len(dims) < 3 or rank != len(dims) or turned:
            return None
        first_in = node.op_type == "ConvTranspose"
        axis, sizes = 1, (dims[0], dims[1] * group) if first_in else (dims[1] * group, dims[0])
    else:
        if len(dims) != 2 or rank < 2 or attrs.get("transA", 0):
            return None
        first_in = bool(attrs.get("transB", 0)) == turned
        axis, sizes = rank - 1, dims if first_in else dims[::-1]
    read = _read_channels(data, axis, sizes[0], context)
    if read is None:
        return None
    made, places = context.ties.fresh(sizes[1:]), np.arange(sizes[0])
    layout, plus = _weight_ids(places, made, dims, group if convolution else 1, first_in)
    if input_name(node, 2) and not fold_elements(node, node.input[2], made, context):
        context.ties.fix(made, f"the bias of {node.op_type} {node.name!r} cannot take factors")
    context.fold(node, weight, plus, read[layout], summed=data, inputs=read, layout=layout, axis=axis)
    return made.reshape([-1 if place == axis else 1 for place in range(rank)])


def find_weight(tensor: str, context: Context) -> tuple[str, bool]:
    """Return the constant behind `tensor`, and whether it is read through a Transpose of its two axes."""
    maker = context.index.makers.get(tensor)
    if maker is None or maker.op_type != "Transpose" or maker.input[0] not in context.index.constants:
        return tensor, False
    return maker.input[0], True


def _read_channels(data: str, axis: int, channels: int, context: Context) -> Ids | None:
    """Return the variables of the channels that are summed over, [channels]; None if other axes differ."""
    ids = context.of(data)
    if data in context.outside:  # a Mul in front of the operator gives its input new factors
        if data not in context.own:
            dims = [channels if place == axis % ids.ndim else 1 for place in range(ids.ndim)]
            context.own[data] = context.ties.fresh(tuple(dims))
        own = context.own[data]
        return own.reshape(-1) if own.shape[axis] == channels else None
    if any(size != 1 for place, size in enumerate(ids.shape) if place != axis):
        return None
    return np.broadcast_to(ids.reshape(-1), (channels,))


def _weight_ids(read: Ids, made: Ids, dims: tuple[int, ...], group: int, first_in: bool) -> tuple[Ids, Ids]:
    """Return the channels of input and output of a weight, broadcastable to it."""
    first, second = (read, made) if first_in else (made, read)
    spatial, times = (1,) * (len(dims) - 2), dims[0] // group if group > 1 else 1
    rows, columns = first.reshape(-1, 1), np.repeat(second.reshape(group, -1), times, axis=0)
    ids = [one.reshape(*one.shape, *spatial) for one in (rows, columns)]
    return (ids[0], ids[1]) if first_in else (ids[1], ids[0])


def _matmul(node: onnx.NodeProto, context: Context) -> Ids | None:
    """Read attention times values: columns of the second tensor pass, the summed channels keep 1."""
    one, other = (context.of(name) for name in node.input)
    rank = context.rank(node.output[0])
    if other.ndim < 2 or other.shape[-2] != 1 or rank < other.ndim:
        return None
    context.ties.fix(one, f"MatMul {node.name!r} sums over its channels")
    return align(other, rank)


def _normalize(node: onnx.NodeProto, attrs: dict[str, Any], context: Context) -> Ids | None:
    """Read a normalization over the last axis: its scale and shift give the output any factors."""
    rank = context.rank(node.input[0])
    context.ties.fix(context.of(node.input[0]), f"{node.op_type} {node.name!r} compares its channels")
    if attrs.get("axis", -1) not in (-1, rank - 1):
        return None
    return _affine(node, node.input[1:], rank - 1, context)


def _normalize_channels(node: onnx.NodeProto, attrs: dict[str, Any], context: Context) -> Ids | None:
    context.ties.fix(context.of(node.input[0]), f"{node.op_type} {node.name!r} compares its values")
    return _affine(node, node.input[1:], 1, context) if node.op_type == "InstanceNormalization" else None


def _affine(node: onnx.NodeProto, constants: Any, axis: int, context: Context) -> Ids | None:
    """Give the output of `node` new variables, folded into its vectors of scale and shift."""
    names = [name for name in constants if name]
    rank = context.rank(node.output[0])
    if not names or not all(context.is_weight(name) for name in names):
        return None
    dims = {tuple(context.index.constants[name].dims) for name in names}
    if len(dims) != 1 or len(size := dims.pop()) != 1:
        return None
    made = context.ties.fresh(size)
    for name in names:
        context.fold(node, name, made)
    return made.reshape([-1 if place == axis else 1 for place in range(rank)])


def _batch_norm(node: onnx.NodeProto, attrs: dict[str, Any], context: Context) -> Ids | None:
    """Read s (x - m) / sqrt(v + e) + b: m takes the factors of x, b the output's, s their quotient."""
    scale, shift, mean, variance = node.input[1:5]
    names = (scale, shift, mean)
    if attrs.get("training_mode", 0) or not all(context.is_weight(name) for name in names):
        return None
    if context.index.array(variance) is None or len(set(names)) < 3:
        return None
    size = tuple(context.index.constants[scale].dims)
    ids = context.of(node.input[0])
    if any(extent != 1 for place, extent in enumerate(ids.shape) if place != 1):
        return None
    read, made = np.broadcast_to(ids.reshape(-1), size), context.ties.fresh(size)
    context.fold(node, scale, made, read)
    context.fold(node, shift, made)
    context.fold(node, mean, read)
    return made.reshape([1, -1, *(1,) * (ids.ndim - 2)])


RULES: dict[str, Rule] = {
    **dict.fromkeys(
        "Abs AveragePool Dropout GlobalAveragePool GlobalMaxPool Identity LeakyRelu MaxPool Neg Relu".split(),
        _pass_on,
    ),
    **dict.fromkeys(("ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum"), _reduce),
    **dict.fromkeys(("Flatten", "Reshape", "Squeeze", "Unsqueeze"), _reshape),
    **dict.fromkeys(("Add", "Sub", "Sum"), _add),
    **dict.fromkeys(("Div", "Mul"), _mul),
    **dict.fromkeys(("Conv", "ConvTranspose", "Gemm", "MatMul"), _linear),
    **dict.fromkeys(("LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization"), _normalize),
    "BatchNormalization": _batch_norm,
    "Cast": lambda node, attrs, context: _pass_on(node, attrs, context) if attrs["to"] in _FLOATS else None,
    "Clip": _clip,
    "Concat": _concat,
    "DepthToSpace": _depth_to_space,
    "Expand": _expand,
    "Gather": _gather,
    "InstanceNormalization": _normalize_channels,
    "PRelu": lambda node, attrs, context: (
        _pass_on(node, attrs, context) if node.input[1] in context.index.constants else None
    ),
    "Pad": _pad,
    "Resize": _resize,
    "Slice": _slice,
    "Split": _split,
    "Transpose": lambda node, attrs, context: np.transpose(context.of(node.input[0]), attrs.get("perm")),
}
"""Op type -> its rule. Every other operator blocks: its inputs keep the factor 1."""
