"""`SwitchedSegments`: sessions of a model with a switch for each quantizer, cut into segments.

A segment with all switches off runs as the float model does, which is faster: its weights are constants. A
run with one switch on begins at its segment, from tensors of the float model.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from copy import deepcopy
from typing import NamedTuple

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from onnxfq.data import Feed
from onnxfq.graph.index import GraphIndex
from onnxfq.graph.model import list_nodes
from onnxfq.graph.ops import FAKE_QUANTIZE_OPS
from onnxfq.graph.segments import Segment, SegmentedGraph, segment_model
from onnxfq.passes.insert_fake_quantize import ENABLED_INPUT
from onnxfq.runtime.random_numbers import SEED_INPUT, needs_seed, with_seed
from onnxfq.runtime.session import Session

State = NDArray[np.bool_]
"""One switch for each quantized tensor; True quantizes it."""

MOST_SEGMENTS = 8
"""Most segments of a model. With 8 of equal cost a run with one switch on computes 56% of the model on
average, with 16 it would be 53%; every segment is two sessions."""

FEWEST_SWITCHES = 8
"""Least switches of a segment on average, so that small models stay whole."""


def count_segments(switches: int) -> int:
    """Return how many segments a model with so many switches is cut into."""
    return max(1, min(MOST_SEGMENTS, switches // FEWEST_SWITCHES))


class _Part(NamedTuple):
    segment: Segment
    switches: list[int]
    switched: Session
    plain: Session

    def run(self, tensors: Feed, state: State) -> Feed:
        """Return the tensors after this segment."""
        given = {name: tensors[name] for name in (*self.segment.inputs, SEED_INPUT) if name in tensors}
        on = bool(state[self.switches].any())
        session = self.switched if on else self.plain
        if on:
            given[ENABLED_INPUT] = state
        made = session.run(given, list(self.segment.outputs))
        left = {name: array for name, array in tensors.items() if name not in self.segment.dead}
        return left | dict(zip(self.segment.outputs, made, strict=True))


class SwitchedSegments:
    """A model whose quantizers are switched one by one."""

    def __init__(self, proto: onnx.ModelProto, outputs: Sequence[str], parts: int | None = None) -> None:
        """Cut the model and create the sessions, each for one thread.

        Args:
            proto: with a switch for each quantized tensor.
            outputs: the tensors to compute.
            parts: number of segments; None chooses it by the number of switches.
        """
        graph, self._draws = proto.graph, needs_seed(proto)
        picks = [node for node in graph.node if node.op_type == "Gather" and node.input[0] == ENABLED_INPUT]
        numbers = {node.output[0]: number for number, node in enumerate(picks)}
        index = GraphIndex(graph)
        wanted = set(outputs)
        known = {name: index.array(name) for name in wanted}
        self._constants = {name: array for name, array in known.items() if array is not None}
        segmented = SegmentedGraph(graph, numbers)
        self._parts: list[_Part] = []
        for segment in segmented.divide(wanted, numbers, index.types, parts or count_segments(len(picks))):
            inside = [node for node in picks if node.output[0] in segment.inputs]
            inputs = tuple(name for name in segment.inputs if name not in numbers)
            dead = tuple(name for name in segment.dead if name not in wanted)
            whole = segment._replace(nodes=[*inside, *segment.nodes], inputs=inputs, dead=dead)
            model = segment_model(whole, proto, index.types, graph.initializer)
            model.graph.input.extend(value for value in graph.input if value.name == ENABLED_INPUT and inside)
            plain = Session(_without_quantizers(model, numbers.keys()), 1, pooled=False)
            switches = [numbers[node.output[0]] for node in inside]
            self._parts.append(
                _Part(whole, switches, Session(model, 1, pooled=False) if inside else plain, plain)
            )

    def _complete(self, tensors: Feed) -> Feed:
        """Return `tensors` with wanted constants, which no segment computes, and the seed if it draws."""
        return self._constants | (with_seed(tensors) if self._draws else tensors)

    def first(self, state: State) -> int:
        """Return the first segment with a switch on; the number of segments if there is none."""
        places = (at for at, part in enumerate(self._parts) if state[part.switches].any())
        return next(places, len(self._parts))

    def trace(self, feed: Feed, state: State) -> list[Feed]:
        """Return the tensors before each segment, and the outputs with what is left after the last one."""
        traced = [self._complete(feed)]
        for part in self._parts:
            traced.append(part.run(traced[-1], state))
        return traced

    def run(self, tensors: Feed, state: State, start: int = 0) -> Feed:
        """Return the outputs, and what is left after the last segment.

        Args:
            tensors: those before segment `start`: a feed, or of `trace`.
            state: the switches.
            start: number of the segment.
        """
        tensors = self._complete(tensors)
        for part in self._parts[start:]:
            tensors = part.run(tensors, state)
        return tensors


def _without_quantizers(model: onnx.ModelProto, switches: Set[str]) -> onnx.ModelProto:
    """Return a copy of `model` that computes what it does with all `switches` off."""
    made = deepcopy(model)
    for node in list_nodes(made.graph):
        if not switches & set(node.input):
            continue
        # FakeQuantize gives its first input where it is off, and Where its last one.
        off = node.input[0] if node.op_type in FAKE_QUANTIZE_OPS else node.input[2]
        node.CopyFrom(helper.make_node("Identity", [off], node.output[:1], node.name))
    return made
