"""Put FakeQuantize nodes on every placed activation and round every placed weight."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from onnxfq.encoding import Encoding, Encodings
from onnxfq.graph.constants import constant_array, make_constant
from onnxfq.graph.edit import Editor
from onnxfq.graph.model import Model
from onnxfq.passes.custom_domain import custom_node, import_domain
from onnxfq.passes.insert_qdq import check_encodings
from onnxfq.passes.pass_base import Pass
from onnxfq.plan import Placement, Plan

ENABLED_INPUT = "onnxfq/enabled"
"""Optional input of a switchable model: a bool, true when not fed; false makes it the float model."""


@dataclass(frozen=True)
class InsertFakeQuantize(Pass):
    """Simulate the plan in float32.

    Weights are rounded now and stored as constants. With switchable they get a node too, and all nodes
    read the optional graph input `onnxfq/enabled`, so one session runs quantized and in float.
    """

    plan: Plan
    encodings: Encodings
    switchable: bool = False

    def requires(self, model: Model) -> None:
        """Raise PlanError when plan or encodings are another model's."""
        check_encodings(self.plan, self.encodings, model)

    def call(self, graph: gs.Graph, opset: int) -> bool:
        """Insert the nodes; unused float weights are removed."""
        editor = Editor(graph)
        enabled = []
        if self.switchable:
            enabled = [editor.constant(ENABLED_INPUT, lambda n: make_constant(n, np.asarray(True)))]
            # An initializer that is also an input is a default that a caller may override.
            graph.inputs = [*graph.inputs, *enabled]
        for placement in self.plan.placements:
            tensor = editor.tensor(placement)
            encoding = self.encodings[placement.tensor]
            if isinstance(tensor, gs.Constant) and not self.switchable:
                _round_weight(editor, placement, tensor, encoding)
            else:
                _insert_node(editor, placement, tensor, encoding, enabled)
        import_domain(graph)
        return bool(self.plan.placements)


def _round_weight(editor: Editor, placement: Placement, tensor: gs.Constant, encoding: Encoding) -> None:
    values = encoding.fake_quantize(constant_array(tensor))
    editor.rewire(placement, editor.constant(f"{tensor.name}/fq", lambda n: make_constant(n, values)))


def _insert_node(
    editor: Editor, placement: Placement, tensor: gs.Tensor, encoding: Encoding, enabled: list[gs.Constant]
) -> None:
    name, spec = tensor.name, encoding.spec
    scale = editor.constant(f"{name}/scale", lambda n: make_constant(n, encoding.scale_array))
    offsets = encoding.zero_point_array.astype(np.float32)
    zero_point = editor.constant(f"{name}/zero_point", lambda n: make_constant(n, offsets))
    attrs: dict[str, object] = {"qtype": str(spec.qtype)}
    attrs |= {
        key: list(value) if key == "block_shape" else value
        for key, value in spec.blocks.items()
        if value is not None
    }
    rounded = editor.variable(f"{name}/fq", tensor)
    if isinstance(tensor, gs.Constant):
        rounded.dtype, rounded.shape = tensor.dtype, list(tensor.shape)
    node = custom_node(
        "FakeQuantize",
        f"{name}/fq",
        attrs=attrs,
        inputs=[tensor, scale, zero_point, *enabled],
        outputs=[rounded],
    )
    editor.rewire(placement, rounded)
    if isinstance(tensor, gs.Constant):
        editor.insert_before_uses(placement, [node])
    else:
        editor.insert_after(tensor, [node])
