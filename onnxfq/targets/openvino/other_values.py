"""Four forms that OpenVINO 2026.4.1 computes otherwise: plans and files avoid them, a check reports them.

It moves a pair behind a Concat in front of it, and is wrong if the grid is signed. It computes a convolution
of two quantized operands wrongly if shapes are open, no bias is there, and several operators read the result:
it forgets the scale for all but one of them. It moves a factor behind a Relu in front of it, also below 0, if
the product before has no bias. A bias of the least normal float32 keeps both right; sums do not change by it,
unless they are zero. It takes the scales of rows of a constant on the left for scales of columns, or does not
compile, if a pair is behind the product, maybe behind a Relu and factors. Such a constant has one scale.
`tests/targets/test_openvino_values.py` asks the installed release again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs
from ml_dtypes import finfo
from onnx import TensorProto

from onnxfq.graph.constants import constant_array
from onnxfq.graph.edit import Editor
from onnxfq.graph.follow import is_known_number
from onnxfq.graph.ops import CONVOLUTIONS, STANDARD_DOMAINS
from onnxfq.graph.queries import nodes_by_graph
from onnxfq.targets.findings import Finding
from onnxfq.targets.reading.context import CheckContext, make_finding

LEAST = float(np.finfo(np.float32).tiny)
_FOLDED = ("Relu", "Identity", "Add", "Sub", "Mul", "Div", "Max", "Min", "BatchNormalization")
"""Operators that OpenVINO folds into a pair behind them, if all other inputs are constants."""
_RECTIFIERS, _FACTORS = frozenset({"LeakyRelu", "PRelu", "Relu"}), frozenset({"Div", "Mul", "Neg"})


def find_joined(nodes: Iterable[Any], is_constant: Callable[[Any], bool]) -> set[str]:
    """Return the tensors of a Concat, and of operators behind one that OpenVINO folds into a pair.

    The nodes stand in the order of the graph.
    """
    joined: set[str] = set()
    for node in nodes:
        read = [source.name for source in node.inputs if source.name and not is_constant(source)]
        if node.op == "Concat" or (node.op in _FOLDED and len(read) == 1 and read[0] in joined):
            joined.update(output.name for output in node.outputs)
    return joined


def give_biases(editor: Editor) -> None:
    """Give products whose scale or sign would be lost the least bias, in place."""
    outputs = {
        output.name for graph in (editor.graph, *editor.graph.subgraphs(True)) for output in graph.outputs
    }
    for node in nodes_by_graph(editor.graph):
        bias = node.inputs[2] if len(node.inputs) > 2 else None
        biased = bias is not None and not (isinstance(bias, gs.Constant) and not constant_array(bias).any())
        if not biased and node.domain in STANDARD_DOMAINS and _explain_loss(node, outputs):
            weight = node.inputs[1]
            first = node.op == "Conv" or node.attrs.get("transB", 0)
            channels = weight.shape[0] if first else weight.shape[1] * node.attrs.get("group", 1)
            node.op = "Gemm" if node.op == "MatMul" else node.op  # of two axes, which has a bias
            number = max(LEAST, float(finfo(weight.dtype).smallest_subnormal))  # of float16 6e-8
            least = editor.constant(f"{node.name}/least_bias", np.full(channels, number, weight.dtype))
            node.inputs = [*node.inputs[:2], least]


def _explain_loss(node: Any, outputs: Collection[str]) -> str:
    """Return what OpenVINO makes of a product without a bias, with other values; empty if it is right."""
    makers = [maker.op for operand in node.inputs[:2] for maker in operand.inputs]
    if node.op not in (*CONVOLUTIONS, "Gemm", "MatMul") or makers != ["DequantizeLinear"] * 2:
        return ""
    (data, weight), made = node.inputs[:2], node.outputs[0]
    several = len(made.outputs) + (made.name in outputs) > 1
    if node.op in CONVOLUTIONS and several and _is_fixed(weight.shape) and not _is_fixed(data.shape):
        return "has open shapes and several readers, and OpenVINO forgets the scale for all but one"
    has_matrices = all(len(operand.shape or ()) == 2 for operand in (data, weight))
    if (node.op in CONVOLUTIONS or has_matrices) and _is_rectified(node, outputs):
        return "stands before a Relu and a factor, and OpenVINO swaps them, also if the factor is below 0"
    return ""


def _is_rectified(node: Any, outputs: Collection[str]) -> bool:
    """Tell whether a factor is behind a Relu, or one of its kind, which alone is behind `node`."""
    is_behind = False
    while node.outputs[0].name not in outputs and len(node.outputs[0].outputs) == 1:
        (node,) = node.outputs[0].outputs
        if node.op not in _RECTIFIERS | _FACTORS or (is_behind and node.op in _FACTORS):
            return node.op in _FACTORS
        is_behind |= node.op in _RECTIFIERS
    return False


ROWS = "OpenVINO takes the scales of its rows for scales of columns in front of a pair"


def ends_in_pair(product: Any, is_paired: Callable[[Any], bool], is_constant: Callable[[Any], bool]) -> bool:
    """Tell whether a pair is behind a product, maybe behind a Relu and factors of one number."""
    made = product.outputs[0]
    while not is_paired(made):
        if [reader.op in ("Div", "Mul", "Relu") for reader in made.outputs] != [True]:
            return False
        (reader,) = made.outputs
        if reader.op != "Relu" and not any(is_known_number(one, is_constant) for one in reader.inputs):
            return False
        made = reader.outputs[0]
    return True


def row_scales(reading: CheckContext) -> Iterator[Finding]:
    """Report constants on the left of a MatMul whose several scales OpenVINO takes for scales of columns."""

    def is_paired(tensor: Any) -> bool:
        return tensor.name not in reading.index.outputs and {one.op for one in tensor.outputs} == {
            "QuantizeLinear"
        }

    for promised, operand, pair in reading.weights():
        site, several = promised.site, pair.scale is not None and pair.scale.size > 1
        is_left = site.op == "MatMul" and operand.slot == 0
        if is_left and several and ends_in_pair(site, is_paired, lambda t: reading.index.is_constant(t.name)):
            message = f"its weight {operand.tensor!r} has several scales: {ROWS}; use granularity: per_tensor"
            yield make_finding("row-scale", "wrong", site, message, operand.tensor)


def _is_fixed(shape: Sequence[Any] | None) -> bool:
    return shape is not None and all(isinstance(size, int) for size in shape)


def signed_concats(reading: CheckContext) -> Iterator[Finding]:
    """Report signed grids behind a Concat."""
    joined = find_joined(reading.sites, lambda source: reading.index.is_constant(source.name))
    for q in reading.quantizers:
        if q.quantizes and q.qtype == TensorProto.INT8 and q.data in joined:
            message = (
                f"its pair on {q.data!r} is int8 behind a Concat, and OpenVINO computes other values with a "
                "signed grid there; use uint8"
            )
            yield make_finding("signed-concat", "wrong", q.site, message, q.data)


def lost_scales(reading: CheckContext) -> Iterator[Finding]:
    """Report products without a bias whose scale or sign OpenVINO loses."""
    for site in reading.sites:
        bias = reading.index.value(site.input(2)) if site.input(2) else np.zeros(1)
        why = "" if bias is None or bias.any() else _explain_loss(site, reading.index.outputs)
        if why:
            message = f"it has no bias, {why}; give it a bias that is not zero, such as {LEAST:.1e}"
            yield make_finding("lost-scale", "wrong", site, message, site.input(0))
