"""Products of a layer as nodes without values: weights have shapes alone, and inputs have none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import onnx_graphsurgeon as gs


def list_products(
    name: str, form: str, inputs: Sequence[str], weights: Mapping[str, tuple[int, ...]]
) -> Iterator[gs.Node]:
    """Yield the products of a layer as nodes.

    Args:
        name: of the layer.
        form: the ONNX operator. A MatMul is an attention, with the inputs query, key, value, both operands of
            the scores, probabilities and values.
        inputs: names of what it reads; without one nothing is multiplied with the weights.
        weights: shapes by name; an attention has one for all three projections, or three.
    """
    read = [gs.Variable(one, np.float32) for one in inputs]
    held = [gs.Constant(one, np.broadcast_to(np.float32(0), shape)) for one, shape in weights.items()]
    if form != "MatMul":
        attributes = {"transB": 1} if form == "Gemm" else {}
        for weight in held:
            yield gs.Node(form, name, attributes, [read[0] if read else gs.Variable("", np.float32), weight])
        return
    turned = [gs.Variable(f"{weight.name}/turned", np.float32) for weight in held]
    for weight, result in zip(held, turned, strict=True):
        gs.Node("Transpose", result.name, {"perm": [1, 0]}, [weight], [result])
    gs.Node("Softmax", outputs=[read[5]])
    second = [*(turned * 3)[:3], read[4], read[6]]
    for operands in zip([*read[:4], read[5]], second, strict=True):
        yield gs.Node(form, name, inputs=list(operands))
