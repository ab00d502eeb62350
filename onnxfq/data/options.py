"""Data options, and the preprocessing that they ask for: `(value * scale - mean) / std`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnxfq.choices import RESAMPLES as RESAMPLES
from onnxfq.choices import Nonfinite as Nonfinite
from onnxfq.choices import PaddingChoice as PaddingChoice
from onnxfq.data.inputs import Feed, Inputs, InputSpec
from onnxfq.errors import DataError, nearest

Numbers = float | tuple[float, ...]

CHOICES = {
    "layout": ("nchw", "nhwc"),
    "color": ("rgb", "bgr", "gray"),
    "resample": RESAMPLES,
    "nonfinite": ("stop", "skip"),
    "padding": ("cut", "fill", "pooled", "keep"),
}


MOST_PIXELS = 1 << 26
"""Most pixels of an image in float32: 805 MB with three channels."""


@dataclass(frozen=True)
class DataOptions:
    """Options for reading data. The defaults change no value and reject wrong data.

    The only float input gets `(value * scale - mean) / std` in float32.

    Attributes:
        scale: factor of the values.
        mean: one number, or one per channel of an image.
        std: one number, or one per channel of an image.
        resize: (width, height) of images, or the length of their shorter side; the longer one follows in
            proportion, rounded down.
        crop: (width, height) of the middle of images, after resizing; left and top margins are rounded down.
        resample: filter of resizing, one of RESAMPLES; None is bilinear.
        layout: `nchw` or `nhwc`, if the shape of the model's input does not show it.
        color: channels of images, `rgb`, `bgr` or `gray`.
        example: a known-good sample, as a dict or a file; data whose range differs more than eightfold is
            rejected.
        nonfinite: `stop` at NaN and infinities in the data, or `skip` the check.
        padding: `cut` what a mask hides where runs prove that no output changes by it; `fill`: the
            others take its place, and sizes stay; `pooled`: cut where no output has its positions; `keep`.
        limit: number of samples to read; number of runs if the model fixes its batch.
        survey: warn about few, constant or repeated samples, and compute the digest of the data.
    """

    scale: float | None = None
    mean: Numbers | None = None
    std: Numbers | None = None
    resize: tuple[int, int] | int | None = None
    crop: tuple[int, int] | None = None
    resample: str | None = None
    layout: str | None = None
    color: str | None = None
    example: str | Path | Mapping[str, NDArray[Any]] | None = None
    nonfinite: Nonfinite = "stop"
    padding: PaddingChoice = "cut"
    limit: int | None = None
    survey: bool = True

    def __post_init__(self) -> None:
        """Raise DataError for an invalid value."""
        for option, known in CHOICES.items():
            value = getattr(self, option)
            if value is not None and value not in known:
                raise DataError(f"unknown {option} {value!r}{nearest(str(value), known)}")
        if self.limit is not None and self.limit < 1:
            raise DataError(f"limit is {self.limit}; read at least 1 sample")
        for option in ("resize", "crop"):
            size = getattr(self, option)
            width, height = (1, 1) if size is None else size if isinstance(size, tuple) else (size, size)
            if min(width, height) < 1:
                raise DataError(f"{option} is {width}x{height}; give a width and height of at least 1")
            if width * height > MOST_PIXELS:
                raise DataError(f"{option} is {width}x{height}, more than {MOST_PIXELS:,} pixels; give less")
        for option in ("scale", "mean", "std"):
            value = getattr(self, option)
            numbers = () if value is None else np.ravel(np.asarray(value, object))
            if not all(isinstance(one, Real | np.number) for one in numbers):
                raise DataError(f"{option} is {value!r:.40}; give a number, or one for each channel")
            if value is not None and not np.isfinite(value).all():
                raise DataError(f"{option} is {value}; give finite numbers")
            if value is not None and option != "mean" and not np.all(value):
                raise DataError(f"{option} is {value}; a zero would lose the data, give other numbers")

    @property
    def unsurveyed(self) -> DataOptions:
        """The same for runs that calibrate nothing: number and variety of samples do not matter there."""
        return replace(self, survey=False)

    @property
    def padded(self) -> DataOptions:
        """The same for what shows the shapes of the data, or times them."""
        return replace(self, padding="keep")

    @property
    def labelled(self) -> DataOptions:
        """The same for outputs that labels or a metric read: these keep their shapes."""
        return replace(self, padding="pooled") if self.padding == "cut" else self

    @property
    def prepares(self) -> bool:
        """Tell whether values are changed, or declared right by `scale=1`."""
        return any(value is not None for value in (self.scale, self.mean, self.std))


def prepare(arrays: Feed, inputs: Inputs, options: DataOptions) -> Feed:
    """Return `arrays`, whose shapes fit, with the only float input preprocessed as in `options`.

    Every step of the arithmetic is float32. Raises DataError unless the model has exactly one float input.
    """
    if not options.prepares:
        return arrays
    floats = [spec for spec in inputs if spec.dtype.kind == "f"]
    if len(floats) != 1:
        raise DataError(
            f"scale, mean and std prepare the one float input, and the model has {len(floats)} "
            f"({', '.join(map(str, inputs))}); prepare the arrays and leave these options out"
        )
    spec = floats[0]
    if arrays[spec.name].dtype.kind not in "fiu":
        return arrays
    values = arrays[spec.name].astype(np.float32)
    if options.scale is not None:
        values = values * np.float32(options.scale)
    if options.mean is not None:
        values = values - _channels(options.mean, values, image_layout(spec, options), "mean")
    if options.std is not None:
        values = values / _channels(options.std, values, image_layout(spec, options), "std")
    # NumPy turns an array of rank 0 into a number; asarray turns it back.
    return arrays | {spec.name: np.asarray(values)}


def image_layout(spec: InputSpec, options: DataOptions) -> str | None:
    """Return `nchw` or `nhwc` from the options, otherwise from the input's shape; None for other inputs."""
    if spec.shape is None or len(spec.shape) != 4:
        return None
    if options.layout is not None:
        return options.layout
    last = spec.shape[3] in (1, 3) and spec.shape[1] not in (1, 3)
    return "nhwc" if last else "nchw"


def _channels(
    numbers: Numbers, values: NDArray[np.float32], layout: str | None, option: str
) -> NDArray[np.float32]:
    """Return `numbers` in a shape that broadcasts along the channel axis of `values`."""
    given = np.asarray(numbers, np.float32).reshape(-1)
    if given.size == 1:
        return given.reshape(())
    if layout is None:
        raise DataError(
            f"{option} has {given.size} numbers, and an input of shape {list(values.shape)} has no channels; "
            "give one number"
        )
    channels = values.shape[1 if layout == "nchw" else 3]
    if channels != given.size:
        raise DataError(
            f"{option} has {given.size} numbers, and the data {channels} channels ({layout}, "
            f"{list(values.shape)}); give {channels} or one, or another --layout"
        )
    return given.reshape(-1, 1, 1) if layout == "nchw" else given
