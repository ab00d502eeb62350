"""Options of data and its preprocessing, shared by every command that reads data."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from onnxfq.choices import RESAMPLES, Nonfinite
from onnxfq.cli.option_groups import OptionGroup

if TYPE_CHECKING:
    from onnxfq.data import DataOptions


def _option(*names: str, **given: Any) -> Any:
    return typer.Option(*names, rich_help_panel="Data", **given)


_DATA = _option(
    "--data",
    metavar="DATA",
    help="Read an .npz keyed by input name, an .npy, a folder of these or of images, or module:function.",
)
DataOption = Annotated[str, _DATA]
OptionalDataOption = Annotated[str | None, _DATA]


def _describe(
    scale: Annotated[
        str | None,
        _option(metavar="NUMBER", help="Multiply the values by this first, such as 0.00392 or 1/255."),
    ] = None,
    mean: Annotated[
        str | None,
        _option(metavar="NUMBERS", help="Then subtract this: one number, or one per channel: 1,2,3."),
    ] = None,
    std: Annotated[
        str | None, _option(metavar="NUMBERS", help="Then divide by this: one number, or one per channel.")
    ] = None,
    resize: Annotated[
        str | None,
        _option(
            metavar="WxH|N", help="Resize images to this size or shorter side; default: the input's size."
        ),
    ] = None,
    crop: Annotated[
        str | None, _option(metavar="WxH", help="Then keep this size of the middle of images.")
    ] = None,
    resample: Annotated[
        str | None, _option(metavar="NAME", help=f"Resize with this filter: {', '.join(RESAMPLES)}.")
    ] = None,
    preprocessor: Annotated[
        Path | None,
        _option(metavar="FILE", help="Prepare images as this preprocessor_config.json of Hugging Face says."),
    ] = None,
    layout: Annotated[
        str | None, _option(metavar="nchw|nhwc", help="Set the layout of images if the input is open.")
    ] = None,
    color: Annotated[
        str | None, _option(metavar="rgb|bgr|gray", help="Set the channels of images if the input is open.")
    ] = None,
    example: Annotated[
        str | None,
        _option(metavar="FILE", help="Check the data against a known-good sample; reject a different scale."),
    ] = None,
    limit: Annotated[int | None, _option(metavar="N", min=1, help="Read only this many samples.")] = None,
    nonfinite: Annotated[Nonfinite, _option(help="Stop at NaN and infinities, or skip them.")] = "stop",
) -> DataOptions:
    from onnxfq.data import DataOptions
    from onnxfq.data.preprocessor import read_preprocessor

    prepared = {
        "scale": None if scale is None else _number(scale, "--scale"),
        "mean": _numbers(mean, "--mean"),
        "std": _numbers(std, "--std"),
        "resize": _side(resize) if resize and resize.isdecimal() else _size(resize, "--resize"),
        "crop": _size(crop, "--crop"),
        "resample": resample,
    }
    given = {name: value for name, value in prepared.items() if value is not None}
    if preprocessor is not None and given:
        raise typer.BadParameter(
            f"--preprocessor sets {', '.join(prepared)}; leave --{next(iter(given))} out"
        )
    base = DataOptions() if preprocessor is None else read_preprocessor(preprocessor)
    rest = {"layout": layout, "color": color, "example": example, "limit": limit, "nonfinite": nonfinite}
    return replace(base, **given, **rest)  # type: ignore[arg-type]


Described = Annotated["DataOptions", OptionGroup(_describe)]


def _number(text: str, option: str) -> float:
    over, _, under = text.partition("/")
    try:
        return float(over) / float(under or 1)  # not as a Fraction, whose integers could fill the memory
    except (ValueError, ZeroDivisionError):
        raise typer.BadParameter(f"{option} is {text!r:.40}; give a number, as 0.5 or 1/255") from None


def _numbers(text: str | None, option: str) -> float | tuple[float, ...] | None:
    if text is None:
        return None
    numbers = tuple(_number(part, option) for part in text.split(","))
    return numbers[0] if len(numbers) == 1 else numbers


def _side(text: str) -> int:
    if len(text) > 15:
        raise typer.BadParameter(f"--resize is {text!r:.40}; give fewer digits")
    return int(text)


def _size(text: str | None, option: str) -> tuple[int, int] | None:
    if text is None:
        return None
    parts = text.lower().split("x")
    if len(parts) != 2 or not all(part.isdecimal() and len(part) < 16 for part in parts):
        raise typer.BadParameter(f"{option} is {text!r:.40}; give width and height, as 224x224")
    return int(parts[0]), int(parts[1])
