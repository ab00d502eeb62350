"""FakeQuantize and DynamicFakeQuantize nodes on activations, their switches, and rounding of weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any, Literal

import numpy as np
import onnx
import onnx_graphsurgeon as gs
from onnx import helper

from onnxfq.documents.encodings import Encoding, Encodings
from onnxfq.documents.plan import Placement, Plan
from onnxfq.errors import PlanError
from onnxfq.graph.constants import constant_array, make_constant
from onnxfq.graph.edit import Editor, custom_node, import_domain
from onnxfq.graph.index import GraphIndex
from onnxfq.graph.model import Model, list_nodes
from onnxfq.graph.normalize.opset import edit_model
from onnxfq.graph.ops import FAKE_QUANTIZE_OPS
from onnxfq.numerics import affine
from onnxfq.passes.insert_qdq import check_encodings
from onnxfq.runtime import kernels

ENABLED_INPUT = "onnxfq/enabled"
"""Optional input of a model with switches: a bool, true by default; false makes it the float model. With a
switch for each tensor it is bool [tensors], in the order of `switched_tensors`."""

Switches = Literal["none", "one", "each"]
"""Whether FakeQuantize nodes can be switched off: not at all, all together, or each tensor by itself."""


def switched_tensors(plan: Plan) -> list[str]:
    """Return the tensors with a switch, in the order of the input."""
    return [placement.tensor for placement in plan.placements if placement.role != "bias"]


def with_fake_quantize(model: Model, plan: Plan, encodings: Encodings, switches: Switches = "none") -> Model:
    """Return `model` that simulates the plan in float32, without float weights that nothing reads.

    Weights are rounded now and stored as constants. A model with switches has nodes on weights too, and its
    nodes read the optional graph input `onnxfq/enabled`, so one session runs quantized and in float. Biases
    stay float there: the node has no grid of 32 bits, and their grid is as fine as the sums of products.
    Raises PlanError when plan or encodings belong to another model, or a mode has no effect.
    """
    check_encodings(plan, encodings, model)
    _check_modes(plan)
    modes = plan.simulation.changes

    def insert_nodes(graph: gs.Graph, opset: int) -> bool:
        editor = Editor(graph)
        enabled = _make_switches(editor, graph, plan, switches)
        for placement in plan.placements:
            if switches != "none" and placement.role == "bias":
                continue
            tensor, encoding = editor.tensor(placement), encodings[placement.tensor]
            for part in editor.split_by_scope(placement):
                if isinstance(tensor, gs.Constant) and switches == "none":
                    _round_weight(editor, part, tensor, encoding, modes)
                else:
                    _insert_node(editor, part, tensor, encoding, enabled.get(placement.tensor, []), modes)
        import_domain(graph)
        return bool(plan.placements)

    return edit_model(model, insert_nodes)


def _check_modes(plan: Plan) -> None:
    modes = plan.simulation.changes
    dynamic = [placement.tensor for placement in plan.placements if placement.spec.dynamic]
    if dynamic and modes:
        raise PlanError(
            f"tensor {dynamic[0]!r} has dynamic scales, which round half_even and divide; use a recipe "
            "with constant scales"
        )
    if "saturate" in modes and not any(p.spec.qtype.is_float for p in plan.placements):
        raise PlanError(
            "saturate: false of a fake-quant model lets float types overflow, and the plan has integers "
            "only; remove it"
        )


def _make_switches(
    editor: Editor, graph: gs.Graph, plan: Plan, switches: Switches
) -> dict[str, list[gs.Tensor]]:
    """Add the input of the switches, and return what the node of each tensor reads."""
    if switches == "none":
        return {}
    tensors = switched_tensors(plan)
    default = np.asarray(True) if switches == "one" else np.ones(len(tensors), bool)
    enabled = editor.constant(ENABLED_INPUT, default)
    # An initializer that is also an input is a default that a caller may override.
    graph.inputs = [*graph.inputs, enabled]
    if switches == "one":
        return {tensor: [enabled] for tensor in tensors}
    made, picks = {}, []
    for number, tensor in enumerate(tensors):
        name = f"{ENABLED_INPUT}/{number}"
        place = editor.constant(f"{name}/place", np.asarray(number, np.int64))
        picked = editor.variable(name)
        picked.dtype, picked.shape = np.dtype(bool), []
        picks.append(gs.Node("Gather", name, {"axis": 0}, [enabled, place], [picked]))
        made[tensor] = [picked]
    graph.nodes[:0] = picks
    return made


def _round_weight(
    editor: Editor, placement: Placement, tensor: gs.Constant, encoding: Encoding, modes: dict[str, Any]
) -> None:
    def round_values(name: str) -> gs.Constant:
        values = np.asarray(constant_array(tensor))
        params = encoding.scale, encoding.zero_point
        grid, granularity = encoding.spec.grid, encoding.spec.granularity
        if grid.has_kernel:
            options = modes | granularity.attributes
            rounded = kernels.fake_quantize(values, *params, qtype=grid, **options)
        else:  # int32 of biases
            rounded = affine.fake_quantize(values, *params, qtype=grid, granularity=granularity, **modes)
        return make_constant(name, rounded)

    editor.rewire(placement, editor.constant(f"{tensor.name}/fq", round_values))


def _insert_node(
    editor: Editor,
    placement: Placement,
    tensor: gs.Tensor,
    encoding: Encoding,
    enabled: list[gs.Tensor],
    modes: dict[str, Any],
) -> None:
    name = tensor.name
    modes = modes | ({"saturate": 0} if "saturate" in modes else {})
    make = _dynamic if encoding.spec.dynamic else _static
    op, attrs, params = make(editor, name, encoding)
    rounded = editor.variable(f"{name}/fq", tensor)
    if isinstance(tensor, gs.Constant):
        rounded.dtype, rounded.shape = tensor.dtype, list(tensor.shape)
    attrs |= modes | encoding.spec.granularity.attributes
    inputs = [tensor, *(one for one in params if enabled or one.name), *enabled]
    node = custom_node(op, f"{name}/fq", attrs=attrs, inputs=inputs, outputs=[rounded])
    editor.rewire(placement, rounded)
    editor.insert_before(placement, tensor, [node])


_Operator = tuple[str, dict[str, Any], list[gs.Tensor]]
"""Op type, attributes except blocks, and the inputs between `x` and `enabled`."""


def _static(editor: Editor, name: str, encoding: Encoding) -> _Operator:
    scale = editor.constant(f"{name}/scale", encoding.scale)
    zero_point = editor.constant(f"{name}/zero_point", encoding.zero_point.astype(np.float32))
    return "FakeQuantize", {"qtype": str(encoding.spec.grid)}, [scale, zero_point]


def _dynamic(editor: Editor, name: str, encoding: Encoding) -> _Operator:
    spec, shared = encoding.spec, gs.Variable.empty()
    if encoding.global_scale is not None:
        shared = editor.constant(f"{name}/global_scale", np.asarray(encoding.global_scale, np.float32))
    attrs = {"qtype": str(spec.qtype), "scale_type": spec.scale_type, "symmetric": int(spec.symmetric)}
    return "DynamicFakeQuantize", attrs, [shared]


_SLOTS = {"FakeQuantize": 3, "DynamicFakeQuantize": 2}
"""Position of the input `enabled` by operator."""


def switch_activations(proto: onnx.ModelProto) -> onnx.ModelProto | None:
    """Return a copy of `proto` whose FakeQuantize nodes read ENABLED_INPUT; None without such nodes.

    The input is optional: by default the copy computes what `proto` does, to the bit.
    """
    made = deepcopy(proto)
    found = [node for node in list_nodes(made.graph) if node.op_type in FAKE_QUANTIZE_OPS]
    if not found:
        return None
    for node in found:
        node.input.extend([""] * (_SLOTS[node.op_type] - len(node.input)))
        node.input.append(ENABLED_INPUT)
    made.graph.input.append(helper.make_tensor_value_info(ENABLED_INPUT, onnx.TensorProto.BOOL, []))
    made.graph.initializer.append(helper.make_tensor(ENABLED_INPUT, onnx.TensorProto.BOOL, [], [True]))
    return made


def switch_weights(
    proto: onnx.ModelProto, rounded: Mapping[str, onnx.TensorProto], switched: Sequence[str]
) -> onnx.ModelProto:
    """Return `proto` whose FakeQuantize nodes read a rounded weight where its switch is on.

    Args:
        proto: with float weights and `switches="each"`.
        rounded: weights on their grids by name.
        switched: the tensors in the order of the switches.
    """
    made = deepcopy(proto)
    graph = made.graph
    taken = GraphIndex(graph).names
    picks = [node for node in graph.node if node.op_type == "Gather" and node.input[0] == ENABLED_INPUT]
    states = dict(zip(switched, (node.output[0] for node in picks), strict=True))
    chosen: dict[str, str] = {}
    nodes = list(graph.node)
    del graph.node[:]
    for node in nodes:
        name = node.input[0] if node.op_type == "FakeQuantize" else ""
        if name in rounded and name in states:
            if name not in chosen:  # next to its reader: both then belong to the same segment
                values = graph.initializer.add()
                values.CopyFrom(rounded[name])
                values.name, chosen[name] = taken.claim(f"{name}/rounded"), taken.claim(f"{name}/chosen")
                inputs = [states[name], values.name, name]
                graph.node.append(helper.make_node("Where", inputs, [chosen[name]], chosen[name]))
            node.input[0] = chosen[name]
        graph.node.append(node)
    return made
