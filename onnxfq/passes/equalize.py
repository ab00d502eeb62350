"""Equalized channels in a Q/DQ graph: a Mul in front of one pair, taken back by the scales of the weight."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import onnx
import onnx_graphsurgeon as gs
from numpy.typing import NDArray

from onnxfq.documents.encodings import Encoding, Encodings
from onnxfq.documents.plan import Plan
from onnxfq.graph.constants import make_constant
from onnxfq.graph.edit import Editor
from onnxfq.graph.index import GraphIndex
from onnxfq.numerics.granularity import PER_TENSOR

_EQUALIZED, _FACTORS = "/equalized", "/channel_factors"


def channel_factors(encoding: Encoding) -> NDArray[np.float32]:
    """Return the scale of each equalized channel divided by the largest: powers of two up to 1, [C]."""
    scale = encoding.scale_array
    return np.asarray(scale / scale.max(initial=0.0), np.float32)


def common_encoding(encoding: Encoding) -> Encoding:
    """Return the encoding, per tensor, of equalized channels that were divided by their factors."""
    spec = encoding.spec.model_copy(update={"granularity": PER_TENSOR, "equalized": False})
    zero_point = encoding.zero_point[:1].reshape(())
    scale = np.max(encoding.scale, keepdims=True)[0:1].reshape(())
    return Encoding.of(encoding.tensor, spec, scale, zero_point)


def to_common_scale(editor: Editor, tensor: gs.Tensor, encoding: Encoding) -> list[gs.Node]:
    """Return the node that divides the channels of `tensor` by their factors; none where all are 1.

    Powers of two: no bit of a float's fraction is lost, so what is rounded is what FakeQuantize rounds.
    """
    factors = channel_factors(encoding)
    if (factors == 1.0).all():
        return []
    shape = [-1 if axis == encoding.spec.granularity.axis else 1 for axis in range(len(tensor.shape))]
    values = (np.float32(1.0) / factors).reshape(shape)
    name = f"{tensor.name}{_EQUALIZED}"
    constant = editor.constant(f"{tensor.name}{_FACTORS}", lambda n: make_constant(n, values))
    return [gs.Node("Mul", name, {}, [tensor, constant], [editor.variable(name, tensor)])]


def factors_of_weights(plan: Plan, encodings: Encodings) -> dict[str, NDArray[np.float32]]:
    """Return by name what the scales of a weight, one an output channel, are multiplied by: [outputs].

    An output channel of a depthwise convolution reads one channel of the input; m of them in a row read the
    same one.
    """
    weights = {use: p.tensor for p in plan.weights for use in p.uses}
    found = {}
    for placement in plan.activations:
        if not placement.spec.equalized:
            continue
        factors = channel_factors(encodings[placement.tensor])
        for use in placement.uses:
            weight = weights[use._replace(input=1)]
            outputs = encodings[weight].scale.size
            found[weight] = np.repeat(factors, outputs // factors.size)
    return found


def with_restored_channels(
    proto: onnx.ModelProto, tensors: Iterable[str]
) -> tuple[onnx.ModelProto, dict[str, str]]:
    """Return (`proto`, names): by tensor the name of its quantized form with the channels as they were.

    Only of those of `tensors` whose pair is behind a Mul; a model without any is returned itself.
    """
    made = GraphIndex(proto.graph).makers
    found = [name for name in tensors if f"{name}{_EQUALIZED}/dq" in made]
    if not found:
        return proto, {}
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    restored = {name: f"{name}{_EQUALIZED}/restored" for name in found}
    for name, output in restored.items():
        inputs = [f"{name}{_EQUALIZED}/dq", f"{name}{_FACTORS}"]
        copy.graph.node.append(onnx.helper.make_node("Div", inputs, [output], output))
    return copy, restored
