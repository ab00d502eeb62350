"""Matching of external encodings to a plan: `fit`, and unmatched entries of either side."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnxfq.calibration.calibrators import EXTERNAL
from onnxfq.documents.encodings import Encoding
from onnxfq.documents.plan import Placement, Plan
from onnxfq.errors import PlanError, SpecError, nearest
from onnxfq.graph.model import Model
from onnxfq.interchange.external import ExternalEncodings, ExternalTensor
from onnxfq.interchange.recipe_overrides import find_inherited_tensors, tensor_names
from onnxfq.numerics.float_types import holds
from onnxfq.numerics.granularity import PER_TENSOR, normalize_axis
from onnxfq.numerics.layout import Layout
from onnxfq.numerics.qparams import choose_qparams


@dataclass(frozen=True)
class MatchedEncodings:
    """Match between the tensors of a plan and the entries of a file.

    Attributes:
        given: the file.
        encodings: of the tensors that the file has, exactly.
        moved: tensor -> the tensor whose scale it inherits, because it holds its numbers.
        missing: activations that need values and that the file lacks, with the reason.
        own: weights that the file lacks, whose scales come from their values.
        unknown: names of the file that the model lacks.
        unused: names that the plan does not quantize.
    """

    given: ExternalEncodings
    encodings: tuple[Encoding, ...]
    moved: dict[str, str]
    missing: dict[str, str]
    own: tuple[str, ...]
    unknown: tuple[str, ...]
    unused: tuple[str, ...]

    def lines(self) -> list[str]:
        """Return a summary for users: the used entries, and every name that is not used."""
        total = len(self.given.tensors) + len(self.given.in_float) + len(self.given.unusable)
        used = len({self.moved.get(e.tensor, e.tensor) for e in self.encodings})
        lines = [f"external   {self.given.kind}: {used} of {total} tensors used"]
        lines += [f"external   {name!r} has the scale of {source!r}" for name, source in self.moved.items()]
        if self.missing:
            lines.append(f"lacking    {len(self.missing)} activations: {', '.join(self.missing)}")
        if self.own:
            lines.append(
                f"weights    {len(self.own)} with scales from their own values: {', '.join(self.own)}"
            )
        lines += [f"unknown    {name}" for name in self.unknown]
        if self.given.in_float:
            lines.append(f"in float   as the file has it: {', '.join(self.given.in_float)}")
        if self.unused:
            lines.append(f"not needed {len(self.unused)} tensors: {', '.join(self.unused)}")
        lines += [f"not usable {name}: {why}" for name, why in self.given.unusable.items()]
        return lines

    def refuse_missing(self, remedy: str) -> None:
        """Raise PlanError, naming all of them, when activations need values that the file lacks."""
        if self.missing:
            listed = "; ".join(f"{name!r}{why}" for name, why in self.missing.items())
            raise PlanError(
                f"{self.given.source} has no scale for {len(self.missing)} activation(s) of the plan; "
                f"{remedy}: {listed}"
            )


def fit(given: ExternalEncodings, plan: Plan, model: Model) -> MatchedEncodings:
    """Return the encodings that `given` has for the tensors of `plan`, and the unmatched entries.

    Raises PlanError when a scale does not fit its tensor: a different number of channels, axis or format than
    planned.
    """
    shapes = _shapes(model)
    moves = find_inherited_tensors(given, model)
    encodings, moved, missing = [], {}, {}
    for placement in plan.placements:
        name = placement.tensor
        source = moves.get(name, name)
        tensor = given.tensors.get(source)
        if placement.role == "bias":
            continue  # its scale follows from the scales of the operands
        if tensor is not None and tensor.has_values:
            encodings.append(_encode_tensor(given, tensor, placement, shapes.get(name, ())))
            if source != name:
                moved[name] = source
        elif placement.role == "activation" and placement.spec.observed:
            missing[name] = _format_hint(name, given)
    names = tensor_names(model)
    encoded = {encoding.tensor for encoding in encodings}
    used = encoded | set(moved.values()) | {placement.tensor for placement in plan.placements}
    said = [*given.tensors, *given.in_float]
    if not encodings and any(tensor.has_values for tensor in given.tensors.values()):
        raise PlanError(
            f"{given.source} names no tensor of the plan, its first is {said[0]!r}; give the file "
            f"of this model, or a recipe that quantizes what it names{nearest(said[0], names)}"
        )
    return MatchedEncodings(
        given,
        tuple(encodings),
        moved,
        missing,
        tuple(p.tensor for p in plan.weights if p.tensor not in encoded),
        tuple(f"{name}{nearest(name, names)}" for name in said if name not in names),
        tuple(name for name in given.tensors if name in names and name not in used),
    )


def _shapes(model: Model) -> dict[str, tuple[int, ...]]:
    """Return the shapes of constants and of tensors with a known shape; 0 stands for an open size."""
    shapes = {name: tuple(tensor.dims) for name, tensor in model.index.constants.items()}
    for value in (*model.proto.graph.input, *model.proto.graph.value_info):
        shape = value.type.tensor_type.shape
        shapes.setdefault(value.name, tuple(dim.dim_value for dim in shape.dim))
    return shapes


def _format_hint(name: str, given: ExternalEncodings) -> str:
    if name in given.unusable:
        return f" ({given.unusable[name]})"
    hint = nearest(name, given.tensors)
    return f" ({hint.removeprefix('; ')})" if hint else ""


def _encode_tensor(
    given: ExternalEncodings, tensor: ExternalTensor, placement: Placement, shape: tuple[int, ...]
) -> Encoding:
    """Return the encoding of a placed tensor. Raises PlanError when the given values do not fit it."""
    spec = placement.spec

    def fault(what: str) -> PlanError:
        return PlanError(f"{given.source}: {tensor.where}: tensor {placement.tensor!r} {what}")

    moved = tensor.zero_point_as(spec.qtype)
    if tensor.limits is None and (
        moved is None
        or (spec.symmetric and moved.any())
        or (spec.scale_type == "e4m3") != (tensor.global_scale is not None)
    ):
        raise fault(f"is planned as {spec}, and the file has {_describe_tensor(tensor)}; plan with this file")
    try:
        if tensor.limits is not None:
            rules = spec.param_rules(placement.float_type)
            low, high = (_lay_out_values(end, tensor, placement, shape, fault) for end in tensor.limits)
            if spec.symmetric and tensor.mirrored:
                high = np.maximum(-low, high)
                low = -high
            scale, zero = choose_qparams(low, high, spec.qtype, spec.symmetric, rules)
        else:
            assert tensor.scale is not None and moved is not None
            scale = _lay_out_values(tensor.scale, tensor, placement, shape, fault)
            zero = _lay_out_values(moved, tensor, placement, shape, fault)
        if not holds(scale, placement.float_type):
            raise fault(
                f"is {placement.float_type}, and its scale is not a number of that type; quantize the "
                "float32 model, with --float for a half type"
            )
        encoding = placement.encode(scale, zero, tensor.global_scale)
        return encoding.model_copy(update={"calibrator": EXTERNAL})
    except SpecError as wrong:
        raise fault(f"has scales that do not fit: {wrong}") from None


def _describe_tensor(tensor: ExternalTensor) -> str:
    zero = tensor.zero_point
    kind = "" if zero is None or not zero.any() else f" with zero point {zero[zero != 0].flat[0]:g}"
    return f"{tensor.qtype or 'numbers'}{kind}"


def _lay_out_values(
    values: NDArray[Any], tensor: ExternalTensor, placement: Placement, shape: tuple[int, ...], fault: Any
) -> NDArray[Any]:
    """Return `values` in the scale shape of the placement. Raises the error that `fault` makes."""
    granularity = placement.spec.granularity
    if granularity == PER_TENSOR:
        if values.size != 1:
            raise fault(f"is planned per tensor, and the file has {values.size} scales; plan with this file")
        return values.reshape(())
    if tensor.per_tensor:
        raise fault(f"is planned as {granularity}, and the file has one scale; plan with this file")
    wanted = Layout(granularity, shape).scale_shape
    if tensor.axis is not None and granularity.axis is not None:
        axis = normalize_axis(tensor.axis, len(shape))
        if axis != granularity.axis:
            there = "blocks go" if granularity.block_size else "output channels are"
            raise fault(
                f"has scales along axis {axis} in the file, and along axis {granularity.axis} here, where "
                f"its {there}; calibrate it along that axis"
            )
    sizes = granularity.block_size, *(granularity.block_shape or ())
    if tensor.block_size is not None and tensor.block_size not in sizes:
        raise fault(f"has blocks of {tensor.block_size} in the file, and {granularity} is planned")
    if values.shape == wanted:
        return values
    if values.size != int(np.prod(wanted, dtype=np.int64)):
        raise fault(
            f"has shape {list(shape)} and needs scales of shape {list(wanted)} ({granularity}), but the file "
            f"has {list(values.shape)}; give the file of this model"
        )
    # Flat blocks list output channels before blocks: for a matrix [in, out] they are transposed.
    if values.ndim == 1 and granularity.axis == 0 and granularity.block_size and len(wanted) == 2:
        return values.reshape(wanted[::-1]).T
    return values.reshape(wanted)
