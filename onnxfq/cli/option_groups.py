"""Groups of options: one parameter of a command stands for the parameters of the group's constructor."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any


class OptionGroup:
    """Mark of a parameter, in `Annotated[T, Group(make)]`, whose options are the parameters of `make`.

    Args:
        make: dataclass or function of options and further groups that returns the value of the parameter.
        fixed: arguments of `make` that are no options of this command.
    """

    def __init__(self, make: Callable[..., Any], **fixed: Any) -> None:
        self.make, self.fixed = make, fixed

    def build(self, given: Mapping[str, Any]) -> Any:
        """Return the value of the parameter from the arguments of the command."""
        return self.make(**_gather(self.make, given, self.fixed), **self.fixed)


def expand_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Return `command` with the options of its groups in the places of their parameters."""
    parameters = list(_flatten(command))

    @functools.wraps(command)
    def run_command(**given: Any) -> None:
        command(**_gather(command, given))

    run_command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run_command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run_command


def _parameters(
    make: Callable[..., Any], fixed: Collection[str]
) -> Iterator[tuple[inspect.Parameter, OptionGroup | None]]:
    """Yield the parameters that are not `fixed` with evaluated annotations, and the groups they stand for."""
    names = vars(sys.modules[make.__module__])
    for parameter in inspect.signature(make).parameters.values():
        if parameter.name in fixed:
            continue
        # One level only: types of groups, quoted within `Annotated`, may be of modules not imported yet.
        hint = eval(parameter.annotation, names)
        marks = getattr(hint, "__metadata__", ())
        groups = [mark for mark in marks if isinstance(mark, OptionGroup)]
        # Keyword-only, because a default could not precede a parameter without one.
        yield parameter.replace(annotation=hint, kind=parameter.KEYWORD_ONLY), next(iter(groups), None)


def _flatten(make: Callable[..., Any], fixed: Collection[str] = ()) -> Iterator[inspect.Parameter]:
    for parameter, group in _parameters(make, fixed):
        if group is None:
            yield parameter
        else:
            yield from _flatten(group.make, group.fixed)


def _gather(
    make: Callable[..., Any], given: Mapping[str, Any], fixed: Collection[str] = ()
) -> dict[str, Any]:
    """Return the arguments of `make`, among them the values of its groups."""
    return {
        parameter.name: given[parameter.name] if group is None else group.build(given)
        for parameter, group in _parameters(make, fixed)
    }
