"""Saving a model: checked, deterministic, whole or not at all; with a data file beside it when large."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import onnx

from onnxfq.errors import ModelError, OutputError
from onnxfq.graph.io import external_tensors as stored
from onnxfq.graph.io.data_files import own_data
from onnxfq.graph.io.external_tensors import (
    chunks,
    is_stored,
    large_tensors,
    referring,
    weight_bytes,
    without_stored,
)
from onnxfq.graph.io.streaming import serialized
from onnxfq.support.files import check_writable, replacing
from onnxfq.support.records import one_line

_ALIGNED = 4096
"""Where a tensor starts in the data file: a page, so that runtimes can map it."""


Verify = Callable[[Path, Path | None], None]
"""Called with the finished temporary files, of the model and of its data if it has some; may raise."""


def save(proto: onnx.ModelProto, path: str | Path, verify: Verify | None = None) -> None:
    """Write `proto` to `path`; equal models give equal bytes.

    What does not fit in one ONNX file goes to a data file beside it, which gets its name just before the
    model does. That name holds a hash of its content, so a model never meets the data of another one; that
    of a model that was at `path` before goes. If verify raises, nothing is left behind. Values in files are
    copied a part at a time. Raises ModelError when the model is invalid, OutputError when it cannot be
    written.
    """
    path = Path(path)
    try:
        without_stored(proto, _checked)
    except onnx.checker.ValidationError as fault:
        raise ModelError(f"the model for {path} is not valid: {one_line(fault)[:200]}") from None
    data = None
    if weight_bytes(proto) > stored.LIMIT:
        data = _save_with_data(proto, path, verify)
    else:
        with replacing(path) as temporary:
            _write_whole(proto, temporary)
            if verify is not None:
                verify(temporary, None)
    real = Path(os.path.realpath(path))
    own = own_data(real)
    for other in real.parent.iterdir():
        if own.fullmatch(other.name) and other != data:
            other.unlink()


def _checked(proto: onnx.ModelProto) -> onnx.ModelProto:
    onnx.checker.check_model(proto, full_check=False)
    return proto


def _write_whole(proto: onnx.ModelProto, path: Path) -> None:
    """Write `proto` with all its tensors inside."""
    if not any(is_stored(tensor) for tensor in proto.graph.initializer):
        path.write_bytes(proto.SerializeToString(deterministic=True))
        return
    with path.open("wb") as stream:
        stream.writelines(serialized(proto))


def _save_with_data(proto: onnx.ModelProto, path: Path, verify: Verify | None) -> Path:
    """Write the data file and the model; return the former's path."""
    check_writable(path)
    if path.is_symlink():
        raise OutputError(
            f"cannot write {path}: it is a link, and data would be looked for beside it; give the path that "
            f"it leads to, {path.resolve()}"
        )
    large = large_tensors(proto)
    digest = hashlib.sha256()
    for tensor in large:
        for part in chunks(tensor):
            digest.update(part)
    data = path.with_name(f"{path.name}.{digest.hexdigest()[:16]}.data")
    existed = data.exists()
    try:
        # Left from the inside: the data has its name before the model has, and neither before both are whole.
        with replacing(path) as whole, replacing(data) as temporary:
            referred = referring(proto, _write_data(large, temporary), data.name)
            whole.write_bytes(referred.SerializeToString(deterministic=True))
            if verify is not None:
                verify(whole, temporary)
    except BaseException:
        if not existed:
            data.unlink(missing_ok=True)
        raise
    return data


def _write_data(tensors: list[onnx.TensorProto], path: Path) -> dict[str, tuple[int, int]]:
    """Write the values of `tensors`; return offset and length by name."""
    places: dict[str, tuple[int, int]] = {}
    with path.open("wb") as stream:
        for tensor in tensors:
            start = -(-stream.tell() // _ALIGNED) * _ALIGNED
            stream.write(b"\0" * (start - stream.tell()))
            for part in chunks(tensor):
                stream.write(part)
            places[tensor.name] = (start, stream.tell() - start)
    return places
