"""Put a MergeStatistics node on every placed activation, its state an input and an output of the graph.

So statistics stay where the model runs: fed and fetched under the same memory, a state grows from run to run.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np
import onnx_graphsurgeon as gs

from onnxfq.calibration.statistics import empty_state
from onnxfq.documents.plan import Plan
from onnxfq.graph.constants import make_constant
from onnxfq.graph.edit import Editor
from onnxfq.graph.model import Model
from onnxfq.passes.base import Pass
from onnxfq.passes.custom_domain import custom_node, import_domain
from onnxfq.passes.observe.insert_observers import clear_names, observed_groups
from onnxfq.passes.observe.merge_channels import merge_channels
from onnxfq.passes.observe.subgraph_owners import holders
from onnxfq.passes.observe.subgraph_state import CarriedState


@dataclass(frozen=True)
class StateNames:
    """The state of one tensor: an input and an output of the graph; and its statistics of one run alone.

    of_feed: an output without a histogram, for the range of each feed.
    """

    given: str
    merged: str
    of_feed: str

    @staticmethod
    def of(tensor: str) -> StateNames:
        """Return the names for `tensor`."""
        return StateNames(*(f"{tensor}/statistics/{part}" for part in ("given", "merged", "of_feed")))


@dataclass(frozen=True)
class InsertMerging(Pass):
    """Merge what every activation of `plan` is into its state, in bodies too. The model's own outputs go.

    What the plan quantizes by axis or in blocks has a state for each group. What it equalizes has the ranges
    of its channels merged too. feed_ranges: give the statistics of the run alone too, without a histogram.
    all_finite: a NaN or an infinity ends the run, so ranges need not leave them out.
    """

    plan: Plan
    feed_ranges: bool = False
    all_finite: bool = False

    def requires(self, model: Model) -> None:
        """Raise PlanError when the plan is another model's."""
        self.plan.check_model(model.sha256)

    def call(self, graph: gs.Graph, opset: int) -> bool:
        """Add the nodes; what only the old outputs needed is removed."""
        editor, around = Editor(graph), holders(graph)
        outputs: list[gs.Variable] = []
        for placement in self.plan.activations:
            name, tensor = placement.tensor, editor.tensor(placement)
            names = StateNames.of(name)
            clear_names(editor, name, [names.given, names.merged, names.of_feed])
            groups = observed_groups(placement, tensor)
            before = [] if groups is None else [prod(groups)]
            attrs = {} if groups is None else placement.spec.granularity.attributes
            given = gs.Variable(names.given, np.int64, [*before, empty_state().size])
            graph.inputs.append(given)
            if placement.spec.equalized:
                outputs += merge_channels(editor, placement, opset, self.all_finite)
            starts = {names.merged: given}
            if self.feed_ranges:
                starts[names.of_feed] = _nothing(editor, before)
            for output, start in starts.items():
                scope = editor.scope_of(tensor)
                carried = CarriedState(editor, around, scope, start, output)
                made = editor.variable(f"{output}/inside")
                made.dtype, made.shape = np.int64, start.shape
                sources = [tensor, carried.inside]
                node = custom_node(
                    "MergeStatistics", output, attrs=dict(attrs), inputs=sources, outputs=[made]
                )
                editor.insert_after(tensor, [node])
                outputs.append(carried.out(made))
                outputs[-1].name = output
        if not outputs:
            return False
        import_domain(graph)
        graph.outputs = outputs
        graph.cleanup(remove_unused_graph_inputs=False)
        return True


def _nothing(editor: Editor, before: list[int]) -> gs.Constant:
    """Return states without histograms that have seen nothing: [8], or [groups, 8]."""
    name = "/".join(["onnxfq/statistics/empty", *map(str, before)])
    states = np.tile(empty_state(histogram=False), (*before, 1))
    return editor.constant(name, lambda free: make_constant(free, states))
