"""One run of a model of any number of nodes, in segments.

ONNX Runtime's loading grows with the square of the nodes that read only constants, such as the
DequantizeLinear of a weight: a Q/DQ model of 17,500 nodes loads in 1.7 s, one of 35,000 in 7 s (1.31.1).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx
from numpy.typing import NDArray

from onnxfq.data import Feed
from onnxfq.graph.index import GraphIndex
from onnxfq.graph.segments import CUT_TYPES, SegmentedGraph, segment_model
from onnxfq.graph.signature import output_names
from onnxfq.runtime.session import Session

MOST_NODES = 10_000
"""Most nodes of a segment, where the graph can be cut."""


def run_in_segments(
    proto: onnx.ModelProto, feed: Feed, open_session: Callable[[onnx.ModelProto], Session]
) -> dict[str, NDArray[Any]]:
    """Return the outputs of `proto` on `feed` by name.

    Args:
        proto: the model.
        feed: its inputs.
        open_session: called with each segment, or with `proto` itself if it has few nodes.

    Raises what `open_session` and its session raise.
    """
    graph, wanted = proto.graph, output_names(proto)
    parts = -(-len(graph.node) // MOST_NODES)
    if parts < 2:
        return dict(zip(wanted, open_session(proto).run(feed), strict=True))
    index, segmented = GraphIndex(graph), SegmentedGraph(graph)
    usable = {name for name, kind in index.types.items() if kind in CUT_TYPES}
    constants = {tensor.name for tensor in graph.initializer}
    tensors = dict(feed)
    for ends in (*segmented.divide(wanted, constants, usable, parts), wanted):
        segment = segmented.cut(ends)
        model = segment_model(segment, proto, index.types, graph.initializer)
        made = open_session(model).run({name: tensors[name] for name in segment.inputs}, segment.outputs)
        for name in segment.dead:
            del tensors[name]
        tensors |= zip(segment.outputs, made, strict=True)
    return {name: tensors[name] for name in wanted if name in tensors}
