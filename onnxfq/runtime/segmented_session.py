"""Sessions of a model of any number of nodes, in segments.

ONNX Runtime's loading grows with the square of the nodes, most of all of those that read only constants, such
as the DequantizeLinear of a weight. Version 1.31.1 loads a Q/DQ model of 17,500 nodes in 1.7 s, and one of
35,000 in 7 s. It loads a fake-quant model of 25,000 nodes in 4 s, and one of 125,000 in 182 s.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

import onnx
from numpy.typing import NDArray

from onnxfq.data import Feed
from onnxfq.graph.index import GraphIndex
from onnxfq.graph.normalize.shapes import with_shapes
from onnxfq.graph.segments import Segment, SegmentedGraph, segment_model
from onnxfq.runtime.random_numbers import SEED_INPUT, needs_seed, with_seed
from onnxfq.runtime.session import PlacedFeed, Session

MOST_NODES = 10_000
"""Most nodes of a segment, where the graph can be cut."""

OpenSession = Callable[[onnx.ModelProto], Session]


class SegmentedSession:
    """Sessions of the segments of a model, which run as one."""

    def __init__(
        self,
        proto: onnx.ModelProto,
        open_session: OpenSession,
        fetches: Sequence[str],
        given: Collection[str] = (),
        kept: bool = True,
    ) -> None:
        """Cut `proto`; see `open_in_segments`."""
        index = GraphIndex(proto.graph)
        if not index.types.keys() >= index.makers.keys():
            proto = with_shapes(proto)
            index = GraphIndex(proto.graph)
        segmented = SegmentedGraph(proto.graph, given=given)
        parts = -(-len(proto.graph.node) // MOST_NODES)
        marked = index.constants.keys() - set(given)
        self._fetches, self._draws = list(fetches), needs_seed(proto)
        self._parts: list[tuple[Segment, Callable[[], Session]]] = []
        for segment in segmented.divide(fetches, marked, index.types, parts):

            def open_part(segment: Segment = segment) -> Session:
                return open_session(segment_model(segment, proto, index.types, proto.graph.initializer))

            self._parts.append((segment, partial(_same, open_part()) if kept else open_part))

    def run(self, feed: Feed | PlacedFeed, outputs: Sequence[str] | None = None) -> list[NDArray[Any]]:
        """Run once and return `outputs`, by default all that can be fetched. Raises as a Session."""
        arrays = feed.arrays if isinstance(feed, PlacedFeed) else feed
        tensors = dict(with_seed(arrays) if self._draws else arrays)
        for segment, find_session in self._parts:
            given = {name: tensors[name] for name in (*segment.inputs, SEED_INPUT) if name in tensors}
            results = find_session().run(given, segment.outputs)
            for name in segment.dead:
                tensors.pop(name, None)
            tensors |= zip(segment.outputs, results, strict=True)
        return [tensors[name] for name in (self._fetches if outputs is None else outputs)]


def open_in_segments(
    proto: onnx.ModelProto,
    open_session: OpenSession,
    fetches: Sequence[str],
    given: Collection[str] = (),
    kept: bool = True,
) -> Session | SegmentedSession:
    """Return a session of `proto`, in segments if it has more than MOST_NODES nodes.

    Args:
        proto: the model.
        open_session: called with each segment, or with `proto` itself.
        fetches: the tensors that runs return; all of them are outputs.
        given: inputs with a constant as default that a feed may give.
        kept: hold all sessions; False: a run opens one after the other, which takes the memory of one.

    Raises what `open_session` raises.
    """
    graph = proto.graph
    if len(graph.node) > MOST_NODES and not graph.sparse_initializer:
        if GraphIndex(graph).makers.keys() >= set(fetches):
            return SegmentedSession(proto, open_session, fetches, given, kept)
    return open_session(proto)


def _same(session: Session) -> Session:
    return session
