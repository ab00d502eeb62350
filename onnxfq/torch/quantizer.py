"""`FakeQuantize`: observing and rounding of one tensor."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any, Literal, get_args

import torch
from numpy.typing import ArrayLike
from torch import Tensor, fx, nn
from torch.ao.quantization.fake_quantize import FakeQuantizeBase

from onnxfq.calibration.calibrators import MINMAX, Calibrator
from onnxfq.errors import SpecError, StatisticsError, nearest
from onnxfq.graph.bounds import UNKNOWN
from onnxfq.numerics.float_types import HALF_TYPES, FloatType
from onnxfq.numerics.qtypes import qtype_by_name
from onnxfq.numerics.spec import QuantSpec
from onnxfq.placement.masked_scores import MaskedScores
from onnxfq.torch.arguments import Unscripted, checked_methods
from onnxfq.torch.arithmetic import RoundingGrid
from onnxfq.torch.calls import aside
from onnxfq.torch.external_observer import ExternalObserver, open_observer
from onnxfq.torch.kernels import is_transforming
from onnxfq.torch.learned_grid import SWITCHES, Learned, LearnedGrid
from onnxfq.torch.observers import Latest, group_limits
from onnxfq.torch.onnx_node import is_exporting
from onnxfq.torch.qat_gradients import (
    check_values,
    ends_by_rule,
    quantize_integers,
    quantize_to,
    range_to_params,
)
from onnxfq.torch.quantizer_attributes import QuantizerAttributes, switch

ScaleRule = Literal["ends", "amax", "width"]
InFlight = Literal["never", "uncalibrated", "always"]
_HALF_TYPES: dict[torch.dtype, FloatType] = {getattr(torch, h.name): h.name for h in HALF_TYPES.values()}
_NO_SCALE = "a FakeQuantize has no scale yet; run data through it inside compute_encodings, or set_qparams"


@checked_methods(
    *("__init__", "forward", "quantize", "set_qparams", "set_range", "learn"),
    *("allow_overwrite", "enable_observer", "enable_fake_quant"),
)
class FakeQuantize(Unscripted, QuantizerAttributes, LearnedGrid):
    """Rounding of the input to the grid of a `QuantSpec`, with the gradients of `onnxfq.torch.qat_gradients`.

    An "up to date" observer sets scale and zero point at every input; the histogram sets them in `calibrate`,
    which `compute_encodings` calls. With both switches off, the input passes unchanged; so does an empty one.

    Attributes:
        scale: float32 buffer, empty until known, then of the shape that the spec gives for the input. It
            keeps its type when the model is cast. Inputs of float16 and bfloat16 get scales that are numbers
            of their type, as in a model of that type.
        zero_point: int32 buffer of the same shape; it keeps its type too.
        observer_enabled: one-element tensor as in torch.ao; a bool, or writing to it in place, sets it.
        fake_quant_enabled: likewise.
        overwrite: whether `compute_encodings` may replace the scale, see `allow_overwrite`.
        calibrating_observer: name of the observer that `compute_encodings` uses in place of `observer`; empty
            for `observer` itself. The scale is then fixed until `enable_observer` is called.
        target: name of the target that its module is quantized for; empty for a quantizer on its own.
        masked: where Softmax alone reads what it quantizes, with the names of the tensor there; else None.
        bounds: the least and the largest value that it can get, which its range does not pass.
    """

    is_observing: bool
    is_rounding: bool
    observer_enabled = switch("is_observing", "Whether it observes; writing to the tensor in place sets it.")
    fake_quant_enabled = switch("is_rounding", "Whether it rounds; writing to the tensor in place sets it.")

    def __init__(
        self,
        spec: QuantSpec | str,
        observer: str | nn.Module | Callable[..., nn.Module] | None = "minmax",
        *,
        rounding: str = "half_even",
        arithmetic: str = "divide",
        saturate: bool = True,
        calibrator: str | Calibrator = MINMAX,
        scale_rule: ScaleRule = "ends",
        in_flight: InFlight = "never",
        training_only: bool = False,
        in_place: bool = False,
        packed_mask: bool = False,
        **observer_kwargs: Any,
    ) -> None:
        """Make a quantizer without a scale. Raises SpecError for unknown names.

        Args:
            spec: the spec, or the name of a number format for symmetric per-tensor quantization.
            observer: a name of `onnxfq.torch.observers`, an observer, a class or factory of one, also of
                torch.ao or with its two methods, or None if scales come from elsewhere.
            rounding: as in `fake_quantize`.
            arithmetic: as in `fake_quantize`.
            saturate: as in `fake_quantize`.
            calibrator: for the observers `latest` and `histogram`.
            scale_rule: symmetric scale of a range: "ends", the finest grid that holds both ends; "amax",
                amax / qmax (NVIDIA); "width", 2 amax / (qmax - qmin) (torch.ao, Horizon).
            in_flight: "uncalibrated" quantizes inputs by their own range while no scale is known, "always"
                does so regardless.
            training_only: observe in training mode only.
            in_place: write the result over the input, where no gradient is recorded.
            packed_mask: keep the mask for the gradient as one bit an element instead of one byte.
            observer_kwargs: arguments for an observer class or factory.
        """
        for name, value, names in (("scale_rule", scale_rule, ScaleRule), ("in_flight", in_flight, InFlight)):
            if value not in (known := get_args(names)):
                raise SpecError(f"unknown {name} {value!r}{nearest(value, known)}")
        spec = QuantSpec(qtype=qtype_by_name(spec)) if isinstance(spec, str) else spec
        grid = RoundingGrid(spec.qtype, rounding, arithmetic, saturate, packed_mask, spec.granularity)
        super().__init__(spec, grid)
        self.scale_rule = scale_rule
        self.in_flight, self.training_only, self.in_place = in_flight, training_only, in_place
        self.calibrator = Calibrator.parse(calibrator)
        self.observer = open_observer(observer, self.spec, self.calibrator, observer_kwargs)
        self.is_observing, self.is_rounding = self.observer is not None, True
        self.overwrite: bool | None = None
        self.calibrating_observer = self.target = ""
        self.masked: tuple[MaskedScores, tuple[str, ...]] | None = None
        self.bounds = UNKNOWN
        self._by_hand = False
        self._made = True

    @classmethod
    def with_args(cls, *args: Any, **keywords: Any) -> Factory:
        """Return a factory of this module with these arguments; it has `with_args` too."""
        return Factory(cls, *args, **keywords)

    def forward(self, x: Tensor) -> Tensor:
        """Observe and round x, if each is enabled. Raises StatisticsError if no scale is known."""
        with aside():
            return self._observe_and_round(x)

    def _observe_and_round(self, x: Tensor) -> Tensor:
        if is_exporting() and not self.is_rounding:
            return x
        if is_exporting():
            # A trace records sizes of tensors, but not the bytes behind them.
            traced = torch.jit.is_tracing()
            if not (self._stored(0).untyped_storage().nbytes() if traced else self.is_initialized):
                raise StatisticsError(_NO_SCALE)
            return self._round(x)
        if isinstance(x, fx.Proxy):  # a leaf of torch.fx
            return x.tracer.create_proxy("call_module", x.tracer.path_of_module(self), (x,), {})
        if x.numel() == 0:  # no range, and nothing to round
            return x
        self._take_type(x)
        observes = self.is_observing and (self.training or not self.training_only)
        # torch.func's transforms change no module: the scale of the last run outside of them counts.
        if observes and self.observer is not None and not is_transforming():
            self.observer(x)
            if self.observer.live and (self.learned == "nothing" or self.follows_weight):
                self._rebase(*self._observed())
        if not self.is_rounding:
            return x
        if self.in_flight == "always" or (self.in_flight == "uncalibrated" and not self.is_initialized):
            return self._round(x, self._params_of(*group_limits(x, self.spec)))
        if not self.is_initialized:
            raise StatisticsError(_NO_SCALE)
        y = self._round(x)
        if self.in_place and not y.requires_grad and not x.requires_grad:
            return x.copy_(y)
        return y

    def quantize(self, x: Tensor) -> Tensor:
        """Return the integers of x, of the narrowest integer type of torch that holds the grid.

        Raises StatisticsError if no scale is known, SpecError for a float grid.
        """
        if not self.is_initialized:
            raise StatisticsError(_NO_SCALE)
        scale, zero_point = (value.detach() for value in self._params())
        return quantize_integers(x.detach(), scale, zero_point, self.grid)

    def _take_type(self, x: Tensor) -> None:
        """Restrict scales to numbers of the type of x, as in ONNX models of fp16 or bf16.

        Under autocast the model counts as float32.
        """
        half = x.dtype in _HALF_TYPES and not torch.is_autocast_enabled(x.device.type)
        float_type = _HALF_TYPES[x.dtype] if half else "float32"
        if float_type != self.float_type:
            self.float_type = float_type

    def _round(self, x: Tensor, params: tuple[Tensor, Tensor] | None = None) -> Tensor:
        count = max(x.numel() // max(self._stored(0).numel(), 1), 1) if self.learned != "nothing" else 0
        scale, zero_point = self._effective(count) if params is None else params
        work = torch.float64 if x.dtype == torch.float64 else torch.float32
        if scale.dtype != work:  # an exporter keeps a cast that changes nothing
            scale = scale.to(work)
        zeros = None if zero_point is None else zero_point.to(work)
        return quantize_to(x, scale, zeros, self.grid)

    def set_qparams(self, scale: Tensor | ArrayLike, zero_point: Tensor | ArrayLike = 0) -> None:
        """Set scale and zero point and switch the observer off; one zero point fits any scale.

        Raises SpecError unless scales are finite and positive and zero points on the grid, 0 if symmetric.
        """
        scales = torch.as_tensor(scale, dtype=torch.float32, device=self.scale.device).detach()
        zeros = torch.as_tensor(zero_point, device=self.scale.device).detach().float()
        if zeros.numel() == 1:
            zeros = zeros.reshape(()).expand(scales.shape)
        if zeros.shape != scales.shape:
            raise SpecError(f"zero_point {list(zeros.shape)} must have scale's shape {list(scales.shape)}")
        check_values(scales, zeros, self.grid, self.spec)
        self._store(scales, zeros)
        self.disable_observer()

    def set_range(self, rmin: Tensor | ArrayLike, rmax: Tensor | ArrayLike) -> None:
        """Set scale and zero point to span [rmin, rmax], widened to include 0, and switch the observer off.

        The ends are finite, broadcast to the shape of the scale, and rmin <= rmax; else SpecError is raised.
        """
        ends = (torch.as_tensor(end, device=self.scale.device).detach() for end in (rmin, rmax))
        low, high = torch.broadcast_tensors(*ends)
        good = torch.isfinite(low) & torch.isfinite(high) & (low <= high)
        if low.shape != high.shape or not good.all():
            raise SpecError(f"ends must be finite, the lower first, found {low.tolist()} to {high.tolist()}")
        self._store(*self._params_of(low.float(), high.float()))
        self.disable_observer()

    @property
    def activation_post_process(self) -> nn.Module | None:
        """The observer by torch's name, as it was given."""
        held = self.observer
        return held.inner if isinstance(held, ExternalObserver) else held

    def calculate_qparams(self) -> tuple[Tensor, Tensor]:
        """Return the scale and zero point of what the observer saw so far, as torch.ao's method of this name.

        Without an observer they are those in use. Raises StatisticsError if nothing is known.
        """
        if self.observer is not None and self.observer.seen:
            return self._observed()
        if not self.is_initialized:
            raise StatisticsError(_NO_SCALE)
        scale, zero_point = self.qparams()
        return scale, zero_point

    def calibrate(self) -> tuple[Tensor, Tensor]:
        """Set scale and zero point from the observer, and return the range.

        Raises StatisticsError if it saw no finite value.
        """
        if self.observer is None or not self.observer.seen:
            raise StatisticsError("the observer saw no finite value; run data while it observes")
        if isinstance(self.observer, ExternalObserver):
            self._store(*self._observed())
            return self._ends(*self.qparams())
        rmin, rmax = (end.clamp(*self.bounds) for end in self.observer.limits())
        if not (torch.isfinite(rmin).all() and torch.isfinite(rmax).all()):
            raise StatisticsError("NaN or infinite values were observed; remove the samples that cause them")
        self._store(*self._params_of(rmin, rmax))
        return rmin.float(), rmax.float()

    def _observed(self) -> tuple[Tensor, Tensor]:
        """Return (scale, zero point) of the observer, which may have its own rule."""
        assert self.observer is not None
        if isinstance(self.observer, ExternalObserver):
            return self.observer.params()
        return self._params_of(*self.observer.limits())

    def _params_of(self, rmin: Tensor, rmax: Tensor) -> tuple[Tensor, Tensor]:
        spec = self.spec
        with torch.no_grad():
            if spec.symmetric and self.scale_rule != "ends":
                rmin, rmax = ends_by_rule(rmin, rmax, spec.qtype, self.scale_rule)
            rules = spec.param_rules(self.float_type)
            scale, zero = range_to_params(rmin, rmax, spec.qtype, spec.symmetric, rules)
            return scale.float(), torch.zeros_like(scale) if zero is None else zero

    def learn(self, what: Learned = "scale") -> None:
        """Make the grid a parameter, as `LearnedGrid.learn`, and stop observing activations.

        The scale of a weight that it follows goes on to do so; a distance from it is learned.
        """
        super().learn(what)
        if what != "nothing" and not self.follows_weight:
            self.is_observing = False

    @property
    def follows_weight(self) -> bool:
        """Tell whether the observer sets the scale at each forward, as it does for weights."""
        return isinstance(self.observer, Latest) and self.observer.live

    def allow_overwrite(self, allowed: bool = True) -> None:
        """Say whether `compute_encodings` may replace a known scale, as AIMET's method of this name.

        Until it is called, `compute_encodings` raises for a scale that was set by hand, and for one whose
        observer was switched off by its method.
        """
        self.overwrite = allowed

    @property
    def is_given(self) -> bool:
        """Tell whether the scale was set by hand, or its observer was switched off by hand."""
        return self._by_hand and self.is_initialized

    def enable_observer(self, enabled: bool = True) -> None:
        """Switch observing on or off."""
        self.is_observing = bool(enabled)
        self._by_hand = not enabled

    def disable_observer(self) -> None:
        """Switch observing off."""
        self.enable_observer(False)

    def enable_fake_quant(self, enabled: bool = True) -> None:
        """Switch rounding on or off."""
        self.is_rounding = bool(enabled)

    def disable_fake_quant(self) -> None:
        """Switch rounding off."""
        self.is_rounding = False

    @contextlib.contextmanager
    def freeze_grid(self) -> Iterator[None]:
        """Freeze the grid as buffers, without observing, and restore everything afterwards."""
        kept = {name: dict(self.__dict__[name]) for name in ("_parameters", "_buffers")}
        learned, observing = self.learned, self.is_observing
        if self.is_initialized:
            self.learn("nothing")
        self.is_observing = False
        try:
            yield
        finally:
            for name, values in kept.items():
                self.__dict__[name].clear()
                self.__dict__[name].update(values)
            self.learned, self.is_observing = learned, observing

    def extra_repr(self) -> str:
        """Return the settings of the module in one line."""
        state = [str(self.spec)]
        state += [] if self.grid.rounding == "half_even" else [f"rounding={self.grid.rounding}"]
        state += [] if self.grid.arithmetic == "divide" else [f"arithmetic={self.grid.arithmetic}"]
        state += [] if self.learned == "nothing" else [f"learns {self.learned}"]
        state += [f"{name}={bool(getattr(self, name))}" for name in SWITCHES]
        if not self.is_initialized:
            state.append("no scale yet")
        elif self.scale.numel() == 1:
            scale, zero_point = self.qparams()
            state += [f"scale={float(scale):.6g}", f"zero_point={int(zero_point)}"]
        else:
            state.append(f"scales {list(self.scale.shape)}")
        return ", ".join(state)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        super()._load_from_state_dict(state_dict, prefix, *args)
        if self.observer is not None and self.observer.rmin.is_meta and not self.scale.is_meta:
            # A module made on the meta device, materialized by load_state_dict(assign=True).
            self.observer.to_empty(device=self.scale.device)
            self.observer.reset()


# torch's own switches, such as `module.apply(torch.ao.quantization.disable_observer)`, look for this class.
FakeQuantizeBase.register(FakeQuantize)


class Factory(functools.partial[FakeQuantize]):
    """Factory of modules with stored arguments, as torch's `with_args`."""

    def with_args(self, **keywords: Any) -> Factory:
        """Return a factory with these arguments changed."""
        return Factory(self.func, *self.args, **{**self.keywords, **keywords})


def learn_grids(model: nn.Module, what: Learned = "scale") -> None:
    """Make the grid of every fake quantizer of `model` a parameter, with `FakeQuantize.learn`.

    With "scale_zero_point", symmetric quantizers, whose zero point is 0, learn only their scale.
    """
    for quantizer in quantizers(model).values():
        fixed_zero = what == "scale_zero_point" and quantizer.spec.symmetric
        quantizer.learn("scale" if fixed_zero else what)


def quantizers(model: nn.Module) -> dict[str, FakeQuantize]:
    """Return the fake quantizers of `model` by path."""
    return {name: module for name, module in model.named_modules() if isinstance(module, FakeQuantize)}
