"""The data files beside a model: where they are, and that no output takes their place."""

from __future__ import annotations

import re
from pathlib import Path

import google.protobuf.message
import onnx
from onnx import external_data_helper

from onnxfq.errors import OutputError
from onnxfq.graph.io.external_tensors import SMALL
from onnxfq.graph.io.scratch_file import PREFIX
from onnxfq.graph.io.streaming import read_without_values
from onnxfq.support.files import check_output


def data_path(model: Path, location: str) -> Path:
    """Return the file that `location`, in the model at `model`, names.

    It has to be in the folder of the model, or of the file that a link of that name leads to: caches keep
    models and data there under other names. Raises ValueError when it is elsewhere.
    """
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
    if isinstance(model, onnx.ModelProto):
        locations = {_location(tensor) for tensor in _external(model)}
        return [Path(one) for one in sorted(locations) if not one.startswith(PREFIX)]
    if not isinstance(model, (str, Path)):
        return []
    path, found = Path(model), set()
    try:
        proto, inside = read_without_values(path, SMALL)
        for tensor in _external(proto):
            if tensor.name not in inside:
                found.add(data_path(path, _location(tensor)))
    except (OSError, ValueError, google.protobuf.message.DecodeError):
        return []  # who reads it says why
    return sorted(found)


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


def _external(proto: onnx.ModelProto) -> list[onnx.TensorProto]:
    tensors = external_data_helper._get_all_tensors(proto)
    return [tensor for tensor in tensors if external_data_helper.uses_external_data(tensor)]


def _location(tensor: onnx.TensorProto) -> str:
    """Return the path that `tensor` names; onnx's own reader warns of fields that it does not know."""
    return next((entry.value for entry in tensor.external_data if entry.key == "location"), "")
