"""`Patient`: everything that is known about a quantized file before a cause is named."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from onnxfq.data import Feed
from onnxfq.diagnosis.reading.board import Board, Change, Noise, quantizers_by_scale
from onnxfq.diagnosis.reading.float_model import FloatModel
from onnxfq.diagnosis.reading.quantizers import ActivationQuantizer, SwitchedForm
from onnxfq.diagnosis.reading.relu_limits import guess_limits, keeps_relus
from onnxfq.diagnosis.reading.values import GridFit, TensorValues
from onnxfq.graph.index import GraphIndex
from onnxfq.graph.ops import DATA_MOVEMENT
from onnxfq.remedies.samples import split_samples

FAITHFUL_DB = 20.0
"""SQNR from which the float form of the file computes what the float model does; int8 weights keep it."""


@dataclass
class Patient:
    """A quantized file, its data and what was measured.

    Attributes:
        source: its name in messages.
        proto: the file, normalised; never changed.
        form: its float form with switches.
        board: a session of the form; None without data.
        floats: the float model; None if none was given.
        feeds: of the data.
        target: whose rules count; empty for none.
        cured: repairs of constants, which hold for what is measured in float.
    """

    source: str
    proto: onnx.ModelProto
    form: SwitchedForm
    board: Board | None
    floats: FloatModel | None
    feeds: Sequence[Feed]
    target: str = ""
    cured: Change = field(default_factory=Change)
    _alone: dict[tuple[int, ...], Noise] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        """Match the float model and compute the reference outputs."""
        if self.board is None:
            return
        guessed = guess_limits(self.form, self.form_index)
        if self.floats is not None:
            self.floats.match(self.board, self.feeds[:2], keeps_relus=keeps_relus(self.form, self.form_index))
            guessed = {n: ends for n, ends in guessed.items() if n not in self.floats.tensors}
            guessed |= self.floats.limits(self.form)
        self.board.limits = guessed

    @cached_property
    def index(self) -> GraphIndex:
        """The graph of the file."""
        return GraphIndex.of_model(self.proto)

    @cached_property
    def form_index(self) -> GraphIndex:
        """The graph of its float form."""
        return GraphIndex.of_model(self.form.proto)

    @cached_property
    def choosing(self) -> Sequence[Feed]:
        """The samples that measure causes and choose repairs."""
        return split_samples(self.feeds).choosing

    @cached_property
    def proving(self) -> Sequence[Feed]:
        """The samples that measure what is reported, and from which nothing is learnt."""
        return split_samples(self.feeds).proving

    @cached_property
    def references(self) -> dict[int, list[NDArray[Any]]]:
        """The outputs in float of each feed that measures, by its identity."""
        board, feeds = self._measured, [*self.choosing, *self.proving]
        if self.floats is None:
            return {id(feed): board.run(feed, board.nothing | self.cured) for feed in feeds}
        names = self.floats.match_outputs(self.form, board.outputs)
        return {id(feed): self.floats.run(feed, names) for feed in feeds}

    @property
    def _measured(self) -> Board:
        if self.board is None:
            raise ValueError("no data was given")
        return self.board

    def noise(self, change: Change, feeds: Sequence[Feed] | None = None) -> Noise:
        """Return the noise of a change on some feeds, by default on those that choose."""
        feeds = self.choosing if feeds is None else feeds
        return self._measured.noise(feeds, [self.references[id(feed)] for feed in feeds], change)

    @cached_property
    def whole(self) -> Noise:
        """The noise of the file as it is."""
        return self.noise(Change())

    @cached_property
    def floor(self) -> Noise:
        """The noise with all activations in float: weights and the graph make it."""
        return self.noise(self._measured.nothing | self.cured)

    @cached_property
    def is_faithful(self) -> bool:
        """Whether the float form of the file computes what the float model does."""
        return self.floats is None or self.floor.db >= FAITHFUL_DB

    @cached_property
    def groups(self) -> list[list[ActivationQuantizer]]:
        """Quantizers that share a scale in the file."""
        return quantizers_by_scale(self.form)

    @cached_property
    def values(self) -> list[TensorValues]:
        """Values of the data in front of each quantizer, in float."""
        return self.collect(self.feeds)

    def collect(self, feeds: Sequence[Feed], change: Change | None = None) -> list[TensorValues]:
        """Return the values in front of each quantizer for these feeds, in float.

        They are the float model's where the form of the file computes something else.
        change: of constants.
        """
        board = self._measured
        change = board.nothing | self.cured if change is None else board.nothing | self.cured | change
        replaced: dict[int, str] = {}
        if self.floats is not None and not self.is_faithful:
            replaced = self.floats.tensors
        parts: list[list[TensorValues]] = [[] for _ in self.form.activations]
        for feed in feeds:  # of a large network the tensors of all feeds at once fill the memory
            row = board.run(feed, change, board.inner)
            if replaced and self.floats is not None:
                arrays = self.floats.run(feed, list(replaced.values()))
                for number, array in zip(replaced, arrays, strict=True):
                    row[number] = array
            for quantizer, array in zip(self.form.activations, row, strict=True):
                one = TensorValues.of(self._limited(quantizer, array), self._channels_last(quantizer))
                parts[quantizer.number].append(one)
        return [TensorValues.over(part) for part in parts]

    def inner(self, feed: Feed, quantizers: Sequence[ActivationQuantizer]) -> list[NDArray[Any]]:
        """Return the tensors in front of quantizers for one feed, in float."""
        board = self._measured
        names = [board.inner[one.number] for one in quantizers]
        return board.run(feed, board.nothing | self.cured, names)

    def _limited(self, quantizer: ActivationQuantizer, array: NDArray[Any]) -> NDArray[Any]:
        """Return the values that count: those that a Relu removes behind the quantizer need no range."""
        low, high = self._measured.limits.get(quantizer.number, (-math.inf, math.inf))
        readers = self.readers(quantizer)
        if readers and all(node.op_type == "Relu" for node in readers):
            low = max(low, 0.0)
        return np.clip(array, low, high) if (low, high) != (-math.inf, math.inf) else array

    def _channels_last(self, quantizer: ActivationQuantizer) -> bool:
        """Tell whether the channels of a tensor are along its last axis: no convolution is next to it."""
        maker = self.form_index.makers.get(quantizer.plain)
        around = [maker, *self.readers(quantizer)]
        return not any(node is not None and "Conv" in node.op_type for node in around)

    def readers(self, quantizer: ActivationQuantizer) -> list[onnx.NodeProto]:
        """Return the nodes of the float form that read what a quantizer gives."""
        return self.form_index.readers.get(quantizer.output, [])

    def group_values(
        self, group: Sequence[ActivationQuantizer], known: Sequence[TensorValues] | None = None
    ) -> TensorValues:
        """Return the values of all tensors that share a scale, by default in all samples."""
        known = self.values if known is None else known
        return TensorValues.over([known[quantizer.number] for quantizer in group])

    def alone(self, numbers: Sequence[int]) -> Noise:
        """Return the noise of these quantizers alone."""
        key = tuple(numbers)
        if key not in self._alone:
            self._alone[key] = self.noise(self._only(key))
        return self._alone[key]

    def _only(self, numbers: Sequence[int]) -> Change:
        change = self._measured.only(numbers)
        return change | self.cured if numbers else change

    def share(self, numbers: Sequence[int]) -> float:
        """Return the noise of these quantizers alone over the file's: no repair of them takes more away."""
        return self.alone(numbers).share_over(Noise((0.0,) * len(self.whole.ratios)), self.whole)

    def harm(self, numbers: Sequence[int], repair: Change) -> float:
        """Return what these quantizers alone add to the noise over what they add with the repair.

        It is a share of the noise of the file, of the output where it is most.
        """
        repaired = self.noise(self._only(numbers) | repair)
        return self.alone(numbers).share_over(repaired, self.whole)

    def cure(self, change: Change) -> None:
        """Take repairs of constants as done for what is measured in float, and forget what was measured."""
        self.cured |= change
        if self.board is not None:
            self.board.embed(self.cured.constants)
        self._alone.clear()
        for name in ("references", "whole", "floor", "is_faithful", "values"):
            self.__dict__.pop(name, None)

    def left_by(self, change: Change) -> float:
        """Return the noise with a change over the file's, of the output where it is most."""
        pairs = zip(self.noise(change).ratios, self.whole.ratios, strict=True)
        return max((new / old for new, old in pairs if old > 0 and math.isfinite(old)), default=0.0)

    def gain(self, repair: Change) -> float:
        """Return the share of the noise of the file that a repair takes away."""
        return self.whole.share_over(self.noise(repair), self.whole)

    @cached_property
    def tied(self) -> list[set[int]]:
        """Numbers of the quantizers that meet at each Concat, which some targets want on one grid."""
        names = {q.output: q.number for q in self.form.activations}
        plain = {q.plain: q.number for q in self.form.activations}
        sets = []
        for node in self.form_index.nodes:
            if node.op_type == "Concat":
                reached = {plain[name] for name in node.output if name in plain}
                sets.append(reached | {names[n] for n in map(self._source, node.input) if n in names})
        return sets

    def are_tied(self, numbers: Sequence[int], others: Sequence[int]) -> bool:
        """Tell whether some of these quantizers and some of the others meet at a Concat."""
        return any(members & {*numbers} and members & {*others} for members in self.tied)

    def _source(self, name: str) -> str:
        """Return the tensor that a moved or resized one comes from."""
        maker = self.form_index.makers.get(name)
        while maker is not None and maker.op_type in (*DATA_MOVEMENT, "Resize", "Upsample"):
            name = maker.input[0]
            maker = self.form_index.makers.get(name)
        return name

    def fit_change(self, group: Sequence[ActivationQuantizer], fit: GridFit) -> Change:
        """Return the change that gives all quantizers of a group one grid."""
        return Change(grids={quantizer.number: fit for quantizer in group})
