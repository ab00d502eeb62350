"""Errors of one line for wrong arguments: a call that fails is explained by its signature."""

from __future__ import annotations

import functools
import inspect
import sys
import typing
from collections.abc import Callable
from types import GenericAlias
from typing import Any, TypeVar

from pydantic import ConfigDict, TypeAdapter, ValidationError

from onnxfq.errors import ArgumentError, ModelError, OnnxfqError, SpecError, join_lines, nearest

F = TypeVar("F", bound=Callable[..., Any])
C = TypeVar("C", bound=type)

_STRICT = ConfigDict(arbitrary_types_allowed=True, strict=True)
_RAW = (TypeError, AttributeError, ValueError, LookupError, AssertionError, ArithmeticError, RuntimeError)


def checked(function: F) -> F:
    """Return the function with ArgumentError in place of the errors that Python raises for wrong arguments.

    For arguments of the right types, Python's own ValueError and RuntimeError become SpecError, and all other
    classes pass: code of the user may raise them.
    """

    @functools.wraps(function)
    def call(*args: Any, **keywords: Any) -> Any:
        try:
            return function(*args, **keywords)
        except _RAW as error:
            if isinstance(error, OnnxfqError):
                raise
            explained = _explain(function, args, keywords, error)
            if explained is not None:
                raise explained from error
            if type(error) not in (TypeError, ValueError, RuntimeError):
                raise
            kind = ArgumentError if isinstance(error, TypeError) else SpecError
            line = str(error).strip().partition("\n")[0]
            raise kind(f"{_name(function)} cannot use its arguments: {line}; change them") from error

    return typing.cast(F, call)


def check_functions(names: dict[str, Any]) -> None:
    """Make the public functions of a module or package `checked`, whose globals are `names`."""
    for name, value in list(names.items()):
        own = inspect.isfunction(value) and f"{value.__module__}.".startswith(f"{names['__name__']}.")
        if own and not name.startswith("_"):
            names[name] = checked(value)
            setattr(sys.modules[value.__module__], name, names[name])  # pickle finds it there


class Unscripted:
    """Module that torch.jit.script refuses in one line."""

    def __prepare_scriptable__(self) -> Any:
        """Refuse torch.jit.script, which asks for it first."""
        name = type(self).__name__
        raise ModelError(f"torch.jit.script cannot compile a {name}; use torch.export or torch.jit.trace")


def checked_methods(*names: str) -> Callable[[C], C]:
    """Return a class decorator that makes these methods `checked`."""

    def decorate(cls: C) -> C:
        for name in names:
            setattr(cls, name, checked(getattr(cls, name)))
        return cls

    return decorate


def _explain(
    function: Callable[..., Any], args: tuple[Any, ...], keywords: dict[str, Any], error: Exception
) -> ArgumentError | None:
    name = _name(function)
    signature = inspect.signature(function)
    try:
        bound = signature.bind(*args, **keywords)
    except TypeError as fault:
        unknown = next((key for key in keywords if key not in signature.parameters), "")
        hint = nearest(unknown, [n for n in signature.parameters if n != "self"]) if unknown else ""
        return ArgumentError(f"{name}: {join_lines(fault)}{hint or f'; it takes {_parameters(signature)}'}")
    hints = typing.get_type_hints(function)
    for parameter, value in bound.arguments.items():
        described = signature.parameters[parameter]
        if described.kind is inspect.Parameter.VAR_KEYWORD or parameter not in hints:
            continue
        wanted = str(described.annotation)
        for one in value if described.kind is inspect.Parameter.VAR_POSITIONAL else (value,):
            # Text is an array for NumPy, and for nothing here.
            text = isinstance(one, (str, bytes)) and "ArrayLike" in wanted
            if text or not _fits(one, hints[parameter]):
                return ArgumentError(
                    f"{parameter} of {name} must be {wanted}, found {join_lines(repr(one))[:60]} "
                    f"({type(one).__name__}); give one of that type"
                )
    return None


def _name(function: Callable[..., Any]) -> str:
    return function.__qualname__.removesuffix(".__init__")


def _parameters(signature: inspect.Signature) -> str:
    return ", ".join(name for name in signature.parameters if name != "self") or "no arguments"


def _fits(value: Any, hint: Any) -> bool:
    """Tell whether a value has the type of an annotation."""
    plain = tuple(value) if isinstance(value, tuple) else value  # torch.Size is a tuple
    alone: Any = GenericAlias(tuple, (hint,))  # a class of records as a whole has its own config
    try:
        TypeAdapter(alone, config=_STRICT).validate_python((plain,))
    except ValidationError:
        return False
    return True
