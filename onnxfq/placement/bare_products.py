"""Products of a layer as nodes without values: weights have shapes alone, and inputs have none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import onnx_graphsurgeon as gs


def list_products(
    name: str, form: str, read: str, weights: Mapping[str, tuple[int, ...]]
) -> Iterator[gs.Node]:
    """Yield the products of a layer as nodes.

    Args:
        name: of the layer.
        form: the ONNX operator.
        read: name of what it reads; empty if nothing is multiplied with the weights.
        weights: shapes by name.
    """
    attributes = {"transB": 1} if form == "Gemm" else {}
    for one, shape in weights.items():
        weight = gs.Constant(one, np.broadcast_to(np.float32(0), shape))
        yield gs.Node(form, name, attributes, [gs.Variable(read, np.float32), weight])
