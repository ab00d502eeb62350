"""Insertion of MergeStatistics nodes with graph-level states.

Statistics therefore stay where the model runs: fed and fetched from the same memory, a state grows from run
to run. Channel ranges are merged by ONNX's own operators, which have kernels on every device.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_graphsurgeon as gs

from onnxfq.calibration.statistics import empty_state
from onnxfq.calibration.statistics.channel_ranges import ChannelNames
from onnxfq.calibration.statistics.state import StateNames
from onnxfq.documents.plan import Placement, Plan
from onnxfq.graph.edit import Editor
from onnxfq.graph.model import Model
from onnxfq.graph.normalize.opset import edit_model
from onnxfq.passes.observe.insert_observers import clear_names, group_attributes, replace_outputs
from onnxfq.passes.observe.subgraph_state import CarriedState, holders, make_empty_state
from onnxfq.placement.equalization import find_channels

_AXES_AS_INPUT = 18
"""First opset in which ReduceMin and ReduceMax take their axes as an input."""

_ENDS = (("ReduceMin", "Min", np.inf), ("ReduceMax", "Max", -np.inf))
"""For each end of a range: operators that find it in a run and merge it, neutral value."""


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
                outputs += _merge_channels(editor, placement, opset, all_finite)
            starts: dict[str, gs.Tensor] = {names.merged: given}
            if feed_ranges:
                starts[names.of_feed] = make_empty_state(editor, False, groups)
            scope = editor.scope_of(tensor)
            for output, start in starts.items():
                outputs.append(CarriedState(editor, around, scope, start, output).merge(tensor, attrs))
        return replace_outputs(graph, outputs)

    return edit_model(model, insert_merging)


def _merge_channels(editor: Editor, placement: Placement, opset: int, all_finite: bool) -> list[gs.Variable]:
    """Merge the channel ranges of an equalized activation into graph inputs; return the outputs.

    Args:
        editor: of the graph.
        placement: the equalized activation.
        opset: of the model.
        all_finite: whether there is no NaN and no infinity to exclude.
    """
    tensor, names = find_channels(editor, placement), ChannelNames.from_tensor(placement.tensor)
    clear_names(editor, placement.tensor, [*names.given, *names.merged])
    axes = [axis for axis in range(len(tensor.shape)) if axis != placement.spec.granularity.axis]
    nodes: list[gs.Node] = []

    def add(op: str, name: str, inputs: Sequence[gs.Tensor], **attrs: object) -> gs.Variable:
        made = editor.variable(name)
        nodes.append(gs.Node(op, made.name, attrs, list(inputs), [made]))
        return made

    def constant(name: str, value: object, dtype: type = np.float32) -> gs.Constant:
        return editor.constant(f"onnxfq/channels/{name}", np.asarray(value, dtype))

    is_finite = None
    if not all_finite:
        # A finite number minus itself is 0, an infinity or a NaN gives NaN.
        difference = add("Sub", f"{placement.tensor}/channels/difference", [tensor, tensor])
        zero = constant("zero", 0)
        is_finite = add("Equal", f"{placement.tensor}/channels/is_finite", [difference, zero])
    outputs = []
    for (reduce, merge, neutral), given, merged in zip(_ENDS, names.given, names.merged, strict=True):
        state = gs.Variable(given, np.float32, [tensor.shape[placement.spec.granularity.axis]])
        editor.graph.inputs.append(state)
        values = tensor
        if is_finite is not None:
            values = add("Where", f"{given}/finite", [is_finite, tensor, constant(merge, neutral)])
        if opset < _AXES_AS_INPUT:
            of_run = add(reduce, f"{given}/of_run", [values], keepdims=0, axes=axes)
        else:
            every = constant(f"axes of {len(tensor.shape)}", axes, np.int64)
            of_run = add(reduce, f"{given}/of_run", [values, every], keepdims=0)
        outputs.append(add(merge, merged, [state, of_run]))
        outputs[-1].dtype, outputs[-1].shape = np.float32, state.shape
    editor.insert_after(tensor, nodes)
    return outputs
