"""`FileCandidate`: everything that is known about a quantized file before a cause is named."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from onnxfq.data import Feed
from onnxfq.diagnosis.reading.file_editor import Edits
from onnxfq.diagnosis.reading.float_model import FloatModel
from onnxfq.diagnosis.reading.quantizers import ActivationQuantizer, SwitchedForm
from onnxfq.diagnosis.reading.range_reading import RangeReading
from onnxfq.diagnosis.reading.relu_limits import guess_limits, keeps_relus
from onnxfq.diagnosis.reading.toggles import AS_WRITTEN, FileToggles, TrialState
from onnxfq.diagnosis.reading.values import TensorValues
from onnxfq.graph.index import GraphIndex
from onnxfq.graph.ops import DATA_MOVEMENT
from onnxfq.judging.samples import Split, split_samples
from onnxfq.numerics.metrics import ErrorSums, ratio_db
from onnxfq.passes.give_choices import given_name
from onnxfq.support.groups import group_pairs

FAITHFUL_DB = 20.0
"""SQNR from which the float form of the file computes what the float model does; int8 weights keep it."""

Noise = NDArray[np.float64]
"""Noise over signal of each output that decides; inf for infinite outputs and NaN."""

_MOVING = DATA_MOVEMENT | {"Resize", "Upsample"}


@dataclass
class FileCandidate:
    """A quantized file, its data and what was measured.

    Attributes:
        source: its name in messages.
        proto: the file, normalised; never changed.
        form: its float form with switches.
        floats: the float model; None if none was given.
        feeds: of the data.
        target: whose rules count; empty for none.
        kept: repairs of layers, which hold for what is measured in float.
        opened: the toggles of the form; None without data.
    """

    source: str
    proto: onnx.ModelProto
    form: SwitchedForm
    floats: FloatModel | None
    feeds: Sequence[Feed]
    target: str = ""
    kept: Edits = ()
    opened: FileToggles | None = None
    _noises: dict[TrialState, Noise] = field(default_factory=dict, init=False)

    def open(self, toggles: FileToggles) -> None:
        """Take the toggles, which run the data, and match the float model."""
        guessed = guess_limits(self.form, self.form_index)
        if self.floats is not None:
            has_relus = keeps_relus(self.form, self.form_index)
            self.floats.match(toggles, self.feeds[:2], keeps_relus=has_relus)
            guessed = {n: ends for n, ends in guessed.items() if n not in self.floats.tensors}
            guessed |= self.floats.limits(self.form)
        toggles.limits, self.opened = guessed, toggles

    @cached_property
    def index(self) -> GraphIndex:
        """The graph of the file."""
        return GraphIndex.of_model(self.proto)

    @cached_property
    def form_index(self) -> GraphIndex:
        """The graph of its float form."""
        return GraphIndex.of_model(self.form.proto)

    @cached_property
    def split(self) -> Split:
        """The samples that measure causes and choose repairs, and those that measure what is reported."""
        return split_samples(self.feeds)

    @property
    def toggles(self) -> FileToggles:
        """The toggles of a file with data."""
        assert self.opened is not None, "no data was given"
        return self.opened

    @property
    def floating(self) -> TrialState:
        """The state with all activations in float, and what is kept."""
        return self.toggles.nothing.edited(self.kept)

    @cached_property
    def references(self) -> dict[int, dict[str, Any]]:
        """The outputs in float, and what judges with them, of each feed that measures, by its identity."""
        toggles, floats, found = self.toggles, self.floats, {}
        names = [] if floats is None else floats.match_outputs(self.form, toggles.fetches)
        for feed in (*self.split.choosing, *self.split.proving):
            run = toggles.run(feed, self.floating) if floats is None else floats.run(feed, names)
            choices = {name: toggles.given(feed)[given_name(name)] for name in toggles.judged.choices}
            found[id(feed)] = dict(zip(toggles.fetches, run, strict=True)) | choices
        return found

    def expected(self, feeds: Sequence[Feed]) -> Iterator[list[Any]]:
        """Yield the references of feeds in the order in which they are compared."""
        return (list(self.references[id(feed)].values()) for feed in feeds)

    def noise(self, state: TrialState) -> Noise:
        """Return the noise of a state on the samples that choose; an output of another shape has none."""
        if state not in self._noises:
            self._noises[state] = self._measure(state)
        return self._noises[state]

    def _measure(self, state: TrialState) -> Noise:
        deciding = self.toggles.judged.deciding
        sums = [ErrorSums()] * len(deciding)
        for feed in self.split.choosing:
            run = dict(zip(self.toggles.fetches, self.toggles.run(feed, state), strict=True))
            pairs = [(self.references[id(feed)][name], run[name]) for name in deciding]
            alike = [ErrorSums.from_arrays(a, b) if a.shape == b.shape else ErrorSums() for a, b in pairs]
            sums = [one + more for one, more in zip(sums, alike, strict=True)]
        return np.asarray([10 ** (-one.sqnr_db / 10) for one in sums])

    @cached_property
    def whole(self) -> Noise:
        """The noise of the file as it is."""
        return self.noise(AS_WRITTEN)

    @cached_property
    def is_faithful(self) -> bool:
        """Whether the float form of the file computes what the float model does."""
        return self.floats is None or worst_db(self.noise(self.floating)) >= FAITHFUL_DB

    @cached_property
    def ranges(self) -> list[RangeReading]:
        """The range of each scale against the values of its tensors in all samples."""
        return self._group(self.values)

    def read_ranges(self, feeds: Sequence[Feed], edits: Edits = ()) -> list[RangeReading]:
        """Return the same for these feeds only, with a repair."""
        return self._group(self._collect(feeds, edits))

    def _group(self, values: Sequence[TensorValues]) -> list[RangeReading]:
        """Return the ranges of quantizers that share a scale in the file, and change together."""
        groups = group_pairs((quantizer.scale, quantizer) for quantizer in self.form.activations).values()
        return [RangeReading(one, TensorValues.over([values[q.number] for q in one])) for one in groups]

    @cached_property
    def values(self) -> list[TensorValues]:
        """Values of the data in front of each quantizer, in float."""
        return self._collect(self.feeds)

    def _collect(self, feeds: Sequence[Feed], edits: Edits = ()) -> list[TensorValues]:
        """Return the values in front of each quantizer for these feeds, in float.

        They are the float model's where the form of the file computes something else.
        """
        floats = None if self.is_faithful else self.floats
        replaced = {} if floats is None else floats.tensors
        parts: list[list[TensorValues]] = [[] for _ in self.form.activations]
        for feed in feeds:  # the tensors of all feeds at once can fill the memory
            row = self.inner(feed, self.form.activations, edits)
            more = [] if floats is None else floats.run(feed, [*replaced.values()])
            for number, array in zip(replaced, more, strict=True):
                row[number] = array
            for quantizer, array in zip(self.form.activations, row, strict=True):
                one = TensorValues.of(self._limited(quantizer, array), self._channels_last(quantizer))
                parts[quantizer.number].append(one)
        return [TensorValues.over(part) for part in parts]

    def inner(
        self, feed: Feed, quantizers: Sequence[ActivationQuantizer], edits: Edits = ()
    ) -> list[NDArray[Any]]:
        """Return the tensors in front of quantizers for one feed, in float."""
        names = [self.toggles.inner[one.number] for one in quantizers]
        return self.toggles.run(feed, self.floating.edited(edits), names)

    def _limited(self, quantizer: ActivationQuantizer, array: NDArray[Any]) -> NDArray[Any]:
        """Return the values that count: those that a Relu removes behind the quantizer need no range."""
        low, high = self.toggles.limits.get(quantizer.number, (-math.inf, math.inf))
        readers = self.readers(quantizer)
        if readers and all(node.op_type == "Relu" for node in readers):
            low = max(low, 0.0)
        return np.clip(array, low, high) if (low, high) != (-math.inf, math.inf) else array

    def _channels_last(self, quantizer: ActivationQuantizer) -> bool:
        """Tell whether the channels of a tensor are along its last axis: no convolution is next to it."""
        around = [self.form_index.makers.get(quantizer.plain), *self.readers(quantizer)]
        return not any(node is not None and "Conv" in node.op_type for node in around)

    def readers(self, quantizer: ActivationQuantizer) -> list[onnx.NodeProto]:
        """Return the nodes of the float form that read what a quantizer gives."""
        return self.form_index.readers.get(quantizer.output, [])

    def share(self, numbers: Sequence[int]) -> float:
        """Return the noise of these quantizers alone over the file's: no repair of them takes more away."""
        return self._share(self.noise(self._only(numbers)))

    def harm(self, numbers: Sequence[int], repair: Edits) -> float:
        """Return what these quantizers alone add to the noise over what they add with the repair.

        It is a share of the noise of the file, of the output where it is most.
        """
        return self._share(self.noise(self._only(numbers)), self.noise(self._only(numbers).edited(repair)))

    def left_by(self, repair: Edits) -> float:
        """Return the noise with a repair over the file's, of the output where it is most."""
        return self._share(self.noise(AS_WRITTEN.edited(repair)))

    def gain(self, repair: Edits) -> float:
        """Return the share of the noise of the file that a repair takes away."""
        return self._share(self.whole, self.noise(AS_WRITTEN.edited(repair)))

    def _share(self, more: Noise, less: Noise | float = 0.0) -> float:
        """Return by how much `more` is over `less`, as a share of the file's noise, for the worst output."""
        is_known = (self.whole > 0) & np.isfinite(self.whole)
        with np.errstate(invalid="ignore"):
            shares = np.where(is_known, (more - less) / np.where(is_known, self.whole, 1.0), 0.0)
        return float(np.where(np.isinf(more), ~np.isinf(less), shares).max())

    def _only(self, numbers: Sequence[int]) -> TrialState:
        state = self.toggles.only(numbers)
        return state.edited(self.kept) if numbers else state

    def keep(self, repair: Edits) -> None:
        """Take repairs of layers as done for what is measured in float, and forget what was measured."""
        self.kept += repair
        self._noises.clear()
        for name in ("references", "whole", "is_faithful", "values", "ranges"):
            self.__dict__.pop(name, None)

    def are_tied(self, numbers: Sequence[int], others: Sequence[int]) -> bool:
        """Tell whether some of these quantizers and some others meet at a Concat, whose grid may be one."""
        sides = [[self.form.activations[number] for number in side] for side in (numbers, others)]
        for node in (node for node in self.form_index.nodes if node.op_type == "Concat"):
            sources = {self.form_index.origin(name, _MOVING) for name in node.input}
            if all(any(q.output in sources or q.plain in node.output for q in side) for side in sides):
                return True
        return False


def worst_db(noise: Noise) -> float:
    """Return the SQNR in dB of the worst output."""
    return ratio_db(1.0, float(noise.max()))
