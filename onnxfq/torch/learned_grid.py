"""Scale and zero point of a fake quantizer: buffers, or parameters that training learns, and their states."""

from __future__ import annotations

import warnings
from typing import Any, Literal

import torch
from torch import Tensor, nn

from onnxfq.errors import SpecError, StatisticsError, nearest
from onnxfq.numerics.float_types import FLOATS, FloatType
from onnxfq.numerics.granularity import PER_TENSOR
from onnxfq.numerics.qparams import ParamRules
from onnxfq.numerics.spec import QuantSpec
from onnxfq.torch.arithmetic import RoundingGrid
from onnxfq.torch.observers import OwnTypes, refill
from onnxfq.torch.qat_gradients import (
    check_values,
    grid_ends_to_scale,
    lsq_factor,
    next_half,
    range_to_params,
    round_straight_through,
    scale_gradient,
)

Learned = Literal["nothing", "scale", "scale_zero_point", "range"]
LEARNED = ("nothing", "scale", "scale_zero_point", "range")


class LearnedGrid(OwnTypes):
    """Scale and zero point as they are stored, used, learned and saved; see `FakeQuantize`."""

    scale: Tensor
    zero_point: Tensor
    rmin: Tensor
    rmax: Tensor

    def __init__(self, spec: QuantSpec, grid: RoundingGrid, zero_point_shift: float) -> None:
        """Make a grid without a scale."""
        super().__init__()
        self.spec, self.grid, self.zero_point_shift = spec, grid, zero_point_shift
        self.learned: Learned = "nothing"
        self.float_type: FloatType = "float32"
        self.register_buffer("scale", torch.zeros(0))
        self.register_buffer("zero_point", torch.zeros(0, dtype=torch.int32))

    @property
    def is_initialized(self) -> bool:
        """Tell whether scale and zero point are known."""
        return bool(self.scale.numel())

    def _params(self) -> tuple[Tensor, Tensor]:
        scale, zero_point = self._effective()
        return scale, torch.zeros_like(scale) if zero_point is None else zero_point.to(scale.dtype)

    def _effective(self, elements: int = 0) -> tuple[Tensor, Tensor | None]:
        """Return (scale, zero point) as used; `elements` share one scale, for the gradients."""
        scale, zero_point = self._unshifted(elements)
        if self.zero_point_shift:
            zero_point = (0.0 if zero_point is None else zero_point) - torch.full_like(
                scale, self.zero_point_shift
            )
        return scale, zero_point

    def _unshifted(self, elements: int) -> tuple[Tensor, Tensor | None]:
        if self.learned == "range":
            rules = ParamRules(float_type=self.float_type)
            if self.spec.symmetric:
                return grid_ends_to_scale(self.rmin, self.rmax, self.spec.qtype, rules), None
            return range_to_params(self.rmin, self.rmax, self.spec.qtype, self.spec.symmetric, rules)
        scale, zero_point = self.scale, None if self.spec.symmetric else self.zero_point
        if self.learned == "nothing":
            return scale, zero_point
        factor = lsq_factor(elements, self.spec.qtype)
        # A training step may move a scale through 0: its magnitude counts, at least the smallest scale.
        scale = scale_gradient(scale, factor).abs().clamp(min=FLOATS[self.float_type].smallest_scale)
        if self.float_type != "float32":  # the difference is exact, and so is the sum
            scale = scale + (next_half(scale.detach(), self.float_type) - scale.detach())
        if zero_point is not None and self.learned == "scale_zero_point":
            qtype = self.spec.qtype
            zero_point = round_straight_through(scale_gradient(zero_point, factor))
            zero_point = zero_point.clamp(qtype.qmin, qtype.qmax)
        return scale, zero_point

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def qparams(self) -> tuple[Tensor, Tensor]:
        """Return (scale float32, zero_point int32) as currently used, learned or not."""
        scale, zero_point = self._unshifted(0)
        zeros = torch.zeros_like(scale) if zero_point is None else zero_point
        return scale.detach().float().clone(), zeros.detach().to(torch.int32).clone()

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def _store(self, scale: Tensor, zero_point: Tensor) -> None:
        if self.learned == "range":
            low, high = self._ends(scale, zero_point)
            self.rmin.data, self.rmax.data = low, high
        for name, value in (("scale", scale), ("zero_point", zero_point)):
            held: Tensor = getattr(self, name)
            if isinstance(held, nn.Parameter):
                held.data = value.to(held.dtype)
            else:
                refill(self, name, value)

    def _ends(self, scale: Tensor, zero_point: Tensor) -> tuple[Tensor, Tensor]:
        qtype, zeros = self.spec.qtype, zero_point.float() - self.zero_point_shift
        return (qtype.qmin - zeros) * scale, (qtype.qmax - zeros) * scale

    def learn(self, what: Learned = "scale") -> None:
        """Make the grid a parameter: "scale" (LSQ), "scale_zero_point" (LSQ+), "range" (AIMET's min and max).

        "nothing" fixes it at its current value. Call it after the scale is known and before the optimizer is
        made. Raises SpecError for a grid that cannot be learned, StatisticsError if no scale is known.
        """
        if what not in LEARNED:
            raise SpecError(f"unknown thing to learn {what!r}{nearest(what, LEARNED)}")
        if not self.is_initialized:
            raise StatisticsError("learning a grid needs a known scale; calibrate first")
        if what == "scale_zero_point" and self.spec.symmetric:
            raise SpecError(f"the zero point of {self.spec} is 0; learn the scale alone")
        if what != "nothing" and self.spec.power_of_two:
            raise SpecError(f"power-of-two scales cannot be learned, got {self.spec}; remove power_of_two")
        self._declare(what, *self.qparams())

    def _declare(self, what: Learned, scale: Tensor, zero_point: Tensor) -> None:
        for name in ("scale", "zero_point", "rmin", "rmax"):
            for kind in ("_parameters", "_buffers"):
                self.__dict__[kind].pop(name, None)
        self.learned = what
        if what in ("scale", "scale_zero_point"):
            self.scale = nn.Parameter(scale.clone())
        else:
            self.register_buffer("scale", scale.clone())
        if what == "scale_zero_point":
            self.zero_point = nn.Parameter(zero_point.float())
        else:
            self.register_buffer("zero_point", zero_point.to(torch.int32))
        if what == "range":
            low, high = self._ends(scale, zero_point)
            self.rmin, self.rmax = nn.Parameter(low), nn.Parameter(high)

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[prefix + "learned"] = torch.tensor(LEARNED.index(self.learned))

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        state = {name: value for name, value in state_dict.items() if name.startswith(prefix)}
        if prefix + "learned" in state:
            learned: Any = LEARNED[int(state.pop(prefix + "learned"))]
            if learned != self.learned:
                scale = state[prefix + "scale"]
                self._declare(learned, torch.zeros_like(scale), torch.zeros_like(scale))
        if self.spec.granularity == PER_TENSOR and len(getattr(self, "shape", None) or ()) == 0:
            for name in ("scale", "zero_point"):  # torch.ao's have the shape [1]
                given = state.get(prefix + name)
                if given is not None and given.numel() == 1:
                    state[prefix + name] = given.reshape(())
        # The state gives the shapes of scales: nothing has run yet when it is loaded.
        for name, tensor in [*self._buffers.items(), *self._parameters.items()]:
            given = state.get(prefix + name)
            if tensor is not None and given is not None and tensor.shape != given.shape:
                tensor.data = torch.zeros(given.shape, dtype=tensor.dtype, device=tensor.device)
        super()._load_from_state_dict(state, prefix, *args)


FORMAT_KEY = "format"


def write_format(text: str) -> Tensor:
    """Return the text as uint8: files of tensors alone hold it, and averages of weights pass it by."""
    return torch.tensor(list(text.encode("ascii")), dtype=torch.uint8)


def read_format(stored: Tensor) -> str:
    """Return the text that `write_format` stored."""
    return bytes(stored.to(torch.uint8).tolist()).decode("ascii", "replace")


def check_state(quantizer: LearnedGrid, own: str, state: dict[str, Any], prefix: str) -> None:
    """Take the format out of a state for a quantizer of format `own`. Raises SpecError if it is of no use.

    It cannot if the state has another number format, numbers off its grid, or no scale where one is known.
    A state without a format, as older versions saved it, is loaded with a warning.
    """
    stored, scale = state.pop(prefix + FORMAT_KEY, None), state.get(prefix + "scale")
    if scale is None or scale.is_meta:
        return
    name = prefix.removesuffix(".") or "the quantizer"
    if stored is None:
        warnings.warn(
            "this state dict has scales without their number format, and another one would clip values; make "
            "sure that the recipe is the same, and save the state again",
            stacklevel=2,
        )
    elif read_format(stored) != own:
        raise SpecError(
            f"{name} is {own}, and the state dict has {read_format(stored)}; quantize the module "
            "with the recipe of the state dict"
        )
    if not scale.numel():
        if quantizer.is_initialized:
            raise SpecError(
                f"the state dict has no scale for {name}, which has one; calibrate before saving, or load "
                "into a module without scales"
            )
        return
    zeros, spec = state.get(prefix + "zero_point"), quantizer.spec
    if not state.get(prefix + "learned", 0):  # a learned scale may have any sign
        check_values(scale.detach().float(), None if zeros is None else zeros.float(), quantizer.grid)
    if zeros is not None and spec.symmetric and bool((zeros != 0).any()):
        raise SpecError(
            f"{name} is {spec}, and the state dict has zero point {float(zeros[zeros != 0][0])}; quantize "
            "the module with the recipe of the state dict"
        )
