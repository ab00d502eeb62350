"""Channels that an orthogonal matrix may turn, while the function of the model stays.

Each channel has a variable, as for factors. Linear operators turn with their constants, sums make variables
equal, norms and attention say which channels may mix, and every other operator keeps its inputs as they are.
Nothing here knows an architecture: residual streams and heads come out of the equations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from onnxfq.graph.channels.operators import (
    RULES,
    Context,
    Fold,
    align,
    find_weight,
    fold_elements,
    read_node,
)
from onnxfq.graph.channels.ties import FIXED, Ids, Ties
from onnxfq.graph.index import GraphIndex
from onnxfq.graph.model import Model
from onnxfq.graph.node_fields import input_name
from onnxfq.graph.ops import MOVES

TINY_GAIN = 1e-3
"""Smallest gain of a channel, over the largest, by which a shift behind it is divided."""


@dataclass(frozen=True)
class GainVector:
    """A constant that a node multiplies channels by, and that the products behind it can take up.

    Attributes:
        node: its name.
        constant: the gains.
        values: what the readers of `taken` are multiplied by, and its makers divided.
        read: variables of the channels in front of the node, of the same shape.
        made: variables of those behind it.
        taken: one of both.
    """

    node: str
    constant: str
    values: NDArray[np.float64]
    read: Ids
    made: Ids
    taken: Ids


@dataclass(frozen=True)
class TurningPlace:
    """Channels that one orthogonal matrix may turn.

    Attributes:
        channels: their classes, ascending.
        keeps_ones: whether the vector of ones has to stay, since a mean over the channels is taken.
        readers: products that sum over them, the first first.
    """

    channels: Ids
    keeps_ones: bool
    readers: tuple[str, ...]


@dataclass(frozen=True)
class Rotations:
    """The channels that orthogonal matrices may turn in a model.

    Attributes:
        places: the channels that turn.
        classes: class of each variable; FIXED for a channel of no place.
        scale: gain that the readers of each variable take up: 1 for most.
        folds: the constants that turn along `plus` and `minus`, after these are divided and multiplied by
            the gains.
        gains: constants that become 1 where their channels turn.
        blocked: tensor that a product sums over -> why it cannot turn.
    """

    places: tuple[TurningPlace, ...]
    classes: Ids
    scale: NDArray[np.float64]
    folds: tuple[Fold, ...]
    gains: tuple[GainVector, ...]
    blocked: dict[str, str]


class _Vectors(Ties):
    """Variables, and which of them came together: channels mix only within every such row."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[Ids] = []

    def fresh(self, shape: tuple[int, ...]) -> Ids:
        made = super().fresh(shape)
        self.rows.append(made.reshape(1, -1))
        return made


class _Turning(Context):
    """Variables of the tensors, and what operators ask of the matrices that turn them."""

    def __init__(self, index: GraphIndex) -> None:
        super().__init__(index, frozenset())
        self.ties: _Vectors = _Vectors()
        self.averaged: list[Ids] = []
        self.held: list[Ids] = []
        self.gains: list[GainVector] = []
        self.pairs: list[tuple[str, Ids]] = []

    def hold(self, ids: Ids, axis: int) -> None:
        """Let the channels along an axis mix among themselves only, and stay without gains."""
        self.ties.rows.append(np.moveaxis(ids, axis, -1).reshape(-1, ids.shape[axis]))
        self.held.append(ids)

    def keep_mean(self, ids: Ids) -> None:
        """Let the vector of ones stay."""
        self.averaged.append(ids)
        self.held.append(ids)

    def still(self, tensor: str) -> Ids:
        """Return variables of a tensor that does not turn."""
        return np.full([1] * self.rank(tensor), FIXED, np.int64)


def find_rotations(model: Model) -> Rotations:
    """Return what orthogonal matrices may turn in the main graph of `model`.

    Args:
        model: the normalised model, with the shapes that inference finds.
    """
    context = _Turning(GraphIndex(model.proto.graph))
    index, ties, folds = context.index, context.ties, context.folds
    for node in model.proto.graph.node:
        read_node(node, context, _RULES, "rotations")
    for name in (*index.outputs, *index.captured):
        if name in context.ids:
            ties.fix(context.ids[name], f"{name!r} is an output or read by a body")
    readers = {node.name: node for node in model.proto.graph.node}
    for fold in folds:
        shared = fold.summed and len(index.readers[readers[fold.node].input[1]]) > 1
        shared = shared and readers[fold.node].input[1] != fold.constant  # by one Transpose
        if shared or fold.constant in index.captured:
            why = f"constant {fold.constant!r} of {fold.op_type} {fold.node!r} cannot turn"
            ties.fix(np.concatenate([fold.plus.reshape(-1), fold.minus.reshape(-1)]), why)
    gains = _take_up(context)
    classes, reasons = ties.solve()
    turning = np.where(np.isin(classes, [*reasons]), FIXED, classes)
    places = _find_places(context, classes, turning)
    taken = np.concatenate([np.zeros(0, np.int64), *(place.channels for place in places)])
    turning = np.where(np.isin(turning, taken), turning, FIXED)
    scale = np.ones(ties.count)
    for gain in gains:
        scale[gain.taken] = np.where(turning[gain.taken] == FIXED, 1.0, gain.values)
    blocked = {
        fold.summed: next(reasons[c] for c in classes[fold.inputs].tolist() if c in reasons)
        for fold in folds
        if fold.summed and fold.inputs.any() and not turning[fold.inputs].any()
        if np.isin(classes[fold.inputs], [*reasons]).any()
    }
    gains = [gain for gain in gains if turning[gain.made].any()]
    return Rotations(tuple(places), turning, scale, tuple(folds), tuple(gains), blocked)


def _take_up(context: _Turning) -> list[GainVector]:
    """Return the gains that only products read, or make: they take them up, and all channels turn alike.

    In place of a gain that products make its inverse is returned, for these.
    """
    ties, taken = context.ties, []
    classes, reasons = ties.solve()
    alone = (np.bincount(classes, minlength=ties.count)[classes] == 1) & ~np.isin(classes, [*reasons])
    held = np.bincount(np.concatenate([np.zeros(0, np.int64), *(ids.reshape(-1) for ids in context.held)]))
    held = np.concatenate([held, np.zeros(ties.count - len(held), np.int64)])
    summed, shifted = np.zeros(ties.count, bool), np.zeros(ties.count, bool)
    for fold in context.folds:
        (summed if fold.summed else shifted)[fold.minus if fold.summed else fold.plus] = True
    for gain in context.gains:
        sizes = np.abs(gain.values)
        is_small = (shifted[gain.made] & (sizes < TINY_GAIN * sizes.max())).any()
        if (alone & (held == 0))[gain.made].all() and not is_small:
            taken.append(gain)
        elif (alone & (held == 1) & ~summed)[gain.read].all() and gain.values.all():
            taken.append(replace(gain, values=1.0 / gain.values, taken=gain.read))
        else:
            why = f"gain {gain.constant!r} is too small in a channel to divide the shift behind it"
            if not is_small:
                why = f"the gain of {gain.node!r} is in front of {_reader(context, gain)}"
            ties.fix(gain.made, why)
            ties.fix(gain.read, why)
            continue
        ties.tie(gain.read, gain.made)
    return taken


def _reader(context: _Turning, gain: GainVector) -> str:
    """Return the first reader of the channels behind a gain that multiplies no constant."""
    output = next(name for name, ids in context.ids.items() if ids is gain.made)
    products = {fold.node for fold in context.folds if fold.summed}
    readers = [node for node in context.index.readers.get(output, ()) if node.name not in products]
    return f"{readers[0].op_type} {readers[0].name!r}" if readers else "an output"


def _find_places(context: _Turning, classes: Ids, turning: Ids) -> list[TurningPlace]:
    """Return the channels that every row has all or none of, where a product sums over them."""
    products = [fold for fold in context.folds if fold.summed]
    drawn = np.random.default_rng(0)
    marks = np.zeros(context.ties.count, np.uint64)
    for rows in (*context.ties.rows, *(fold.inputs[None] for fold in products)):
        for row in rows:  # channels that the same rows have as often have the same sum of marks
            found, counts = np.unique(classes[row], return_counts=True)
            marks[found] += drawn.integers(1 << 63, dtype=np.uint64) * counts.astype(np.uint64)
    averaged = np.zeros(context.ties.count, bool)
    for ids in context.averaged:
        averaged[classes[ids]] = True
    sums = [*((fold.node, fold.inputs) for fold in products), *context.pairs]
    free = np.unique(turning[turning != FIXED])
    _, first, block = np.unique(marks[free], return_index=True, return_inverse=True)
    places = []
    for number in np.argsort(first).tolist():
        channels = free[block == number]
        readers = [node for node, ids in sums if np.isin(turning[ids], channels).any()]
        if len(channels) > 1 and readers:
            places.append(
                TurningPlace(channels, bool(averaged[channels].any()), tuple(dict.fromkeys(readers)))
            )
    return places


def _wide(ids: Ids) -> list[int]:
    return [axis for axis, size in enumerate(ids.shape) if size > 1]


def _sizes(tensor: str, rank: int, context: Context) -> list[int | None]:
    """Return the sizes of a tensor along the axes of one of `rank`."""
    shape = context.shape(tensor)
    return [*[1] * (rank - len(shape)), *shape]


def _add(node: onnx.NodeProto, attrs: dict[str, Any], context: _Turning) -> Ids | None:
    """Turn all terms alike; a term that all channels share needs the vector of ones to stay."""
    return _join(node, [name for name in node.input if name], context)


def _join(node: onnx.NodeProto, names: Sequence[str], context: _Turning) -> Ids | None:
    """Return the variables of a sum of tensors."""
    index, ties, rank = context.index, context.ties, context.rank(node.output[0])
    terms = {name: align(context.of(name), rank) for name in names if name not in index.constants}
    wide = [ids for ids in terms.values() if ids.any()]
    if not wide:
        return context.still(node.output[0])
    whole = np.broadcast_arrays(*wide)[0]
    axes = _wide(whole)
    for name in names:
        if all(size == 1 for axis, size in enumerate(_sizes(name, rank, context)) if axis in axes):
            context.keep_mean(whole)
        elif name in index.constants:
            if not fold_elements(node, name, whole, context):
                return None
        elif terms[name].any():
            ties.tie(whole, terms[name])
        else:
            ties.fix(whole, f"the stream begins {_name_source(index, name)}, which nothing turns")
    return whole


def _name_source(index: GraphIndex, tensor: str) -> str:
    """Return where the values of a tensor come from, before they are moved and constants are added."""
    while (maker := index.makers.get(tensor)) is not None and maker.op_type in MOVES | {"Add"}:
        inputs = [name for name in maker.input if name not in index.constants]
        if len(inputs) > 1 and maker.op_type == "Add":
            break
        tensor = inputs[0]
    return f"with input {tensor!r}" if maker is None else f"behind {maker.op_type} {maker.name!r}"


def _mul(node: onnx.NodeProto, attrs: dict[str, Any], context: _Turning) -> Ids | None:
    """Pass a factor that all channels share on; one of each channel is a gain."""
    if len(set(node.input)) == 1:
        return _square(node, attrs, context)
    rank = context.rank(node.output[0])
    wide = [name for name in node.input if context.of(name).any()]
    if not wide:
        return context.still(node.output[0])
    factor = next(name for name in node.input if name != wide[0])
    if len(wide) > 1 or (node.op_type == "Div" and wide[0] != node.input[0]):
        return None
    ids, sizes = align(context.of(wide[0]), rank), _sizes(factor, rank, context)
    if all(sizes[axis] == 1 for axis in _wide(ids)):
        return ids
    return _gain(node, factor, ids, context)


def _gain(node: onnx.NodeProto, constant: str, ids: Ids, context: _Turning) -> Ids | None:
    """Return the variables behind a factor of each channel: new ones, if the factors differ."""
    values = context.index.array(constant)
    if values is None or not context.is_weight(constant) or values.ndim > ids.ndim:
        return None
    values = align(values, ids.ndim).astype(np.float64)
    if np.ptp(values) == 0.0:
        return ids
    if values.shape != ids.shape:
        return None
    if node.op_type == "Div":
        if not values.all():
            return None
        values = 1.0 / values
    context.held.append(ids)
    made = context.ties.fresh(ids.shape)
    context.gains.append(GainVector(node.name, constant, values, ids, made, made))
    return made


def _square(node: onnx.NodeProto, attrs: dict[str, Any], context: _Turning) -> Ids | None:
    """Squares stay in sum: all that read them have to sum them over the channels."""
    ids, output = context.of(node.input[0]), node.output[0]
    still = context.still(output)
    if not ids.any():
        return still
    if node.op_type == "Pow" and context.index.number(node.input[1]) != 2.0:
        return None
    readers = context.index.readers.get(output, ())
    axes = {_summed(reader, ids, context) for reader in readers}
    if len(axes) != 1 or None in axes or output in context.index.outputs:
        return None
    context.hold(ids, axes.pop())
    return still


def _summed(node: onnx.NodeProto, ids: Ids, context: _Turning) -> Any:
    """Return the axis of channels that a mean or sum is taken over; None if it takes none of a vector."""
    if node.op_type not in ("ReduceMean", "ReduceSum"):
        return None
    over = {axis % ids.ndim for axis in context.index.axes(node)} & {*_wide(ids)}
    return over.pop() if len(over) == 1 else None


def _reduce(node: onnx.NodeProto, attrs: dict[str, Any], context: _Turning) -> Ids | None:
    """Pass sums over other axes on; a mean of the channels needs the vector of ones to stay."""
    ids = context.of(node.input[0])
    axis = _summed(node, ids, context)
    if axis is None:
        return RULES["ReduceMean"](node, attrs, context) if ids.any() else context.still(node.output[0])
    context.hold(ids, axis)
    context.keep_mean(ids)
    return context.still(node.output[0])


def _normalize(node: onnx.NodeProto, attrs: dict[str, Any], context: _Turning) -> Ids | None:
    """Read a norm over the last axis: no rotation changes lengths, and those that keep ones no mean."""
    return _norm(node, context.of(node.input[0]), node.input[1:3], attrs, context)


def _skip_normalize(node: onnx.NodeProto, attrs: dict[str, Any], context: _Turning) -> Ids | None:
    """Read the norm of a sum, which may be an output too."""
    is_mean = node.op_type == "SkipLayerNormalization"
    added = [*node.input[:2], *filter(None, [input_name(node, 4 if is_mean else 3)])]
    ids = _join(node, added, context)
    if ids is None:
        return None
    for name in node.output[3:4]:
        context.ids[name] = ids
    return _norm(node, ids, node.input[2 : 3 + is_mean], attrs, context)


def _norm(
    node: onnx.NodeProto, ids: Ids, constants: Sequence[str], attrs: dict[str, Any], context: _Turning
) -> Ids | None:
    last = context.rank(node.input[0]) - 1
    if not ids.any():
        return context.still(node.output[0])
    if attrs.get("axis", -1) not in (-1, last) or ids.shape[last] == 1:
        return None
    context.hold(ids, last)
    if node.op_type in ("LayerNormalization", "SkipLayerNormalization"):
        context.keep_mean(ids)
    scale, *shift = constants
    made = _gain(node, scale, ids, context)
    if made is None or not all(fold_elements(node, name, made, context) for name in shift if name):
        return None
    return made


def _matmul(node: onnx.NodeProto, attrs: dict[str, Any], context: _Turning) -> Ids | None:
    """Read a product: of queries and keys that turn together, of probabilities and values."""
    if attrs.get("group", 1) != 1:
        return None
    if node.op_type != "MatMul" or find_weight(node.input[1], context)[0] in context.index.constants:
        return RULES["MatMul"](node, attrs, context)
    one, other = (context.of(name) for name in node.input)
    rank = context.rank(node.output[0])
    if min(one.ndim, other.ndim) < 2:
        return None
    if not one.any() and other.shape[-2] == 1:
        context.hold(other, -1)
        return align(other, rank) if other.any() else context.still(node.output[0])
    if one.shape[-2] == other.shape[-1] == 1 and one.shape[-1] == other.shape[-2] > 1:
        columns = np.swapaxes(other, -1, -2)
        context.hold(one, -1)
        context.hold(columns, -1)
        context.ties.tie(one, columns)
        context.pairs.append((node.name, one))
        return context.still(node.output[0])
    return None


def _gather(node: onnx.NodeProto, attrs: dict[str, Any], context: _Turning) -> Ids | None:
    """Read rows of a table, whose columns turn; or a choice of channels."""
    table = node.input[0]
    if not context.is_weight(table) or node.input[1] in context.index.constants:
        return RULES["Gather"](node, attrs, context)
    dims = tuple(context.index.constants[table].dims)
    if len(dims) != 2 or attrs.get("axis", 0) % 2:
        return None
    made = context.ties.fresh(dims[1:])
    context.fold(node, table, made[None])
    return align(made, context.rank(node.output[0]))


def _concat(node: onnx.NodeProto, attrs: dict[str, Any], context: _Turning) -> Ids | None:
    """Read positions joined with constant ones, such as a token of a class; or other tensors."""
    known = [name for name in node.input if context.is_weight(name)]
    parts = [context.of(name) for name in node.input if name not in known]
    axis = attrs["axis"] % context.rank(node.output[0])
    if not known or not parts or any(part.shape[axis] > 1 for part in parts):
        return RULES["Concat"](node, attrs, context)
    whole = context.ties.join(parts)
    return whole if all(fold_elements(node, name, whole, context) for name in known) else None


def _expand(node: onnx.NodeProto, attrs: dict[str, Any], context: _Turning) -> Ids | None:
    """Read a constant that is repeated, which may turn along its axes."""
    name = node.input[0]
    if not context.is_weight(name):
        return RULES["Expand"](node, attrs, context)
    made = context.ties.fresh(tuple(context.index.constants[name].dims))
    fold_elements(node, name, made, context)
    return align(made, context.rank(node.output[0]))


_RULES: dict[str, Callable[..., Ids | None]] = {
    **{
        name: RULES[name]
        for name in """Cast Dropout Flatten Identity Neg Pad Reshape Resize Slice Split Squeeze Transpose
            Unsqueeze""".split()
    },
    "Tile": RULES["Resize"],
    **dict.fromkeys(("Add", "Sub", "Sum"), _add),
    **dict.fromkeys(("Div", "Mul"), _mul),
    **dict.fromkeys(
        ("AveragePool", "GlobalAveragePool"),
        lambda node, attrs, context: ids if {*_wide(ids := context.of(node.input[0]))} <= {1} else None,
    ),
    **dict.fromkeys(("ReduceMean", "ReduceSum"), _reduce),
    **dict.fromkeys(("LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization"), _normalize),
    **dict.fromkeys(
        ("com.microsoft.SkipLayerNormalization", "com.microsoft.SkipSimplifiedLayerNormalization"),
        _skip_normalize,
    ),
    **dict.fromkeys(("Conv", "ConvTranspose", "Gemm", "MatMul"), _matmul),
    "Concat": _concat,
    "Expand": _expand,
    "Gather": _gather,
    "Pow": _square,
}
"""Op type, behind its domain if that is not ONNX's -> how it passes rotations on. Every other one blocks."""
