"""`guess_limits`: ranges that do the work of a Relu or Clip, which some tools remove from a file."""

from __future__ import annotations

import math

import onnx

from onnxfq.diagnosis.reading.quantizers import PREFIX, ActivationQuantizer, Limit, SwitchedForm
from onnxfq.graph.index import GraphIndex
from onnxfq.graph.ops import WEIGHTED_INPUTS

_LATER = {"Add", "BatchNormalization"}
"""Operators behind quantized layers; ONNX Runtime's quantizer leaves an unfolded norm between pairs."""
_LAYERS = {*WEIGHTED_INPUTS, *_LATER}


def guess_limits(form: SwitchedForm, index: GraphIndex) -> dict[int, Limit]:
    """Return the limits of tensors whose range seems to do the work of a Relu that the file lacks.

    A tool removes all of these operators or none: one that is left behind a layer shows that this file has
    them all. A range that ends at 6 does the work of Clip(0, 6).
    """
    if keeps_relus(form, index):
        return {}
    limits: dict[int, Limit] = {}
    for quantizer in form.activations:
        maker = index.makers.get(quantizer.plain)
        is_inner = maker is not None and maker.op_type in _LAYERS and not _is_last(quantizer, index)
        can_limit = quantizer.can_limit and quantizer.starts_at_zero
        if can_limit and is_inner and not _is_biased(quantizer, index):
            step, end = quantizer.grid.scale, quantizer.grid.limits[1]
            limits[quantizer.number] = (0.0, 6.0 if abs(end - 6) <= step / 2 else math.inf)
    return limits


def keeps_relus(form: SwitchedForm, index: GraphIndex) -> bool:
    """Tell whether a Relu or Clip of the file reads what a quantized layer computes; a float one keeps it."""
    weights, tensors = {one.constant for one in form.constants}, {one.output for one in form.activations}
    for node in index.nodes:
        if node.op_type in ("Relu", "Clip") and not node.name.startswith(PREFIX):
            maker = find_layer(index, node.input[0])
            if maker is not None and (tensors if maker.op_type in _LATER else weights) & {*maker.input}:
                return True
    return False


def find_layer(index: GraphIndex, tensor: str) -> onnx.NodeProto | None:
    """Return the node of the file that makes `tensor`, in front of the switches of its quantizer."""
    maker = index.makers.get(tensor)
    while maker is not None and maker.name.startswith(PREFIX):
        maker = index.makers.get(maker.input[0])
    return maker


def _is_last(quantizer: ActivationQuantizer, index: GraphIndex) -> bool:
    """Tell whether no layer follows: a network does not end in a Relu."""
    return not any(node.op_type in WEIGHTED_INPUTS for node in index.nodes_behind([quantizer.output]))


def _is_biased(quantizer: ActivationQuantizer, index: GraphIndex) -> bool:
    """Tell whether it stands between a MatMul and the Add of its bias, where no Relu is."""
    maker = index.makers.get(quantizer.plain)
    adds = [node for node in index.readers.get(quantizer.output, ()) if node.op_type == "Add"]
    is_product = maker is not None and maker.op_type == "MatMul"
    return is_product and any(name in index.constants for node in adds for name in node.input)
