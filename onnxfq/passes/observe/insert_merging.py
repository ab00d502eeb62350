"""Insertion of MergeStatistics nodes with graph-level states.

Statistics therefore stay where the model runs: fed and fetched from the same memory, a state grows from run
to run.
"""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from onnxfq.calibration.statistics import empty_state
from onnxfq.calibration.statistics.state import StateNames
from onnxfq.documents.plan import Plan
from onnxfq.graph.edit import Editor
from onnxfq.graph.model import Model
from onnxfq.graph.normalize.opset import edit_model
from onnxfq.passes.observe.insert_observers import clear_names, group_attributes, replace_outputs
from onnxfq.passes.observe.merge_channels import merge_channels
from onnxfq.passes.observe.subgraph_state import CarriedState, holders, make_empty_state


def with_merging(model: Model, plan: Plan, feed_ranges: bool = False, all_finite: bool = False) -> Model:
    """Return `model` that merges the statistics of every activation of `plan` into its state, in bodies too.

    The model's own outputs are removed, and nodes that only they needed. Tensors quantized by axis or in
    blocks have a state for each group. Equalized tensors also merge the ranges of their channels.

    Args:
        model: the float model.
        plan: the activations to observe.
        feed_ranges: also output the statistics of the single run, without a histogram.
        all_finite: a NaN or an infinity ends the run, so ranges need not exclude them.

    Raises PlanError when the plan belongs to another model.
    """
    plan.check_model(model.sha256)

    def insert_merging(graph: gs.Graph, opset: int) -> bool:
        editor, around = Editor(graph), holders(graph)
        outputs: list[gs.Variable] = []
        for placement in plan.activations:
            name, tensor = placement.tensor, editor.tensor(placement)
            names = StateNames.from_tensor(name)
            clear_names(editor, name, [names.given, names.merged, names.of_feed])
            groups, attrs = group_attributes(placement, tensor)
            before = [] if groups is None else [groups]
            given = gs.Variable(names.given, np.int64, [*before, empty_state().size])
            graph.inputs.append(given)
            if placement.observes_channels:
                outputs += merge_channels(editor, placement, opset, all_finite)
            starts: dict[str, gs.Tensor] = {names.merged: given}
            if feed_ranges:
                starts[names.of_feed] = make_empty_state(editor, False, groups)
            scope = editor.scope_of(tensor)
            for output, start in starts.items():
                outputs.append(CarriedState(editor, around, scope, start, output).merge(tensor, attrs))
        return replace_outputs(graph, outputs)

    return edit_model(model, insert_merging)
