"""`fuse_layer_norms`: ONNX Runtime's own fusion of a normalization that is written as single operators."""

from __future__ import annotations

import onnx


def fuse_layer_norms(proto: onnx.ModelProto) -> bool:
    """Replace the parts of each LayerNormalization in place, at opset 17 or above; tell whether any was.

    The caller knows that all means are along the last axis, which ONNX Runtime does not look at.
    """
    # Slow to import, and needed by few models.
    from onnxruntime.quantization.fusions import FusionLayerNormalization
    from onnxruntime.quantization.onnx_model import ONNXModel

    model = ONNXModel(proto)
    is_changed = bool(FusionLayerNormalization(model).apply())
    if is_changed:
        model.topological_sort()
        model.clean_initializers()
    return is_changed
