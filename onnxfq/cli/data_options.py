"""The options that describe data: declared once, for every command that reads some."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from fractions import Fraction
from typing import Annotated, Any, get_type_hints

import typer

from onnxfq.cli.options import DATA_PANEL
from onnxfq.data import DataOptions
from onnxfq.data.options import Nonfinite


def _option(**given: Any) -> Any:
    """Return an option that `--help` lists among those of the data."""
    return typer.Option(rich_help_panel=DATA_PANEL, **given)


def _describe(
    scale: Annotated[
        str | None, _option(metavar="NUMBER", help="Multiply the values first, as 0.00392 or 1/255.")
    ] = None,
    mean: Annotated[
        str | None,
        _option(metavar="NUMBERS", help="Then subtract: one number, or one a channel: 1,2,3."),
    ] = None,
    std: Annotated[str | None, _option(metavar="NUMBERS", help="Then divide by.")] = None,
    resize: Annotated[
        str | None, _option(metavar="WxH", help="Size of images, where it is not the input's.")
    ] = None,
    layout: Annotated[
        str | None, _option(metavar="nchw|nhwc", help="Layout of images, if the input is open.")
    ] = None,
    color: Annotated[
        str | None, _option(metavar="rgb|bgr|gray", help="Channels of images, if the input is open.")
    ] = None,
    example: Annotated[
        str | None, _option(metavar="FILE", help="One right feed; data on another scale is refused.")
    ] = None,
    limit: Annotated[int | None, _option(min=1, help="Read so many samples only.")] = None,
    nonfinite: Annotated[
        Nonfinite, _option(help="At NaN and infinities: stop, or go on with the other values.")
    ] = "stop",
) -> DataOptions:
    return DataOptions(
        scale=None if scale is None else _number(scale, "--scale"),
        mean=_numbers(mean, "--mean"),
        std=_numbers(std, "--std"),
        resize=_size(resize),
        layout=layout,
        color=color,
        example=example,
        limit=limit,
        nonfinite=nonfinite,
    )


def with_data_options(command: Callable[..., None]) -> Callable[..., None]:
    """Return `command` with the options above behind its `data`; as `described` it gets a DataOptions."""
    options = _parameters(_describe)
    own = [parameter for parameter in _parameters(command) if parameter.name != "described"]
    behind = [parameter.name for parameter in own].index("data") + 1
    parameters = [*own[:behind], *options, *own[behind:]]

    @functools.wraps(command)
    def called(**given: Any) -> None:
        described = _describe(**{option.name: given.pop(option.name) for option in options})
        command(**given, described=described)

    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return called


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """Return the parameters of `function` with annotations as objects, wherever they are read."""
    hints = get_type_hints(function, include_extras=True)
    given = inspect.signature(function).parameters.values()
    # By keyword, or no option with a default could stand before one without.
    return [p.replace(annotation=hints[p.name], kind=p.KEYWORD_ONLY) for p in given]


def _number(text: str, option: str) -> float:
    try:
        return float(Fraction(text))
    except (ValueError, ZeroDivisionError):
        raise typer.BadParameter(f"{option} is {text!r}; give a number, as 0.5 or 1/255") from None


def _numbers(text: str | None, option: str) -> float | tuple[float, ...] | None:
    if text is None:
        return None
    numbers = tuple(_number(part, option) for part in text.split(","))
    return numbers[0] if len(numbers) == 1 else numbers


def _size(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    parts = text.lower().split("x")
    if len(parts) != 2 or not all(part.isdecimal() for part in parts):
        raise typer.BadParameter(f"--resize is {text!r}; give width and height, as 224x224")
    return int(parts[0]), int(parts[1])
