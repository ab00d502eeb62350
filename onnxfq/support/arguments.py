"""Arguments of a wrong type, named when a call has failed by them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import SimpleNamespace, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from onnxfq.errors import ArgumentError, OnnxfqError

_READERS = {
    "onnxfq.Model": "onnxfq.load",
    "onnxfq.Recipe": "onnxfq.load_recipe",
    "onnx.ModelProto": "onnx.load",
}
"""Functions that return a class, where no method of its own does."""


@functools.cache
def explain_types(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `function` as a public name, whose raw errors name an argument that is not of its class.

    Raises ArgumentError.
    """

    @functools.wraps(function)
    def call(*given: Any, **keywords: Any) -> Any:
        try:
            return function(*given, **keywords)
        except OnnxfqError:
            raise
        except (AttributeError, TypeError) as error:
            try:
                bound = inspect.signature(function).bind(*given, **keywords)
            except TypeError:
                raise error from None
            hints = _read_hints(function)
            for name, value in bound.arguments.items():
                wanted = _find_classes(hints.get(name, Any))
                if wanted and not isinstance(value, wanted):
                    names = " or ".join(filter(None, map(_say, wanted)))
                    raise ArgumentError(
                        f"{name} of {function.__name__} is {value!r:.40}, of type {type(value).__name__}; "
                        f"give {names}"
                    ) from error
            raise

    call.__module__ = __name__.partition(".")[0]  # pickle looks there for what it gets
    return call


def _read_hints(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the types of the parameters; the one of the result may need a package that is not there."""
    kept = {name: hint for name, hint in function.__annotations__.items() if name != "return"}
    return get_type_hints(SimpleNamespace(__annotations__=kept), inspect.unwrap(function).__globals__)


def _find_classes(hint: Any) -> tuple[type, ...]:
    """Return the classes of a hint; nothing if none is of this package, or any other kind is allowed."""
    options = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    classes = tuple(get_origin(one) or one for one in options)
    return classes if all(isinstance(one, type) for one in classes) and any(map(_say, classes)) else ()


def _say(one: type) -> str:
    """Return the public name of a class of onnxfq or onnx and the call that reads one; "" for others."""
    package = one.__module__.partition(".")[0]
    if package not in ("onnxfq", "onnx"):
        return ""
    name = f"{package}.{one.__name__}"
    reader = _READERS.get(name, f"{name}.load" if hasattr(one, "load") else "")
    return f"{name}, as {reader}(...) returns it" if reader else name
