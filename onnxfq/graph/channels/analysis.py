"""Groups of channels whose factors are free, and the constants that take these factors up."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from onnxfq.graph.channels.operators import Context, Fold, read_node
from onnxfq.graph.channels.ties import FIXED, Ids, connect
from onnxfq.graph.index import GraphIndex
from onnxfq.graph.model import Model


class Carried(NamedTuple):
    """A tensor with channels of a group that no operator with weights sums over.

    Attributes:
        tensor: its name.
        inputs: the free variables of its channels, [C].
        axis: of these channels.
    """

    tensor: str
    inputs: Ids
    axis: int


@dataclass(frozen=True)
class ChannelGroup:
    """Channels whose factors are chosen together, because a tensor or a sum joins them.

    Attributes:
        name: the first tensor that an operator with weights sums over.
        classes: the free variables, ascending.
        readers: constants whose operator sums over the channels; they are divided by the factors.
        writers: constants that make the channels; they are multiplied by the factors.
        explicit: whether a new Mul applies the factors, because no constant takes them up.
        carried: other tensors with these channels, such as the terms of a sum.
    """

    name: str
    classes: Ids
    readers: tuple[Fold, ...]
    writers: tuple[Fold, ...]
    explicit: bool = False
    carried: tuple[Carried, ...] = ()


@dataclass(frozen=True)
class Analysis:
    """Factors of channels that leave the function of a model unchanged.

    Attributes:
        count: number of variables; variable 0 is the factor 1.
        folds: the constants that take factors up, their variables replaced by their classes.
        groups: what can be chosen.
        blocked: tensor that an operator with weights sums over -> why its factors are 1.
        outside: variables of the tensors that a new Mul scales, by name, broadcastable to them.
    """

    count: int
    folds: tuple[Fold, ...]
    groups: tuple[ChannelGroup, ...]
    blocked: dict[str, str]
    outside: dict[str, Ids]


def analyze_channels(model: Model, outside: frozenset[str] = frozenset()) -> Analysis:
    """Return the channels of the main graph of `model` with free factors.

    Cross-layer equalization (M. Nagel et al., 2019) and SmoothQuant (G. Xiao et al., 2023) choose such
    factors. One pass forward over the nodes gives every channel a variable: operators with weights,
    normalizations and products with a constant make new ones, data movement and operators with
    f(s x) = s f(x) pass them on, sums make them equal, and every other operator, every output and every body
    that reads a tensor fixes them to 1.

    Args:
        model: the normalised model, with the shapes that inference finds.
        outside: tensors that a new Mul is to scale in front of the operators with weights that read them.
    """
    graph = model.proto.graph
    index = GraphIndex(graph)
    context = Context(index, outside)
    for node in graph.node:
        read_node(node, context)
    for name in (*index.outputs, *index.captured):
        if name in context.ids:
            context.ties.fix(context.ids[name], f"tensor {name!r} is an output or read by a body")
    _tie_shared(context)
    classes, reasons = context.ties.solve()
    fixed = np.zeros(context.ties.count, bool)
    fixed[list(reasons)] = True
    free = np.where(fixed[classes], FIXED, classes)
    folds = tuple(
        replace(fold, plus=free[fold.plus], minus=free[fold.minus], inputs=free[fold.inputs])
        for fold in context.folds
    )
    blocked = {
        fold.summed: _explain(fold, index, classes, reasons)
        for fold in context.folds
        if fold.summed and (free[fold.inputs] == FIXED).all()
    }
    own = {name: free[ids] for name, ids in context.own.items()}
    carried = _find_carried({name: free[ids] for name, ids in context.ids.items()})
    groups = tuple(_group(folds, own, len(free), carried))
    return Analysis(context.ties.count, folds, groups, blocked, own)


def _find_carried(ids_by_tensor: Mapping[str, Ids]) -> list[Carried]:
    """Return the tensors with free factors along one axis."""
    carried = []
    for name, ids in ids_by_tensor.items():
        wide = [axis for axis, size in enumerate(ids.shape) if size > 1]
        if len(wide) == 1 and (ids != FIXED).any():
            carried.append(Carried(name, ids.reshape(-1), wide[0]))
    return carried


def _explain(fold: Fold, index: GraphIndex, classes: Ids, reasons: dict[int, str]) -> str:
    """Return why the channels that `fold` sums over have the factor 1."""
    if (fold.inputs == FIXED).all():
        maker = index.makers.get(fold.summed)
        return "it is an input" if maker is None else f"{maker.op_type} {maker.name!r} gives it the factor 1"
    return next(reasons[c] for c in classes[fold.inputs].tolist() if c in reasons)


def _tie_shared(context: Context) -> None:
    """Make all readers of a shared weight agree; one that folds nothing, or turned, fixes its factors to 1.

    Vectors and numbers are not tied: each reader gets a copy.
    """
    by_constant: defaultdict[str, list[Fold]] = defaultdict(list)
    for fold in context.folds:
        if fold.summed:
            by_constant[fold.constant].append(fold)
    for name, folds in by_constant.items():
        kept = name in context.index.captured or len(context.index.readers[name]) != len(folds)
        kept |= len({(fold.plus.shape, fold.minus.shape) for fold in folds}) > 1
        for fold in folds:
            if kept:
                why = f"weight {name!r} is also read where it takes no factors"
                context.ties.fix(np.concatenate([fold.plus.reshape(-1), fold.minus.reshape(-1)]), why)
            else:
                context.ties.tie(folds[0].plus, fold.plus)
                context.ties.tie(folds[0].minus, fold.minus)


def _group(
    folds: tuple[Fold, ...], own: dict[str, Ids], count: int, carried: Sequence[Carried]
) -> list[ChannelGroup]:
    """Return the groups of the free classes that some operator sums over and some constant makes."""
    sides = [np.unique(ids[ids != FIXED]) for fold in folds for ids in (fold.plus, fold.minus)]
    sides = [side for side in sides if side.size]
    if not sides:
        return []
    left = np.concatenate([np.full(side.size, side[0]) for side in sides])
    joined = connect(count, left, np.concatenate(sides))
    joined[FIXED] = FIXED
    readers: defaultdict[int, list[Fold]] = defaultdict(list)
    writers: defaultdict[int, list[Fold]] = defaultdict(list)
    for fold in folds:
        for found, ids in ((writers, fold.plus), (readers, fold.minus)):
            free = ids[ids != FIXED]
            if not free.size:
                continue
            if found is writers or fold.summed:
                found[int(joined[free[0]])].append(fold)
            elif fold.op_type == "Div":  # a divisor makes the channels, by its inverse
                writers[int(joined[free[0]])].append(fold)
    outer = {int(joined[ids[ids != FIXED][0]]) for ids in own.values() if (ids != FIXED).any()}
    by_group: defaultdict[int, list[Carried]] = defaultdict(list)
    for one in carried:
        for number in np.unique(joined[one.inputs[one.inputs != FIXED]]).tolist():
            by_group[number].append(one)
    made = []
    for number in sorted(readers):
        if number not in writers and number not in outer:
            continue
        members = np.flatnonzero(joined == number)
        members = members[np.isin(members, np.concatenate(sides))]
        read, written = tuple(readers[number]), tuple(writers[number])
        summed = {fold.summed for fold in read}
        others = tuple(one for one in by_group[number] if one.tensor not in summed)
        made.append(ChannelGroup(read[0].summed, members, read, written, number in outer, others))
    return made
