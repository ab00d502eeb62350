"""Saving a model: checked, deterministic, whole or not at all; with a data file beside it when large."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from pathlib import Path

import onnx

from onnxfq.documents import one_line
from onnxfq.errors import ModelError
from onnxfq.files import check_writable, replacing
from onnxfq.graph import stored
from onnxfq.graph.stored import (
    chunks,
    is_stored,
    large_tensors,
    loaded,
    referring,
    tensor_bytes,
    without_stored,
)

_ALIGNED = 4096
"""Where a tensor starts in the data file: a page, so that runtimes can map it."""


def save(proto: onnx.ModelProto, path: str | Path, verify: Callable[[Path], None] | None = None) -> None:
    """Write `proto` to `path`; equal models give equal bytes.

    What does not fit in one ONNX file goes to a data file beside it, which is there before the model is. Its
    name holds a hash of its content, so a model never meets the data of another one; that of a model that was
    at `path` before goes. verify is called with the finished temporary file; if it raises, nothing is left
    behind. Raises ModelError when the model is invalid, OutputError when it cannot be written.
    """
    path = Path(path)
    try:
        without_stored(proto, _checked)
    except onnx.checker.ValidationError as fault:
        raise ModelError(f"the model for {path} is not valid: {one_line(fault)[:200]}") from None
    data = None
    if sum(tensor_bytes(tensor) for tensor in proto.graph.initializer) > stored.LIMIT:
        data = _save_with_data(proto, path, verify)
    else:
        _save_whole(_inside(proto), path, verify)
    own = re.compile(rf"{re.escape(path.name)}\.[0-9a-f]{{16}}\.data")
    for other in path.parent.iterdir():
        if own.fullmatch(other.name) and other != data:
            other.unlink()


def _checked(proto: onnx.ModelProto) -> onnx.ModelProto:
    onnx.checker.check_model(proto, full_check=False)
    return proto


def _inside(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return `proto` with all its tensors inside."""
    if not any(is_stored(tensor) for tensor in proto.graph.initializer):
        return proto
    whole = onnx.ModelProto()
    whole.CopyFrom(proto)
    for tensor in whole.graph.initializer:
        tensor.CopyFrom(loaded(tensor))
    return whole


def _save_whole(proto: onnx.ModelProto, path: Path, verify: Callable[[Path], None] | None) -> None:
    with replacing(path) as temporary:
        temporary.write_bytes(proto.SerializeToString(deterministic=True))
        if verify is not None:
            verify(temporary)


def _save_with_data(proto: onnx.ModelProto, path: Path, verify: Callable[[Path], None] | None) -> Path:
    """Write the data file and then the model; return the former's path."""
    check_writable(path)
    large = large_tensors(proto)
    digest = hashlib.sha256()
    for tensor in large:
        for part in chunks(tensor):
            digest.update(part)
    data = path.with_name(f"{path.name}.{digest.hexdigest()[:16]}.data")
    existed = data.exists()
    places: dict[str, tuple[int, int]] = {}
    with replacing(data) as temporary, temporary.open("wb") as stream:
        for tensor in large:
            start = -(-stream.tell() // _ALIGNED) * _ALIGNED
            stream.write(b"\0" * (start - stream.tell()))
            for part in chunks(tensor):
                stream.write(part)
            places[tensor.name] = (start, stream.tell() - start)
    try:
        _save_whole(referring(proto, places, data.name), path, verify)
    except BaseException:
        if not existed:
            data.unlink(missing_ok=True)
        raise
    return data
