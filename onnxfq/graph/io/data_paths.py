"""Data files of a model: their paths, and a check that no output overwrites them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

import google.protobuf.message
import onnx

from onnxfq.errors import OutputError
from onnxfq.graph.external import sizes
from onnxfq.graph.external.streaming import read_without_values
from onnxfq.graph.external.tensor import SCRATCH, ExternalTensor, attach, is_external, list_tensors
from onnxfq.support.files import check_output
from onnxfq.support.outputs import folder_bytes, pending_sizes

_FIELDS = frozenset({"location", "offset", "length", "checksum", "basepath"})
"""Fields of a reference to a data file."""


def resolve(tensor: onnx.TensorProto, model: Path, data: Path | None = None) -> ExternalTensor:
    """Point `tensor` to its values by an absolute path; return them.

    Args:
        tensor: an external tensor of the model at `model`; changed in place.
        model: path of the model.
        data: the data file, if it is not next to the model yet.

    Raises:
        ValueError: for an invalid location.
        OSError: for a missing file.
    """
    unknown = [entry.key for entry in tensor.external_data if entry.key not in _FIELDS]
    if unknown:  # ignoring them might change the values
        raise ValueError(f"its location has the field {unknown[0]!r}, which ONNX does not define")
    values = ExternalTensor.of(tensor)
    inside = values.location == str(model.absolute())
    path = data if data and not inside else data_path(model, values.location)
    size = path.stat().st_size
    length = size - values.offset if values.length is None else values.length
    if values.offset < 0 or length < 0 or values.offset + length > size:
        raise ValueError(f"{length} bytes at {values.offset} are beyond its {size}")
    return ExternalTensor.of(attach(tensor, path, values.offset, length))


def data_path(model: Path, location: str) -> Path:
    """Return the path of the file called `location` in the model at `model`.

    It must be the model itself, or a file in the model's folder or in the folder of the file that a link at
    `model` leads to: caches keep models and data there under other names. Raises ValueError for any other
    place.
    """
    if location == str(model.absolute()):  # as `read_without_values` has it
        return model.absolute()
    if not isinstance(location, str):  # protobuf does not check text
        raise ValueError(f"{location!r} is not a path")
    inside = f"{location!r} is not a path inside the folder of the model"
    if not location or Path(location).is_absolute():
        raise ValueError(inside)
    path = _real(model.parent / location)
    if not any(path.is_relative_to(folder) for folder in (_real(model.parent), _real(model).parent)):
        raise ValueError(f"{inside}: it leads to {path}")
    return path


def data_files(model: object) -> list[Path]:
    """Return the files with weights of `model`, a path or a proto; none for other values."""
    try:
        if isinstance(model, onnx.ModelProto):
            return sorted({Path(one) for one in _locations(model) if not one.startswith(SCRATCH)})
        if isinstance(model, (str, Path)):
            light = read_without_values(Path(model), sizes.SMALL)
            return sorted({data_path(Path(model), one) for one in _locations(light)})
    except (OSError, ValueError, google.protobuf.message.DecodeError):
        return []  # the reader reports why
    return []


def own_data(path: Path) -> re.Pattern[str]:
    """Return the pattern of the names of data files written for a model at `path`."""
    return re.compile(rf"{re.escape(path.name)}\.[0-9a-f]{{16}}\.data")


def model_bytes(model: Path) -> int:
    """Return the bytes of the model at `model` with its data, as the running command leaves them.

    A folder counts with all its files.
    """
    path, written = _real(model), {_real(file): size for file, size in pending_sizes().items()}
    if path not in written and path.is_dir():
        return folder_bytes(path)
    if path not in written:
        return sum(file.stat().st_size for file in {path, *map(_real, data_files(model))})
    own = own_data(path)
    data = [file for file in written if file.parent == path.parent and own.fullmatch(file.name)]
    return sum(written[file] for file in (path, *data))


def check_model_output(output: str | Path | None, model: object, *others: object) -> None:
    """Raise OutputError like `check_output`, and when writing `output` would remove a data file of `model`.

    A written model replaces the former one of that name, and its data. None is never written.
    """
    if output is None:
        return
    files = data_files(model)
    check_output(output, model, *files, *others)
    check_keeps_data(output, files)


def check_keeps_data(output: str | Path, files: Iterable[Path]) -> None:
    """Raise OutputError when a model written to `output` would remove one of the data files `files`."""
    written = _real(Path(output))
    for file in files:
        if file.parent == written.parent and own_data(written).fullmatch(file.name):
            raise OutputError(
                f"output {output} would replace {file.name}, which holds weights of the model; "
                "give another file name"
            )


def _real(path: Path) -> Path:
    """Return `path` with its links followed; Path.resolve would raise an error for a link to itself."""
    return Path(os.path.realpath(path))


def _locations(proto: onnx.ModelProto) -> set[str]:
    """Return the files that tensors of `proto` refer to."""
    tensors = list_tensors(proto)
    return {ExternalTensor.of(tensor).location for tensor in tensors if is_external(tensor)}
