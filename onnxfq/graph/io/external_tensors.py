"""Tensors that stay in their file: the proto keeps a reference with an absolute path, values are mapped.

So a model of any size is loaded in the memory of its structure, and weights come one at a time. protobuf
cannot write more than 2 GB, and ONNX's own tools refuse absolute paths: `without_stored` takes such tensors
out for them.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, external_data_helper, helper, numpy_helper

from onnxfq.errors import ModelError
from onnxfq.graph.io.scratch_file import PREFIX, Scratch, scratch_at

SMALL = 1024
"""Tensors of so many bytes and less are always inside the model: shapes and scales that ONNX's tools read."""

LIMIT = (1 << 31) - (1 << 20)
"""Bytes of tensors that one ONNX file holds; protobuf ends at 2 GB, and the structure needs some."""

PACKED_TYPES = frozenset(
    int(getattr(TensorProto, name))
    for name in ("FLOAT4E2M1", "INT2", "INT4", "UINT2", "UINT4", "FLOAT6E2M3", "FLOAT6E3M2")
    if hasattr(TensorProto, name)
)
"""Types with several elements a byte, which arrays do not have."""

IN_MEMORY = 128 << 20
"""Bytes of weights up to which a loaded model, and what is made from it, holds them in memory."""

ONE_PIECE = 512 << 20
"""Bytes of weights, as float32, up to which a model can be one piece, and is handed out and run as one."""

_CHUNK = 1 << 24

_ELEMENT_BYTES = {
    int(kind): np.dtype(helper.tensor_dtype_to_np_dtype(kind)).itemsize
    for kind in TensorProto.DataType.values()
    if kind not in (TensorProto.UNDEFINED, TensorProto.STRING)
}


def element_bytes(data_type: int) -> int | None:
    """Return the bytes of an element; None for strings and for types that the installed onnx lacks."""
    return _ELEMENT_BYTES.get(data_type)


# Files that this process referred tensors to: protos with absolute paths of others are not to be trusted.
_own_locations: set[str] = set()


def is_own(tensor: onnx.TensorProto) -> bool:
    """Tell whether `tensor` refers to a file because onnxfq made it do so."""
    location = next((str(entry.value) for entry in tensor.external_data if entry.key == "location"), "")
    return location.startswith(PREFIX) or location in _own_locations


def is_stored(tensor: onnx.TensorProto) -> bool:
    """Tell whether the values of `tensor` are in a file."""
    return bool(tensor.data_location == TensorProto.EXTERNAL)


def keep_in_file(tensor: onnx.TensorProto, path: Path | str, offset: int, length: int) -> None:
    """Make `tensor` a reference to `length` bytes at `offset` of the file at `path`."""
    if os.path.isabs(path):
        _own_locations.add(str(path))
    tensor.ClearField("raw_data")
    del tensor.external_data[:]
    tensor.data_location = TensorProto.EXTERNAL
    place = {"location": str(path), "offset": str(offset), "length": str(length)}
    if os.path.isabs(path):
        place["checksum"] = _state(path)
    for key, value in place.items():
        tensor.external_data.add(key=key, value=value)


def _state(path: Path | str) -> str:
    """Return what changes when the file at `path` is written anew; a hash would cost reading all of it."""
    now = os.stat(path)
    return f"{now.st_ino} {now.st_size} {now.st_mtime_ns}"


def stored_bytes(tensor: onnx.TensorProto) -> NDArray[np.uint8]:
    """Return the bytes of a tensor that is in a file, mapped and not read.

    Raises ModelError when the file is not there any more, or another than it was when it was referred to.
    """
    info = external_data_helper.ExternalDataInfo(tensor)
    length = info.length or 0
    if not length:
        return np.zeros(0, np.uint8)
    if info.location.startswith(PREFIX):
        return scratch_at(info.location).read(info.offset or 0, length)
    if info.checksum is not None and is_own(tensor) and info.checksum != _state_of_existing(info.location):
        raise ModelError(
            f"the weights of {tensor.name!r} are in {info.location}, which has changed since it was loaded; "
            "load the model again"
        )
    return np.memmap(info.location, np.uint8, "r", offset=info.offset or 0, shape=(length,))


def _state_of_existing(path: str) -> str:
    try:
        return _state(path)
    except OSError:
        return ""


def tensor_array(tensor: onnx.TensorProto) -> NDArray[Any]:
    """Return the values of `tensor`, mapped where they are in a file. Raises ValueError for damaged ones."""
    if not is_stored(tensor):
        return np.asarray(numpy_helper.to_array(tensor))
    data = stored_bytes(tensor)
    dtype = np.dtype(helper.tensor_dtype_to_np_dtype(tensor.data_type))
    if dtype.itemsize * int(np.prod(tensor.dims, dtype=np.int64)) == data.size:
        return np.asarray(data.view(dtype).reshape(tuple(tensor.dims)))
    return np.asarray(numpy_helper.to_array(loaded(tensor)))  # of less than a byte: packed


def loaded(tensor: onnx.TensorProto) -> onnx.TensorProto:
    """Return a copy of `tensor` that holds its values itself."""
    copy = TensorProto()
    copy.CopyFrom(tensor)
    if is_stored(tensor):
        copy.raw_data = stored_bytes(tensor).tobytes()
        copy.ClearField("data_location")
        del copy.external_data[:]
    return copy


def held(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy of `proto` that holds all its values itself; it must not be large."""
    made = _without_constants(proto)
    made.graph.initializer.extend(map(loaded, proto.graph.initializer))
    return made


def tensor_bytes(tensor: onnx.TensorProto) -> int:
    """Return how many bytes the values of `tensor` take."""
    if is_stored(tensor):
        return int(external_data_helper.ExternalDataInfo(tensor).length or 0)
    return len(tensor.raw_data) or int(tensor.ByteSize())


def keep_in_scratch(tensor: onnx.TensorProto, values: NDArray[np.uint8], scratch: Scratch) -> None:
    """Put `values`, the bytes of `tensor`, into `scratch`, and make `tensor` a reference to them."""
    keep_in_file(tensor, scratch.location, scratch.append(values), values.size)


def in_scratch(proto: onnx.ModelProto, scratch: Scratch) -> onnx.ModelProto:
    """Return a copy of `proto` whose large initializers are in `scratch`; one at a time is in memory twice.

    Raises ValueError when one is damaged.
    """
    made = _without_constants(proto)
    for tensor in proto.graph.initializer:
        if is_stored(tensor) or tensor.data_type == TensorProto.STRING or tensor_bytes(tensor) <= SMALL:
            made.graph.initializer.append(tensor)
            continue
        bare = _add_bare(made, tensor)
        keep_in_scratch(bare, np.frombuffer(b"".join(chunks(tensor)), np.uint8), scratch)
    return made


def weight_bytes(proto: onnx.ModelProto) -> int:
    """Return how many bytes the initializers of `proto` take."""
    return sum(map(tensor_bytes, proto.graph.initializer))


def is_large(proto: onnx.ModelProto) -> bool:
    """Tell whether `proto` has too many weights to be one piece: they are made and run one at a time."""
    elements: int = sum(math.prod(tensor.dims) for tensor in proto.graph.initializer)
    return 4 * elements > ONE_PIECE


def scratch_for(proto: onnx.ModelProto, folder: Path | None) -> Scratch | None:
    """Return where weights made from those of `proto` go; None where they stay in memory.

    folder: where the output goes, for there must be room for them; None for no output.
    """
    return Scratch(folder) if weight_bytes(proto) > IN_MEMORY else None


def chunks(tensor: onnx.TensorProto) -> Iterator[bytes]:
    """Yield the values of a tensor as bytes, little endian as ONNX stores them, a part at a time."""
    if is_stored(tensor):
        data = stored_bytes(tensor)
        for start in range(0, data.size, _CHUNK):
            yield data[start : start + _CHUNK].tobytes()
    elif tensor.HasField("raw_data"):
        yield tensor.raw_data
    else:
        yield numpy_helper.from_array(numpy_helper.to_array(tensor)).raw_data


def large_tensors(proto: onnx.ModelProto) -> list[onnx.TensorProto]:
    """Return the initializers that must leave `proto` before it becomes one message; none if it fits."""
    tensors = list(proto.graph.initializer)
    stored = any(is_stored(tensor) for tensor in tensors)
    if not stored and sum(tensor_bytes(tensor) for tensor in tensors) <= LIMIT:
        return []
    return [t for t in tensors if tensor_bytes(t) > SMALL and t.data_type != TensorProto.STRING]


def without_stored(
    proto: onnx.ModelProto, change: Callable[[onnx.ModelProto], onnx.ModelProto]
) -> onnx.ModelProto:
    """Return `change` of `proto`, done while its large tensors are inputs of the graph and not in it."""
    large = large_tensors(proto)
    if not large:
        return change(proto)
    names = {tensor.name for tensor in large}
    bare = _without_constants(proto)
    bare.graph.initializer.extend(t for t in proto.graph.initializer if t.name not in names)
    known = {value.name for value in bare.graph.input}
    added = [t for t in large if t.name not in known]
    bare.graph.input.extend(helper.make_tensor_value_info(t.name, t.data_type, t.dims) for t in added)
    bare.ir_version = max(bare.ir_version, 4)  # below, every initializer is an input
    changed = change(bare)
    away = {tensor.name for tensor in added}
    inputs = [value for value in changed.graph.input if value.name not in away]
    del changed.graph.input[:]
    changed.graph.input.extend(inputs)
    changed.graph.initializer.extend(large)
    return changed


def referring(proto: onnx.ModelProto, places: dict[str, tuple[int, int]], location: str) -> onnx.ModelProto:
    """Return `proto` with references to `location` for tensors at `places`: offset and length by name."""
    made = _without_constants(proto)
    for tensor in proto.graph.initializer:
        if tensor.name not in places:
            made.graph.initializer.append(tensor)
            continue
        keep_in_file(_add_bare(made, tensor), Path(location), *places[tensor.name])
    return made


def _add_bare(proto: onnx.ModelProto, tensor: onnx.TensorProto) -> onnx.TensorProto:
    """Add an initializer like `tensor` to `proto`, but for its values; return it."""
    bare = proto.graph.initializer.add(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
    if tensor.HasField("doc_string"):
        bare.doc_string = tensor.doc_string
    bare.metadata_props.extend(tensor.metadata_props)
    return bare


def _without_constants(proto: onnx.ModelProto) -> onnx.ModelProto:
    bare = onnx.ModelProto()
    _copy_fields(proto, bare, "graph")
    _copy_fields(proto.graph, bare.graph, "initializer")
    return bare


def _copy_fields(source: Any, target: Any, but: str) -> None:
    """Copy all fields of a message but the one called `but`, which may be too large to copy."""
    for field, value in source.ListFields():
        if field.name == but:
            continue
        if hasattr(value, "extend"):
            getattr(target, field.name).extend(value)
        elif hasattr(value, "CopyFrom"):
            getattr(target, field.name).CopyFrom(value)
        else:
            setattr(target, field.name, value)
