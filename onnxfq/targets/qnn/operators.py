"""Operators that QNN runs as node units, and those whose results keep the scale of what they move.

Sources: ONNX Runtime, `qnn/builder/op_builder_factory.cc` and the quantizers of `get_qnn_qdq_config`. Release
2.7.0 of onnxruntime-qnn has Swish, and takes Erf as a part of a Gelu.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs

from onnxfq.graph.constants import constant_array
from onnxfq.graph.ops import DATA_MOVEMENT, REPEATS, STANDARD_DOMAINS, WEIGHTED_INPUTS
from onnxfq.placement.target_policy import Slots

_WHOLE = (
    "Abs Add ArgMax ArgMin Asin Atan AveragePool Ceil Concat Cos CumSum DepthToSpace Div Elu Equal Erf "
    "Exp Expand Flatten Floor Gather GatherElements GatherND Gelu GlobalAveragePool GlobalMaxPool Greater "
    "GreaterOrEqual GridSample HardSigmoid HardSwish Identity LRN LeakyRelu Less LessOrEqual Log "
    "LogSoftmax LpNormalization Max MaxPool Mean Min Mod Mul Neg PRelu Pad Pow RMSNormalization "
    "Reciprocal ReduceL2 ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum Relu Reshape Round "
    "ScatterElements ScatterND Sigmoid Sign Sin Slice Softmax SpaceToDepth Split Sqrt Squeeze Sub Sum "
    "Swish Tanh ThresholdedRelu Tile TopK Transpose Unsqueeze Where"
).split()
_FIRST = Slots(inputs=(0,), outputs="all")
# The gain is a weight, and the bias has the scale of its products, as in a convolution.
_NORM = Slots(inputs=(0, 1), outputs="all", weights=(1,))
OPERATORS: Mapping[str, Slots] = {
    **dict.fromkeys(_WHOLE, Slots(inputs="all", outputs="all")),
    **dict.fromkeys(("Clip", "Resize", "Upsample"), _FIRST),  # the others are limits and sizes
    **dict.fromkeys(("BatchNormalization", "InstanceNormalization", "LayerNormalization"), _NORM),
    **dict.fromkeys(WEIGHTED_INPUTS, Slots(outputs=(0,))),
}
"""Operator -> inputs and outputs that get a pair in addition to multiplied ones."""

ABSORBED = frozenset({"Clip", "Relu"})
"""Operators that vanish in front of a pair whose range does their work."""

# `quantize_output_same_as_input` of ONNX Runtime's quantizers; there Expand and Tile have their own scales.
_MOVES = (DATA_MOVEMENT - REPEATS) | {"AveragePool", "GatherElements", "Resize", "TopK"}


def keeps_scale(op: str, domain: str | None, attribute: Callable[[str, Any], Any], padding: Any) -> bool:
    """Tell whether the results of an operator have the scale of its first input.

    Args:
        op: its type.
        domain: of the operator.
        attribute: returns an attribute by name, or the given default.
        padding: the number that a Pad adds; None if it is computed.
    """
    if op != "Pad" or domain not in STANDARD_DOMAINS:
        return op in _MOVES and domain in STANDARD_DOMAINS
    mode = attribute("mode", "constant")
    return mode not in ("constant", b"constant") or (padding is not None and not np.any(padding))


def needs_one_scale(node: gs.Node) -> bool:
    """Tell whether the results of `node` have the scale of its first input."""
    padding: Any = node.attrs.get("value", 0.0)
    if len(node.inputs) > 2 and node.inputs[2].name:
        given = node.inputs[2]
        padding = constant_array(given) if isinstance(given, gs.Constant) else None
    return keeps_scale(node.op, node.domain, node.attrs.get, padding)
