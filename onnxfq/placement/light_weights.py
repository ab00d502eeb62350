"""Products whose weight is small or none: reading it costs less than the kernels that quantize their inputs.

NVFP4 gives each input of a product a kernel that computes its scales: engines of 20 networks have 2,131
layers, and 1,158 in half (TensorRT for RTX 1.7.1). A GPU of 400 GB/s reads 1 MB during a launch of 2.5 us: a
smaller weight in a half type costs less than the kernel. A product of two computed tensors has two such
kernels and no weight. No time was measured.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

import onnx_graphsurgeon as gs

from onnxfq.graph.queries import weight_source
from onnxfq.placement.target_policy import NodeDecision, fewer_or_noted

_PRODUCTS = ("MatMul", "Gemm")
_HALF = 2
_REMEDY = "; to quantize it, set least_weight_bytes: 0 in the recipe"
_LIGHT = (
    "its weight has {:,} bytes in a half type, below {:,}, and is read faster than a kernel that quantizes "
    f"its input starts{_REMEDY}"
)
_COMPUTED = f"both of its inputs are computed, and a kernel quantizes each, which no weight pays for{_REMEDY}"


def leave_out_light(
    decisions: list[NodeDecision], nodes: Iterable[gs.Node], least: int
) -> list[NodeDecision]:
    """Return `decisions`, in float with a reason for products whose weight is below `least` bytes.

    Formats with dynamic scales quantize each input by a kernel. If no product is left, all stay.
    """
    sizes = {
        node.name: 0 if source is None else _HALF * prod(source.tensor.shape)
        for node in nodes
        if node.op in _PRODUCTS
        for source in [weight_source(node, 1) or weight_source(node, 0)]
    }
    fewer = [
        d.leave_out("light-weight", _LIGHT.format(size, least) if size else _COMPUTED)
        if d.placements and (size := sizes.get(d.node, least)) < least
        else d
        for d in decisions
    ]
    return fewer_or_noted(decisions, fewer, "its weight is small, and so are all of the model's")
