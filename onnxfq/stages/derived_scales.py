"""Encodings whose scales follow from a formula: of MX and NVFP4, dynamic, of biases and of half types."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator

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
from onnxfq.numerics.block_scales import HEADROOM, ScaleRule, choose_scales, global_scale_of
from onnxfq.numerics.float_types import HALF_TYPES, FloatName

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
    made = []
    for bias, data, weight in _products_of_biases(plan, encodings):
        scale = np.maximum(data.scale * weight.scale, np.finfo(np.float32).tiny)
        made.append(Encoding.of(bias.tensor, bias.spec, scale, np.zeros(scale.shape, np.int32)))
        _warn_saturated(made[-1], np.asarray(weight_array(model, bias.tensor), np.float32))
    return made


def fit_weights_to_biases(model: Model, plan: Plan, encodings: Iterable[Encoding]) -> list[Encoding]:
    """Return `encodings` with scales of weights at which the bias of their channel fits its integers.

    A bias has the scale of its products and saturates if the weights are tiny. Such weights get a larger
    scale: they lose steps under 2^-31 of the bias. Weights of 0 allow any scale and get the one that keeps
    most digits of the bias. Source: onnxruntime's quantizer, `_adjust_weight_scale_for_int32_bias`.

    Raises PlanError as `encode_biases`.
    """
    known = {encoding.tensor: encoding for encoding in encodings}
    needed: dict[str, NDArray[np.float32]] = {}
    for bias, data, weight in _products_of_biases(plan, known.values()):
        values = np.abs(np.asarray(weight_array(model, bias.tensor), np.float64))
        if weight.scale.ndim == 0:
            values = values.max(initial=0.0)
        exact = values / (bias.spec.qtype.qmax * np.asarray(data.scale, np.float64))
        least = np.nextafter(exact.astype(np.float32), np.float32(np.inf)).reshape(weight.scale.shape)
        needed[weight.tensor] = np.maximum(needed.get(weight.tensor, least), least)  # the most of its biases
    for tensor, least in needed.items():
        weight = known[tensor]
        is_zero = _channels_of_zeros(model, weight) & (least > np.finfo(np.float32).tiny)
        fitting = np.where(is_zero, least, np.maximum(weight.scale, least))
        if (fitting != weight.scale).any():
            known[tensor] = weight.model_copy(update={"scale": fitting})
    return list(known.values())


def _channels_of_zeros(model: Model, weight: Encoding) -> NDArray[np.bool_]:
    """Return for each scale of `weight` whether all its values are 0."""
    values, axis = weight_array(model, weight.tensor), weight.spec.granularity.axis
    others = tuple(d for d in range(values.ndim) if axis is None or d != axis % values.ndim)
    return np.asarray(~np.asarray(values, bool).any(axis=others)).reshape(weight.scale.shape)


def _products_of_biases(
    plan: Plan, encodings: Iterable[Encoding]
) -> Iterator[tuple[Placement, Encoding, Encoding]]:
    """Yield each bias with the encodings of the input and the weight of its node."""
    known = {encoding.tensor: encoding for encoding in encodings}
    placed = {use: placement.tensor for placement in plan.placements for use in placement.uses}
    for bias in plan.biases:
        data, weight = (known.get(placed.get(bias.uses[0]._replace(input=slot), "")) for slot in (0, 1))
        if data is None or weight is None:
            raise PlanError(
                f"bias {bias.tensor!r} needs the scales of its products, and an operand of "
                f"{bias.uses[0].node!r} has none; remove the bias from the plan"
            )
        yield bias, data, weight


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
