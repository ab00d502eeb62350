"""The options that describe data: declared once, for every command that reads some."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from fractions import Fraction
from typing import Annotated, Any, get_type_hints

import typer

from onnxfq.feeds import DataOptions
from onnxfq.feeds.options import Nonfinite


def _describe(
    scale: Annotated[
        str | None, typer.Option(metavar="NUMBER", help="Multiply the values first, as 0.00392 or 1/255.")
    ] = None,
    mean: Annotated[
        str | None,
        typer.Option(metavar="NUMBERS", help="Then subtract: one number, or one a channel: 1,2,3."),
    ] = None,
    std: Annotated[str | None, typer.Option(metavar="NUMBERS", help="Then divide by.")] = None,
    resize: Annotated[
        str | None, typer.Option(metavar="WxH", help="Size of images, where it is not the input's.")
    ] = None,
    layout: Annotated[
        str | None, typer.Option(metavar="nchw|nhwc", help="Layout of images, if the input is open.")
    ] = None,
    color: Annotated[
        str | None, typer.Option(metavar="rgb|bgr|gray", help="Channels of images, if the input is open.")
    ] = None,
    example: Annotated[
        str | None, typer.Option(metavar="FILE", help="One right feed; data on another scale is refused.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Read so many samples only.")] = None,
    nonfinite: Annotated[
        Nonfinite, typer.Option(help="At NaN and infinities: stop, or go on with the other values.")
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
    """Return `command` with the options above in place of its parameter `described`, a DataOptions."""
    options = _parameters(_describe)
    own = _parameters(command)
    at = [parameter.name for parameter in own].index("described")
    parameters = [*own[:at], *options, *own[at + 1 :]]

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
    return [p.replace(annotation=hints[p.name]) for p in inspect.signature(function).parameters.values()]


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
