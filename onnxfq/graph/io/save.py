"""Saving a model: checked, deterministic, atomic; with a data file next to it if large."""

from __future__ import annotations

import hashlib
import mmap
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import onnx

from onnxfq.errors import ModelError, OutputError
from onnxfq.graph.checker import check_model
from onnxfq.graph.external import sizes
from onnxfq.graph.external.streaming import serialize
from onnxfq.graph.external.tensor import is_external, tensor_content
from onnxfq.graph.external.weightless import split_weights
from onnxfq.graph.io.data_paths import data_files, own_data
from onnxfq.support.files import check_writable, replace_file
from onnxfq.support.outputs import act_after_writing, write_together
from onnxfq.support.records import join_lines

_ALIGNED = 4096
"""Alignment of tensors in the data file: a page, so that runtimes can map it."""


_LARGEST_MODEL = 2 << 30
"""Largest ONNX file: protobuf has no larger messages."""

Verify = Callable[[Path, Path | None], None]
"""Called with the finished temporary files, of the model and of its data if it has a data file; may raise."""


def save(proto: onnx.ModelProto, path: str | Path, verify: Verify | None = None) -> None:
    """Write `proto` to `path`; equal models give equal bytes.

    Data that does not fit in one ONNX file goes to a data file next to it, which gets its name just before
    the model does. That name holds a hash of the content, so a model never meets the data of another one. The
    data file that the former model at `path` names is removed, unless another file next to it names it too.
    Values in files are copied a part at a time.

    Args:
        proto: the model.
        path: the file to write.
        verify: checks the temporary files; if it raises, nothing is left behind.

    Raises:
        ModelError: when the model is invalid.
        OutputError: when it cannot be written.
    """
    path = Path(path)
    try:
        check_model(proto)
    except onnx.checker.ValidationError as fault:
        raise ModelError(f"the model for {path} is not valid: {join_lines(fault)[:200]}") from None
    check_writable(path)
    replaced = _former_data(Path(os.path.realpath(path)))
    data = None
    if sizes.weight_bytes(proto) > sizes.LIMIT:
        data = _save_with_data(proto, path, verify)
    else:
        with replace_file(path) as temporary:
            if any(map(is_external, proto.graph.initializer)):
                with temporary.open("wb") as stream:
                    stream.writelines(serialize(proto))
            else:
                temporary.write_bytes(proto.SerializeToString(deterministic=True))
            if verify is not None:
                verify(temporary, None)
    act_after_writing(path, partial(_remove_unnamed, [file for file in replaced if file != data]))


def _former_data(path: Path) -> list[Path]:
    """Return the data files that the model at `path` names and that were written for it."""
    own = own_data(path)
    readable = path.is_file() and os.access(path.parent, os.R_OK)
    if not readable or not any(own.fullmatch(other) for other in os.listdir(path.parent)):
        return []
    return [file for file in data_files(path) if own.fullmatch(file.name) and file.parent == path.parent]


def _remove_unnamed(files: Sequence[Path]) -> None:
    """Remove the data files of a replaced model, unless a file next to them names them."""
    for former in files:
        beside = [other for other in former.parent.iterdir() if other.is_file()]
        if not any(_names(other, former.name) for other in beside if other.suffix != former.suffix):
            former.unlink(missing_ok=True)


def _names(path: Path, name: str) -> bool:
    """Tell whether the file at `path` may be a model with the data file `name`: a renamed or a copied one."""
    if not 0 < path.stat().st_size <= _LARGEST_MODEL:
        return False
    with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return content.find(name.encode()) >= 0


def _save_with_data(proto: onnx.ModelProto, path: Path, verify: Verify | None) -> Path:
    """Write the data file and the model; return the path of the data file."""
    if path.is_symlink():
        raise OutputError(
            f"cannot write {path}: it is a link, and runtimes would look for its data next to it; give its "
            f"target, {os.path.realpath(path)}"
        )
    digest = hashlib.sha256()
    for tensor in sizes.large_tensors(proto):
        digest.update(tensor_content(tensor).data)
    data = Path(os.path.realpath(path.with_name(f"{path.name}.{digest.hexdigest()[:16]}.data")))
    # The inner file is named first: data before model, and neither before both are complete.
    with write_together([path, data]), replace_file(path) as whole, replace_file(data) as temporary:
        referred = split_weights(proto, temporary, data.name, _ALIGNED)
        whole.write_bytes(referred.SerializeToString(deterministic=True))
        if verify is not None:
            verify(whole, temporary)
    return data
