"""Rotations in the constants of a model: no node is new, and its outputs stay what they were.

    W2 f(W1 x)  =  (W2 Q') f((Q W1) x)    if f(Q x) = Q f(x), as norms without gains do

Sources: S. Ashkboos et al., SliceGPT and QuaRot (2024), for residual streams and the values of heads.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import onnx
from numpy.typing import NDArray

from onnxfq.graph.channels.operators import Fold
from onnxfq.graph.channels.rotations import Rotations, TurningPlace
from onnxfq.graph.channels.ties import FIXED, Ids
from onnxfq.graph.constants import make_tensor, weight_array
from onnxfq.graph.external.streaming import hash_model
from onnxfq.graph.external.weightless import with_initializers
from onnxfq.graph.index import GraphIndex
from onnxfq.graph.model import Model
from onnxfq.numerics.rotations import Rotation, spread
from onnxfq.passes.equalize import mark_equalized

ROTATED = "/rotated"
"""Ending of the name of a constant that turned while others read it as it was, or turned otherwise."""


@dataclass(frozen=True)
class Rotated:
    """A model with rotations.

    Attributes:
        model: of the same function.
        copied: bytes of the constants that had to become two, since their readers differ.
    """

    model: Model
    copied: int


def rotate(model: Model, rotations: Rotations, places: Sequence[TurningPlace]) -> Rotated:
    """Return `model` with its weights turned; constants of half types turn in float64 and are rounded once.

    Args:
        model: the float model, which is not changed.
        rotations: of it.
        places: those of them that turn, each by the matrix of `spread`.
    """
    turns = [
        (place.channels, spread(len(place.channels), place.keeps_ones, seed))
        for seed, place in enumerate(places)
    ]
    taken = np.concatenate([np.zeros(0, np.int64), *(place.channels for place in places)])
    classes = np.where(np.isin(rotations.classes, taken), rotations.classes, FIXED)
    scale = np.where(classes == FIXED, 1.0, rotations.scale)
    changed = _Constants(model)
    for gain in rotations.gains:
        if classes[gain.made].any():
            values = weight_array(model, gain.constant)
            turns_there = classes[gain.made].reshape(values.shape) != FIXED
            changed.add(gain.node, gain.constant, np.where(turns_there, 1.0, values))
    for fold in rotations.folds:
        if classes[fold.plus].any() or classes[fold.minus].any():
            values = weight_array(model, fold.constant)
            changed.add(fold.node, fold.constant, _turn(values, fold, classes, scale, turns))
    return changed.replace()


def _turn(
    values: NDArray[np.generic],
    fold: Fold,
    classes: Ids,
    scale: NDArray[np.float64],
    turns: Sequence[tuple[Ids, Rotation]],
) -> NDArray[np.float64]:
    """Return a constant with the gains that it takes up, turned along its outputs and its inputs."""
    turned = values.astype(np.float64) * scale[fold.minus] / scale[fold.plus]
    for ids in (classes[fold.plus], classes[fold.minus]):
        axes = [axis for axis, size in enumerate(ids.shape) if size > 1]
        if not axes:
            continue
        last = [*range(-len(axes), 0)]
        moved = np.moveaxis(turned, axes, last)
        rows = moved.reshape(*moved.shape[: -len(axes)], -1)
        flat = ids.reshape(-1)
        for channels, rotation in turns:
            places = np.flatnonzero(np.isin(flat, channels))
            # A channel that comes several times, such as the value of a head that others share, has as many
            # places in the same order.
            sorted_places = places[np.argsort(flat[places], kind="stable")].reshape(len(channels), -1).T
            for one in sorted_places:
                rows[..., one] = rotation.turn(rows[..., one])
        turned = np.moveaxis(rows.reshape(moved.shape), last, axes)
    return turned


class _Constants:
    """Constants with new values, each for the nodes that read it."""

    def __init__(self, model: Model) -> None:
        self._model, self._index = model, GraphIndex(model.proto.graph)
        self._nodes = {node.name: node for node in model.proto.graph.node}
        self._changes: defaultdict[str, dict[bytes, _NewConstant]] = defaultdict(dict)

    def add(self, node: str, constant: str, values: NDArray[np.float64]) -> None:
        """Let a node read other values; a weight behind a Transpose is read by that."""
        makers = (self._index.makers.get(name) for name in self._nodes[node].input)
        turned = next((one.name for one in makers if one is not None and constant in one.input), node)
        reader = node if constant in self._nodes[node].input else turned
        rounded = values.astype(weight_array(self._model, constant).dtype)
        digest = hashlib.sha256(rounded.tobytes()).digest()
        if digest not in self._changes[constant]:
            self._changes[constant][digest] = _NewConstant(make_tensor(constant, rounded), set())
        self._changes[constant][digest].readers.add(reader)

    def replace(self) -> Rotated:
        """Return the model with these constants: under the old name if all its readers agree."""
        model, names = self._model, self._index.names
        proto = with_initializers(model.proto, model.proto.graph.initializer)
        nodes = {node.name: node for node in proto.graph.node}
        changed: dict[str, onnx.TensorProto] = {}
        added, copied = [], 0
        for constant, changes in self._changes.items():
            readers = {node.name for node in self._index.readers[constant]}
            own = readers == set().union(*(change.readers for change in changes.values()))
            for change in changes.values():
                if own:
                    changed[constant], own = change.tensor, False
                    continue
                change.tensor.name = names.claim(f"{constant}{ROTATED}")
                added.append(change.tensor)
                copied += weight_array(model, constant).nbytes
                for reader in change.readers:
                    inputs = nodes[reader].input
                    inputs[:] = [change.tensor.name if name == constant else name for name in inputs]
        tensors = [changed.get(tensor.name, tensor) for tensor in proto.graph.initializer]
        proto = with_initializers(proto, [*tensors, *added])
        mark_equalized(proto, "rotations")
        return Rotated(replace(model, proto=proto, sha256=hash_model(proto), limits={}), copied)


class _NewConstant(NamedTuple):
    """New values of a constant, and the nodes that read them."""

    tensor: onnx.TensorProto
    readers: set[str]
