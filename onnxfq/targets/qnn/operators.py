"""Operators that QNN runs as node units, and those whose results keep the scale of what they move.

Sources: ONNX Runtime, `qnn/builder/op_builder_factory.cc` and the quantizers of `get_qnn_qdq_config`; for
each operator the HTP's emulation, in a table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from onnxfq.graph.follow import Node, Tensor
from onnxfq.graph.ops import DATA_MOVEMENT, REPEATS, STANDARD_DOMAINS, WEIGHTED_INPUTS
from onnxfq.graph.queries import constant_values, pads_by_zero
from onnxfq.placement.target_policy import Slots
from onnxfq.targets.reading.runtime_forms import forms_by_operator

_WHOLE = (
    "Abs Add ArgMax ArgMin Asin Atan AveragePool Ceil Concat Cos CumSum DepthToSpace Div Elu Equal "
    "Exp Expand Flatten Floor Gather GatherElements GatherND Gelu GlobalAveragePool GlobalMaxPool Greater "
    "GreaterOrEqual GridSample HardSigmoid HardSwish Identity LRN LeakyRelu Less LessOrEqual Log "
    "LogSoftmax LpNormalization Max MaxPool Mean Min Mul Neg PRelu Pad Pow RMSNormalization "
    "Reciprocal ReduceL2 ReduceMax ReduceMean ReduceMin ReduceSum Relu Reshape Round "
    "ScatterElements Sigmoid Sign Sin Slice Softmax SpaceToDepth Split Sqrt Squeeze Sub Sum "
    "Swish Tanh Tile TopK Transpose Unsqueeze Where"
).split()
_FIRST = Slots(inputs=(0,), outputs="all")
# The HTP takes no other gain beside a bias, which has the scale of its products as in a convolution.
_NORM = Slots(inputs=(0, 1), outputs="all", gains=(1,))
OPERATORS: Mapping[str, Slots] = {
    **dict.fromkeys(_WHOLE, Slots(inputs="all", outputs="all")),
    **dict.fromkeys(("Clip", "Resize", "Upsample"), _FIRST),  # the others are limits and sizes
    **dict.fromkeys(("BatchNormalization", "InstanceNormalization", "LayerNormalization"), _NORM),
    **dict.fromkeys(WEIGHTED_INPUTS, Slots(outputs=(0,))),
}
"""Operator -> inputs and outputs that get a pair in addition to multiplied ones."""

_FORMS = {
    op: [form for form in forms if not form.attributes] for op, forms in forms_by_operator("qnn").items()
}
EIGHT_BITS = frozenset(
    op for op, forms in _FORMS.items() if [form.bits for form in forms if not form.rank] == [16]
)
"""Operators that the HTP has in 8 bits alone: with 16 the whole session fails."""

AXES = 4
FEW_AXES = frozenset(op for op, forms in _FORMS.items() if any(form.rank > AXES for form in forms))
"""Operators that the HTP has up to that number of axes alone: with more they run on the CPU."""

MIXING = frozenset({"Add", "LayerNormalization", "Mul", "ReduceMean", "Sigmoid", "Softmax", "Sub"})
"""Operators that the HTP has in 8 and 16 bits at once, with the right numbers; Gelu ends the session."""

ABSORBED = frozenset({"Clip", "Relu"})
"""Operators that vanish in front of a pair whose range does their work."""

# `quantize_output_same_as_input` of ONNX Runtime's quantizers; there Expand and Tile have their own scales.
_MOVES = (DATA_MOVEMENT - REPEATS) | {"AveragePool", "GatherElements", "Resize", "TopK"}


def explain_axes(op: str, shape: Sequence[object] | None) -> str:
    """Return why the CPU runs an operator on data of `shape`; empty for the HTP, or an unknown rank."""
    few = op in FEW_AXES and shape is not None and len(shape) > AXES
    return f"the HTP has {op} of up to {AXES} axes alone, and the CPU runs it" if few else ""


def needs_one_scale(node: Node, value: Callable[[Tensor], Any] = constant_values) -> bool:
    """Tell whether the results of `node` have the scale of its first input.

    Args:
        node: of a float model or of a quantized one.
        value: returns the values of a constant, None for another tensor.
    """
    if node.domain not in STANDARD_DOMAINS:
        return False
    return node.op in _MOVES or (node.op == "Pad" and pads_by_zero(node, value))
