"""AIMET's document: the integer grid of quantizers and encodings, and the forms in which calls name it."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from onnxfq.errors import ArgumentError, SpecError

MOST_BITS = 32


def limits_of(steps: int, signed: bool) -> tuple[int, int]:
    """Return (qmin, qmax) of a grid with this many steps: from 0, or around 0 if signed."""
    return (-(steps - steps // 2), steps // 2) if signed else (0, steps)


def whole_bits(bits: Any) -> int:
    """Return a bit width as an integer. Raises ArgumentError for fractions, SpecError outside 1 to 32."""
    if isinstance(bits, bool) or not isinstance(bits, int | float) or bits != int(bits):
        raise ArgumentError(f"bitwidth must be a whole number, found {bits!r}; or give qmin and qmax")
    if not 1 <= bits <= MOST_BITS:
        raise SpecError(f"bitwidth must be from 1 to {MOST_BITS}, found {bits}; give another one")
    return int(bits)


def form(*required: str, **optional: Any) -> inspect.Signature:
    """Return a signature of parameters without a default, and of others with theirs."""
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    others = [inspect.Parameter(name, kind, default=value) for name, value in optional.items()]
    return inspect.Signature([*(inspect.Parameter(name, kind) for name in required), *others])


Forms = Sequence[inspect.Signature]


def read_call(
    owner: str, forms: Forms, args: Sequence[Any], keywords: Mapping[str, Any], least_steps: int = 1
) -> tuple[int, int, dict[str, Any]]:
    """Return (qmin, qmax, other arguments) of a call that names its grid in one of several forms.

    Args:
        owner: what is called, for errors.
        forms: the parameters of each form. The first has qmin and qmax, the second bitwidth, a third one
            num_steps; `signed`, or `symmetric` without it, tells the sign of the last two.
        args: arguments by position.
        keywords: arguments by name.
        least_steps: steps that a grid needs.

    Raises ArgumentError if the arguments fit no form, SpecError for a grid with fewer steps.
    """
    limits = "qmin" in keywords or "qmax" in keywords or (len(args) > 1 and not isinstance(args[1], bool))
    try:
        bound = forms[0 if limits else 2 if "num_steps" in keywords else 1].bind(*args, **keywords)
    except TypeError as error:
        shown = " or ".join(map(str, forms))
        raise ArgumentError(f"the grid of {owner}: {error}; give {shown}") from None
    bound.apply_defaults()
    given = dict(bound.arguments)
    if limits:
        low, high = given.pop("qmin"), given.pop("qmax")
    else:
        signed = bool(given.pop("signed") if "signed" in given else given["symmetric"])
        counted = "num_steps" in given
        steps = given.pop("num_steps") if counted else (1 << whole_bits(given.pop("bitwidth"))) - 1
        low, high = limits_of(steps, signed)
    check_limits(owner, low, high, least_steps)
    return low, high, given


def check_limits(owner: str, low: Any, high: Any, least_steps: int = 1) -> None:
    """Raise SpecError unless the limits are integers, the lower one first."""
    whole = all(isinstance(end, int) and not isinstance(end, bool) for end in (low, high))
    if not whole or high - low < least_steps:
        sign = "<" if least_steps else "<="
        raise SpecError(f"{owner} needs integers qmin {sign} qmax, found {low!r} and {high!r}; give others")


def check_shift(owner: str, shift: float | None) -> float:
    """Return the part of a step by which 0 misses the grid. Raises SpecError unless it is 0 or 0.5."""
    if shift not in (None, 0, 0.5):
        raise SpecError(f"zero_point_shift of {owner} must be 0 or 0.5, found {shift!r}; give one of them")
    return shift or 0.0


class IntegerGrid:
    """Grid of the integers from qmin to qmax, with the attributes that follow from them.

    Attributes:
        qmin: least integer.
        qmax: largest integer.
    """

    qmin: int
    qmax: int

    @property
    def num_steps(self) -> int:
        """Number of steps between qmin and qmax. Raises SpecError for limits that were set to no grid."""
        check_limits(type(self).__name__, self.qmin, self.qmax)
        return self.qmax - self.qmin

    @property
    def bitwidth(self) -> int:
        """Width B of the grid [0, 2^B - 1] or [-2^(B-1), 2^(B-1) - 1]; setting it keeps the sign.

        Raises SpecError for other grids, and for widths other than integers from 1 to 32.
        """
        size = self.num_steps + 1
        self._check_hardware("bitwidth", not size & (size - 1))
        return size.bit_length() - 1

    @bitwidth.setter
    def bitwidth(self, bits: int) -> None:
        steps = (1 << whole_bits(bits)) - 1
        self._check_hardware("bitwidth")
        self.qmin, self.qmax = limits_of(steps, self.qmin != 0)

    @property
    def signed(self) -> bool:
        """Whether the grid lies around 0; setting it keeps the width. Raises SpecError for other grids."""
        self._check_hardware("signed")
        return self.qmin < 0

    @signed.setter
    def signed(self, value: bool) -> None:
        self._check_hardware("signed")
        self.qmin, self.qmax = limits_of(self.num_steps, bool(value))

    def _check_hardware(self, name: str, whole: bool = True) -> None:
        if not (whole and (self.qmin == 0 or self.qmin + self.qmax == -1)):
            raise SpecError(
                f"{name} of {type(self).__name__} needs a grid [0, 2^B - 1] or [-2^(B-1), 2^(B-1) - 1], "
                f"found [{self.qmin}, {self.qmax}]; use qmin and qmax"
            )
