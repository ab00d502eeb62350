"""The data files beside a model: where they are, and that no output takes their place."""

from __future__ import annotations

import re
from pathlib import Path

import google.protobuf.message
import onnx
from onnx import external_data_helper

from onnxfq.errors import OutputError
from onnxfq.graph.external import sizes
from onnxfq.graph.external.streaming import read_without_values
from onnxfq.graph.external.tensor import SCRATCH, ExternalTensor, attach, is_external
from onnxfq.support.files import check_output

_FIELDS = frozenset({"location", "offset", "length", "checksum", "basepath"})
"""Fields of a reference to a data file."""


def resolve(tensor: onnx.TensorProto, model: Path, data: Path | None = None) -> ExternalTensor:
    """Point `tensor`, of the model at `model`, to its values by an absolute path; return them.

    data: the data file, where it is not beside the model yet. Raises ValueError for a place that is none,
    OSError for a missing file.
    """
    unknown = [entry.key for entry in tensor.external_data if entry.key not in _FIELDS]
    if unknown:  # left out, they might change what is read
        raise ValueError(f"ONNX has no field {unknown[0]!r} for its place")
    values = ExternalTensor.of(tensor)
    inside = values.location == str(model.absolute())
    path = data if data and not inside else data_path(model, values.location)
    size = path.stat().st_size
    length = size - values.offset if values.length is None else values.length
    if values.offset < 0 or length < 0 or values.offset + length > size:
        raise ValueError(f"{length} bytes at {values.offset} are beyond its {size}")
    return ExternalTensor.of(attach(tensor, path, values.offset, length))


def data_path(model: Path, location: str) -> Path:
    """Return the file that `location`, in the model at `model`, names.

    It has to be the model itself, in its folder, or in that of the file that a link of that name leads to:
    caches keep models and data there under other names. Raises ValueError when it is elsewhere.
    """
    if location == str(model.absolute()):  # as `read_without_values` has it
        return model.absolute()
    if not isinstance(location, str):  # protobuf checks no text
        raise ValueError(f"{location!r} is no path")
    inside = f"{location!r} is no path inside of the folder of the model"
    if not location or Path(location).is_absolute():
        raise ValueError(inside)
    path = (model.parent / location).resolve()
    if not any(path.is_relative_to(folder.resolve()) for folder in (model.parent, model.resolve().parent)):
        raise ValueError(f"{inside}: it leads to {path}")
    return path


def data_files(model: object) -> list[Path]:
    """Return the files that hold weights of `model`, a path or a proto; none of what is no model."""
    try:
        if isinstance(model, onnx.ModelProto):
            return sorted({Path(one) for one in _locations(model) if not one.startswith(SCRATCH)})
        if isinstance(model, (str, Path)):
            light = read_without_values(Path(model), sizes.SMALL)
            return sorted({data_path(Path(model), one) for one in _locations(light)})
    except (OSError, ValueError, google.protobuf.message.DecodeError):
        return []  # who reads it says why
    return []


def own_data(path: Path) -> re.Pattern[str]:
    """Return the pattern of the names of data files that are written for a model at `path`."""
    return re.compile(rf"{re.escape(path.name)}\.[0-9a-f]{{16}}\.data")


def check_model_output(output: str | Path | None, model: object, *others: object) -> None:
    """Raise OutputError now as `check_output`, and when writing `output` would end a data file of `model`.

    A model that is written takes the place of the former one of that name, and of its data. None is never
    written.
    """
    if output is None:
        return
    files = data_files(model)
    check_output(output, model, *files, *others)
    written = Path(output).resolve()
    for file in files:
        if file.parent == written.parent and own_data(written).fullmatch(file.name):
            raise OutputError(
                f"output {output} would take the place of {file.name}, in which the model has its weights; "
                "give another file name"
            )


def _locations(proto: onnx.ModelProto) -> set[str]:
    """Return the files that tensors of `proto` name."""
    tensors = external_data_helper._get_all_tensors(proto)
    return {ExternalTensor.of(tensor).location for tensor in tensors if is_external(tensor)}
