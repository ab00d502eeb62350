"""Validation of arrays against a model's inputs: names, dtypes, shapes, finite values; notes to the user."""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnxfq.data.inputs import Feed, Inputs, InputSpec, open_count, samples
from onnxfq.errors import DataError, nearest
from onnxfq.support.arrays import StoredArray
from onnxfq.support.readings import reading
from onnxfq.support.records import join_lines

Shape = Sequence[int | None]

log = logging.getLogger(__name__)


class Notes:
    """Logger of warnings, each text once."""

    def __init__(self) -> None:
        self._told: set[str] = set()

    def once(self, text: str, left_of: str = "") -> None:
        """Log `text` as a warning unless it was logged before; it tells what is left of `left_of`."""
        if text not in self._told:
            self._told.add(text)
            log.warning("%s", text, extra=reading(left_of, left=text) if left_of else None)


def check_present(given: Collection[str], inputs: Inputs, source: str) -> str:
    """Return a note on the arrays that the model does not take; empty without any.

    Raises DataError unless `given` has an array for every input.
    """
    wanted = [spec.name for spec in inputs]
    missing = [name for name in wanted if name not in given]
    if missing:
        got = f"got {', '.join(sorted(map(str, given))) or 'nothing'}"
        raise DataError(
            f"{source} lacks input {missing[0]!r} ({got}); name arrays as the inputs: {', '.join(wanted)}"
        )
    extra = [str(name) for name in given if name not in wanted]
    if not extra:
        return ""
    return f"the data has {', '.join(extra)}, which the model does not take; these are left out"


def check_names(given: Collection[str], inputs: Inputs, source: str) -> None:
    """Raise DataError unless `given`, of a file, has an array for every input and nothing else."""
    check_present(given, inputs, source)
    wanted = [spec.name for spec in inputs]
    unknown = [name for name in given if name not in wanted]
    if unknown:
        raise DataError(
            f"{source} has {unknown[0]!r}, which the model does not take{nearest(str(unknown[0]), wanted)}; "
            f"inputs are {', '.join(wanted)}"
        )


def is_array(value: object) -> bool:
    """Return whether `value` is an array or a tensor of any library."""
    return hasattr(value, "__array__") or hasattr(value, "__dlpack__")


def to_array(value: Any, spec: InputSpec, where: str) -> NDArray[Any]:
    """Return `value` as a NumPy array: an array or tensor of any library on any device, or numbers.

    Raises DataError, with the input and `where`, for values that are not arrays.
    """
    try:
        return as_array(value)
    except UNCONVERTIBLE as fault:
        raise DataError(
            f"input {spec.name!r} {where} is not an array ({join_lines(fault)}); give a NumPy array"
        ) from None


UNCONVERTIBLE = (ValueError, TypeError, RuntimeError, BufferError)
"""Errors of `as_array`."""


def as_array(value: Any) -> NDArray[Any]:
    """Return an array or tensor of any library, or numbers, as a NumPy array."""
    # A torch tensor with a gradient or on a GPU does not convert directly.
    for step in ("detach", "cpu"):
        if not isinstance(value, np.ndarray) and callable(getattr(value, step, None)):
            value = getattr(value, step)()
    if not hasattr(value, "__array__") and hasattr(value, "__dlpack__"):
        return np.from_dlpack(value)
    return np.asarray(value)


def fit_shape(array: NDArray[Any], spec: InputSpec, where: str) -> None:
    """Raise DataError unless the input takes the shape of `array`."""
    if spec.shape is None:
        return
    if array.ndim != len(spec.shape):
        hint = layout_hint(spec.shape[1:], array.shape)
        hint = hint or f"its rank must be {len(spec.shape)} {where}{rank_hint(spec, array)}"
        raise DataError(misfit(spec, array, hint))
    if not _takes(spec.shape, array.shape):
        fixed = spec.shape[0] if len(spec.shape) > 1 else None
        hint = layout_hint(spec.shape, array.shape)
        if not hint and fixed is not None and _takes(spec.shape[1:], array.shape[1:]):
            hint = f"the model takes {fixed} samples a run; give a multiple of {fixed} {where}"
        images = "; give images as files, which are resized (--resize, --color), or arrays of that shape"
        rule = f"its shape must fit {where}{images if array.ndim == 4 else ''}"
        raise DataError(misfit(spec, array, hint or rule))


def rank_hint(spec: InputSpec, array: NDArray[Any] | StoredArray) -> str:
    """Return what makes an array of another rank fit, where its sizes tell; "" where they do not."""
    wanted = (spec.shape or ())[1:]
    if len(array.shape) < 2 < len(wanted):
        return "; data are the samples that the model reads, and not their labels"
    if None in wanted or not wanted:
        return ""
    if _takes(wanted, array.shape):
        return "; it is one sample: use array[None]"
    fits = math.prod(array.shape[1:]) == math.prod(size or 0 for size in wanted)
    return f"; use array.reshape(-1, {', '.join(map(str, wanted))})" if array.shape and fits else ""


def layout_hint(want: Shape, got: Shape) -> str:
    """Return the transpose that makes an image fit if NHWC and NCHW are swapped; otherwise nothing."""
    batch = [0] * (len(want) == 4)
    if len(want) not in (3, 4) or len(got) != len(want) or _takes(want, got):
        return ""
    a, b, c = range(len(batch), len(batch) + 3)
    n = "N" * len(batch)
    for order, label in (
        ((c, a, b), f"{n}HWC, the model wants {n}CHW"),
        ((b, c, a), f"{n}CHW, the model wants {n}HWC"),
    ):
        axes = (*batch, *order)
        if _takes(want, [got[axis] for axis in axes]):
            return f"the layout looks like {label}; use array.transpose{axes}"
    return ""


def cast(array: NDArray[Any], spec: InputSpec, where: str, notes: Notes) -> NDArray[Any]:
    """Return `array` in the input's dtype. Raises DataError if the cast would change their meaning."""
    if array.dtype == spec.dtype:
        return array
    if spec.dtype.kind == "O" and array.dtype.kind == "U":  # strings, as stored in an .npz without pickles
        return array.astype(object)
    both_float = array.dtype.kind == "f" and spec.dtype.kind == "f"
    both_integer = array.dtype.kind in "iu" and spec.dtype.kind in "iu"
    if not (both_float or both_integer):
        hint = f"convert with astype({spec.type_name!r})"
        if spec.dtype.kind == "f" and array.dtype.kind in "iu":
            hint = (
                "give --scale as in training (0.00392 turns 0..255 into 0..1, 1 leaves it), "
                f"or scale it and then astype({str(spec.dtype)!r})"
            )
        raise DataError(misfit(spec, array, f"its dtype must be {spec.type_name}; {hint}"))
    with np.errstate(over="ignore"):  # reported below
        changed = array.astype(spec.dtype)
    lost = np.isinf(changed) & ~np.isinf(array) if both_float else changed != array
    if lost.any():
        value = f"{array[lost][0]} {where}"
        raise DataError(misfit(spec, array, f"{value} does not fit {spec.dtype}; give values that do"))
    notes.once(f"input {spec.name}: {array.dtype} cast to {spec.dtype}")
    return changed


def check_finite(feed: Feed, inputs: Inputs, first: int) -> None:
    """Raise DataError with input, sample and counts if `feed` has NaN or infinities.

    Args:
        feed: arrays by input name.
        inputs: inputs of the model.
        first: number of the feed's first sample.
    """
    floats = [spec.name for spec in inputs if feed[spec.name].dtype.kind == "f"]
    if all(np.isfinite(feed[name]).all() for name in floats):
        return
    for number, sample in enumerate(samples(feed, inputs), first):
        for name in floats:
            nans, infinities = np.isnan(sample[name]).sum(), np.isinf(sample[name]).sum()
            if nans or infinities:
                word = "feed" if open_count(feed, inputs) is None else "sample"
                raise DataError(
                    f"input {name!r} has {nans} NaN and {infinities} infinite values in {word} {number}; "
                    "remove it, or let such values pass with --nonfinite skip"
                )


def misfit(spec: InputSpec, array: NDArray[Any] | StoredArray, rule: str) -> str:
    """Return an error line with the array's type and shape, the input, and the rule."""
    return f"input {spec.name!r} got {array.dtype} {list(array.shape)}, the model has [{spec}]: {rule}"


def _takes(want: Shape, got: Shape) -> bool:
    return len(want) == len(got) and all(w is None or w == g for w, g in zip(want, got, strict=True))
