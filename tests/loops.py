"""A cheap check over many cases in one test: all of them run, and those that fail are named."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

import pytest


def loop_over(
    names: str | tuple[str, ...], values: Iterable[Any]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return what `pytest.mark.parametrize` would be if all cases were one test; nothing may be skipped."""
    fields, kept = (names,) if isinstance(names, str) else names, list(values)

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def run(**given: Any) -> None:
            failed = []
            for value in kept:
                case = dict(zip(fields, (value,) if isinstance(names, str) else value, strict=True))
                try:
                    test(**given, **case)
                except (Exception, pytest.fail.Exception) as error:
                    failed.append(f"{case}: {type(error).__name__}: {error}")
            assert not failed, "\n".join([f"{len(failed)} of {len(kept)} failed", *failed])

        signature = inspect.signature(test)
        left = [one for name, one in signature.parameters.items() if name not in fields]
        run.__signature__ = signature.replace(parameters=left)  # type: ignore[attr-defined]
        return run

    return decorate
