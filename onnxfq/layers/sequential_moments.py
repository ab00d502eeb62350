"""Inputs of layers in the float and in the quantized model, one layer after the other.

Both models are cut at the layers. Tensors on the cuts wait in temporary files, so that every node runs once
for each sample, after the weights of all layers before it are final.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import compress
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from onnxfq.calibration.statistics.input_means import channel_ends
from onnxfq.calibration.statistics.input_view import InputSample
from onnxfq.calibration.statistics.moments import ByteGrid, MomentAdder
from onnxfq.calibration.weights import InputMoments
from onnxfq.choices import MOMENTS_MEMORY
from onnxfq.data import Feed, sample_count
from onnxfq.data.batching import can_join, join_feeds, rebatch
from onnxfq.data.inputs import open_count
from onnxfq.data.model_inputs import input_specs
from onnxfq.data.selection import Selection
from onnxfq.documents.encodings import Encoding, Encodings
from onnxfq.documents.plan import Plan
from onnxfq.execution.activation_store import ArrayStore
from onnxfq.execution.given_choices import feeds_with_choices
from onnxfq.graph.constants import weight_array
from onnxfq.graph.index import GraphIndex
from onnxfq.graph.model import Model
from onnxfq.graph.patterns.logits import judge_outputs
from onnxfq.graph.segments import SegmentedGraph, most_alive, segment_model
from onnxfq.layers.layer_costs import WeightSize, measure_costs, weight_sizes
from onnxfq.layers.moments import ROWS_PER_INPUT, rows_per_sample
from onnxfq.layers.weighted_layers import WeightedLayer
from onnxfq.passes.give_choices import with_given_choices
from onnxfq.passes.insert_fake_quantize import with_fake_quantize
from onnxfq.passes.replace_constants import separate_float_readers, weight_tensor
from onnxfq.runtime.integer_products import find_byte_products
from onnxfq.runtime.random_numbers import SEED_INPUT, with_seed
from onnxfq.runtime.session import Session
from onnxfq.stages.input_axes import take_together

log = logging.getLogger(__name__)

ROWS = 1 << 15
"""Rows of each layer over the whole data: with an eighth of them `qronos` lost 1 dB on a small network."""

MOST_SAMPLES = 1024
"""Most samples whose tensors are kept."""

LEAST_SAMPLES = 128
"""Least samples that are kept of more, although fewer give enough rows."""

MASSIVE = 16.0
"""Power of the outputs of a row, in times of the mean, from which the row may be left out of the moments.

Transformers give a few tokens massive activations (Sun et al., 2024), which the norm behind the layer takes
away again. If such rows hold most of the power, weights that make up for their errors spoil all others: of a
sentence encoder in int8, whose first tokens hold 91 to 98% of it in three layers, `qronos` left 6 dB, and
without these rows 16 dB. In convolutions of trained networks rows of 16 times the mean hold at most 7%.
"""

JOINED = 16
"""Most samples of a run. ResNet-20 takes 6 s of processor time by it, and 15 s with one in each run."""

JOINED_BYTES = 1 << 25
"""Most bytes of live tensors of both models in a run of several samples."""


def choose_samples(sizes: Iterable[WeightSize]) -> int:
    """Return how many samples round weights of `sizes`: ROWS_PER_INPUT rows for each input of a layer.

    Each layer of both models runs over all of them.
    """
    needed = [-(-ROWS_PER_INPUT * size.inputs // size.rows) for size in sizes if size.rows]
    return min(max(LEAST_SAMPLES, *needed), MOST_SAMPLES) if needed else MOST_SAMPLES


class SequentialModels:
    """The float and the quantized model over the same feeds, run up to the layer that is rounded next."""

    def __init__(
        self, model: Model, plan: Plan, encodings: Encodings, feeds: Iterable[Feed], threads: int = 0
    ) -> None:
        """Make the quantized model, with weights still in float, and read the feeds.

        Args:
            model: the float model.
            plan: its activations are quantized.
            encodings: of the plan.
            feeds: of their samples as many as `choose_samples` says and MOMENTS_MEMORY holds are used.
            threads: of the sessions.
        """
        self._plan, self._model = plan, model
        weights = [placement.tensor for placement in plan.weights]
        separate = separate_float_readers(model, plan, weights)
        activations = [p for p in plan.placements if p.role == "activation"]
        part = plan.model_copy(update={"placements": tuple(activations), "bridges": ()})
        made = with_fake_quantize(separate, part, encodings) if activations else separate
        kept = _select_feeds(model, plan, feeds)
        self._samples = [sample_count(feed, input_specs(model.proto)) for feed in kept]
        choices = judge_outputs(model.proto).choices
        chosen = list(feeds_with_choices(model.proto, choices, kept, threads))
        self._float = _Course(model.proto, kept, threads)
        self._quantized = _Course(with_given_choices(made.proto, choices), chosen, threads)
        self._at = {node.name: number for number, node in enumerate(model.proto.graph.node)}

    def __enter__(self) -> SequentialModels:
        """Return the models."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Release all tensors."""
        self._float.close()
        self._quantized.close()

    def set_nearest(
        self, encodings: Mapping[str, Encoding], tensors: Mapping[str, onnx.TensorProto], later: set[str]
    ) -> None:
        """Give the quantized model all weights but `later`: of `tensors`, else the nearest numbers."""
        for placement in self._plan.weights:
            name = placement.tensor
            if name in tensors:
                self.set_weight(tensors[name])
            elif name not in later:
                stored = weight_array(self._model, name)
                self.set_weight(weight_tensor(name, encodings[name].fake_quantize(stored), stored))

    def order(self, layers: Sequence[WeightedLayer]) -> list[WeightedLayer]:
        """Return `layers` in the order of computation; a shared weight at its first reader."""
        return sorted(layers, key=lambda layer: self._at[layer.inputs[0].node])

    def set_weight(self, tensor: onnx.TensorProto) -> None:
        """Set a final weight of the quantized model."""
        self._quantized.constants[tensor.name] = tensor

    def moments(self, layer: WeightedLayer) -> InputMoments | None:
        """Return the moments of the inputs of `layer` in both models, after all earlier layers are final.

        A feed that gives an input another shape in the quantized model is left out; None if all of them do.

        Readers of a shared weight after the first one count only if they do not depend on its result. Rows of
        MASSIVE power that hold most of it are left out.
        """
        first = layer.inputs[0]
        own = self._quantized.inputs[first.node][first.slot]
        sources = (self._float, first.tensor), (self._quantized, own)
        view = first.view
        alike = self._find_alike(first.tensor, [course.tensor(name) for course, name in sources])
        if not any(alike):
            return None
        channels = [
            ByteGrid.of(np.max([channel_ends(a, view) for a in compress(course.tensor(name), alike)], axis=0))
            for course, name in sources
        ]
        left, right = (replace(grid, steps=view.spread(grid.steps)) for grid in channels)
        most = rows_per_sample(sum(self._samples), ROWS)
        plain, quantized, cross = (
            MomentAdder(*grids, find_byte_products())
            for grids in ((left, left), (right, right), (left, right))
        )
        rows = zip(*(course.tensor(name) for course, name in sources), self._samples, strict=True)
        choose = cache(lambda shape, samples: view.sample(shape, samples, most))
        half = None
        ordinary = self._find_ordinary(layer, choose, alike)
        for number, (*inputs, samples) in enumerate(compress(rows, alike), 1):
            sample = choose(inputs[0].shape, samples)
            u, v = (sample.round(sample.take(x), grid) for x, grid in zip(inputs, channels, strict=True))
            if ordinary:
                u, v = (one[:, :, ordinary[number - 1]] for one in (u, v))
            plain.add(u, u)
            quantized.add(v, v)
            cross.add(u, v)
            if number == sum(alike) // 2:
                half = quantized.result().matrix, cross.result().matrix
        sums = plain.result()
        others = quantized.result().matrix(), cross.result().matrix()
        return InputMoments(sums.matrix(), sums.rows, *others, repr(first.tensor), half)

    def _find_ordinary(
        self, layer: WeightedLayer, choose: Callable[[tuple[int, ...], int], InputSample], alike: list[bool]
    ) -> list[NDArray[np.bool_]]:
        """Return which rows of each feed are not massive; nothing where all of them count."""
        if layer.inputs[0].view.of_images:
            return []
        weights = layer.view.fold(weight_array(self._model, layer.placement.tensor))
        powers: list[NDArray[np.float64]] = []
        inputs = zip(self._float.tensor(layer.inputs[0].tensor), self._samples, strict=True)
        for x, samples in compress(inputs, alike):
            sample = choose(x.shape, samples)
            outputs = weights @ sample.rows(sample.take(x))
            powers.append(np.einsum("gor,gor->r", outputs, outputs, dtype=np.float64))
        power = np.concatenate(powers)
        most = MASSIVE * power.mean()
        is_massive = 2 * power[power > most].sum() > power.sum()
        return [one <= most for one in powers] if is_massive else []

    def _find_alike(self, tensor: str, courses: Iterable[Iterable[NDArray[Any]]]) -> list[bool]:
        """Return which feeds give both models the same shape; a warning counts the others."""
        alike = [a.shape == b.shape for a, b in zip(*courses, strict=True)]
        if not all(alike):
            log.warning(
                "rounding leaves out %d of %d feeds at %r: its shape depends on the values",
                alike.count(False),
                len(alike),
                tensor,
            )
        return alike


class _Course:
    """One model over some feeds, in segments."""

    def __init__(self, proto: onnx.ModelProto, feeds: Sequence[Feed], threads: int) -> None:
        self._proto, self._threads = proto, threads
        self._graph = SegmentedGraph(proto.graph)
        self.inputs: dict[str, list[str]] = {node.name: list(node.input) for node in proto.graph.node}
        self._feeds = len(feeds)
        self._tensors = ArrayStore[str]()
        for feed in feeds:
            for name, array in with_seed(feed).items():
                self._tensors.append(name, array)
        self.constants = GraphIndex(proto.graph).constants

    def tensor(self, name: str) -> Iterator[NDArray[np.float32]]:
        """Yield the values of tensor `name` for each feed."""
        if name not in self._tensors:
            self._run(name)
        for array in self._tensors.read(name):
            yield array.astype(np.float32, copy=False)

    def close(self) -> None:
        self._tensors.close()
        self.constants = {}

    def _run(self, name: str) -> None:
        segment = self._graph.cut([name])
        types = {one: _type_of(self._tensors.get(one, 0)) for one in segment.inputs}
        model = segment_model(segment, self._proto, types, self.constants.values())
        session = Session(model, self._threads)
        for number in range(self._feeds):
            given = {one: self._tensors.get(one, number) for one in (*segment.inputs, SEED_INPUT)}
            for one, array in zip(segment.outputs, session.run(given, list(segment.outputs)), strict=True):
                self._tensors.append(one, array)
        for one in segment.dead:
            self._tensors.discard(one)


def _type_of(value: NDArray[Any] | list[NDArray[Any]]) -> int | onnx.TypeProto:
    """Return the type of a value that ONNX Runtime gave: a tensor, or a sequence of tensors."""
    if not isinstance(value, list):
        return helper.np_dtype_to_tensor_dtype(value.dtype)
    kind = helper.np_dtype_to_tensor_dtype(value[0].dtype) if value else onnx.TensorProto.FLOAT
    return helper.make_sequence_type_proto(helper.make_tensor_type_proto(kind, None))


def _select_feeds(model: Model, plan: Plan, feeds: Iterable[Feed]) -> list[Feed]:
    """Return samples enough, if they fit in MOMENTS_MEMORY in both models; their digests decide which."""

    @cache
    def alive(*shapes: tuple[str, tuple[int, ...]]) -> int:
        return 2 * (most_alive(model.proto.graph, dict(shapes)) or 0)

    def count_alive(sample: Feed) -> int:
        return alive(*((name, array.shape) for name, array in sample.items()))

    selection = Selection(input_specs(model.proto), MOMENTS_MEMORY, MOST_SAMPLES, count_alive)
    for feed in feeds:
        selection.add(feed)
    kept = selection.samples
    if len(kept) > LEAST_SAMPLES:
        products = measure_costs(model.proto, plan, kept[0]).products
        kept = kept[: choose_samples(weight_sizes(model.proto, plan, products))]
    most = min(JOINED, len(kept) // 2)  # two runs at least: each half proves the other
    joined = min(most, JOINED_BYTES // max(count_alive(kept[0]), 1)) if kept else 0
    return _join_samples(model, plan, kept, joined)


def _join_samples(model: Model, plan: Plan, kept: list[Feed], joined: int) -> list[Feed]:
    """Return `joined` samples as one feed where a run of them is proven to be a run of each."""
    if joined < 2:
        return kept
    inputs = input_specs(model.proto)
    first, last = ends = kept[0], kept[-1]
    if None in (open_count(one, inputs) for one in ends):
        return kept
    # A dynamic scale of all values of a run is another one with more samples.
    if any(p.spec.dynamic for p in plan.activations) or not can_join(first, last, inputs):
        return kept
    is_proven = take_together(model.proto, join_feeds(list(ends), inputs), ends)
    return list(rebatch(kept, inputs, joined)) if is_proven else kept
