"""`TensorQuantizer`: quantization of one tensor by a fixed, learned, calibrated or dynamic amax."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx

from onnxfq.errors import ArgumentError, SpecError, StatisticsError, nearest
from onnxfq.torch.arguments import Unscripted, checked_methods
from onnxfq.torch.compat.nvidia import tensor_quant as functions
from onnxfq.torch.compat.nvidia.amax import amax_by_index
from onnxfq.torch.compat.nvidia.calibrators import CALIBRATORS
from onnxfq.torch.compat.nvidia.clip import Clip
from onnxfq.torch.compat.nvidia.descriptor import QuantDescriptor, check_bits
from onnxfq.torch.compat.nvidia.export import check_pairs, quantize_for_export
from onnxfq.torch.onnx_node import is_exporting, is_lowered_later

_BUFFERS = ("_amax", "_pre_quant_scale")


def _run(quantizer: TensorQuantizer, inputs: Tensor) -> Tensor:
    """Quantize as the switches say; torch.fx sees one call."""
    return quantizer._run(inputs)


def _check_flag(value: Any) -> None:
    if not isinstance(value, bool):
        raise ArgumentError(f"a switch must be True or False, got {value!r:.40}; give one")


def _setting(name: str, check: Callable[[Any], None], text: str) -> Any:
    """Return a property of a setting, which the calibrator has too."""

    def change(self: TensorQuantizer, value: Any) -> None:
        check(value)
        setattr(self, name, value)
        setattr(self._calibrator, name, value)

    return property(lambda self: getattr(self, name), change, doc=text)


def _switch(name: str, value: bool, text: str) -> Callable[[TensorQuantizer], None]:
    """Return a method that sets a switch."""

    def change(self: TensorQuantizer) -> None:
        setattr(self, name, value)

    change.__doc__ = text
    return change


def _buffer(name: str, text: str) -> Any:
    """Return a property of a buffer that may be missing."""
    return property(
        lambda self: getattr(self, name, None), lambda self, value: self._fill(name, value), doc=text
    )


@checked_methods("__init__")
class TensorQuantizer(Unscripted, torch.nn.Module):
    """Quantization by amax: given, learned, calibrated, or of each input until one is known.

    Settings, switches, buffers and keys of the state dict are pytorch-quantization's. `_amax` and
    `_pre_quant_scale` are buffers from the moment that they are known; loading a state makes them.

    Attributes:
        clip: the learned ends, parameters `clip_value_min` and `clip_value_max`; with `learn_amax` only.
        use_fb_fake_quant: set on the class, plain torch.onnx.export writes QuantizeLinear, DequantizeLinear;
            the switch of early releases, for which `enable_onnx_export` came.
    """

    use_fb_fake_quant = False
    _enable_onnx_export = False
    _calibrator: Any

    def __init__(
        self, quant_desc: QuantDescriptor | None = None, disabled: bool = False, if_quant: bool = True,
        if_clip: bool = False, if_calib: bool = False,
    ) -> None:  # fmt: skip
        """Make a quantizer. Raises SpecError for `if_clip` without `learn_amax`.

        Args:
            quant_desc: the settings; None for signed 8 bits and one amax.
            disabled: pass inputs on.
            if_quant: quantize.
            if_clip: clip by the learned ends.
            if_calib: show inputs to the calibrator.
        """
        super().__init__()
        desc = QuantDescriptor() if quant_desc is None else quant_desc
        self._num_bits, self._unsigned, self._narrow_range = desc.num_bits, desc.unsigned, desc.narrow_range
        self._fake_quant, self._axis, self._scale_amax = desc.fake_quant, desc.axis, desc.scale_amax
        self._learn_amax = desc.learn_amax
        self._scale: Any = 1.0 if desc.fake_quant else None
        self._disabled, self._if_quant, self._if_calib, self._if_clip = disabled, if_quant, if_calib, False
        if desc.amax is not None:
            self.register_buffer("_amax", torch.tensor(desc.amax))
        if desc.learn_amax:
            first = 1.0 if desc.amax is None else desc.amax
            self.clip = Clip(-first, first, learn_min=True, learn_max=True)
        if if_clip or desc.learn_amax:
            self.enable_clip()
        self._calibrator = CALIBRATORS[desc.calib_method](desc.num_bits, desc.axis, desc.unsigned)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute. Raises SpecError for one that has no effect here."""
        settable = getattr(getattr(type(self), name, None), "fset", None)
        if settable is not None:  # torch.nn.Module would register a tensor under the name
            settable(self, value)
        elif name in _BUFFERS and type(value) is Tensor and name not in self._buffers:
            self.register_buffer(name, value)
        elif type(self) is TensorQuantizer and not (name.startswith("_") or name in ("clip", "training")):
            known = [key for key, kind in vars(TensorQuantizer).items() if isinstance(kind, property)]
            why = "is read only" if name in known else f"is no setting{nearest(name, known)}"
            raise SpecError(f"{name!r} of TensorQuantizer {why}; make a new one from a QuantDescriptor")
        else:
            super().__setattr__(name, value)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the input scaled, observed, clipped and quantized, as settings and switches say."""
        return _run(self, inputs) if isinstance(inputs, fx.Proxy) else self._run(inputs)

    def _run(self, x: Tensor) -> Tensor:
        if not isinstance(x, Tensor):
            raise ArgumentError(f"a TensorQuantizer takes a tensor, got {type(x).__name__}; pass one")
        if self.pre_quant_scale is not None:
            x = x * self.pre_quant_scale
        if self._disabled or (not is_exporting() and not x.numel()):
            return x
        if self._if_calib:
            self._calibrator.collect(x)
        if self._learn_amax and (self._if_clip or self._if_quant):
            x = self.clip(x)
        if not self._if_quant:
            return x
        qtype = self._num_bits, self._unsigned, self._narrow_range
        pairs = self._writes_pairs()
        if pairs:
            self.check_export()
            check_pairs(*qtype)
        amax = self._get_amax(x)
        if is_exporting() and self._fake_quant:
            return quantize_for_export(x, amax, *qtype, pairs=pairs)
        if isinstance(self._num_bits, (tuple, list)):
            return functions.scaled_e4m3(x, amax, *self._num_bits)
        if self._fake_quant:
            return functions.fake_tensor_quant(x, amax, *qtype).to(x.dtype)  # channels widen bfloat16
        integers, self._scale = functions.tensor_quant(x, amax, self._num_bits, self._unsigned)
        return integers

    def _writes_pairs(self) -> bool:
        """Tell whether a plain export is to have pairs, not nodes that `export_torch` lowers."""
        # After an error torch's exporter tries again, and then is_exporting() is false.
        exporting = is_exporting() or torch.compiler.is_exporting()
        wanted = self._enable_onnx_export or (self.use_fb_fake_quant and exporting)
        return wanted and not is_lowered_later()

    def _get_amax(self, inputs: Tensor) -> Tensor:
        """Return the amax in use, at least float32: learned, known, or of these inputs."""
        if self._learn_amax:
            amax = torch.max(-self.clip.clip_value_min, self.clip.clip_value_max)
        elif (known := self.amax) is not None:
            amax = known.to(inputs.device)
        else:
            amax = amax_by_index(inputs, self._axis)
        amax = amax.detach()
        if self._scale_amax is not None:
            amax = amax * self._scale_amax
        return amax if amax.dtype in (torch.float32, torch.float64) else amax.float()

    def check_export(self, name: str = "") -> None:
        """Raise StatisticsError, with the name, if a quantizer that is on has no amax to export."""
        if self.amax is None and not self._learn_amax and self._if_quant and not self._disabled:
            raise StatisticsError(f"quantizer {name!r} has no amax; calibrate it and call load_calib_amax()")

    num_bits = _setting("_num_bits", check_bits, "Bits of the integers, or (4, 3).")
    unsigned = _setting("_unsigned", _check_flag, "Whether the integers begin at 0.")
    narrow_range = _setting("_narrow_range", _check_flag, "Whether the lowest integer is minus the highest.")
    axis = property(lambda self: self._axis, doc="Axes with an amax for each index.")
    fake_quant = property(lambda self: self._fake_quant, doc="Whether values are returned, not integers.")
    scale = property(lambda self: self._scale, doc="Integers / value of the last input; 1 in fake mode.")
    amax = _buffer("_amax", "Largest magnitude of the grid; None: of each input.")
    pre_quant_scale = _buffer("_pre_quant_scale", "Factor of inputs before all else; None without.")

    @property
    def maxbound(self) -> float:
        """Largest integer of the grid, or 448 for (4, 3)."""
        if isinstance(self._num_bits, (tuple, list)):
            return functions.E4M3_MOST
        return functions.integer_bound(self._num_bits, self._unsigned)

    @property
    def step_size(self) -> Tensor | None:
        """Distance of two values of the grid; None without an amax."""
        return None if self.amax is None else self.amax / float(self.maxbound)

    def _fill(self, name: str, value: Any) -> None:
        """Set a buffer to numbers of its shape; the first ones give it the shape."""
        label = name.lstrip("_")
        try:
            tensor = torch.as_tensor(value).detach().clone()
        except (TypeError, ValueError, RuntimeError) as error:
            raise ArgumentError(f"{label} must be numbers or a tensor, got {value!r:.40}") from error
        tensor = tensor if tensor.is_floating_point() else tensor.float()
        if name == "_amax" and not (tensor >= 0).all():
            raise SpecError(f"amax must be at least 0, got {float(tensor.min())}; give the largest magnitude")
        held = getattr(self, name, None)
        if held is None:
            self.register_buffer(name, tensor)
        elif held.shape != tensor.shape:
            raise StatisticsError(
                f"the shape of {label} is {list(held.shape)}, got {list(tensor.shape)}; make a new quantizer"
            )
        else:
            held.data.copy_(tensor)

    disable = _switch("_disabled", True, "Pass inputs on: neither observe nor clip nor quantize.")
    enable = _switch("_disabled", False, "Do as the other switches say.")
    disable_quant = _switch("_if_quant", False, "Return inputs unrounded.")
    enable_quant = _switch("_if_quant", True, "Round inputs.")
    disable_calib = _switch("_if_calib", False, "Stop showing inputs to the calibrator.")
    enable_calib = _switch("_if_calib", True, "Show inputs to the calibrator.")

    def disable_clip(self) -> None:
        """Fix the ends that were learned."""
        self._learn_ends(False)

    def enable_clip(self) -> None:
        """Clip by the learned ends, and learn them. Raises SpecError without `learn_amax`."""
        self._learn_ends(True)

    def _learn_ends(self, learn: bool) -> None:
        if not self._learn_amax:
            raise SpecError("learn_amax is False, so there is nothing to clip by; set it in the descriptor")
        self._if_clip = learn
        self.clip.requires_grad_(learn)

    def load_calib_amax(self, *args: Any, strict: bool = True, **kwargs: Any) -> None:
        """Set amax from what the calibrator saw.

        Args:
            args: for the calibrator's `compute_amax`.
            strict: refuse a calibrator without data; False warns and sets NaN.
            kwargs: for `compute_amax`.

        Raises StatisticsError without data, ArgumentError for arguments that the calibrator lacks.
        """
        amax = self._calibrator.compute_amax(*args, **kwargs)
        if amax is None:
            why = "Calibrator returned None, it saw no tensor; enable_calib() and run data first"
            if strict:
                raise StatisticsError(f"{why}, or pass strict=False to set NaN")
            warnings.warn(f"{why}; amax is NaN", stacklevel=2)
            amax = torch.tensor(math.nan)
        held = self.amax
        if held is None or held.shape != amax.shape:
            self.register_buffer("_amax", amax.detach().clone())
        else:
            held.copy_(amax)

    def init_learn_amax(self) -> None:
        """Begin learning at the largest known amax. Raises StatisticsError if there is none."""
        if not self._learn_amax or self.amax is None:
            why = "amax is not known" if self._learn_amax else "learn_amax is False"
            raise StatisticsError(f"init_learn_amax() needs learn_amax=True and a known amax, and {why}")
        largest = self.amax.detach().max()
        self.clip.clip_value_min.data.copy_(-largest)
        self.clip.clip_value_max.data.copy_(largest)

    def extra_repr(self) -> str:
        """Return the settings in one line: bits, grid, amax, calibrator and the switches that are on."""
        if self._disabled:
            return "disabled"
        words = [f"{'unsigned ' * bool(self._unsigned)}{self._num_bits}bit"]
        words += [word for word, on in (("narrow", self._narrow_range), ("fake", self._fake_quant)) if on]
        words += ["per-tensor" if self._axis is None else f"axis={self._axis}", f"amax={self._short_amax()}"]
        words += [f"*{self._scale_amax}"] if self._scale_amax else []
        words += [f"calibrator={type(self._calibrator).__name__}"]
        words += ["pre_quant_scale"] if self.pre_quant_scale is not None else []
        switches = {"learned": self._learn_amax, "quant": self._if_quant, "clip": self._if_clip}
        switches["calib"] = self._if_calib
        return " ".join([*words, *(word for word, on in switches.items() if on)])

    def _short_amax(self, fmt: str = ".4f") -> str:
        amax = self.amax
        if amax is None:
            return "dynamic"
        if amax.numel() == 1:
            return f"{amax.item():{fmt}}"
        return f"[{amax.min().item():{fmt}}, {amax.max().item():{fmt}}]({amax.numel()})"

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        _, strict, _, _, errors = args
        for name in _BUFFERS:
            given, held = state_dict.get(prefix + name), getattr(self, name, None)
            if given is None and held is not None and strict:
                why = "is missing: the state is older than the calibration; load it into a new module"
                errors.append(f"{prefix}{name} {why}, or save it again")
            elif given is not None and bool(given.isnan().any()):
                why = "is NaN: the state was saved without data for its calibrator; calibrate and"
                errors.append(f"{prefix}{name} {why} save it again")
            elif given is not None and held is None:
                self.register_buffer(name, torch.empty_like(given))
        super()._load_from_state_dict(state_dict, prefix, *args)


fx.wrap("_run")
