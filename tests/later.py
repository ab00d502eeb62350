"""Functions that tables of cases hold with their arguments, and that tests call."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


def later(function: Callable[..., Any]) -> Callable[..., Callable[..., Any]]:
    """Return what takes the last arguments of `function` now, and returns what takes the first ones."""

    @functools.wraps(function)
    def keep(*given: Any, **named: Any) -> Callable[..., Any]:
        return lambda *first: function(*first, *given, **named)

    return keep
