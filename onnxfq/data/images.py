"""Image files, read with Pillow, as arrays of 0..255 in the layout, size and channels of the input."""

from __future__ import annotations

import types
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnxfq.data.inputs import Inputs, InputSpec
from onnxfq.data.options import MOST_PIXELS, RESAMPLES, DataOptions, image_layout
from onnxfq.errors import DataError
from onnxfq.support.other_words import explain_missing
from onnxfq.support.reading import open_input
from onnxfq.support.records import join_lines

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff", ".gif")
FORMATS = ("PNG", "JPEG", "BMP", "WEBP", "TIFF", "GIF")
"""Formats that Pillow may read: others start programs, such as Ghostscript for PostScript."""
_TURN = 0x0112
"""Number of EXIF's orientation; 1 is upright."""
_TOO_MANY = f"more than {MOST_PIXELS:,}; remove it"
CHANNELS = {"rgb": 3, "bgr": 3, "gray": 1}


def image_input(inputs: Inputs, options: DataOptions) -> InputSpec:
    """Return the only input, which takes images. Raises DataError for several inputs or another rank."""
    spec = inputs[0] if len(inputs) == 1 else None
    if spec is None or image_layout(spec, options) is None:
        raise DataError(
            f"images need a model with one input of rank 4, it has [{'], ['.join(map(str, inputs))}]; "
            "give an .npz with an array for each input"
        )
    return spec


def read_image(path: Path, spec: InputSpec, options: DataOptions) -> tuple[NDArray[np.uint8], list[str]]:
    """Return one image as uint8 [1, channels, height, width], or with the channels last, and notes.

    Options for size and channels take precedence over the input's fixed ones. Resizing uses Pillow's filters,
    bilinear by default. A resize without an option, a turn by EXIF and further pictures give a note.
    Raises DataError for an unreadable image, and for one that is smaller than the crop.
    """
    color = _color(spec, options)
    pillow = load_pillow()
    try:
        with open_input(path) as stream, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow's, about colors and sizes that are handled here
            image = pillow.open(stream, formats=FORMATS)
            if image.width * image.height > MOST_PIXELS:
                raise DataError(f"{path} has {image.width}x{image.height} pixels, {_TOO_MANY}")
            if image.mode.startswith(("I", "F")):
                raise DataError(f"{path} has more than 8 bits a channel; give an .npz of prepared arrays")
            pixels = image.convert("L" if color == "gray" else "RGB")
            turned = _turned(pixels, image.getexif().get(_TURN, 1))
            notes = [] if turned is pixels else [f"images are turned as their EXIF says, {path} for one"]
            if _has_more(image):
                notes.append(f"of files with several pictures the first is read, of {path} for one")
    except FileNotFoundError:
        raise DataError(f"no such file or folder: {path}; {explain_missing(path)}") from None
    except DataError:
        raise
    except pillow.UnidentifiedImageError:
        raise DataError(
            f"{path} is not a readable image (none of {', '.join(FORMATS)}); remove or repair it"
        ) from None
    except Exception as fault:  # a damaged image ends in many errors of Pillow's formats
        raise DataError(
            f"{path} is not a readable image ({join_lines(fault)}); remove or repair it"
        ) from None
    pixels, asked = turned, options.resize or options.crop
    size = _resized(pixels.size, options.resize) if asked else _size(spec, options)
    if size is not None and pixels.size != size:
        if size[0] * size[1] > MOST_PIXELS:
            raise DataError(f"{path} would be resized to {size[0]}x{size[1]}, {_TOO_MANY}")
        pixels = pixels.resize(size, RESAMPLES.index(options.resample or "bilinear"))
        notes += [] if asked else [f"images are resized to the input's {size[0]}x{size[1]}, not cropped"]
    if options.crop is not None:
        pixels = pixels.crop(_middle(pixels.size, options.crop, path))
    array: NDArray[np.uint8] = np.array(pixels, np.uint8).reshape(pixels.height, pixels.width, -1)
    if color == "bgr":
        array = array[..., ::-1]
    if image_layout(spec, options) == "nchw":
        array = array.transpose(2, 0, 1)
    return np.ascontiguousarray(array)[np.newaxis], notes


def _turned(pixels: Any, turn: int) -> Any:
    """Return an image as viewers show it, by EXIF's orientation `turn`, 1 to 8; others leave it as it is."""
    # In the order of Pillow's transpositions: mirrored, upside down and the four turns of both.
    ways = {2: 0, 3: 3, 4: 1, 5: 5, 6: 4, 7: 6, 8: 2}
    return pixels.transpose(ways[turn]) if turn in ways else pixels


def _has_more(image: Any) -> bool:
    try:
        image.seek(1)
    except Exception:  # it ends, or is damaged behind what is read
        return False
    return True


def _resized(size: tuple[int, int], wanted: tuple[int, int] | int | None) -> tuple[int, int]:
    """Return width and height of an image of `size` after the option `resize`."""
    if wanted is None or isinstance(wanted, tuple):
        return wanted or size
    width, height = (side * wanted // min(size) for side in size)
    return width, height


def _middle(size: tuple[int, int], crop: tuple[int, int], path: Path) -> tuple[int, int, int, int]:
    """Return left, top, right and bottom of the crop. Raises DataError if the image is smaller."""
    if crop[0] > size[0] or crop[1] > size[1]:
        raise DataError(
            f"{path} is {size[0]}x{size[1]}, smaller than the crop {crop[0]}x{crop[1]}; "
            f"give a smaller --crop, or --resize {max(crop)}"
        )
    left, top = ((side - part) // 2 for side, part in zip(size, crop, strict=True))
    return left, top, left + crop[0], top + crop[1]


def _color(spec: InputSpec, options: DataOptions) -> str:
    """Return the color from the options, otherwise from the channels of the input."""
    shape = spec.shape or ()
    channels = shape[1 if image_layout(spec, options) == "nchw" else 3]
    color = options.color or ("gray" if channels == 1 else "rgb")
    if channels not in (None, CHANNELS[color]):
        raise DataError(
            f"images as {color} have {CHANNELS[color]} channels, the model has [{spec}] with {channels}; "
            "give --color or --layout, or an .npz"
        )
    return color


def _size(spec: InputSpec, options: DataOptions) -> tuple[int, int] | None:
    """Return the fixed (width, height) of the input, or None."""
    shape = spec.shape or ()
    height, width = shape[2:] if image_layout(spec, options) == "nchw" else shape[1:3]
    return None if height is None or width is None else (width, height)


def load_pillow() -> types.ModuleType:
    """Return Pillow's module of images. Raises DataError if it is missing."""
    try:
        from PIL import Image
    except ImportError:
        raise DataError(
            'images need Pillow, which is not installed; run pip install "onnxfq[images]"'
        ) from None
    return Image
