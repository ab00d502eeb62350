"""ONNX's checker for models that may hold operators of ONNX's domain that only ONNX Runtime has.

Exporters for ONNX Runtime write them, such as onnxruntime-genai's; ONNX's own tools refuse them.
"""

from __future__ import annotations

import onnx

from onnxfq.graph.external.sizes import is_small
from onnxfq.graph.external.tensor import is_external
from onnxfq.graph.external.weightless import strip_weights
from onnxfq.graph.model import default_opset, list_nodes, remove_domain
from onnxfq.graph.ops import STANDARD_DOMAINS

RUNTIME_OPS = frozenset(
    "DisentangledAttention_TRT EfficientNMS_TRT LayerNormalization MeanVarianceNormalization "
    "MultilevelCropAndResize_TRT PyramidROIAlign_TRT SimplifiedLayerNormalization ThresholdedRelu".split()
)
"""Operators of domain "" that onnxruntime 1.31.1 registers from opset 1 on, and ONNX later or never."""

_HIDDEN = "onnxfq.runtime"
"""Domain of these operators while tools of ONNX see the model."""


def check_model(proto: onnx.ModelProto) -> None:
    """Run ONNX's checker on `proto` with one weight in memory at a time. Raises ValidationError.

    Operators that only ONNX Runtime has count as operators of another domain.
    """
    light = strip_weights(proto)
    for tensor, whole in zip(light.graph.initializer, proto.graph.initializer, strict=True):
        if not is_small(whole):
            tensor.dims[:] = [0]  # the checker requires values for a nonzero size
        if not is_external(whole):
            onnx.checker.check_tensor(whole)
    hide_runtime_operators(light)
    onnx.checker.check_model(light)


_LARGEST = 2**31 - 1
"""Largest version that ONNX looks up; a damaged file may state others, which its checker refuses."""


def hide_runtime_operators(proto: onnx.ModelProto) -> None:
    """Move the operators of `proto` that only ONNX Runtime has to another domain, in place."""
    for owner in (proto, *proto.functions):
        opset = min(max(default_opset(owner), 0), _LARGEST)
        nodes = list_nodes(proto.graph if owner is proto else owner)
        found = [n for n in nodes if n.op_type in RUNTIME_OPS and n.domain in STANDARD_DOMAINS]
        hidden = [n for n in found if not onnx.defs.has(n.op_type, max_inclusive_version=opset)]
        for node in hidden:
            node.domain = _HIDDEN
        if hidden:
            owner.opset_import.append(onnx.helper.make_opsetid(_HIDDEN, 1))


def show_runtime_operators(proto: onnx.ModelProto) -> None:
    """Undo `hide_runtime_operators`, in place."""
    for node in list_nodes(proto.graph):
        if node.domain == _HIDDEN:
            node.domain = ""
    remove_domain(proto, _HIDDEN)
