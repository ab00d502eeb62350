"""Options of data and its preprocessing, shared by every command that reads data."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from onnxfq.choices import RESAMPLES, Nonfinite, PaddingChoice
from onnxfq.cli.option import DATA, flag, option, refuse
from onnxfq.cli.option_groups import OptionGroup

if TYPE_CHECKING:
    from onnxfq.data import Data, DataOptions

_DATA = option(
    "DATA", "Read an .npz keyed by input name, an .npy, a folder of these or of images, or module:function."
)
DataOption = Annotated[str, _DATA]
OptionalDataOption = Annotated[str | None, _DATA]
NoDataOption = Annotated[
    bool,
    flag("Draw inputs in place of data: no figure is of real data.", "--no-data", panel=DATA),
]

_SCALE = option("NUMBER", "Multiply the values by this first, such as 0.00392 or 1/255.", panel=DATA)
_MEAN = option("NUMBERS", "Then subtract this: one number, or one per channel: 1,2,3.", panel=DATA)
_STD = option("NUMBERS", "Then divide by this: one number, or one per channel.", panel=DATA)
_RESIZE = option(
    "WxH|N", "Resize images to this size or shorter side; default: the input's size.", panel=DATA
)
_CROP = option("WxH", "Then keep this size of the middle of images.", panel=DATA)
_RESAMPLE = option("NAME", f"Resize with this filter: {', '.join(RESAMPLES)}.", panel=DATA)
_PREPROCESSOR = option(
    "FILE", "Prepare images as this preprocessor_config.json of Hugging Face says.", panel=DATA
)
_LAYOUT = option("nchw|nhwc", "Set the layout of images if the input is open.", panel=DATA)
_COLOR = option("rgb|bgr|gray", "Set the channels of images if the input is open.", panel=DATA)
_EXAMPLE = option("FILE", "Check the data against a known-good sample; reject a different scale.", panel=DATA)
_LIMIT = option("N", "Read only this many samples.", panel=DATA, min=1)
_PADDING = option(
    None,
    "Cut padding that changes no output, or fill it; pooled: cut where outputs keep their shapes.",
    panel=DATA,
)
_NONFINITE = option(None, "Stop at NaN and infinities, or skip them.", panel=DATA)


@dataclass(frozen=True)
class Reading:
    """How data becomes feeds, as the words of the command line have it."""

    scale: Annotated[str | None, _SCALE] = None
    mean: Annotated[str | None, _MEAN] = None
    std: Annotated[str | None, _STD] = None
    resize: Annotated[str | None, _RESIZE] = None
    crop: Annotated[str | None, _CROP] = None
    resample: Annotated[str | None, _RESAMPLE] = None
    preprocessor: Annotated[Path | None, _PREPROCESSOR] = None
    layout: Annotated[str | None, _LAYOUT] = None
    color: Annotated[str | None, _COLOR] = None
    example: Annotated[str | None, _EXAMPLE] = None
    limit: Annotated[int | None, _LIMIT] = None
    nonfinite: Annotated[Nonfinite, _NONFINITE] = "stop"
    padding: Annotated[PaddingChoice, _PADDING] = "cut"

    def read(self) -> DataOptions:
        """Return the same for the library. Raises BadParameter and DataError for wrong values."""
        from onnxfq.data import DataOptions
        from onnxfq.data.preprocessor import read_preprocessor

        prepared: dict[str, Any] = {
            "scale": None if self.scale is None else _number(self.scale, "--scale"),
            "mean": _numbers(self.mean, "--mean"),
            "std": _numbers(self.std, "--std"),
            "resize": _resize(self.resize),
            "crop": _size(self.crop, "--crop"),
            "resample": self.resample,
        }
        given = {name: value for name, value in prepared.items() if value is not None}
        if self.preprocessor is not None and given:
            raise typer.BadParameter(
                f"--preprocessor sets {', '.join(prepared)}; leave --{next(iter(given))} out"
            )
        base = DataOptions() if self.preprocessor is None else read_preprocessor(self.preprocessor)
        others = ("layout", "color", "example", "limit", "nonfinite", "padding")
        rest = {name: getattr(self, name) for name in others}
        return replace(base, **given, **rest)


def read_data(data: str | None, no_data: bool) -> Data | None:
    """Return what --data and --no-data name; None without any. Raises BadParameter for both."""
    from onnxfq.data import DrawnInputs

    refuse(no_data and data is not None, "--no-data draws inputs in place of --data; give one of them")
    return DrawnInputs() if no_data else data


Described = Annotated["DataOptions", OptionGroup(Reading, Reading.read)]


def _number(text: str, name: str) -> float:
    over, _, under = text.partition("/")
    try:
        return float(over) / float(under or 1)  # not as a Fraction, whose integers could fill the memory
    except (ValueError, ZeroDivisionError):
        raise typer.BadParameter(f"{name} is {text!r:.40}; give a number, as 0.5 or 1/255") from None


def _numbers(text: str | None, name: str) -> float | tuple[float, ...] | None:
    if text is None:
        return None
    numbers = tuple(_number(part, name) for part in text.split(","))
    return numbers[0] if len(numbers) == 1 else numbers


def _resize(text: str | None) -> int | tuple[int, int] | None:
    if not text or not text.isdecimal():
        return _size(text, "--resize")
    if len(text) > 15:
        raise typer.BadParameter(f"--resize is {text!r:.40}; give fewer digits")
    return int(text)


def _size(text: str | None, name: str) -> tuple[int, int] | None:
    if text is None:
        return None
    parts = text.lower().split("x")
    if len(parts) != 2 or not all(part.isdecimal() and len(part) < 16 for part in parts):
        raise typer.BadParameter(f"{name} is {text!r:.40}; give width and height, as 224x224")
    return int(parts[0]), int(parts[1])
