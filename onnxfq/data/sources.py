"""Data sources, read into pieces: values of one or more samples by input.

A source is opened once per pass. For a folder, an iterable or a reader, a piece is the content of one file or
element; arrays of all samples are cut into runs.
"""

from __future__ import annotations

import inspect
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnxfq.data import images as image_files
from onnxfq.data.arrays import count_samples, cut, read_arrays, single_array
from onnxfq.data.images import SUFFIXES, image_input, load_pillow
from onnxfq.data.inputs import Inputs, samples_open
from onnxfq.data.options import DataOptions
from onnxfq.data.validation import check_present, is_array, to_array
from onnxfq.errors import DataError
from onnxfq.support.arrays import StoredArray
from onnxfq.support.confined import MEMORY, call_confined
from onnxfq.support.user_code import FUNCTION_NAME, faults_of, import_function
from onnxfq.support.workers import Worker


class DrawnInputs:
    """Inputs that `quantize` draws from a fixed seed in place of data.

    Its figures are of these inputs, and none of them tells anything about real data.
    """


Data = (
    str
    | Path
    | NDArray[Any]
    | Mapping[str, NDArray[Any]]
    | Iterable[object]
    | Callable[[], object]
    | DrawnInputs
)
"""Types accepted as data, see `open_source`."""

KINDS = (
    "a file, a folder, an array, a list or loader of feeds {input name: array}, or a function that makes one"
)


@dataclass(frozen=True)
class Piece:
    """Values by input name, as the source has them, and a `note` a line for the user, logged if they fit."""

    values: Mapping[str, Any]
    note: str = ""


@dataclass(frozen=True)
class SourceContext:
    """Reading context of a source: the model's inputs, samples per run if open, and the options.

    If `whole`, arrays are not cut along an open axis 0.
    """

    inputs: Inputs
    batch: int
    options: DataOptions
    whole: bool = False


@dataclass(frozen=True)
class Source:
    """One pass over data.

    Attributes:
        name: name for errors.
        pieces: the data in order.
        total: number of samples; None if unknown in advance.
        lasting: whether nobody overwrites the arrays.
        images: whether the data comes from image files.
        cut: whether arrays of several samples were cut for the batch.
        left: note on files that are not read.
    """

    name: str
    pieces: Iterator[Piece]
    total: int | None = None
    lasting: bool = True
    images: bool = False
    cut: bool = False
    left: str = ""


def open_source(data: Data, reading: SourceContext, again: bool = False) -> Source:
    """Open `data` for one pass.

    Args:
        data: path of an .npz, an .npy, an image, or a folder of one of these kinds. Or `module:function`,
            importable from here, or a function without arguments, that returns data. Or an array for the only
            input, {input name: array} with all samples, or an onnxruntime CalibrationDataReader. Or an
            iterable, such as a torch DataLoader, of feeds, tuples in the order of the inputs, or arrays.
        reading: inputs of the model, samples per run, and options.
        again: whether an earlier pass has begun.

    Raises DataError for data of another kind, or data that cannot be read.
    """
    if not _names_function(data):
        return _open(data, "the data given", reading, again)
    name = str(data)
    source_data = import_function(name, "--data")
    with faults_of(f"--data {name}"):
        source = _open(source_data, name, reading, again)
    return replace(source, pieces=_watch_pieces(source.pieces, name))


def _open(data: Data, name: str, reading: SourceContext, again: bool) -> Source:
    if _is_maker(data):
        return _call_source(data, name, reading)
    if isinstance(data, (str, Path)):
        if not str(data):
            raise DataError(f"the path of the data is empty; give {KINDS}")
        return _open_path(Path(data), reading)
    if isinstance(data, Mapping):
        return _open_arrays(data, reading, name, check_present(data, reading.inputs, name))
    if callable(getattr(data, "get_next", None)):
        return _open_reader(data, reading, again)
    if is_array(data):
        return _open_arrays(single_array(data, reading.inputs, name), reading, name)
    if isinstance(data, Iterable):
        return _open_iterable(data, reading, again)
    raise DataError(f"the data given is a {type(data).__name__}; give {KINDS}")


def _watch_pieces(pieces: Iterator[Piece], name: str) -> Iterator[Piece]:
    while True:
        with faults_of(f"--data {name}"):
            piece = next(pieces, None)
        if piece is None:
            return
        yield piece


def tells_total(data: Data) -> bool:
    """Return whether `data` can be opened for its total without calling or consuming anything."""
    kinds = (str, Path, Mapping, Sequence)
    known = isinstance(data, kinds) or is_array(data) or hasattr(data, "sampler")
    return known and not _names_function(data) and not _is_maker(data)


def _names_function(data: Data) -> bool:
    return isinstance(data, str) and FUNCTION_NAME.fullmatch(data) is not None and not os.path.exists(data)


def _is_maker(data: Data) -> bool:
    """Return whether `data` is a function or a class that returns data and is not data itself."""
    if isinstance(data, type):
        return True
    return callable(data) and not isinstance(data, Iterable) and not hasattr(data, "get_next")


# Paths


def _open_path(path: Path, reading: SourceContext) -> Source:
    if os.path.isdir(path):  # Path.is_dir raises for a name that is too long
        return _open_folder(path, reading)
    if path.suffix.lower() in SUFFIXES:
        return _open_images([path], str(path), reading)
    return _open_arrays(read_arrays(path, reading.inputs), reading, str(path))


def _open_folder(folder: Path, reading: SourceContext) -> Source:
    kind, paths, left = list_files(folder)
    if kind == "image":
        return replace(_open_images(paths, str(folder), reading), left=left)
    pieces = (Piece(read_arrays(path, reading.inputs)) for path in paths)
    return Source(str(folder), pieces, None if samples_open(reading.inputs) else len(paths), left=left)


def list_files(folder: Path) -> tuple[str, list[Path], str]:
    """Return the kind of the files of data in a folder, `image` or a suffix, their paths, and what is left.

    The last is a note that counts what is read and what is not, hidden files apart; empty if all is read and
    of one kind. Raises DataError for a folder without data, or with several kinds.
    """
    kinds = {".npz": (".npz",), ".npy": (".npy",), "image": SUFFIXES}
    paths_of: dict[str, list[str]] = {}
    everything, links = _list_visible(folder)
    # Class folders of an image set are searched; their files are not mixed with files next to them.
    for visible in ([name for name in everything if os.sep not in name], everything):
        paths_of = {kind: [n for n in visible if _suffix(n).lower() in ends] for kind, ends in kinds.items()}
        paths_of = {kind: paths for kind, paths in paths_of.items() if paths}
        if paths_of:
            break
    if not paths_of:
        raise DataError(
            f"no .npz, .npy or image file ({', '.join(SUFFIXES)}) in folder {folder}; write one feed a file "
            "with numpy.savez"
        )
    if len(paths_of) > 1:
        listed = " and ".join(f"{len(paths)} {kind}" for kind, paths in paths_of.items())
        raise DataError(f"folder {folder} holds {listed} files; give a folder with one kind of data")
    kind, names = next(iter(paths_of.items()))
    paths = [folder / name for name in sorted(names, key=lambda name: name.split(os.sep))]
    left = [name for name in {*everything} - {*names} if os.path.isfile(folder / name)]
    if not left and not links and len({_suffix(name) for name in names}) == 1:
        return kind, paths, ""
    counts = ", ".join(filter(None, [_count_kinds(left), f"{links} links to folders" if links else ""]))
    return kind, paths, f"of {folder} are read: {_count_kinds(names)}; left out: {counts or 'nothing'}"


def _suffix(name: str) -> str:
    return os.path.splitext(name)[1]


def _count_kinds(names: Iterable[str]) -> str:
    """Return the numbers of files of each ending, those in folders of the folder apart."""
    kinds = Counter(sorted(f"{'*/' if os.sep in name else ''}*{_suffix(name)}" for name in names))
    return ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())


def _list_visible(folder: Path) -> tuple[list[str], int]:
    """Return the names from `folder` on of files that no part of a name hides, and the links to folders.

    Links are counted and not followed. Raises DataError for what cannot be read, or changes meanwhile.
    """

    def refuse(error: OSError) -> None:
        raise DataError(
            f"cannot read {error.filename}: {error.strerror}; give a folder of data alone"
        ) from None

    names, links = [], 0
    for at, folders, files in os.walk(folder, onerror=refuse):
        folders[:] = [name for name in folders if not name.startswith(".")]
        links += sum(os.path.islink(os.path.join(at, name)) for name in folders)
        start = os.path.join(os.path.relpath(at, folder), "").removeprefix(os.path.join(os.curdir, ""))
        names += [start + name for name in files if not name.startswith(".")]
    return names, links


def _open_images(paths: Sequence[Path], name: str, reading: SourceContext) -> Source:
    spec = image_input(reading.inputs, reading.options)
    # Each run of a fixed batch takes this many images.
    step = (spec.shape[0] if spec.shape else None) or 1
    if len(paths) % step:
        raise DataError(
            f"{name} holds {len(paths)} images, and the model [{spec}] takes {step} a run; "
            f"give a multiple of {step}"
        )

    load_pillow()

    def pieces() -> Iterator[Piece]:
        images = call_confined(
            _image_worker(),
            "read_image",
            ((path, spec, reading.options) for path in paths),
            DataError,
            f"the images of {name}",
            "remove the one that does it",
        )
        for first in paths[::step]:
            read = list(islice(images, step))
            if len({image.shape for image, _ in read}) > 1:
                raise DataError(f"{first} and its neighbours differ in size; give --resize WxH")
            notes = dict.fromkeys(note for _, notes in read for note in notes)
            yield Piece({spec.name: np.concatenate([image for image, _ in read])}, "\n".join(notes))

    return Source(name, pieces(), len(paths) // step, images=True)


_workers: list[Worker] = []


def _image_worker() -> Worker:
    """Return the process that reads images, which all passes share."""
    if not _workers or _workers[0].ended:
        _workers[:] = [Worker(image_files.__file__, MEMORY)]
    return _workers[0]


# Arrays in memory


def _open_arrays(arrays: Mapping[str, Any], reading: SourceContext, name: str, note: str = "") -> Source:
    inputs = reading.inputs
    given = {
        spec.name: value
        if isinstance(value := arrays[spec.name], StoredArray)
        else to_array(value, spec, f"in {name}")
        for spec in inputs
    }
    step = 0 if reading.whole else reading.batch or reading.options.limit or 0
    runs = cut(given, inputs, step, name)
    return Source(name, (Piece(run, note) for run in runs), count_samples(given, inputs), cut=step > 0)


# Data from Python code


def _open_iterable(data: Iterable[Any], reading: SourceContext, again: bool) -> Source:
    if isinstance(data, Iterator) and again:
        raise DataError(
            f"the data given is a {type(data).__name__}, which can be read only once; give a list, or the "
            "function that makes it"
        )

    def pieces() -> Iterator[Piece]:  # a loader starts its workers at its first element
        for number, element in enumerate(data):
            yield _piece(element, number, reading.inputs)

    return Source("the data given", pieces(), _iterable_total(data, reading), isinstance(data, Sequence))


def _open_reader(reader: Any, reading: SourceContext, again: bool) -> Source:
    if again:
        if not callable(getattr(reader, "rewind", None)):
            raise DataError(
                f"the {type(reader).__name__} given has been read and has no rewind(); give it one, "
                "or give the function that makes it"
            )
        reader.rewind()

    def pieces() -> Iterator[Piece]:
        number = 0
        while (element := reader.get_next()) is not None:
            yield _piece(element, number, reading.inputs)
            number += 1

    return Source("the data given", pieces(), lasting=False)


def _call_source(make: Any, name: str, reading: SourceContext) -> Source:
    try:
        inspect.signature(make).bind()
    except TypeError as fault:
        raise DataError(f"{name} cannot be called without arguments ({fault}); give one that can") from None
    data = make()
    if _is_maker(data):
        raise DataError(f"{name} returns a {type(data).__name__}; return {KINDS}")
    return open_source(data, reading)


def _piece(element: Any, number: int, inputs: Inputs) -> Piece:
    """Return an element of an iterable as values by input name, with a note on ignored parts."""
    names = [spec.name for spec in inputs]
    if isinstance(element, Mapping):
        return Piece(element, check_present(element, inputs, f"feed {number}"))
    if isinstance(element, (tuple, list)) and any(is_array(value) for value in element):
        if len(element) < len(names):
            raise DataError(
                f"feed {number} is a {type(element).__name__} of {len(element)}, the model has "
                f"{len(names)} inputs; give {', '.join(names)}, in this order or as a dict"
            )
        note = (
            f"an element of the data has {len(element)} parts, the model {len(names)} inputs; the parts "
            f"after {names[-1]!r} are left out"
        )
        return Piece(dict(zip(names, element, strict=False)), note if len(element) > len(names) else "")
    if len(names) == 1 and (is_array(element) or isinstance(element, list)):
        return Piece({names[0]: element})
    raise DataError(
        f"feed {number} is a {type(element).__name__}; give a dict {{input name: array}} for "
        f"{', '.join(names)}"
    )


def _iterable_total(data: Iterable[Any], reading: SourceContext) -> int | None:
    """Return the number of samples in an iterable; None if only reading would show it."""
    inputs = reading.inputs
    sampler, batch = getattr(data, "sampler", None), getattr(data, "batch_size", None)
    if samples_open(inputs) and isinstance(sampler, Sized) and isinstance(batch, int):
        # A torch DataLoader may drop an incomplete last batch.
        total = len(sampler)
        return total - total % batch if getattr(data, "drop_last", False) else total
    if not isinstance(data, Sequence):
        return None
    counts = [_samples_in(element, inputs) for element in data]
    return None if None in counts else sum(count or 0 for count in counts)


def _samples_in(element: Any, inputs: Inputs) -> int | None:
    """Return the number of samples in an element by the shape of its first array of rank 1 or more."""
    ranked = [index for index, spec in enumerate(inputs) if spec.shape]
    if not ranked:
        return 1
    spec = inputs[ranked[0]]
    if isinstance(element, Mapping):
        element = element.get(spec.name)
    elif isinstance(element, (tuple, list)):
        element = element[ranked[0]] if ranked[0] < len(element) else None
    shape = getattr(element, "shape", None)
    if shape is None or spec.shape is None:
        return None
    if len(shape) == len(spec.shape) - 1:
        return 1
    return int(shape[0]) // (spec.shape[0] or 1) if len(shape) == len(spec.shape) else None
