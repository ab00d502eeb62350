"""Arrays of all samples: reading of .npz and .npy, and cutting into the runs of a model.

An array of the input's rank has its samples along axis 0; with one more axis, axis 0 counts whole runs.
An array for a scalar input may also be one value for all samples.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnxfq.data.inputs import Feed, Inputs, InputSpec, samples_open
from onnxfq.data.validation import check_names, misfit, rank_hint
from onnxfq.errors import DataError
from onnxfq.support.arrays import (
    NPY_MAGIC,
    UNREADABLE,
    SingleArrayError,
    StoredArray,
    load_member,
    load_npy,
    load_npz,
    npz_names,
)
from onnxfq.support.other_words import DATA_FILES, explain_missing
from onnxfq.support.reading import open_input
from onnxfq.support.records import join_lines

_LATER_FROM = 64 << 20
"""Size in bytes from which samples are read only when needed: of an .npy by mapping it."""

Arrays = Mapping[str, NDArray[Any] | StoredArray]


def read_npz(path: str | Path) -> Feed:
    """Read an .npz into {name: array}. Raises DataError if it is missing, not an .npz or pickled."""
    with _faults(path):
        return load_npz(path)


@contextmanager
def _faults(path: str | Path, kind: str = ".npz", call: str = "savez(path, INPUT=array)") -> Iterator[None]:
    """Turn faults of a file that the `call` of NumPy writes into DataErrors."""
    try:
        yield
    except FileNotFoundError:
        raise DataError(f"no such file or folder: {path}; {explain_missing(path)}") from None
    except SingleArrayError:
        raise DataError(f"{path} is a single array; save it by input name: numpy.{call}") from None
    except UNREADABLE as fault:
        text = join_lines(getattr(fault, "strerror", None) or fault)
        remedy = DATA_FILES.get(Path(path).suffix.lower(), f"write it with numpy.{call}")
        raise DataError(f"{path} is not a readable {kind} ({text}); {remedy}") from None


def read_arrays(path: Path, inputs: Inputs) -> Arrays:
    """Read an .npz, or an .npy for a model with one input; large arrays when their samples are needed.

    Raises DataError for an unreadable file, and for an .npz with other arrays than `inputs`.
    """
    if not _is_npy(path):
        with _faults(path):
            names = npz_names(path)
        check_names(names, inputs, str(path))
        with _faults(path):
            return {name: load_member(path, name, _LATER_FROM) for name in names}
    with _faults(path, ".npy", "save(path, array)"):
        array = load_npy(path, mapped=path.stat().st_size >= _LATER_FROM)
    return single_array(array, inputs, str(path))


def _is_npy(path: Path) -> bool:
    """Return whether `path` holds one array, by its content or by its name.

    A file that cannot be opened is left to `read_npz` to report.
    """
    try:
        with open_input(path) as stream:
            head = stream.read(len(NPY_MAGIC))
    except OSError:
        return False
    return head == NPY_MAGIC or (path.suffix == ".npy" and not head.startswith(b"PK"))


def single_array(array: Any, inputs: Inputs, source: str) -> dict[str, Any]:
    """Return one unnamed array under the name of the only input. Raises DataError for several inputs."""
    if len(inputs) != 1:
        raise DataError(
            f"{source} is a single array, and the model has {len(inputs)} inputs; name an array for each "
            f"of {', '.join(spec.name for spec in inputs)}: numpy.savez(path, INPUT=array)"
        )
    return {inputs[0].name: array}


def count_samples(arrays: Arrays, inputs: Inputs) -> int | None:
    """Return the number of samples in `arrays`; None if the shapes do not determine it."""
    for spec in inputs:
        array = arrays[spec.name]
        if not spec.shape or array.ndim < len(spec.shape):
            continue
        if samples_open(inputs):
            return int(array.shape[0]) * (array.shape[1] if array.ndim > len(spec.shape) else 1)
        if spec.shape[0]:
            return int(array.shape[0]) // (spec.shape[0] if array.ndim == len(spec.shape) else 1)
    return None


def cut(arrays: Arrays, inputs: Inputs, batch: int, source: str) -> Iterator[Feed]:
    """Yield the runs in `arrays`.

    Args:
        arrays: the samples of every input.
        inputs: inputs of the model.
        batch: samples per run if the batch axis is open, 0 for all: arrays are then one feed, whatever their
            sizes.
        source: name of the data for errors.

    Raises DataError for a wrong rank, a fixed batch that does not divide an axis 0, or unequal counts.
    """
    runs: dict[str, int] = {}
    samples: dict[str, int] = {}
    for spec in inputs:
        array = arrays[spec.name]
        rank = array.ndim if spec.shape is None else len(spec.shape)
        if array.ndim == rank + 1:
            runs[spec.name] = array.shape[0]
        elif array.ndim != rank:
            raise DataError(
                misfit(spec, array, f"its rank must be {rank} or {rank + 1}{rank_hint(spec, array)}")
            )
        elif rank and spec.shape and spec.shape[0] is not None:
            runs[spec.name] = _whole_runs(spec, array, spec.shape[0])
        elif rank:
            samples[spec.name] = array.shape[0]
    _check_equal(runs, "runs", source)
    if batch or runs:
        _check_equal(samples, "samples", source, ", or --batch 0 if axis 0 of one feed counts something else")
    total = max(samples.values(), default=0)
    if runs:
        # Inputs with a fixed batch and arrays of whole runs determine how the others are cut.
        count = next(iter(runs.values()))
        step = total // max(count, 1)
        if total != count * step:
            name = next(iter(samples))
            raise DataError(
                f"{source}: input {name!r} has {total} samples for {count} runs; give a multiple of {count}"
            )
    else:
        step = batch or max(total, 1)
        count = -(-total // step) if samples else 1
    for run in range(count):
        with _faults(source):
            feed = {
                spec.name: _part(arrays[spec.name], spec, run, step if spec.name in samples else None)
                for spec in inputs
            }
        yield feed


def _check_equal(counts: dict[str, int], what: str, source: str, otherwise: str = "") -> None:
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{name} {count}" for name, count in counts.items())
        raise DataError(
            f"{source}: inputs differ in their number of {what} ({listed}); give equal ones{otherwise}"
        )


def _whole_runs(spec: InputSpec, array: NDArray[Any] | StoredArray, fixed: int) -> int:
    """Return the number of runs of a fixed batch in `array`."""
    if fixed == 0 or array.shape[0] % fixed:
        raise DataError(
            misfit(spec, array, f"the model takes {fixed} samples a run; give a multiple of {fixed}")
        )
    return int(array.shape[0]) // fixed


def _part(array: NDArray[Any] | StoredArray, spec: InputSpec, run: int, step: int | None) -> NDArray[Any]:
    """Return the part of `array` for run number `run`; `step`: samples per run of an open batch axis."""
    if step is None:
        if spec.shape is None or array.ndim == 0:
            return np.asarray(array)
        if array.ndim > len(spec.shape):
            return np.asarray(array[run])
        step = spec.shape[0] or 0
    return array[run * step : (run + 1) * step]
