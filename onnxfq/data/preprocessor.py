"""Hugging Face's `preprocessor_config.json` as data options."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pydantic

from onnxfq.data.options import RESAMPLES, DataOptions
from onnxfq.errors import DataError, nearest
from onnxfq.support.records import Record, read_document

_SQUARE, _SHORTEST = "square", "shortest edge"
_PROCESSORS = {
    "Beit": _SQUARE,
    "Bit": _SHORTEST,
    "CLIP": _SHORTEST,
    "ConvNext": _SHORTEST,
    "DeiT": _SQUARE,
    "MobileNetV1": _SHORTEST,
    "MobileNetV2": _SHORTEST,
    "Siglip": _SQUARE,
    "ViT": _SQUARE,
}
"""Processors that resize, crop, rescale and normalize, by the meaning of a size that is one number."""

_CROP_PCT_LIMIT = 384
"""Size from which ConvNext's processor warps the image to a square without cropping."""


class _Size(Record):
    """A size; a number is all of them, of which the processor takes its own."""

    height: int | None = None
    width: int | None = None
    shortest_edge: int | None = None

    @pydantic.model_validator(mode="before")
    @classmethod
    def _spread(cls, size: Any) -> Any:
        return dict.fromkeys(cls.model_fields, size) if isinstance(size, int) else size


class _Config(Record):
    """Fields of the file that change values, and fields that do not."""

    image_processor_type: str | None = None
    feature_extractor_type: str | None = None
    do_resize: bool | None = None
    size: _Size | None = None
    resample: Literal[0, 1, 2, 3, 4, 5] | None = None
    do_center_crop: bool | None = None
    crop_size: _Size | None = None
    crop_pct: float | None = None
    do_rescale: bool | None = None
    rescale_factor: float | None = None
    do_normalize: bool | None = None
    image_mean: tuple[float, ...] | None = None
    image_std: tuple[float, ...] | None = None
    do_pad: Literal[False] | None = None
    do_reduce_labels: Any = None  # for segmentation maps
    do_convert_rgb: Any = None  # images are read as RGB
    default_to_square: Any = None
    data_format: Any = None  # the model's input has the layout
    input_data_format: Any = None
    processor_class: Any = None
    return_tensors: Any = None
    device: Any = None
    disable_grouping: Any = None
    image_seq_length: Any = None


def read_preprocessor(path: str | Path) -> DataOptions:
    """Return the options of a `preprocessor_config.json` that prepare images as its processor does.

    The order is: resize, centre crop, rescale, mean and std.

    Raises DataError in one line for another processor, an unknown field, or a step without its values.
    """
    config = read_document(path, _Config, DataError)
    rule = _PROCESSORS[_find_processor(config, path)]
    options = DataOptions()
    if config.do_resize or (config.do_resize is None and config.size is not None):
        options = replace(options, **_resize(config, rule, path))
    if config.do_center_crop or (config.do_center_crop is None and config.crop_size is not None):
        options = replace(options, crop=_pair(_require(config, "crop_size", path), path))
    scale = 1.0
    if config.do_rescale or config.do_rescale is None:
        scale = 1 / 255 if config.rescale_factor is None else config.rescale_factor
    options = replace(options, scale=scale)
    if config.do_normalize or (config.do_normalize is None and config.image_mean is not None):
        mean, std = _require(config, "image_mean", path), _require(config, "image_std", path)
        options = replace(options, mean=mean, std=std)
    return options


def _find_processor(config: _Config, path: str | Path) -> str:
    given = config.image_processor_type or config.feature_extractor_type or ""
    name = given
    for ending in ("Fast", "ImageProcessor", "FeatureExtractor"):
        name = name.removesuffix(ending)
    if name not in _PROCESSORS:
        hint = nearest(name, _PROCESSORS) or f"; known: {', '.join(_PROCESSORS)}"
        raise DataError(
            f"{path}: unknown image processor {given!r}: give --resize, --crop, --scale, --mean, --std{hint}"
        )
    if (config.crop_pct is not None) != (name == "ConvNext"):
        raise DataError(f"{path}: crop_pct is {config.crop_pct}; only ConvNext's processor takes it, always")
    return name


def _require(config: _Config, field: str, path: str | Path) -> Any:
    value = getattr(config, field)
    if value is None:
        raise DataError(f"{path}: {field} is missing; add it as the processor's class has it")
    return value


def _resize(config: _Config, rule: str, path: str | Path) -> dict[str, Any]:
    """Return the options of resizing. `crop_pct` means what ConvNext's processor does with it."""
    size = _require(config, "size", path)
    short = size.shortest_edge if rule == _SHORTEST or size.width is None else None
    options = {"resample": RESAMPLES[_require(config, "resample", path)]}
    if config.crop_pct is not None and short is not None and short < _CROP_PCT_LIMIT:
        return options | {"resize": int(short / config.crop_pct), "crop": (short, short)}
    if config.crop_pct is not None and short is not None:
        return options | {"resize": (short, short)}
    return options | {"resize": _pair(size, path) if short is None else short}


def _pair(size: _Size, path: str | Path) -> tuple[int, int]:
    """Return width and height."""
    if size.width is None or size.height is None:
        raise DataError(f"{path}: a size is {{height, width}} or {{shortest_edge}}, got {size!r}")
    return size.width, size.height
