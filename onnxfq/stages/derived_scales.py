"""Encodings whose scales follow from a formula: of MX and NVFP4, dynamic, of biases and of half types."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from onnxfq.calibration.calibrators import MSE
from onnxfq.calibration.calibrators.constant_mse import least_error_scales
from onnxfq.calibration.statistics import TensorStatistics
from onnxfq.documents.encodings import Encoding, Encodings
from onnxfq.documents.plan import Placement, Plan
from onnxfq.errors import PlanError
from onnxfq.graph.constants import weight_array
from onnxfq.graph.model import Model
from onnxfq.graph.names import Use
from onnxfq.numerics.block_scales import HEADROOM, ScaleRule, choose_scales, global_scale_of
from onnxfq.numerics.float_types import HALF_TYPES, FloatName
from onnxfq.placement.operators import BIASED

log = logging.getLogger(__name__)


def encode_constant(placement: Placement, values: NDArray[np.float32]) -> Encoding:
    """Return the encoding of an e8m0 or e4m3 weight with scales of `dynamic_fake_quantize` or of `mse`."""
    spec = placement.spec
    choose = least_error_scales if placement.calibrator == MSE else choose_scales
    made = choose(values, ScaleRule(spec.qtype, spec.scale_type), spec.granularity)
    return placement.encode(made.scale, made.zero_point, made.global_scale)


def encode_dynamic(placement: Placement, observed: TensorStatistics | None = None) -> Encoding:
    """Return the encoding of a dynamic activation; scale_type e4m3 takes its global scale from `observed`."""
    spec = placement.spec
    if observed is None:
        return Encoding.of_running_model(placement.tensor, spec)
    amax = max(-observed.rmin, observed.rmax)
    return Encoding.of_running_model(placement.tensor, spec, global_scale_of(amax, spec.qtype, HEADROOM))


def encode_biases(model: Model, plan: Plan, encodings: Iterable[Encoding]) -> list[Encoding]:
    """Return the encodings of biases: input scale times weight scale, zero point 0.

    Values outside the integer range saturate, with a warning. Source: ONNX QLinearConv.

    Args:
        model: the float model, which holds the values.
        plan: with biases, and the inputs and weights of the same nodes.
        encodings: of those inputs and weights.

    Raises PlanError for a bias whose input or weight has no encoding.
    """
    known = {encoding.tensor: encoding for encoding in encodings}
    placed = {use: placement.tensor for placement in plan.placements for use in placement.uses}
    made = []
    for bias in plan.biases:
        data, weight = (known.get(placed.get(bias.uses[0]._replace(input=slot), "")) for slot in (0, 1))
        if data is None or weight is None:
            raise PlanError(
                f"bias {bias.tensor!r} needs the scales of its products, and an operand of "
                f"{bias.uses[0].node!r} has none; remove the bias from the plan"
            )
        scale = np.maximum(data.scale * weight.scale, np.finfo(np.float32).tiny)
        made.append(Encoding.of(bias.tensor, bias.spec, scale, np.zeros(scale.shape, np.int32)))
        _warn_saturated(made[-1], np.asarray(weight_array(model, bias.tensor), np.float32))
    return made


def fit_weights_to_biases(model: Model, plan: Plan, encodings: Iterable[Encoding]) -> list[Encoding]:
    """Return `encodings` with scales of weights at which the bias of their channel fits half of int32.

    A bias has the scale of its products, and saturates if the weights are tiny. The other half is for the
    sum, which overflows in silence. A bias in float counts too: ONNX Runtime rounds it to int32. Such weights
    get a larger scale: they lose steps under 2^-30 of the bias, and a sum in float32 has 2^-24. In a plan
    with integer biases, weights of 0 get the scale that keeps most digits of the bias. Sources: the quantizer
    of ONNX Runtime, `_adjust_weight_scale_for_int32_bias`, and `weight_bias_quantization.cc` of 1.32.
    """
    known = {encoding.tensor: encoding for encoding in encodings}
    needed: dict[str, NDArray[np.float32]] = {}
    for values, data, weight in _find_biases(model, plan, known):
        most = values.max(initial=0.0) if weight.scale.ndim == 0 else values
        exact = (most / (_MOST_STEPS * np.asarray(data.scale, np.float64))).astype(np.float32)
        if exact.size == weight.scale.size and np.isfinite(exact).all():
            least = np.nextafter(exact, np.float32(np.inf)).reshape(weight.scale.shape)
            needed[weight.tensor] = np.maximum(needed.get(weight.tensor, least), least)  # the most of all
    # Without integer biases a half type may round the scales, and tiny ones become 0.
    floor = np.finfo(np.float32).tiny if plan.biases else np.inf
    for tensor, least in needed.items():
        weight = known[tensor]
        is_zero = _channels_of_zeros(model, weight) & (least > floor)
        fitting = np.where(is_zero, least, np.maximum(weight.scale, least))
        if (fitting != weight.scale).any():
            known[tensor] = weight.model_copy(update={"scale": fitting})
    return list(known.values())


_MOST_STEPS = 2**30


def _find_biases(
    model: Model, plan: Plan, known: Mapping[str, Encoding]
) -> Iterator[tuple[NDArray[np.float64], Encoding, Encoding]]:
    """Yield the magnitudes of each vector that is added to a product, and the encodings of its operands."""
    placed = {use: placement.tensor for placement in plan.placements for use in placement.uses}
    for node in model.index.nodes:
        data, weight = (known.get(placed.get(Use(node.name, slot), "")) for slot in (0, 1))
        if data is None or weight is None or weight.tensor not in model.constants:
            continue
        if data.scale.size != 1 or weight.scale.ndim > 1:  # dynamic ones, and blocks
            continue
        readers = model.index.readers.get(node.output[0], []) if node.op_type == "MatMul" else []
        added = readers[0].input if [one.op_type for one in readers] == ["Add"] else []
        for name in node.input[2:3] if node.op_type in BIASED else added:
            if name in model.constants and len(model.constants[name].dims) == 1:
                yield np.abs(np.asarray(weight_array(model, name), np.float64)), data, weight


def _channels_of_zeros(model: Model, weight: Encoding) -> NDArray[np.bool_]:
    """Return for each scale of `weight` whether all its values are 0."""
    values, axis = weight_array(model, weight.tensor), weight.spec.granularity.axis
    others = tuple(d for d in range(values.ndim) if axis is None or d != axis % values.ndim)
    return np.asarray(~np.asarray(values, bool).any(axis=others)).reshape(weight.scale.shape)


def _warn_saturated(encoding: Encoding, values: NDArray[np.float32]) -> None:
    with np.errstate(over="ignore"):
        steps = np.abs(values / encoding.scale)
    beyond = int((steps > encoding.spec.qtype.qmax).sum())
    if beyond:
        log.warning(
            f"bias {encoding.tensor!r}: {beyond} of {steps.size} values are outside {encoding.spec.qtype} at "
            "the scale of its products, and saturate"
        )


def with_half_scales(encodings: Encodings, name: FloatName) -> Encodings:
    """Return `encodings` with float32 scales rounded to the half type if all of a tensor are normal in it.

    With "fp32" they stay unchanged, and so do formula-derived scales of block formats. Weights are encoded
    and activations rounded with the result, in the simulation too.
    """
    if name not in HALF_TYPES:
        return encodings
    return encodings.model_copy(
        update={"encodings": tuple(_round_encoding(e, name) for e in encodings.encodings)}
    )


def _round_encoding(encoding: Encoding, name: FloatName) -> Encoding:
    half = HALF_TYPES[name]
    scale = encoding.scale
    if encoding.spec.dynamic or encoding.spec.scale_type != "float32" or not scale.size:
        return encoding
    if scale.min() < half.smallest or scale.max() > half.largest:
        return encoding
    return encoding.model_copy(update={"scale": scale.astype(half.dtype).astype(np.float32)})
