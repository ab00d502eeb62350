"""Bring what observers inside If, Loop and Scan bodies find out to the main graph.

If: the node gets further outputs; the branch without the observer gives the identity of merging there, so
a branch not taken adds nothing. Loop and Scan: the statistics are a state that the body carries from one
iteration to the next, merged with what the iteration found; its histogram is dense, for a state keeps its
shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs
from numpy.typing import NDArray
from onnx import TensorProto

from onnxfq.graph.analysis import bodies, scopes
from onnxfq.graph.constants import make_constant
from onnxfq.graph.edit import Editor
from onnxfq.statistics import BIN_COUNT

RESULTS = ("range", "counts", "bins", "bin_counts")
DTYPES = (np.float32, np.int64, np.int32, np.int64)

_NOTHING: dict[str, NDArray[Any]] = {
    "range": np.asarray([np.inf, -np.inf], np.float32),
    "counts": np.zeros(4, np.int64),
    "bins": np.zeros(0, np.int32),
    "bin_counts": np.zeros(0, np.int64),
}
"""The identity of merging statistics."""


@dataclass(frozen=True)
class Holder:
    """The node around a body, and the graph or body that has this node."""

    scope: gs.Graph
    node: gs.Node
    body: gs.Graph


def holders(graph: gs.Graph) -> dict[int, Holder]:
    """Return what holds each body of `graph`, by the id of the body."""
    return {
        id(body): Holder(scope, node, body)
        for scope in scopes(graph)
        for node in scope.nodes
        for body in bodies(node).values()
    }


def carry_out(
    editor: Editor, around: dict[int, Holder], scope: gs.Graph, results: Sequence[gs.Variable], name: str
) -> Sequence[gs.Variable]:
    """Return variables of the main graph that hold `results`, of an observer in `scope`.

    around: of `holders`. name: of the observed tensor, to name what is added.
    """
    holder = around.get(id(scope))
    while holder is not None:
        carry = _through_if if holder.node.op == "If" else _through_iterations
        results = carry(editor, holder, results, name)
        holder = around.get(id(holder.scope))
    return results


def _through_if(
    editor: Editor, holder: Holder, results: Sequence[gs.Variable], name: str
) -> list[gs.Variable]:
    outer = _results(editor, f"{name}/observe/outer")
    for body in bodies(holder.node).values():
        if body is holder.body:
            body.outputs.extend(results)
            continue
        nothing = _results(editor, f"{name}/observe/nothing")
        for kind, given in zip(RESULTS, nothing, strict=True):
            value = _constant(editor, f"nothing/{kind}", _NOTHING[kind])
            editor.append(body, [gs.Node("Identity", given.name, inputs=[value], outputs=[given])])
        body.outputs.extend(nothing)
    holder.node.outputs.extend(outer)
    return outer


def _through_iterations(
    editor: Editor, holder: Holder, results: Sequence[gs.Variable], name: str
) -> list[gs.Variable]:
    node, body = holder.node, holder.body
    given, merged, final = (
        _state(editor, f"{name}/observe/{what}") for what in ("before", "merged", "final")
    )
    editor.append(body, _merge(editor, given, results, merged, name))
    start = [
        _constant(editor, "nothing/range", _NOTHING["range"]),
        _constant(editor, "nothing/counts", _NOTHING["counts"]),
        _constant(editor, "nothing/histogram", np.zeros(BIN_COUNT, np.int64)),
    ]
    states, before, after = place_of_state(node)
    insert_tensors(node.inputs, before + states, start)
    insert_tensors(body.inputs, before + states, given)
    insert_tensors(body.outputs, after + states, merged)
    insert_tensors(node.outputs, states, final)
    outer = _results(editor, f"{name}/observe/outer")
    rank = editor.variable(f"{name}/observe/positions")
    axis = _constant(editor, "axis0", np.asarray([0], np.int64))
    wide = editor.variable(f"{name}/observe/wide_bins")
    editor.insert_after_node(
        holder.scope,
        node,
        [
            gs.Node("Identity", outer[0].name, inputs=[final[0]], outputs=[outer[0]]),
            gs.Node("Identity", outer[1].name, inputs=[final[1]], outputs=[outer[1]]),
            gs.Node("NonZero", rank.name, inputs=[final[2]], outputs=[rank]),
            gs.Node("Squeeze", wide.name, inputs=[rank, axis], outputs=[wide]),
            gs.Node("Cast", outer[2].name, {"to": TensorProto.INT32}, [wide], [outer[2]]),
            gs.Node("Gather", outer[3].name, inputs=[final[2], wide], outputs=[outer[3]]),
        ],
    )
    return outer


def _merge(
    editor: Editor,
    given: Sequence[gs.Variable],
    results: Sequence[gs.Variable],
    merged: Sequence[gs.Variable],
    name: str,
) -> list[gs.Node]:
    """Return nodes that merge the results of one iteration into the state."""
    lows, highs, known, sums = (
        editor.variable(f"{name}/observe/{what}") for what in ("lows", "highs", "known", "sums")
    )
    is_low = _constant(editor, "is_low", np.asarray([True, False]))
    bounds, counts, bins, bin_counts = results
    return [
        gs.Node("Min", lows.name, inputs=[given[0], bounds], outputs=[lows]),
        gs.Node("Max", highs.name, inputs=[given[0], bounds], outputs=[highs]),
        gs.Node("Where", merged[0].name, inputs=[is_low, lows, highs], outputs=[merged[0]]),
        gs.Node("Add", merged[1].name, inputs=[given[1], counts], outputs=[merged[1]]),
        gs.Node("Gather", known.name, inputs=[given[2], bins], outputs=[known]),
        gs.Node("Add", sums.name, inputs=[known, bin_counts], outputs=[sums]),
        # Bins are ascending: none comes twice.
        gs.Node("ScatterElements", merged[2].name, inputs=[given[2], bins, sums], outputs=[merged[2]]),
    ]


def _results(editor: Editor, name: str) -> list[gs.Variable]:
    made = [editor.variable(f"{name}/{result}") for result in RESULTS]
    for variable, dtype, shape in zip(made, DTYPES, ([2], [4], None, None), strict=True):
        variable.dtype, variable.shape = dtype, shape
    return made


def _state(editor: Editor, name: str) -> list[gs.Variable]:
    made = [editor.variable(f"{name}/{part}") for part in ("range", "counts", "histogram")]
    for variable, dtype, size in zip(made, (np.float32, np.int64, np.int64), (2, 4, BIN_COUNT), strict=True):
        variable.dtype, variable.shape = dtype, [size]
    return made


def _constant(editor: Editor, name: str, values: NDArray[Any]) -> gs.Constant:
    return editor.constant(f"onnxfq/observe/{name}", lambda free: make_constant(free, values))


def place_of_state(node: gs.Node) -> tuple[int, int, int]:
    """Return how many states Loop or Scan `node` carries, and what its body has before them: inputs, outputs.

    Both have states first and then what is scanned: Loop after the trip count and the condition.
    """
    if node.op != "Loop":
        return len(node.inputs) - node.attrs["num_scan_inputs"], 0, 0
    while len(node.inputs) < 2:
        node.inputs.append(gs.Variable.empty())
    return len(node.inputs) - 2, 2, 1


def insert_tensors(tensors: list[gs.Tensor], at: int, more: Sequence[gs.Tensor]) -> None:
    """Put `more` into a list of inputs or outputs, the first of them at `at`."""
    for offset, tensor in enumerate(more):
        tensors.insert(at + offset, tensor)
