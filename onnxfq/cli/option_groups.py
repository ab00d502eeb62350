"""Groups of options: one parameter of a command stands for the fields of a dataclass, each an option."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any


class OptionGroup:
    """Mark of a parameter, in `Annotated[T, OptionGroup(make)]`, whose options are the parameters of `make`.

    Args:
        make: dataclass of options and further groups.
        read: its method that returns the value of the parameter, which is the dataclass without one.
        fixed: arguments of `make` that are no options of this command.
    """

    def __init__(
        self, make: Callable[..., Any], read: Callable[[Any], Any] | None = None, **fixed: Any
    ) -> None:
        self.make, self.read, self.fixed = make, read, fixed

    def build(self, given: Mapping[str, Any]) -> Any:
        """Return the value of the parameter from the arguments of the command."""
        value = self.make(**_gather(self.make, given, self.fixed), **self.fixed)
        return value if self.read is None else self.read(value)


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
    """Yield the parameters that are not `fixed`, each with the group that it stands for."""
    for parameter in inspect.signature(make, eval_str=True).parameters.values():
        if parameter.name not in fixed:
            marks = getattr(parameter.annotation, "__metadata__", ())
            # Keyword-only, because a default could not precede a parameter without one.
            yield (
                parameter.replace(kind=parameter.KEYWORD_ONLY),
                next((mark for mark in marks if isinstance(mark, OptionGroup)), None),
            )


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
