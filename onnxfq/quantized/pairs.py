"""Pairs as their float forms: QuantizeLinear and DequantizeLinear, and FakeQuantize, which is both.

A pair with one scale gives the numbers between its nodes their grid. Any other, and one whose output keeps
its name, is replaced as a whole: by its limits and a Mul by the factor between its scales.
"""

from __future__ import annotations

from math import inf
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from onnxfq.errors import ModelError, SpecError
from onnxfq.graph.bounds import UNKNOWN, Bounds
from onnxfq.graph.node_fields import attributes_of
from onnxfq.graph.normalize.stored_scales import granularity_of
from onnxfq.graph.stored_grid import grid_of
from onnxfq.numerics.granularity import normalize_axis
from onnxfq.numerics.qtypes import QType
from onnxfq.quantized.float_form import Unfolding
from onnxfq.quantized.number_grids import quantized_slots
from onnxfq.quantized.rounding import find_qtype
from onnxfq.quantized.saturation import Range, limit_of, saturate
from onnxfq.quantized.source_graph import Pair

_DEFAULTS = (("axis", 1), ("block_size", 0))


def give_numbers(unfolding: Unfolding, node: onnx.NodeProto) -> None:
    """Convert a QuantizeLinear."""
    unfolding.give(node, unfolding.name(node.input[0]))


def read_numbers(unfolding: Unfolding, node: onnx.NodeProto) -> None:
    """Convert a DequantizeLinear, of a constant or of computed numbers."""
    name, output = node.input[0], node.output[0]
    unfolding.quantized.add(output)
    if output in unfolding.pairs:
        replace_pair(unfolding, node)
        return
    stored = unfolding.array(name)
    (operand,) = quantized_slots(node).operands
    if stored is None:
        unfolding.stand_for(node, unfolding.read_computed(name, unfolding.grid(node, operand)))
        return
    scale, zero_point = unfolding.parameters(node, operand)
    axis, block = (attributes_of(node).get(name, default) for name, default in _DEFAULTS)
    constant = unfolding.own_name(node)
    if "float" in stored.dtype.name:
        factor = grid_of(np.ones(stored.shape, np.int8), scale, None, axis, block).values
        unfolding.real[output] = unfolding.constant(constant, stored.astype(np.float32) * factor, scale.dtype)
        return
    unfolding.real[output] = unfolding.weight(
        constant, grid_of(stored, scale, zero_point, axis, block), scale.dtype
    )
    if stored.dtype == np.int32:
        unfolding.form.changes["int32 constant, such as a bias, made float"] += 1
        unfolding.form.grids.pop(unfolding.real[output])


def read_fake(unfolding: Unfolding, node: onnx.NodeProto) -> None:
    """Convert a FakeQuantize, of a constant or of a computed tensor."""
    values = unfolding.value(node.output[0])
    if values is None:
        unfolding.quantized.add(node.output[0])
        replace_pair(unfolding, node)
    else:
        unfolding.real[node.output[0]] = unfolding.constant(unfolding.own_name(node), values, values.dtype)


def read_dynamic_fake(unfolding: Unfolding, node: onnx.NodeProto) -> None:
    """Leave out a DynamicFakeQuantize: its range follows the values."""
    unfolding.quantized.add(node.output[0])
    unfolding.stand_for(node, unfolding.name(node.input[0]))


def replace_pair(unfolding: Unfolding, node: onnx.NodeProto) -> None:
    """Put the limits of a pair, or of a FakeQuantize, in place of `node`, its last one.

    Raises ModelError for a pair whose parts differ in zero points, for computed parameters that differ, and
    for a range for each block.
    """
    try:
        _replace(unfolding, node, unfolding.pairs[node.output[0]])
    except SpecError as fault:
        raise _refuse(unfolding, node, f"cannot be removed: {fault}") from None


def _replace(unfolding: Unfolding, node: onnx.NodeProto, pair: Pair) -> None:
    quantizer, output = pair.quantizer, node.output[0]
    tensor = unfolding.name(quantizer.input[0])
    scale, zero_point = _parameters(unfolding, quantizer)
    after, zero_after = _parameters(unfolding, node)
    if scale is None or after is None:
        if list(quantizer.input[1:]) != list(node.input[1:]):
            raise _refuse(unfolding, node, "computes its parameters and cannot be removed")
        unfolding.stand_for(node, tensor)
        return
    one_grid = granularity_of(quantizer) == granularity_of(node) or scale.size == after.size == 1
    zeros = _offset(zero_point), _offset(zero_after)
    one_zero = zeros[0].ndim * zeros[1].ndim == 0 or zeros[0].shape == zeros[1].shape
    if not (one_grid and scale.size == after.size and one_zero and bool((zeros[0] == zeros[1]).all())):
        why = f"has other zero points or groups than {quantizer.op_type} {quantizer.name!r} in front"
        raise _refuse(unfolding, node, why)
    given = _range(scale, zero_point, find_qtype(quantizer, zero_point), pair.ends)
    limits = _align(unfolding, quantizer, given)
    factor = np.asarray(after, np.float64).reshape(scale.shape) / np.asarray(scale, np.float64)
    is_last = bool((factor == 1).all())
    limited = output if is_last else unfolding.names.claim(f"{output}/limited")
    clip = unfolding.clipping(limited, node.name if is_last else limited, limits.low.dtype)
    made = saturate(tensor, limits, (unfolding.bounds(tensor), _read(unfolding, limited)), clip)
    _add(unfolding, made, limited, limits)
    if not is_last:
        aligned = _align(unfolding, quantizer, Range(factor, factor, factor)).low
        number = unfolding.constant(f"{output}/factor", aligned, aligned.dtype)
        unfolding.emit("Mul", [limited if made else tensor, number], [output], node.name)
    elif not made:
        unfolding.stand_for(node, tensor)
    unfolding.know(output, (float(given.low.min()), float(given.high.max())))


def _add(unfolding: Unfolding, made: list[onnx.NodeProto], limited: str, limits: Range) -> None:
    """Add the nodes that limit a tensor, and remember the limit."""
    for node in made:
        unfolding.emit(node.op_type, list(node.input), list(node.output), node)
    if made:
        unfolding.note_limit(limited, limit_of(made[-1], limits))
        unfolding.form.ranges[limited] = (float(limits.low.min()), float(limits.high.max()))
        several = "activation with a scale for each channel given one range"
        unfolding.form.changes.update([several] * (limits.low.size > 1))


def _align(unfolding: Unfolding, quantizer: onnx.NodeProto, found: Range) -> Range:
    """Return a range in the type of the quantized tensor and a shape that broadcasts to it."""
    dtype = _find_float_type(unfolding, quantizer)
    parts = [found.low, found.high, found.step]
    if all((part == part.flat[0]).all() for part in parts):
        parts = [part.reshape(-1)[0] for part in parts]
    elif (granularity := granularity_of(quantizer)).is_blocked or granularity.axis is None:
        raise _refuse(unfolding, quantizer, "has a range for each block, which cannot become a Clip")
    elif granularity.axis != -1:
        shape = unfolding.shapes.shape(quantizer.input[0])
        if shape is None:
            raise _refuse(unfolding, quantizer, "has a range for each channel of a tensor of unknown rank")
        behind = len(shape) - 1 - normalize_axis(granularity.axis, len(shape))
        parts = [part.reshape(-1, *(1,) * behind) for part in parts]
    with np.errstate(over="ignore"):
        return Range(*(np.asarray(part).astype(dtype) for part in parts))


def _find_float_type(unfolding: Unfolding, quantizer: onnx.NodeProto) -> np.dtype[Any]:
    scale = unfolding.value(quantizer.input[1])
    assert scale is not None, "the parameters are known"
    if unfolding.opset < 23:  # one type for the tensor and its scale
        return scale.dtype
    kind = unfolding.shapes.types.get(quantizer.input[0], 0)
    return np.dtype(helper.tensor_dtype_to_np_dtype(kind)) if kind else scale.dtype


def _read(unfolding: Unfolding, tensor: str) -> Bounds:
    """Return the values that the readers of `tensor` tell apart."""
    readers = unfolding.index.readers.get(tensor)
    if tensor in unfolding.outputs or not readers:
        return UNKNOWN
    ends = [(0.0, inf) if node.op_type == "Relu" else UNKNOWN for node in readers]
    return min(end[0] for end in ends), max(end[1] for end in ends)


def _parameters(
    unfolding: Unfolding, node: onnx.NodeProto
) -> tuple[NDArray[Any] | None, NDArray[Any] | None]:
    """Return scale and zero point, the scale None if one of them is computed."""
    names = [*node.input[1:3], ""][:2]
    scale, zero_point = (unfolding.value(name) if name else None for name in names)
    return (None if names[1] and zero_point is None else scale), zero_point


def _refuse(unfolding: Unfolding, node: onnx.NodeProto, why: str) -> ModelError:
    return ModelError(f"{unfolding.source}: {node.op_type} {node.name!r} {why}; give the float model")


def _offset(zero_point: NDArray[Any] | None) -> NDArray[np.float64]:
    """Return a zero point to compute with: a scalar if there is one for all elements; an absent one is 0."""
    if zero_point is None:
        return np.zeros(())
    return np.asarray(zero_point, np.float64).reshape(() if zero_point.size == 1 else zero_point.shape)


def _range(scale: NDArray[Any], zero_point: NDArray[Any] | None, qtype: QType, limits: Bounds) -> Range:
    """Return the real numbers of `qtype` within the integers of `limits`."""
    factor = np.asarray(scale, np.float64)
    offset = _offset(zero_point)
    if offset.shape not in ((), factor.shape):
        raise SpecError(f"its zero point has shape {list(offset.shape)}, its scale {list(factor.shape)}")
    ends = [(end - offset) * factor for end in (max(qtype.qmin, limits[0]), min(qtype.qmax, limits[1]))]
    step = np.abs(factor) * (
        1.0 if qtype.layout is None else qtype.qmax / 2 ** (qtype.layout.mantissa_bits + 1)
    )
    return Range(np.minimum(*ends), np.maximum(*ends), 1.001 * step)  # a scale is rounded
