"""Bring what observers inside If, Loop and Scan bodies find out to the main graph.

If: the node gets further outputs; the branch without the observer gives the identity of merging there, so
a branch not taken adds nothing. Loop and Scan: the statistics are a state that the body carries from one
iteration to the next, merged with what the iteration found; its histogram is dense, for a state keeps its
shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs
from numpy.typing import NDArray
from onnx import TensorProto

from onnxfq.calibration.statistics import BIN_COUNT
from onnxfq.errors import PlanError
from onnxfq.graph.constants import make_constant
from onnxfq.graph.edit import Editor
from onnxfq.graph.model import bodies
from onnxfq.passes.observe.subgraph_owners import Holder, insert_tensors, place_of_state

RESULTS = ("range", "counts", "bins", "bin_counts")
DTYPES = (np.float32, np.int64, np.int32, np.int64)

MOST_STATE_BYTES = 64 << 20
"""What a histogram may take that a Loop or Scan carries, and copies, from one iteration to the next."""


@dataclass(frozen=True)
class Observed:
    """An observed tensor. groups: how many groups of it have statistics of their own; None: it as a whole."""

    name: str
    groups: int | None

    @staticmethod
    def of(name: str, shape: tuple[int, ...] | None) -> Observed:
        """Take a tensor whose scales have `shape`; None: as a whole."""
        return Observed(name, None if shape is None else prod(shape))

    @property
    def shapes(self) -> tuple[list[Any] | None, ...]:
        """The shapes of RESULTS; None is a number that only the run tells."""
        each = [] if self.groups is None else [self.groups]
        return [*each, 2], [*each, 4], None, None

    @property
    def bins(self) -> int:
        """How many bins a histogram without gaps has, that of each group behind the one before."""
        return BIN_COUNT * (1 if self.groups is None else self.groups)

    def nothing(self) -> dict[str, NDArray[Any]]:
        """Return the identity of merging, by the names of RESULTS."""
        limits, counts, *_ = self.shapes
        assert limits is not None and counts is not None, "these two are known"
        return {
            "range": np.broadcast_to(np.asarray([np.inf, -np.inf], np.float32), limits),
            "counts": np.zeros(counts, np.int64),
            "bins": np.zeros(0, np.int32),
            "bin_counts": np.zeros(0, np.int64),
        }


def carry_out(
    editor: Editor,
    around: dict[int, Holder],
    scope: gs.Graph,
    results: Sequence[gs.Variable],
    observed: Observed,
) -> Sequence[gs.Variable]:
    """Return variables of the main graph that hold `results`, of an observer of `observed` in `scope`.

    around: of `holders`. Raises PlanError where a state would be too large to carry.
    """
    holder = around.get(id(scope))
    while holder is not None:
        carry = _through_if if holder.node.op == "If" else _through_iterations
        results = carry(editor, holder, results, observed)
        holder = around.get(id(holder.scope))
    return results


def _through_if(
    editor: Editor, holder: Holder, results: Sequence[gs.Variable], observed: Observed
) -> list[gs.Variable]:
    outer = _results(editor, observed, "outer")
    for body in bodies(holder.node):
        if body is holder.body:
            body.outputs.extend(results)
            continue
        nothing = _results(editor, observed, "nothing")
        for kind, given in zip(RESULTS, nothing, strict=True):
            value = _nothing(editor, observed, kind)
            editor.append(body, [gs.Node("Identity", given.name, inputs=[value], outputs=[given])])
        body.outputs.extend(nothing)
    holder.node.outputs.extend(outer)
    return outer


def _through_iterations(
    editor: Editor, holder: Holder, results: Sequence[gs.Variable], observed: Observed
) -> list[gs.Variable]:
    node, body, name = holder.node, holder.body, observed.name
    if observed.groups is not None and 8 * observed.bins > MOST_STATE_BYTES:
        raise PlanError(
            f"tensor {name!r} has {observed.groups} groups, and the {node.op} {node.name!r} around it would "
            f"carry {8 * observed.bins >> 20} MB of their statistics, more than {MOST_STATE_BYTES >> 20}; "
            "use per_tensor or larger blocks"
        )
    given, merged, final = (_state(editor, observed, what) for what in ("before", "merged", "final"))
    editor.append(body, _merge(editor, given, results, merged, name))
    start = [
        _nothing(editor, observed, "range"),
        _nothing(editor, observed, "counts"),
        _constant(editor, _numbered("nothing/histogram", observed), np.zeros(observed.bins, np.int64)),
    ]
    states, before, after = place_of_state(node)
    insert_tensors(node.inputs, before + states, start)
    insert_tensors(body.inputs, before + states, given)
    insert_tensors(body.outputs, after + states, merged)
    insert_tensors(node.outputs, states, final)
    outer = _results(editor, observed, "outer")
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


def _results(editor: Editor, observed: Observed, what: str) -> list[gs.Variable]:
    made = [editor.variable(f"{observed.name}/observe/{what}/{result}") for result in RESULTS]
    for variable, dtype, shape in zip(made, DTYPES, observed.shapes, strict=True):
        variable.dtype, variable.shape = dtype, shape
    return made


def _state(editor: Editor, observed: Observed, what: str) -> list[gs.Variable]:
    parts = ("range", "counts", "histogram")
    made = [editor.variable(f"{observed.name}/observe/{what}/{part}") for part in parts]
    shapes = (*observed.shapes[:2], [observed.bins])
    for variable, dtype, shape in zip(made, (np.float32, np.int64, np.int64), shapes, strict=True):
        variable.dtype, variable.shape = dtype, shape
    return made


def _nothing(editor: Editor, observed: Observed, kind: str) -> gs.Constant:
    return _constant(editor, _numbered(f"nothing/{kind}", observed), observed.nothing()[kind])


def _numbered(name: str, observed: Observed) -> str:
    return name if observed.groups is None else f"{name}/{observed.groups}"


def _constant(editor: Editor, name: str, values: NDArray[Any]) -> gs.Constant:
    return editor.constant(f"onnxfq/observe/{name}", lambda free: make_constant(free, values))
