"""What a model is fed with: reading it, cutting it into batches, and saying what is wrong with it.

Sources: an .npz keyed by input name, a folder of .npz files (one feed each), or any Python iterable
of {input name: array}. In an .npz, an array of the input's rank holds samples along axis 0; with
one axis more, axis 0 counts whole feeds.
"""

from __future__ import annotations

import logging
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnxfq.errors import DataError, nearest

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
        dims = "unknown" if self.shape is None else [("?" if n is None else n) for n in self.shape]
        return f"{self.name} {self.dtype} {dims}".replace("'", "")


@dataclass(frozen=True)
class Feeds:
    """Checked feeds for one model; iterating yields {input name: array} that fit its inputs.

    reusable is False for a one-shot iterator, which can be gone through once only.
    """

    data: Data
    inputs: tuple[InputSpec, ...]
    batch: int = DEFAULT_BATCH

    @property
    def reusable(self) -> bool:
        """Tell whether the feeds can be gone through more than once."""
        return isinstance(self.data, (str, Path)) or iter(self.data) is not self.data

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
        counts: dict[str, int] = {}
        steps: dict[str, int] = {}
        for spec in self.inputs:
            array = arrays[spec.name]
            rank = array.ndim if spec.shape is None else len(spec.shape)
            if array.ndim == rank + 1 or (array.ndim == rank and rank > 0):
                counts[spec.name] = array.shape[0]
                steps[spec.name] = 0 if array.ndim == rank + 1 else self._step(spec, array)
            elif array.ndim != rank:
                raise DataError(_misfit(spec, array, f"its rank must be {rank} or {rank + 1}"))
        samples = set(counts.values())
        if len(samples) > 1:
            listed = ", ".join(f"{name} {count}" for name, count in counts.items())
            raise DataError(f"{self._source}: inputs differ in their number of samples ({listed}); give equal ones")
        total = samples.pop() if samples else 1
        # One array that holds whole feeds makes every input advance one sample a run.
        step = 1 if 0 in steps.values() else min(steps.values(), default=1)
        for start in range(0, total, step):
            yield {
                spec.name: self._slice(arrays[spec.name], steps.get(spec.name), start, step)
                for spec in self.inputs
            }

    @staticmethod
    def _slice(array: NDArray[Any], step: int | None, start: int, count: int) -> NDArray[Any]:
        if step is None:
            return array
        return array[start] if step == 0 else array[start : start + count]

    def _step(self, spec: InputSpec, array: NDArray[Any]) -> int:
        """Return how many samples of `array` make one run of the model."""
        fixed = spec.shape[0] if spec.shape else None
        if fixed is None:
            return self.batch
        if fixed == 0 or array.shape[0] % fixed:
            raise DataError(
                _misfit(spec, array, f"the model takes {fixed} samples a run; give a multiple of {fixed}")
            )
        return fixed


def read_npz(path: str | Path) -> Feed:
    """Read an .npz into {name: array}. Raises DataError in one line: missing, not an .npz, pickled."""
    try:
        loaded = np.load(path, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            raise DataError(f"{path} is a single array; save it by input name: numpy.savez(path, INPUT=array)")
        with loaded as data:
            return {name: data[name] for name in data.files}
    except FileNotFoundError:
        raise DataError(f"no such file or folder: {path}; check the path") from None
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as fault:
        raise DataError(f"{path} is not a readable .npz ({fault}); write it with numpy.savez") from None


def _check_names(feed: Mapping[str, Any], inputs: tuple[InputSpec, ...], source: str) -> None:
    wanted = [spec.name for spec in inputs]
    missing = [name for name in wanted if name not in feed]
    unknown = [name for name in feed if name not in wanted]
    if missing:
        got = f"got {', '.join(sorted(feed)) or 'nothing'}"
        raise DataError(f"{source} lacks input {missing[0]!r} ({got}); name arrays as the inputs: {', '.join(wanted)}")
    if unknown:
        raise DataError(
            f"{source} has {unknown[0]!r}, which is no input{nearest(unknown[0], wanted)}; inputs are {', '.join(wanted)}"
        )


def _fit(feed: Mapping[str, Any], spec: InputSpec, number: int) -> NDArray[Any]:
    array = _cast(np.asarray(feed[spec.name]), spec, number)
    if spec.shape is None:
        return array
    where = f"in feed {number}"
    if array.ndim != len(spec.shape):
        raise DataError(_misfit(spec, array, f"its rank must be {len(spec.shape)} {where}"))
    if any(want is not None and want != got for want, got in zip(spec.shape, array.shape, strict=True)):
        raise DataError(_misfit(spec, array, _layout_hint(spec.shape, array.shape) or f"its shape must fit {where}"))
    return array


def _layout_hint(want: tuple[int | None, ...], got: tuple[int, ...]) -> str:
    """Name the transpose that makes the layout fit, when it is NHWC for NCHW or the reverse."""
    if len(want) != 4:
        return ""
    for order, label in (((0, 3, 1, 2), "NHWC, the model wants NCHW"), ((0, 2, 3, 1), "NCHW, the model wants NHWC")):
        moved = [got[i] for i in order]
        if all(w is None or w == m for w, m in zip(want, moved, strict=True)):
            return f"the layout looks like {label}; use array.transpose{order}"
    return ""


def _cast(array: NDArray[Any], spec: InputSpec, number: int) -> NDArray[Any]:
    if array.dtype == spec.dtype:
        return array
    both_float = array.dtype.kind == "f" and spec.dtype.kind == "f"
    both_integer = array.dtype.kind in "iu" and spec.dtype.kind in "iu"
    fits = both_integer and (array == array.astype(spec.dtype)).all()
    if not (both_float or fits):
        hint = "scale the values as in training, then astype" if spec.dtype.kind == "f" else "convert with astype"
        raise DataError(_misfit(spec, array, f"its dtype must be {spec.dtype}; {hint}({str(spec.dtype)!r})"))
    if number == 0:
        log.warning("input %s: %s cast to %s", spec.name, array.dtype, spec.dtype)
    return array.astype(spec.dtype)


def _misfit(spec: InputSpec, array: NDArray[Any], rule: str) -> str:
    return f"input {spec.name!r} got {array.dtype} {list(array.shape)}, the model has [{spec}]: {rule}"
