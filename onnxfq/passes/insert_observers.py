"""Put an Observe node on every placed activation and make its results the outputs of the graph."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import onnx_graphsurgeon as gs

from onnxfq.errors import PlanError
from onnxfq.graph.edit import Editor
from onnxfq.graph.model import Model
from onnxfq.passes.carry_statistics import DTYPES, RESULTS, carry_out, holders
from onnxfq.passes.custom_domain import custom_node, import_domain
from onnxfq.passes.pass_base import Pass
from onnxfq.plan import Plan

OBSERVE_OUTPUTS = RESULTS
_SHAPES = ((2,), (4,), None, None)


def observe_output(tensor: str, output: str) -> str:
    """Name of one result of the observer of `tensor`."""
    return f"{tensor}/observe/{output}"


@dataclass(frozen=True)
class InsertObservers(Pass):
    """Observe every activation of `plan`, in bodies too. The model's own outputs go: none is read."""

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
        for placement in self.plan.activations:
            tensor = editor.tensor(placement)
            scope = editor.scope_of(tensor)
            name = placement.tensor
            own = name if scope is graph else f"{name}/inside"
            made = [
                gs.Variable(
                    observe_output(own, result),
                    dtype,
                    [f"{name}/{result}"] if shape is None else shape,
                )
                for result, dtype, shape in zip(OBSERVE_OUTPUTS, DTYPES, _SHAPES, strict=True)
            ]
            node = custom_node("Observe", f"{name}/observe", inputs=[tensor], outputs=made)
            editor.insert_after(tensor, [node])
            carried = carry_out(editor, around, scope, made, name)
            for result, variable in zip(OBSERVE_OUTPUTS, carried, strict=True):
                variable.name = observe_output(name, result)
            outputs += carried
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
