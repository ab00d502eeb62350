"""Insertion of Observe nodes with results as graph outputs."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs

from onnxfq.calibration.statistics import BIN_COUNT, HISTOGRAM, empty_state
from onnxfq.calibration.statistics.channel_ranges import CHANNEL_RANGES
from onnxfq.calibration.statistics.grouped_histogram import MOST_GROUPS
from onnxfq.calibration.statistics.state import read_state
from onnxfq.documents.plan import Placement, Plan
from onnxfq.errors import PlanError, SpecError
from onnxfq.graph.edit import Editor, custom_node, import_domain
from onnxfq.graph.model import Model
from onnxfq.graph.normalize.opset import edit_model
from onnxfq.numerics.granularity import PER_TENSOR
from onnxfq.numerics.layout import Layout, open_axis
from onnxfq.passes.observe.subgraph_state import CarriedState, Holder, enclosing, holders, make_empty_state

OBSERVE_OUTPUTS = HISTOGRAM.outputs
STATE_OUTPUT = "state"
"""Output for a tensor in a Loop or a Scan, instead of OBSERVE_OUTPUTS: the state of MergeStatistics."""

MOST_HISTOGRAM_BYTES = 64 << 20
"""Largest histograms that a Loop or Scan carries, and copies, between iterations."""


def observe_output(tensor: str, output: str) -> str:
    """Return the name of one result of the observer of `tensor`."""
    return f"{tensor}/observe/{output}"


def find_observed_shape(placement: Placement, tensor: gs.Tensor) -> tuple[int, ...] | None:
    """Return the scale shape of the placed activation; None if it is observed as a whole.

    Raises PlanError when the number of groups is open, or larger than an observer supports.
    """
    granularity, shape = placement.observed_granularity, tensor.shape
    if granularity == PER_TENSOR:
        return None
    where = f"tensor {placement.tensor!r} is {granularity}"
    if shape is None:
        raise PlanError(f"{where}, and its rank is not known; remove axis and block sizes from the plan")
    try:
        axis = open_axis(granularity, shape)
        if axis is not None:
            raise PlanError(
                f"{where}, and its axis {axis} is open: every group needs separate statistics; fix it, "
                "or remove axis and block sizes from the plan"
            )
        groups = Layout(granularity, [n if isinstance(n, int) else 1 for n in shape]).scale_shape
    except SpecError as error:
        raise PlanError(f"{where}: {error}") from None
    if prod(groups) > MOST_GROUPS:
        raise PlanError(f"{where}: {prod(groups)} groups, {MOST_GROUPS} are the most; give larger blocks")
    return groups


def group_attributes(placement: Placement, tensor: gs.Tensor) -> tuple[int | None, dict[str, Any]]:
    """Return the number of groups, None for a whole tensor, and the node attributes for them."""
    groups = find_observed_shape(placement, tensor)
    return (None, {}) if groups is None else (prod(groups), placement.spec.granularity.attributes)


def with_observers(model: Model, plan: Plan) -> Model:
    """Return `model` that observes every activation of `plan`, in bodies too, without its own outputs.

    Tensors quantized by axis or in blocks are observed per group. Equalized tensors also output the ranges of
    their channels. Nodes that only the old outputs needed are removed. Raises PlanError when the plan belongs
    to another model.
    """
    plan.check_model(model.sha256)

    def insert_observers(graph: gs.Graph, opset: int) -> bool:
        editor, around = Editor(graph), holders(graph)
        outputs: list[gs.Variable] = []
        for name in (p.tensor for p in plan.activations):
            parts = (*OBSERVE_OUTPUTS, *CHANNEL_RANGES.outputs, STATE_OUTPUT)
            clear_names(editor, name, [observe_output(name, part) for part in parts])
        for placement in plan.activations:
            # The innermost Loop or Scan around the tensor.
            inside = enclosing(around, editor.scope_of(editor.tensor(placement)))
            holder = next((holder for holder in inside if holder.node.op != "If"), None)
            if holder is None:
                outputs += _observe(editor, around, placement)
            else:
                outputs.append(_merge(editor, around, placement, holder.node))
        return replace_outputs(graph, outputs)

    return edit_model(model, insert_observers)


def replace_outputs(graph: gs.Graph, outputs: list[gs.Variable]) -> bool:
    """Make the results of observers the outputs of `graph`, if there are any, and remove unused nodes.

    Returns whether the graph was changed.
    """
    if not outputs:
        return False
    import_domain(graph)
    graph.outputs = outputs
    graph.cleanup(remove_unused_graph_inputs=False)
    return True


def _observe(editor: Editor, around: dict[int, Holder], placement: Placement) -> list[gs.Variable]:
    """Put operator Observe on a tensor of the main graph or of branches; return the outputs.

    A branch that is not taken returns the result of observing no values.
    """
    name, tensor = placement.tensor, editor.tensor(placement)
    groups, attrs = group_attributes(placement, tensor)
    inside, made = f"{name}/inside", []
    nothing = _make_empty_state(editor, groups)
    for part, start in zip(OBSERVE_OUTPUTS, nothing, strict=True):
        made.append(editor.variable(observe_output(inside, part), like=start))
        if 0 in start.shape:
            made[-1].shape = [f"{name}/{part}"]
    ranges: list[gs.Variable] = []
    if placement.observes_channels:
        attrs = {"channel_ranges": 1}
        output = observe_output(name, *CHANNEL_RANGES.outputs)
        ranges = [gs.Variable(output, np.float32, [f"{name}/count", 2])]
    node = custom_node("Observe", f"{name}/observe", attrs=attrs, inputs=[tensor], outputs=[*made, *ranges])
    editor.insert_after(tensor, [node])
    scope, outputs = editor.scope_of(tensor), []
    for part, start, variable in zip(OBSERVE_OUTPUTS, nothing, made, strict=True):
        outer = CarriedState(editor, around, scope, start, observe_output(inside, part)).export_state(
            variable
        )
        outer.name = observe_output(name, part)
        outputs.append(outer)
    return [*outputs, *ranges]


def _make_empty_state(editor: Editor, groups: int | None) -> list[gs.Constant]:
    """Return the results of operator Observe for no values, of a whole tensor or of each group."""
    arrays = read_state(empty_state(False, groups))
    return [
        editor.constant(f"onnxfq/observe/nothing/{groups}/{part}", array)
        for part, array in zip(OBSERVE_OUTPUTS, arrays, strict=True)
    ]


def _merge(editor: Editor, around: dict[int, Holder], placement: Placement, node: gs.Node) -> gs.Variable:
    """Put operator MergeStatistics on a tensor in the body of `node`, Loop or Scan; return the output.

    Raises PlanError when the state would be too large to carry.
    """
    name, tensor = placement.tensor, editor.tensor(placement)
    groups, attrs = group_attributes(placement, tensor)
    if groups is not None and 8 * BIN_COUNT * groups > MOST_HISTOGRAM_BYTES:
        raise PlanError(
            f"tensor {name!r} has {groups} groups, and its {node.op} {node.name!r} would "
            f"carry {8 * BIN_COUNT * groups >> 20} MB of their statistics, more than "
            f"{MOST_HISTOGRAM_BYTES >> 20}; use per_tensor or larger blocks"
        )
    start = make_empty_state(editor, True, groups)
    scope = editor.scope_of(tensor)
    return CarriedState(editor, around, scope, start, observe_output(name, STATE_OUTPUT)).merge(tensor, attrs)


def clear_names(editor: Editor, observed: str, names: Iterable[str]) -> None:
    """Rename tensors that have one of `names`, the results of observing `observed`.

    The observed model is never written, so its tensors may change names. Raises PlanError for an input,
    because feeds use its name.
    """
    for name in names:
        taken = editor.find(name)
        if taken is None:
            continue
        if any(taken is given for given in editor.graph.inputs):
            raise PlanError(
                f"input {taken.name!r} has the name of a result of observing tensor {observed!r}; "
                "rename the input"
            )
        taken.name = editor.pick_name(taken.name)
