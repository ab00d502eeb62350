"""Put an Observe node on every placed activation and make its results the outputs of the graph."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from typing import Any

import onnx_graphsurgeon as gs

from onnxfq.calibration.statistics.groups import MOST_GROUPS
from onnxfq.documents.plan import Placement, Plan
from onnxfq.errors import PlanError, SpecError
from onnxfq.graph.edit import Editor
from onnxfq.graph.model import Model
from onnxfq.numerics.granularity import PER_TENSOR
from onnxfq.numerics.layout import Layout, open_axis
from onnxfq.passes.base import Pass
from onnxfq.passes.custom_domain import custom_node, import_domain
from onnxfq.passes.observe.subgraph_owners import holders
from onnxfq.passes.observe.subgraph_statistics import DTYPES, RESULTS, Observed, carry_out

OBSERVE_OUTPUTS = RESULTS


def observe_output(tensor: str, output: str) -> str:
    """Name of one result of the observer of `tensor`."""
    return f"{tensor}/observe/{output}"


def channels_output(tensor: str) -> str:
    """Name of the ranges of the channels of `tensor`, float32 [C, 2]."""
    return f"{tensor}/observe/channels"


def observed_groups(placement: Placement, tensor: gs.Tensor) -> tuple[int, ...] | None:
    """Return the shape of a scale of the placed activation; None where it is observed as a whole.

    Raises PlanError where the number of groups is open, or larger than an observer takes.
    """
    granularity, shape = placement.spec.observed_granularity, tensor.shape
    if granularity == PER_TENSOR:
        return None
    where = f"tensor {placement.tensor!r} is {granularity}"
    if shape is None:
        raise PlanError(f"{where}, and its rank is not known; remove axis and block sizes from the plan")
    try:
        axis = open_axis(granularity, shape)
        if axis is not None:
            raise PlanError(
                f"{where}, and its axis {axis} is open: every group needs statistics of its own; fix that "
                "dimension, or remove axis and block sizes from the plan"
            )
        groups = Layout(granularity, [n if isinstance(n, int) else 1 for n in shape]).scale_shape
    except SpecError as error:
        raise PlanError(f"{where}: {error}") from None
    if prod(groups) > MOST_GROUPS:
        raise PlanError(f"{where}: {prod(groups)} groups, {MOST_GROUPS} are the most; give larger blocks")
    return groups


@dataclass(frozen=True)
class InsertObservers(Pass):
    """Observe every activation of `plan`, in bodies too. The model's own outputs go: none is read.

    What the plan quantizes by axis or in blocks is observed so, each group by itself. Of what it
    equalizes the ranges of the channels are given too.
    """

    plan: Plan

    def requires(self, model: Model) -> None:
        """Raise PlanError when the plan is another model's."""
        self.plan.check_model(model.sha256)

    def call(self, graph: gs.Graph, opset: int) -> bool:
        """Add the observers; what only the old outputs needed is removed."""
        editor, around = Editor(graph), holders(graph)
        outputs: list[gs.Variable] = []
        for name in (p.tensor for p in self.plan.activations):
            for owner in (name, f"{name}/inside"):
                clear_names(editor, name, [observe_output(owner, result) for result in OBSERVE_OUTPUTS])
            clear_names(editor, name, [channels_output(name)])
        for placement in self.plan.activations:
            tensor = editor.tensor(placement)
            scope = editor.scope_of(tensor)
            name = placement.tensor
            observed = Observed.of(name, observed_groups(placement, tensor))
            own = name if scope is graph else f"{name}/inside"
            made = [
                gs.Variable(observe_output(own, result), dtype, shape or [f"{name}/{result}"])
                for result, dtype, shape in zip(OBSERVE_OUTPUTS, DTYPES, observed.shapes, strict=True)
            ]
            attrs: dict[str, Any] = {} if observed.groups is None else placement.spec.granularity.attributes
            ranges: list[gs.Variable] = []
            if placement.spec.equalized:
                attrs = {"channel_ranges": 1}
                ranges = [gs.Variable(channels_output(name), DTYPES[0], [f"{name}/count", 2])]
            node = custom_node(
                "Observe", f"{name}/observe", attrs=attrs, inputs=[tensor], outputs=[*made, *ranges]
            )
            editor.insert_after(tensor, [node])
            carried = carry_out(editor, around, scope, made, observed)
            for result, variable in zip(OBSERVE_OUTPUTS, carried, strict=True):
                variable.name = observe_output(name, result)
            outputs += [*carried, *ranges]
        if not outputs:
            return False
        import_domain(graph)
        graph.outputs = outputs
        graph.cleanup(remove_unused_graph_inputs=False)
        return True


def clear_names(editor: Editor, observed: str, names: Iterable[str]) -> None:
    """Rename what has one of `names`, results of observing `observed`: the observed model is not written.

    Raises PlanError for an input, whose name the feeds give.
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
        taken.name = editor.unused(taken.name)
