"""AveragePool in the form that TensorRT has in low precision.

TensorRT for RTX 1.7.1 runs an AveragePool without padding in float, unless its attribute count_include_pad is
1. Without padding the attribute changes no number.
"""

from __future__ import annotations

import onnx
from onnx import helper

from onnxfq.graph.ops import STANDARD_DOMAINS


def count_padding(proto: onnx.ModelProto) -> str:
    """Set count_include_pad of every AveragePool without padding, in place; return a note, empty without one.

    Nodes of bodies do not change. With ceil_mode the last window may reach beyond the input, and such a
    node does not change either.
    """
    found = [node for node in proto.graph.node if node.op_type == "AveragePool" and _has_no_padding(node)]
    for node in found:
        kept = [a for a in node.attribute if a.name not in ("auto_pad", "count_include_pad")]
        del node.attribute[:]
        node.attribute.extend([*kept, helper.make_attribute("count_include_pad", 1)])
    if not found:
        return ""
    return (
        f"count_include_pad set for {len(found)} AveragePool without padding: TensorRT has int8 for it only"
    )


def _has_no_padding(node: onnx.NodeProto) -> bool:
    if node.domain not in STANDARD_DOMAINS:
        return False
    attrs = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    if attrs.get("auto_pad", b"NOTSET") not in (b"NOTSET", b"VALID") or attrs.get("ceil_mode", 0):
        return False
    return not any(attrs.get("pads", ())) and not attrs.get("count_include_pad", 0)
