"""What a model is fed with: reading it, cutting it into batches, and saying what is wrong with it.

Sources: an .npz keyed by input name, a folder of .npz files (one feed each), or any Python iterable
of {input name: array}. In an .npz, an array of the input's rank holds samples along axis 0; with
one axis more, axis 0 counts whole feeds; an array for a scalar input may also be one value for all.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnxfq.documents import one_line
from onnxfq.errors import DataError, nearest
from onnxfq.files import UNREADABLE, SingleArrayError, load_npz

log = logging.getLogger(__name__)

Feed = dict[str, NDArray[Any]]
Data = str | Path | Iterable[Mapping[str, NDArray[Any]]]

DEFAULT_BATCH = 8
"""Samples a run where the model leaves the batch axis open."""


@dataclass(frozen=True)
class InputSpec:
    """Name, NumPy dtype and shape of a model input; None marks an open dimension, or an unknown shape."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int | None, ...] | None

    def __str__(self) -> str:
        """Spell it as in a message: `x float32 [?, 3]`."""
        dims = "unknown" if self.shape is None else [("?" if n is None else n) for n in self.shape]
        return f"{self.name} {self.dtype} {dims}".replace("'", "")


@dataclass(frozen=True)
class Feeds:
    """Checked feeds for one model; iterating yields {input name: array} that fit its inputs.

    A one-shot iterator as data can be gone through once only.
    """

    data: Data
    inputs: tuple[InputSpec, ...]
    batch: int = DEFAULT_BATCH

    def __iter__(self) -> Iterator[Feed]:
        """Yield the feeds in order. Raises DataError in one line for the first fault, or for no data."""
        empty = True
        for number, feed in enumerate(self._raw()):
            empty = False
            yield {spec.name: _fit(feed, spec, number) for spec in self.inputs}
        if empty:
            raise DataError(f"{self._source} holds no samples; give at least one")

    @property
    def _source(self) -> str:
        return str(self.data) if isinstance(self.data, (str, Path)) else "the data given"

    def _raw(self) -> Iterator[Mapping[str, NDArray[Any]]]:
        if isinstance(self.data, (str, Path)):
            path = Path(self.data)
            if path.is_dir():
                yield from self._folder(path)
            else:
                yield from self._split(read_npz(path))
            return
        if isinstance(self.data, Mapping) or not isinstance(self.data, Iterable):
            raise DataError(
                f"the data given is a {type(self.data).__name__}; give an .npz, a folder of them, "
                "or a list of feeds {input name: array}"
            )
        for number, feed in enumerate(self.data):
            if not isinstance(feed, Mapping):
                raise DataError(
                    f"feed {number} is a {type(feed).__name__}; give a dict {{input name: array}} for "
                    f"{', '.join(spec.name for spec in self.inputs)}"
                )
            _check_names(feed, self.inputs, f"feed {number}")
            yield feed

    def _folder(self, folder: Path) -> Iterator[Mapping[str, NDArray[Any]]]:
        files = sorted(folder.glob("*.npz"))
        if not files:
            raise DataError(f"no .npz file in folder {folder}; write one feed a file with numpy.savez")
        for file in files:
            feed = read_npz(file)
            _check_names(feed, self.inputs, str(file))
            yield feed

    def _split(self, arrays: Feed) -> Iterator[Feed]:
        """Cut the arrays of one .npz into feeds."""
        _check_names(arrays, self.inputs, self._source)
        runs: dict[str, int] = {}
        samples: dict[str, int] = {}
        for spec in self.inputs:
            array = arrays[spec.name]
            rank = array.ndim if spec.shape is None else len(spec.shape)
            if array.ndim == rank + 1:
                runs[spec.name] = array.shape[0]
            elif array.ndim != rank:
                raise DataError(_misfit(spec, array, f"its rank must be {rank} or {rank + 1}"))
            elif rank and spec.shape and spec.shape[0] is not None:
                runs[spec.name] = _whole_runs(spec, array, spec.shape[0])
            elif rank:
                samples[spec.name] = array.shape[0]
        self._check_equal(runs, "runs")
        self._check_equal(samples, "samples")
        total = next(iter(samples.values()), 0)
        if runs:
            # Inputs of fixed batch, and arrays of whole feeds, tell how the others are cut.
            count = next(iter(runs.values()))
            step = total // max(count, 1)
            if total != count * step:
                name = next(iter(samples))
                raise DataError(
                    f"{self._source}: input {name!r} has {total} samples for {count} runs; "
                    f"give a multiple of {count}"
                )
        else:
            step = self.batch
            count = -(-total // step) if samples else 1
        for run in range(count):
            yield {
                spec.name: _part(arrays[spec.name], spec, run, step if spec.name in samples else None)
                for spec in self.inputs
            }

    def _check_equal(self, counts: dict[str, int], what: str) -> None:
        if len(set(counts.values())) > 1:
            listed = ", ".join(f"{name} {count}" for name, count in counts.items())
            raise DataError(
                f"{self._source}: inputs differ in their number of {what} ({listed}); give equal ones"
            )


def _whole_runs(spec: InputSpec, array: NDArray[Any], fixed: int) -> int:
    """Return how many runs of a fixed batch `array` holds."""
    if fixed == 0 or array.shape[0] % fixed:
        raise DataError(
            _misfit(spec, array, f"the model takes {fixed} samples a run; give a multiple of {fixed}")
        )
    return int(array.shape[0]) // fixed


def _part(array: NDArray[Any], spec: InputSpec, run: int, step: int | None) -> NDArray[Any]:
    """Return what run number `run` reads of `array`; step: samples a run where the batch axis is open."""
    if step is None:
        if spec.shape is None or array.ndim == 0:
            return array
        if array.ndim > len(spec.shape):
            return np.asarray(array[run])
        step = spec.shape[0] or 0
    return array[run * step : (run + 1) * step]


def read_npz(path: str | Path) -> Feed:
    """Read an .npz into {name: array}. Raises DataError in one line: missing, not an .npz, pickled."""
    try:
        return load_npz(path)
    except FileNotFoundError:
        raise DataError(f"no such file or folder: {path}; check the path") from None
    except SingleArrayError:
        raise DataError(
            f"{path} is a single array; save it by input name: numpy.savez(path, INPUT=array)"
        ) from None
    except UNREADABLE as fault:
        text = one_line(fault)
        raise DataError(
            f"{path} is not a readable .npz ({text}); write it with numpy.savez(path, INPUT=array)"
        ) from None


def _check_names(feed: Mapping[str, Any], inputs: tuple[InputSpec, ...], source: str) -> None:
    wanted = [spec.name for spec in inputs]
    missing = [name for name in wanted if name not in feed]
    unknown = [name for name in feed if name not in wanted]
    if missing:
        got = f"got {', '.join(sorted(feed)) or 'nothing'}"
        raise DataError(
            f"{source} lacks input {missing[0]!r} ({got}); name arrays as the inputs: {', '.join(wanted)}"
        )
    if unknown:
        raise DataError(
            f"{source} has {unknown[0]!r}, which is no input{nearest(unknown[0], wanted)}; "
            f"inputs are {', '.join(wanted)}"
        )


def _fit(feed: Mapping[str, Any], spec: InputSpec, number: int) -> NDArray[Any]:
    try:
        given = np.asarray(feed[spec.name])
    except ValueError as fault:
        text = one_line(fault)
        raise DataError(
            f"input {spec.name!r} in feed {number} is no array ({text}); give a NumPy array"
        ) from None
    array = _cast(given, spec, number)
    if spec.shape is None:
        return array
    where = f"in feed {number}"
    if array.ndim != len(spec.shape):
        raise DataError(_misfit(spec, array, f"its rank must be {len(spec.shape)} {where}"))
    if any(want is not None and want != got for want, got in zip(spec.shape, array.shape, strict=True)):
        hint = _layout_hint(spec.shape, array.shape)
        raise DataError(_misfit(spec, array, hint or f"its shape must fit {where}"))
    return array


def _layout_hint(want: tuple[int | None, ...], got: tuple[int, ...]) -> str:
    """Name the transpose that makes the layout fit, when it is NHWC for NCHW or the reverse."""
    if len(want) != 4:
        return ""
    orders = (((0, 3, 1, 2), "NHWC, the model wants NCHW"), ((0, 2, 3, 1), "NCHW, the model wants NHWC"))
    for order, label in orders:
        moved = [got[i] for i in order]
        if all(w is None or w == m for w, m in zip(want, moved, strict=True)):
            return f"the layout looks like {label}; use array.transpose{order}"
    return ""


def _cast(array: NDArray[Any], spec: InputSpec, number: int) -> NDArray[Any]:
    if array.dtype == spec.dtype:
        return array
    both_float = array.dtype.kind == "f" and spec.dtype.kind == "f"
    both_integer = array.dtype.kind in "iu" and spec.dtype.kind in "iu"
    if not (both_float or both_integer):
        how = "scale the values as in training, then" if spec.dtype.kind == "f" else "convert with"
        hint = f"{how} astype({str(spec.dtype)!r})"
        raise DataError(_misfit(spec, array, f"its dtype must be {spec.dtype}; {hint}"))
    with np.errstate(over="ignore"):  # reported below
        cast = array.astype(spec.dtype)
    lost = np.isinf(cast) & ~np.isinf(array) if both_float else cast != array
    if lost.any():
        value = f"{array[lost][0]} in feed {number}"
        raise DataError(_misfit(spec, array, f"{value} does not fit {spec.dtype}; give values that do"))
    if number == 0:
        log.warning("input %s: %s cast to %s", spec.name, array.dtype, spec.dtype)
    return cast


def _misfit(spec: InputSpec, array: NDArray[Any], rule: str) -> str:
    return f"input {spec.name!r} got {array.dtype} {list(array.shape)}, the model has [{spec}]: {rule}"
