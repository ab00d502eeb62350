"""Put FakeQuantize or DynamicFakeQuantize nodes on every placed activation and round every placed weight."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs

from onnxfq.documents.encodings import Encoding, Encodings
from onnxfq.documents.plan import Placement, Plan
from onnxfq.graph.constants import constant_array, make_constant
from onnxfq.graph.edit import Editor
from onnxfq.graph.model import Model
from onnxfq.numerics.affine import fake_quantize
from onnxfq.passes.base import Pass
from onnxfq.passes.chunked_rounding import by_rows
from onnxfq.passes.custom_domain import custom_node, import_domain
from onnxfq.passes.insert_qdq import check_encodings
from onnxfq.passes.onnx_blocks import one_axis

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
            for part in editor.by_scope(placement):
                if isinstance(tensor, gs.Constant) and not self.switchable:
                    _round_weight(editor, part, tensor, encoding)
                else:
                    _insert_node(editor, part, tensor, encoding, enabled)
        import_domain(graph)
        return bool(self.plan.placements)


def _round_weight(editor: Editor, placement: Placement, tensor: gs.Constant, encoding: Encoding) -> None:
    def rounded(name: str) -> gs.Constant:
        values = np.asarray(constant_array(tensor))
        params = one_axis(encoding, values.shape)
        return make_constant(name, by_rows(fake_quantize, values, params, encoding.spec.grid, values.dtype))

    editor.rewire(placement, editor.constant(f"{tensor.name}/fq", rounded))


def _insert_node(
    editor: Editor, placement: Placement, tensor: gs.Tensor, encoding: Encoding, enabled: list[gs.Constant]
) -> None:
    name = tensor.name
    make = _dynamic if encoding.spec.dynamic else _static
    op, attrs, params = make(editor, name, encoding)
    rounded = editor.variable(f"{name}/fq", tensor)
    if isinstance(tensor, gs.Constant):
        rounded.dtype, rounded.shape = tensor.dtype, list(tensor.shape)
    node = custom_node(
        op,
        f"{name}/fq",
        attrs=attrs | encoding.spec.granularity.attributes,
        inputs=[tensor, *(params if enabled else _without_empty(params)), *enabled],
        outputs=[rounded],
    )
    editor.rewire(placement, rounded)
    editor.insert_before(placement, tensor, [node])


_Operator = tuple[str, dict[str, Any], list[gs.Tensor]]
"""Op type, attributes but for the blocks, and inputs between `x` and `enabled`."""


def _static(editor: Editor, name: str, encoding: Encoding) -> _Operator:
    offsets = encoding.zero_point_array.astype(np.float32)
    params = [
        editor.constant(f"{name}/scale", lambda n: make_constant(n, encoding.scale_array)),
        editor.constant(f"{name}/zero_point", lambda n: make_constant(n, offsets)),
    ]
    return "FakeQuantize", {"qtype": str(encoding.spec.grid)}, params


def _dynamic(editor: Editor, name: str, encoding: Encoding) -> _Operator:
    spec, shared = encoding.spec, gs.Variable.empty()
    if encoding.global_scale is not None:
        value = np.asarray(encoding.global_scale, np.float32)
        shared = editor.constant(f"{name}/global_scale", lambda n: make_constant(n, value))
    attrs = {"qtype": str(spec.qtype), "scale_type": spec.scale_type, "symmetric": int(spec.symmetric)}
    return "DynamicFakeQuantize", attrs, [shared]


def _without_empty(params: list[gs.Tensor]) -> list[gs.Tensor]:
    return [tensor for tensor in params if tensor.name]
