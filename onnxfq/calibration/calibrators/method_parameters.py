"""Parameters in the spelling of a calibrator: the `99.9` of `percentile:99.9`."""

from __future__ import annotations

from collections.abc import Callable

Parameter = float | str
Check = Callable[[tuple[Parameter, ...]], str]
"""Parameters -> the rule that they break, for an error; empty if valid."""


def read_parameters(text: str) -> tuple[Parameter, ...]:
    """Return the parts of `text` between commas, as numbers if possible, otherwise as text."""
    return tuple(_read(part) for part in text.split(","))


def _read(part: str) -> Parameter:
    try:
        return float(part)
    except ValueError:
        return part


def spell(parameter: Parameter) -> str:
    """Return the exact spelling of a parameter for `read_parameters`: `-1` and `99.9`, not `-1.0`."""
    return str(parameter).removesuffix(".0") if isinstance(parameter, float) else parameter


def require_numbers(parameters: tuple[Parameter, ...], count: int) -> list[float]:
    """Return `parameters` if they are `count` numbers; otherwise as many NaN, which range checks reject."""
    numbers = [one for one in parameters if isinstance(one, float)]
    return numbers if len(numbers) == len(parameters) == count else [float("nan")] * count
