"""Preprocessing of raw values to those in training: `(value * scale - mean) / std`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from onnxfq.data.inputs import Feed, Inputs, InputSpec
from onnxfq.data.options import DataOptions, Numbers
from onnxfq.errors import DataError


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
