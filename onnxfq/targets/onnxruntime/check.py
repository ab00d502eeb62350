"""Check of one Q/DQ model for ONNX Runtime's CPU provider: by rules, and by the graph that it runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto

from onnxfq.graph.body_reads import find_moved_reads
from onnxfq.graph.normalize.decided_branches import with_branches
from onnxfq.graph.normalize.node_sites import NodeSite, has_pair_behind
from onnxfq.graph.ops import find_summed_axis
from onnxfq.targets.findings import Finding
from onnxfq.targets.onnxruntime.build import build_model
from onnxfq.targets.onnxruntime.float_products import rounded_products
from onnxfq.targets.onnxruntime.limits import ACTIVATION, WEIGHT, copies
from onnxfq.targets.reading.context import CheckContext, Rule, make_finding
from onnxfq.targets.reading.general_rules import check_quantized
from onnxfq.targets.reading.limits import check_limits
from onnxfq.targets.reading.operands import ExpectedPrecision, Units
from onnxfq.targets.reading.proof import make_check
from onnxfq.targets.reading.runtime_forms import check_forms

UNITS: Units = {
    **dict.fromkeys(("Add", "Concat", "Mul"), ()),
    **dict.fromkeys(("AveragePool", "GlobalAveragePool", "LeakyRelu", "Resize", "Sigmoid", "Softmax"), (0,)),
}
"""Operators that ONNX Runtime fuses with pairs on both sides, and the slots of their data."""


def _is_unit(site: NodeSite) -> bool:
    return has_pair_behind(site) and (site.op != "Resize" or copies(site))


def saturation(reading: CheckContext) -> Iterator[Finding]:
    """Warn of neighbouring weights whose products with activations of 8 bits may pass 16 bits.

    On processors without VNNI, MLAS adds two products of uint8 and int8 by `vpmaddubsw`, which saturates at
    16 bits. 255 * (w1 + w2) passes them if the sum of two neighbours is beyond 128. ONNX Runtime makes int8
    activations uint8. Depthwise convolutions, which sum over no channels, are not counted.
    """
    for promised, operand, q in reading.weights():
        values = reading.index.value(q.data) if q.qtype == TensorProto.INT8 else None
        if promised.expects != "low" or values is None:
            continue
        count, pairs = count_saturating(promised, values)
        if count:
            message = (
                f"{count:,} of {pairs:,} pairs of neighbours in its weight {operand.tensor!r} have a sum "
                "beyond 128, and without VNNI their products saturate at 16 bits; for such processors set "
                "weights.qtype: int8[-64,64]"
            )
            yield make_finding("saturation", "warning", promised.site, message, operand.tensor)


def count_saturating(promised: ExpectedPrecision, weights: NDArray[Any]) -> tuple[int, int]:
    """Return (pairs whose sum is beyond 128, all pairs) of neighbours along the summed axis.

    Args:
        promised: the node.
        weights: integers in the shape in which they are stored. Channels are neighbours in a convolution.
    """
    op = promised.site.op
    if op == "Conv":
        sums = weights if weights.shape[1] > 1 else weights[:, :0]
        summed = np.moveaxis(sums, 1, -1).reshape(len(weights), -1)
    elif op in ("Gemm", "MatMul"):
        axis = find_summed_axis(promised.site, 1, weights.ndim)
        summed = np.moveaxis(weights, -1 if axis is None else axis, -1)
    else:
        return 0, 0
    even = summed.shape[-1] // 2 * 2
    neighbours = summed[..., 0:even:2].astype(np.int16) + summed[..., 1:even:2]
    return int(np.count_nonzero(np.abs(neighbours) > 128)), int(neighbours.size)


def moved_reads(reading: CheckContext) -> Iterator[Finding]:
    """Report moved data behind a pair that a body reads: ONNX Runtime ends the process at such a file."""
    for found in find_moved_reads(with_branches(reading.proto)):
        site = reading.index.maker(found.move.output[0])
        if site is not None:
            message = (
                f"a body reads {found.move.output[0]!r}, moved data behind a pair, and ONNX Runtime ends the "
                "process that loads the file; quantize again, which writes a second pair"
            )
            yield make_finding("moved-read", "refused", site, message, found.move.output[0])


RULES: tuple[Rule, ...] = (
    check_quantized,
    moved_reads,
    check_limits(ACTIVATION, WEIGHT),
    saturation,
    rounded_products,
    check_forms("onnxruntime"),
)

check_model = make_check(
    "onnxruntime",
    RULES,
    UNITS,
    build_model,
    lambda promised: promised.site.op not in UNITS or _is_unit(promised.site),
)
