"""How data is to be read: the values' preparation, the shape of images, what is let through."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from onnxfq.errors import DataError, nearest

Numbers = float | tuple[float, ...]
Nonfinite = Literal["stop", "skip"]

CHOICES = {"layout": ("nchw", "nhwc"), "color": ("rgb", "bgr", "gray"), "nonfinite": ("stop", "skip")}


@dataclass(frozen=True)
class DataOptions:
    """How data is read. The default changes no value and stops at what cannot be right.

    scale, mean, std: the one float input is fed with `(value * scale - mean) / std`, in float32; mean and
    std are one number, or one for each channel of an image. resize: (width, height) of images. layout:
    `nchw` or `nhwc`, where the model's input does not tell. color: channels of images, `rgb`, `bgr` or
    `gray`. example: one right feed, as a dict or a file; data whose range differs from it more than
    eightfold is refused. nonfinite: `stop` at NaN and infinities in the data, or `skip` the check.
    limit: read the first samples only, so many; runs, where the model fixes its batch. survey: tell
    when samples are few, constant or repeated, and make the digest of the data.
    """

    scale: float | None = None
    mean: Numbers | None = None
    std: Numbers | None = None
    resize: tuple[int, int] | None = None
    layout: str | None = None
    color: str | None = None
    example: str | Path | Mapping[str, NDArray[Any]] | None = None
    nonfinite: Nonfinite = "stop"
    limit: int | None = None
    survey: bool = True

    def __post_init__(self) -> None:
        """Raise DataError for a value that no option takes."""
        for option, known in CHOICES.items():
            value = getattr(self, option)
            if value is not None and value not in known:
                raise DataError(f"unknown {option} {value!r}{nearest(str(value), known)}")
        if self.limit is not None and self.limit < 1:
            raise DataError(f"limit is {self.limit}; read at least 1 sample")
        if self.resize is not None and min(self.resize) < 1:
            raise DataError(
                f"resize is {self.resize[0]}x{self.resize[1]}; give a width and height of at least 1"
            )
        for option in ("scale", "mean", "std"):
            value = getattr(self, option)
            if value is not None and not np.isfinite(value).all():
                raise DataError(f"{option} is {value}; give finite numbers")
            if value is not None and option != "mean" and not np.all(value):
                raise DataError(f"{option} is {value}; a zero would lose the data, give other numbers")

    @property
    def prepares(self) -> bool:
        """Whether values are changed, or at least said to be right as they are (`scale=1`)."""
        return any(value is not None for value in (self.scale, self.mean, self.std))
