"""Scale and zero point of a fake quantizer, fixed or computed from what training learns, and their states."""

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
from onnxfq.torch.onnx_node import is_exporting
from onnxfq.torch.qat_gradients import (
    check_values,
    lsq_factor,
    range_to_params,
    round_straight_through,
    round_up,
    scale_gradient,
)

Learned = Literal["nothing", "scale", "scale_zero_point", "range"]
LEARNED = ("nothing", "scale", "scale_zero_point", "range")

SWITCHES = ("observer_enabled", "fake_quant_enabled")
"""Switches that a state holds."""

_FIXED, _CALIBRATED = ("scale", "zero_point"), ("calibrated_scale", "calibrated_zero_point")
"""Buffers of a grid: the grid itself, or, if something is learned, the one that learning begins from."""


class LearnedGrid(OwnTypes):
    """Scale and zero point as they are stored, used, learned and saved; see `FakeQuantize`.

    Parameters are distances from the calibrated grid, 0 at the beginning: every optimizer moves a scale in
    proportion, weight decay pulls it to the calibrated one, and none becomes negative.

    Attributes:
        log_ratio: parameter of a learned grid: logarithm of its scale, or of its width, over the calibrated.
        steps: parameter of a learned zero point, or of the middle of a learned range: steps of the calibrated
            scale from the calibrated one. A range around 0 has none.
    """

    log_ratio: Tensor
    steps: Tensor

    def __init__(self, spec: QuantSpec, grid: RoundingGrid) -> None:
        """Make a grid without a scale."""
        super().__init__()
        self.spec, self.grid = spec, grid
        self.learned: Learned = "nothing"
        self.float_type: FloatType = "float32"
        self.register_buffer("scale", torch.zeros(0))
        self.register_buffer("zero_point", torch.zeros(0, dtype=torch.int32))

    @property
    def scale(self) -> Tensor:
        """The scale as it is used: a buffer, or computed from what is learned."""
        return self._stored(0) if self.learned == "nothing" else self._effective()[0]

    @property
    def zero_point(self) -> Tensor:
        """The zero point as it is used: a buffer, or computed from what is learned."""
        return self._stored(1) if self.learned in ("nothing", "scale") else self._params()[1]

    rmin = property(lambda self: self._end(-1), doc="Lower end of a learned range.")
    rmax = property(lambda self: self._end(1), doc="Upper end of a learned range.")

    @property
    def _names(self) -> tuple[str, str]:
        return _FIXED if self.learned == "nothing" else _CALIBRATED

    def _stored(self, position: int) -> Tensor:
        """Return the scale or the zero point as it is stored, of one shape."""
        held = self._buffers.get(self._names[position])
        if held is None:  # as modules say of what they do not have
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {_FIXED[position]!r}")
        return held

    @property
    def is_initialized(self) -> bool:
        """Tell whether scale and zero point are known."""
        return bool(self._stored(0).numel())

    def _params(self) -> tuple[Tensor, Tensor]:
        scale, zero_point = self._effective()
        return scale, torch.zeros_like(scale) if zero_point is None else zero_point.to(scale.dtype)

    def _effective(self, elements: int = 0) -> tuple[Tensor, Tensor | None]:
        """Return (scale, zero point) as used; `elements` share one scale, for the gradients."""
        qtype, symmetric = self.spec.qtype, self.spec.symmetric
        if self.learned == "range" and not symmetric:
            rules = ParamRules(float_type=self.float_type)
            return range_to_params(self.rmin, self.rmax, qtype, symmetric, rules)
        scale, zero_point = self._stored(0), None if symmetric else self._stored(1)
        if self.learned == "nothing":
            return self._of_type(scale), zero_point
        # A weight that is read twice is observed twice: the gradients of the first time need what that had.
        scale = scale.clone()
        # AIMET's ranges have gradients as they are.
        factor = lsq_factor(elements, qtype) if elements and self.learned != "range" else 1.0
        scale = scale * scale_gradient(self.log_ratio, factor).exp()
        scale = scale.clamp(FLOATS[self.float_type].smallest_scale, torch.finfo(scale.dtype).max)
        if zero_point is not None and self.learned == "scale_zero_point":
            moved = zero_point + scale_gradient(self.steps, factor)
            zero_point = round_straight_through(moved).clamp(qtype.qmin, qtype.qmax)
        return self._of_type(scale), zero_point

    def _of_type(self, scale: Tensor) -> Tensor:
        """Return the next scale that is a number of the type of the inputs, with the gradient of `scale`."""
        return scale if is_exporting() else round_up(scale, self.float_type)  # an export has frozen scales

    def _end(self, side: int) -> Tensor:
        """Return an end of the learned range from the calibrated one; `side` is -1 or 1.

        A range around 0 keeps it; others keep their middle, which moves by steps.
        """
        scale = self._stored(0).clone()
        ends = self._ends(scale, self._stored(1))
        end = ends[side > 0]
        if self.spec.symmetric:
            return end * self.log_ratio.exp()
        return end + self.steps * scale + side * (ends[1] - ends[0]) * self.log_ratio.expm1() / 2

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def qparams(self) -> tuple[Tensor, Tensor]:
        """Return (scale float32, zero_point int32) as currently used, learned or not."""
        scale, zero_point = self._effective()
        zeros = torch.zeros_like(scale) if zero_point is None else zero_point
        return scale.detach().float().clone(), zeros.detach().to(torch.int32).clone()

    def _store(self, scale: Tensor, zero_point: Tensor) -> None:
        """Take a grid as the calibrated one, with no distance from it."""
        self._rebase(scale, zero_point)
        for distance in self._parameters.values():
            assert distance is not None
            distance.data = torch.zeros_like(scale)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def _rebase(self, scale: Tensor, zero_point: Tensor) -> None:
        """Take a grid as the calibrated one; what was learned keeps its distance from it."""
        for name, value in zip(self._names, (scale, zero_point), strict=True):
            refill(self, name, value)

    def _ends(self, scale: Tensor, zero_point: Tensor) -> tuple[Tensor, Tensor]:
        qtype, zeros = self.spec.qtype, zero_point.float()
        return (qtype.qmin - zeros) * scale, (qtype.qmax - zeros) * scale

    def learn(self, what: Learned = "scale") -> None:
        """Make the grid a parameter: "scale" (LSQ), "scale_zero_point" (LSQ+), "range" (AIMET's min and max).

        The parameters are distances from the current grid, see `LearnedGrid`; "nothing" fixes the grid at its
        current value. Call it after the scale is known and before the optimizer is made. Raises SpecError for
        a grid that cannot be learned, StatisticsError if no scale is known.
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
        for name in ("log_ratio", "steps", *_FIXED, *_CALIBRATED):
            for kind in ("_parameters", "_buffers"):
                self.__dict__[kind].pop(name, None)
        self.learned = what
        for name, value in zip(self._names, (scale, zero_point.to(torch.int32)), strict=True):
            self.register_buffer(name, value.clone())
        if what != "nothing":
            self.log_ratio = nn.Parameter(torch.zeros_like(scale))
        if what in ("scale_zero_point", "range") and not self.spec.symmetric:
            self.steps = nn.Parameter(torch.zeros_like(scale))

    @property
    def _results(self) -> tuple[str, ...]:
        """The grid as it is used, which state dicts hold too, for other tools."""
        ends = ("rmin", "rmax") if self.learned == "range" else ()
        return () if self.learned == "nothing" else (*ends, *_FIXED)

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for name in self._results:
            value: Tensor = getattr(self, name)
            destination[prefix + name] = value if keep_vars else value.detach()
        destination[prefix + "learned"] = torch.tensor(LEARNED.index(self.learned))
        destination[prefix + FORMAT_KEY] = write_format(self.format)
        destination |= {prefix + name: torch.tensor(bool(getattr(self, name))) for name in SWITCHES}

    @property
    def format(self) -> str:
        """Number format that a state dict carries: states of another one are refused."""
        symmetry = "symmetric" if self.spec.symmetric else "asymmetric"
        return f"{self.spec.qtype} {symmetry} {self.spec.granularity}"

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        state = {name: value for name, value in state_dict.items() if name.startswith(prefix)}
        _check_state(self, state, prefix)
        for name in SWITCHES:
            if prefix + name in state:
                setattr(self, name, bool(state.pop(prefix + name)))
        if prefix + "learned" in state:
            learned: Any = LEARNED[int(state.pop(prefix + "learned"))]
            if learned != self.learned:
                scale = state[prefix + "scale"]
                self._declare(learned, torch.zeros_like(scale), torch.zeros_like(scale))
            for name in self._results:
                state.pop(prefix + name, None)
        if self.spec.granularity == PER_TENSOR:
            for name in _FIXED:  # torch.ao's have the shape [1]
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


def _check_state(quantizer: LearnedGrid, state: dict[str, Any], prefix: str) -> None:
    """Take the format out of a state for a quantizer. Raises SpecError if the state is of no use.

    It cannot if the state has another number format, numbers off its grid, or no scale where one is known.
    A state without a format, as torch.ao's, is loaded with a warning.
    """
    own = quantizer.format
    stored, scale = state.pop(prefix + FORMAT_KEY, None), state.get(prefix + "scale")
    if scale is None or scale.is_meta:
        return
    name = prefix.removesuffix(".") or "the quantizer"
    if stored is None:
        why = "this state dict has scales without their number format"
        warnings.warn(f"{why}; make sure that the recipe is the same, and save it again", stacklevel=2)
    elif read_format(stored) != own:
        raise SpecError(f"{name} is {own}, and the state dict has {read_format(stored)}; use its recipe")
    if not scale.numel():
        if quantizer.is_initialized:
            raise SpecError(f"the state dict has no scale for {name}, which has one; calibrate before saving")
        return
    zeros = state.get(prefix + "zero_point")
    values = scale.detach().float(), None if zeros is None else zeros.detach().float()
    try:
        check_values(*values, quantizer.grid, quantizer.spec)
    except SpecError as error:
        raise SpecError(f"the state dict of {name}: {error}") from None
