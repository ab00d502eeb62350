"""Parameters of a calibrator as its spelling has them: the `99.9` of `percentile:99.9`."""

from __future__ import annotations

from collections.abc import Callable

Parameter = float | str
Check = Callable[[tuple[Parameter, ...]], str]
"""Parameters -> what they must be, for an error; empty when they are that."""


def read_parameters(text: str) -> tuple[Parameter, ...]:
    """Return the parts of `text` between commas: numbers, and as text what is no number."""
    return tuple(_read(part) for part in text.split(","))


def _read(part: str) -> Parameter:
    try:
        return float(part)
    except ValueError:
        return part


def spell(parameter: Parameter) -> str:
    """Return a parameter as `read_parameters` reads it, exactly: `-1` and `99.9`, not `-1.0`."""
    return str(parameter).removesuffix(".0") if isinstance(parameter, float) else parameter


def require_numbers(parameters: tuple[Parameter, ...], count: int) -> list[float]:
    """Return `parameters` where they are `count` numbers; else as many NaN, which no range check accepts."""
    numbers = [one for one in parameters if isinstance(one, float)]
    return numbers if len(numbers) == len(parameters) == count else [float("nan")] * count
