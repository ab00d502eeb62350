"""Pairs in the wrong place: twice, inside what a kernel fuses, or missing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np
import onnx

from onnxfq.diagnosis.reading.candidate import FileCandidate
from onnxfq.diagnosis.reading.cause import Suspicion
from onnxfq.diagnosis.reading.file_editor import Edit, FileEditor
from onnxfq.diagnosis.reading.quantizers import ActivationQuantizer
from onnxfq.diagnosis.reading.stored_weight import channel_axis, round_weight
from onnxfq.graph.index import GraphIndex
from onnxfq.graph.ops import MOVES, QDQ_OPS, WEIGHTED_INPUTS

FUSED = ("BatchNormalization", "Clip", "Relu")
"""Operators that kernels compute with the convolution in front."""

_LAYERS = ("Conv", "ConvTranspose", "Gemm")

MOST_LEFT = 1 / 3
"""Part of the layers up to which those in float are exceptions, not the way of a file."""


def find_double(candidate: FileCandidate) -> Iterator[Suspicion]:
    """Yield tensors that are quantized twice in a row, on two grids of one type; of two types it converts."""
    makers = candidate.index.makers
    for quantizer in candidate.form.activations:
        before = makers.get(quantizer.tensor)
        if quantizer.op_type != "QuantizeLinear" or before is None or before.op_type != "DequantizeLinear":
            continue
        others = (one for one in candidate.form.activations if one is not quantizer)
        first, grid = next((one for one in others if one.scale == before.input[1]), None), quantizer.grid
        if first is None or first.grid.agrees(grid) or first.grid.limits != grid.limits:
            continue
        evidence = f"quantized by a scale of {first.grid.scale:.4g}, and again by one of {grid.scale:.4g}"
        yield _suspect_pair(quantizer, evidence, "the second pair removed", kind="double_quantization")


def find_inside_fusion(candidate: FileCandidate) -> Iterator[Suspicion]:
    """Yield pairs between a layer and the Relu or BatchNormalization behind it, if they are few.

    Quantizers of some tools put one there always: that is their way, and no fault of the file.
    """
    index = candidate.index
    fused = [index.makers.get(node.input[0]) for node in index.nodes if node.op_type in FUSED]
    direct = sum(maker is not None and maker.op_type in _LAYERS for maker in fused)
    inside = []
    for quantizer in candidate.form.activations:
        maker = index.makers.get(quantizer.tensor)
        if quantizer.op_type != "QuantizeLinear" or maker is None or maker.op_type not in _LAYERS:
            continue
        readers = candidate.readers(quantizer)
        if readers and all(node.op_type in FUSED for node in readers):
            inside.append((quantizer, maker, readers))
    if len(inside) > direct:
        return
    for quantizer, maker, readers in inside:
        evidence = f"a pair stands between {maker.op_type} {maker.name!r} and {readers[0].op_type} "
        evidence += f"{readers[0].name!r}, which a kernel computes together; {direct} others have none"
        yield _suspect_pair(quantizer, evidence, "the pair removed", kind="pair_inside_fusion")


def _suspect_pair(quantizer: ActivationQuantizer, evidence: str, repair: str, *, kind: str) -> Suspicion:
    """Return the suspicion of a pair that should not be there; its repair is to remove it."""
    found = Suspicion.of([quantizer], kind=kind, evidence=evidence, repair=repair, is_certain=True)
    return replace(found, edits=(partial(FileEditor.bypass, quantizing=quantizer.node),))


def find_missing(candidate: FileCandidate) -> Iterator[Suspicion]:
    """Yield sums that read a tensor in float although it has a pair.

    Either other sums read pairs, or a kernel would compute the sum with the layer in front if it had one.
    """
    index = candidate.index
    pairs = _pairs_by_tensor(candidate)
    sums = [n for n in index.nodes if n.op_type == "Add" and all(name in index.makers for name in n.input)]
    full = [node for node in sums if all(_is_pair(index, name) for name in node.input)]
    for node in sums:
        floats = [name for name in node.input if not _is_pair(index, name)]
        beside = [name for name in floats if name in pairs]
        is_bare = len(floats) == len(node.input)
        is_fused = is_bare and any(index.makers[n].op_type in _LAYERS for n in floats if n not in beside)
        has_others = not is_bare and _is_quantized(index, node) and 2 * len(full) >= len(sums) - 1
        if not beside or not (is_fused or has_others):
            continue
        name = beside[-1]
        evidence = f"{node.op_type} {node.name!r} reads {name!r} in float; other readers have its pair"
        edit = partial(FileEditor.redirect, old=name, new=pairs[name], only=(node.name,))
        yield _suspect(node, name, evidence, "the pair that stands beside it", edit, kind="missing_pair")


def find_left_in_float(candidate: FileCandidate) -> Iterator[Suspicion]:
    """Yield layers of the middle in float between quantized ones, where these are few."""
    index, constants = candidate.index, candidate.index.constants
    products = [node for node in index.nodes if node.op_type in WEIGHTED_INPUTS]
    layers = [node for node in products if any(_is_weight(index, name) for name in node.input[:2])]
    floats = [n for n in layers if not any(_is_pair(index, name) for name in n.input[:2])]
    pairs = _pairs_by_tensor(candidate)
    if len(floats) > MOST_LEFT * len(layers):
        return
    for node in floats:
        name, weight = node.input[0], node.input[1]
        if node in (layers[0], layers[-1]) or name not in pairs or weight not in constants:
            continue
        evidence = f"{node.op_type} {node.name!r} is in float between quantized layers; "
        evidence += f"{len(layers) - len(floats)} of {len(layers)} are quantized, and its input has a pair"
        edit = partial(_quantize_layer, node=node.name, old=name, new=pairs[name])
        repair = "the pair of its input, and a pair for its weight"
        yield _suspect(node, name, evidence, repair, edit, kind="left_in_float")


def _suspect(
    node: onnx.NodeProto, tensor: str, evidence: str, repair: str, edit: Edit, *, kind: str
) -> Suspicion:
    """Return the suspicion of a node that reads a tensor in float."""
    found = Suspicion(kind=kind, evidence=evidence, tensor=tensor, node=node.name, repair=repair)
    return replace(found, is_certain=True, edits=(edit,))


def find_shifted(candidate: FileCandidate) -> Iterator[Suspicion]:
    """Yield numbers that are read by another scale or zero point than they were given."""
    for node, tensor in candidate.form.shifted:
        text = "its numbers are written by one scale or zero point and read by another"
        yield Suspicion(kind="mismatched_pair", evidence=text, tensor=tensor, node=node, is_certain=True)


def _is_quantized(index: GraphIndex, node: onnx.NodeProto) -> bool:
    """Tell whether the result of a node is quantized, behind a Relu or not."""
    readers = index.readers.get(node.output[0], ())
    fused = [reader for reader in readers if reader.op_type in FUSED]
    first = any(reader.op_type == "QuantizeLinear" for reader in readers)
    return first or any(_is_quantized(index, reader) for reader in fused)


def _is_pair(index: GraphIndex, name: str) -> bool:
    """Tell whether a tensor comes from a DequantizeLinear, moves between them left aside."""
    maker = index.makers.get(index.origin(name, MOVES))
    return maker is not None and maker.op_type == "DequantizeLinear"


def _is_weight(index: GraphIndex, name: str) -> bool:
    """Tell whether a tensor is a constant, behind its pair or not."""
    name = index.origin(name, MOVES | QDQ_OPS)
    return name in index.constants and len(index.constants[name].dims) > 1


def _pairs_by_tensor(candidate: FileCandidate) -> dict[str, str]:
    """Return the dequantized form of each tensor with a pair."""
    index = candidate.index
    first = [node for node in index.nodes if node.op_type == "QuantizeLinear"]
    pairs = ((node, reader) for node in first for reader in index.readers.get(node.output[0], ()))
    return {node.input[0]: one.output[0] for node, one in pairs if one.op_type == "DequantizeLinear"}


def _quantize_layer(editor: FileEditor, node: str, old: str, new: str) -> None:
    """Give a layer the pair of its input, and its weight a pair of int8 with a scale for each channel."""
    editor.redirect(old, new, (node,))
    layer = next(one for one in editor.graph.node if one.name == node)
    values = np.asarray(editor.array(layer.input[1]), np.float32)
    axis = channel_axis(layer, values.ndim) or 0
    editor.insert_pair(layer.input[1], round_weight(values, (-127, 127), axis).scale, node, axis)
