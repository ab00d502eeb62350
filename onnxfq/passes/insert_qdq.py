"""Put standard QuantizeLinear/DequantizeLinear on every placed tensor."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from onnxfq.encoding import Encoding, Encodings
from onnxfq.errors import PlanError
from onnxfq.graph.constants import constant_array, make_constant
from onnxfq.graph.edit import Editor
from onnxfq.graph.model import Model
from onnxfq.numerics import quantize
from onnxfq.passes.pass_base import Pass
from onnxfq.plan import Placement, Plan

# From this opset on QuantizeLinear has output_dtype; onnxruntime 1.31 mishandles zero-point inputs there.
_OUTPUT_DTYPE_OPSET = 21


@dataclass(frozen=True)
class InsertQdq(Pass):
    """Quantize placed activations at run time and placed weights now.

    An activation gets Q and DQ, shared by all its placed readers. A weight is stored as integers with
    a DQ only: a quarter of the size, and the form that TensorRT keeps for weight-only layers.
    """

    plan: Plan
    encodings: Encodings

    @property
    def min_opset(self) -> int:
        """Opset that has all number formats and block sizes of the plan."""
        specs = [placement.spec for placement in self.plan.placements]
        needs = [spec.qtype.min_opset for spec in specs] + [21 for spec in specs if spec.block_size]
        return max(needs, default=13)

    def requires(self, model: Model) -> None:
        """Raise PlanError when plan or encodings are another model's."""
        check_encodings(self.plan, self.encodings, model)

    def call(self, graph: gs.Graph, opset: int) -> bool:
        """Insert the pairs; unused float weights are removed."""
        editor = Editor(graph)
        for placement in self.plan.placements:
            tensor = editor.tensor(placement)
            encoding = self.encodings[placement.tensor]
            insert = _insert_on_weight if isinstance(tensor, gs.Constant) else _insert_on_activation
            insert(editor, placement, tensor, encoding, opset)
        return bool(self.plan.placements)


def check_encodings(plan: Plan, encodings: Encodings, model: Model) -> None:
    """Raise PlanError when plan or encodings are another model's, or disagree on a tensor's spec."""
    plan.check_model(model.sha256)
    if encodings.model_sha256 != model.sha256:
        raise PlanError("the encodings were made for another model; calibrate with this model's plan")
    for placement in plan.placements:
        encoded = encodings[placement.tensor].spec
        # The calibrator tells how the numbers were found, not what they mean.
        if encoded.model_copy(update={"calibrator": placement.spec.calibrator}) != placement.spec:
            raise PlanError(
                f"tensor {placement.tensor!r} is planned as {placement.spec} and encoded as {encoded}; "
                "calibrate again with this plan"
            )


def _insert_on_activation(
    editor: Editor, placement: Placement, tensor: gs.Tensor, encoding: Encoding, opset: int
) -> None:
    name = tensor.name
    scale, zero_point, attrs = _parameters(editor, name, encoding, opset)
    quantized = editor.variable(f"{name}/q")
    quantized.dtype, quantized.shape = encoding.spec.qtype.onnx_type, tensor.shape
    dequantized = editor.variable(f"{name}/dq", tensor)
    output_dtype = {} if zero_point else {"output_dtype": encoding.spec.qtype.onnx_type}
    nodes = [
        gs.Node(
            "QuantizeLinear", f"{name}/q", attrs | output_dtype, [tensor, scale, *zero_point], [quantized]
        ),
        gs.Node("DequantizeLinear", f"{name}/dq", attrs, [quantized, scale, *zero_point], [dequantized]),
    ]
    editor.rewire(placement, dequantized)
    editor.insert_after(tensor, nodes)


def _insert_on_weight(
    editor: Editor, placement: Placement, tensor: gs.Constant, encoding: Encoding, opset: int
) -> None:
    name = tensor.name
    spec = encoding.spec
    values = quantize(
        constant_array(tensor),
        encoding.scale_array,
        encoding.zero_point_array,
        qtype=spec.qtype,
        axis=spec.axis,
        block_size=spec.block_size,
    )
    scale, zero_point, attrs = _parameters(editor, name, encoding, opset)
    quantized = editor.constant(f"{name}/q", lambda n: make_constant(n, values))
    dequantized = editor.variable(f"{name}/dq")
    dequantized.dtype, dequantized.shape = tensor.dtype, list(tensor.shape)
    node = gs.Node("DequantizeLinear", f"{name}/dq", attrs, [quantized, scale, *zero_point], [dequantized])
    editor.rewire(placement, dequantized)
    editor.insert_before_uses(placement, [node])


def _parameters(
    editor: Editor, name: str, encoding: Encoding, opset: int
) -> tuple[gs.Constant, list[gs.Constant], dict[str, int]]:
    """Return (scale, [zero point] or [], attributes) of the tensor called `name`.

    Up to opset 20 the zero point tells the integer type and is always written; from 21 on it is
    written only if it is not 0 and output_dtype tells the type: never both, never neither.
    """
    spec = encoding.spec
    scale = editor.constant(f"{name}/scale", lambda n: make_constant(n, encoding.scale_array))
    attrs: dict[str, int] = {}
    if spec.axis is not None:
        attrs["axis"] = spec.axis
    if spec.block_size is not None:
        attrs["block_size"] = spec.block_size
    if opset >= _OUTPUT_DTYPE_OPSET and not np.any(encoding.zero_point_array):
        return scale, [], attrs
    values = encoding.zero_point_array.astype(spec.qtype.dtype)
    zero_point = editor.constant(f"{name}/zero_point", lambda n: make_constant(n, values))
    return scale, [zero_point], attrs
