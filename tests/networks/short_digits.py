"""The shipped network without its blocks, so that a command takes a second."""

from __future__ import annotations

import onnx
from onnx import numpy_helper

from onnxfq.support.resources import package_file


def short_digits() -> onnx.ModelProto:
    """Return the first convolution, the last one on the channels that there are, and the head."""
    proto = onnx.load(package_file("digits", "digits_cnn.onnx"))
    del proto.graph.node[2:-4], proto.graph.value_info[:]
    first, last = proto.graph.node[1:3]
    last.input[0] = first.output[0]
    used = {name for node in proto.graph.node for name in node.input}
    kept = [tensor for tensor in proto.graph.initializer if tensor.name in used]
    del proto.graph.initializer[:]
    proto.graph.initializer.extend(kept)
    for tensor in proto.graph.initializer:
        if tensor.name == last.input[1]:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor)[:, :16], tensor.name))
    return proto
