"""`QuantDescriptor`: how a tensor is quantized."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray
from torch import Tensor

from onnxfq.errors import ArgumentError, SpecError, nearest
from onnxfq.torch.arguments import checked_methods

CALIB_METHODS = ("max", "histogram")
_MOST_BITS = 32
_FLAGS = ("fake_quant", "learn_amax", "unsigned", "narrow_range")


@checked_methods("__init__")
@dataclass(frozen=True, eq=False)
class QuantDescriptor:
    """Settings of a `TensorQuantizer`, with pytorch-quantization's names and defaults. They do not change.

    Attributes:
        num_bits: bits of the integers, or (4, 3) for float8 with 4 exponent and 3 mantissa bits.
        name: for the reader only.
        fake_quant: return values, not integers.
        axis: axes with an amax for each index; None for one amax.
        amax: largest magnitude of the grid, float32; None until calibrated.
        learn_amax: clip by two learned ends before rounding, beginning at amax or 1.
        scale_amax: factor of amax.
        calib_method: "max" or "histogram".
        unsigned: integers from 0.
        narrow_range: the lowest integer is minus the highest.

    Raises ArgumentError for a wrong type, SpecError for a value out of range.
    """

    num_bits: Any = 8
    name: str | None = None
    fake_quant: bool = True
    axis: Any = None
    amax: Any = None
    learn_amax: bool = False
    scale_amax: float | None = None
    calib_method: str = "max"
    unsigned: bool = False
    narrow_range: bool = False

    def __post_init__(self) -> None:
        check_bits(self.num_bits)
        if self.name is not None and not isinstance(self.name, str):
            raise ArgumentError(f"name must be a string or None, got {self.name!r}; leave it out")
        for flag in _FLAGS:
            if not isinstance(getattr(self, flag), (bool, np.bool_)):
                raise ArgumentError(f"{flag} must be True or False, got {getattr(self, flag)!r}; give one")
        if self.calib_method not in CALIB_METHODS:
            known = nearest(str(self.calib_method), CALIB_METHODS)
            raise SpecError(f"calib_method must be max or histogram, got {self.calib_method!r}{known}")
        self._check_axis()
        if self.amax is not None:
            object.__setattr__(self, "amax", _checked_amax(self.amax))
        scale = self.scale_amax
        if scale is not None and not (isinstance(scale, (int, float)) and 0 < scale < float("inf")):
            raise SpecError(f"scale_amax must be a number above 0, got {scale!r}; leave it out for 1")

    def _check_axis(self) -> None:
        axis = self.axis
        if isinstance(axis, list):
            object.__setattr__(self, "axis", tuple(axis))
        axes = () if axis is None else (axis,) if not isinstance(axis, (tuple, list)) else axis
        if not all(isinstance(one, int) and not isinstance(one, bool) for one in axes):
            raise ArgumentError(f"axis must be an integer, several, or None, got {axis!r}; give axis=(0,)")
        if self.learn_amax and axis is not None:
            raise ArgumentError(f"axis is ignored and must be None when learn_amax is true, got {axis!r}")

    def __str__(self) -> str:
        """Return the settings in one line, as pytorch-quantization prints them."""
        sign, kind = "unsigned " if self.unsigned else "", "fake" if self.fake_quant else "real"
        axis = " per-tensor" if self.axis is None else self.axis
        parts = [f"{sign}{self.num_bits}bit {kind} axis={axis}"]
        parts += [] if self.amax is None else [f"amax={self.amax} full_range"]
        parts += ["learn_amax"] * self.learn_amax
        parts += [f"scale_amax={self.scale_amax}"] if self.scale_amax else []
        return f"{'QuantDescriptor' if self.name is None else f'{self.name}: '}({' '.join(parts)})"

    def __eq__(self, other: object) -> bool:
        """Compare all settings."""
        return isinstance(other, QuantDescriptor) and self.dict() == other.dict()

    __hash__ = None  # type: ignore[assignment]

    def dict(self) -> dict[str, Any]:
        """Return num_bits, name and the settings that are not the default, as plain values.

        `QuantDescriptor(**made.dict())` equals `made`.
        """
        values = {field: getattr(self, field.name) for field in dataclasses.fields(self)}
        always = ("num_bits", "name", "amax")
        kept = {one.name: v for one, v in values.items() if one.name in always or v != one.default}
        amax = kept.pop("amax")
        return kept if amax is None else kept | {"amax": amax.tolist()}

    def to_yaml(self) -> str:
        """Return `dict()` as YAML, with tuples as lists."""
        plain = {k: list(v) if isinstance(v, tuple) else v for k, v in self.dict().items()}
        text: str = yaml.safe_dump(plain)
        return text

    @classmethod
    def from_yaml(cls, yaml_str: str) -> QuantDescriptor:
        """Return the descriptor that `to_yaml` wrote. Raises SpecError for other text."""
        try:
            plain = yaml.safe_load(yaml_str)
        except (yaml.YAMLError, AttributeError) as error:
            raise SpecError(f"a descriptor is YAML as to_yaml writes it, got {yaml_str!r:.80}") from error
        names = {field.name for field in dataclasses.fields(cls)}
        if not isinstance(plain, dict) or not set(plain) <= names:
            raise SpecError(f"a descriptor is a mapping of its settings, got {yaml_str!r:.80}")
        tuples = {k: tuple(plain[k]) for k in ("num_bits", "axis") if isinstance(plain.get(k), list)}
        return cls(**plain | tuples)


def check_bits(num_bits: Any) -> None:
    """Raise ArgumentError or SpecError unless `num_bits` is from 1 to 32, or (4, 3)."""
    if isinstance(num_bits, (tuple, list)) and tuple(num_bits) == (4, 3):
        return
    if not isinstance(num_bits, (int, np.integer)) or isinstance(num_bits, bool):
        raise ArgumentError(f"num_bits must be an integer or (4, 3), got {num_bits!r}; give 8, or (4, 3)")
    if not 1 <= num_bits <= _MOST_BITS:
        raise SpecError(f"num_bits must be from 1 to {_MOST_BITS}, got {num_bits}; give 8 for int8")


def _checked_amax(amax: Any) -> NDArray[np.float32]:
    values = amax.detach().cpu().float().numpy() if isinstance(amax, Tensor) else amax
    try:
        array = np.array(values, dtype=np.float32)
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"amax must be float, list or ndarray, got {amax!r:.40}") from error
    if not (array >= 0).all():
        raise SpecError(f"amax must be numbers of at least 0, got {array.min()}; give the largest magnitude")
    return array
