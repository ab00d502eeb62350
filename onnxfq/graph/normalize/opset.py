"""Raising the ai.onnx opset of a model, no further than asked."""

from __future__ import annotations

import onnx
from onnx import version_converter

from onnxfq.errors import ModelError
from onnxfq.graph.external.weightless import change_without_weights
from onnxfq.graph.model import default_opset, restore_annotations
from onnxfq.graph.normalize import steps as normalize
from onnxfq.graph.normalize.shapes import with_shapes
from onnxfq.support.records import one_line

# Lowest IR version that may carry an opset, from ONNX's versioning table.
_IR_OF_OPSET = {13: 7, 15: 8, 19: 9, 21: 10, 23: 11, 24: 12, 25: 13, 28: 14}


def raise_opset(proto: onnx.ModelProto, opset: int, source: str) -> tuple[onnx.ModelProto, str]:
    """Return (`proto` at `opset` or above, note). Raises ModelError when ONNX's converter cannot.

    Shapes are inferred first: the converter rewrites Softmax by its input's rank and writes an
    invalid Reshape where it does not know it (onnx 1.23.2).
    """
    have = default_opset(proto)
    if have >= opset:
        return proto, ""
    try:
        raised = change_without_weights(with_shapes(proto), lambda bare: _converted(bare, opset))
    except (RuntimeError, ValueError, onnx.checker.ValidationError) as fault:
        raise ModelError(
            f"{source}: opset {have} must be raised to {opset} and onnx's converter refused "
            f"({one_line(fault)[:160]}); export the model at opset {opset} or above"
        ) from None
    raised.ir_version = max(proto.ir_version, lowest_ir(opset))
    # The converter makes Constant and unnamed nodes of its own.
    normalize.constants_to_initializers(raised)
    normalize.name_nodes(raised)
    restore_annotations(raised, proto)
    return raised, f"opset raised from {have} to {opset}"


def lowest_ir(opset: int) -> int:
    """Return the lowest IR version that may carry the ai.onnx `opset`."""
    return max((ir for version, ir in _IR_OF_OPSET.items() if version <= opset), default=3)


def _converted(proto: onnx.ModelProto, opset: int) -> onnx.ModelProto:
    raised = version_converter.convert_version(proto, opset)
    onnx.checker.check_model(raised)
    return raised
