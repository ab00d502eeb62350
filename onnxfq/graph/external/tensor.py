"""External tensors: the proto refers to a file, and values are mapped when they are read.

A model of any size is loaded in the memory of its structure. protobuf cannot write more than 2 GB, and ONNX's
own tools refuse absolute paths: `weightless.change_without_weights` hides such tensors from them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any
from weakref import WeakValueDictionary

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from onnxfq.errors import ModelError
from onnxfq.graph.external.messages import take_fields

SCRATCH = "onnxfq-scratch:"
"""Prefix of the location of an open scratch file; its number follows."""

scratch_files: WeakValueDictionary[str, IO[bytes]] = WeakValueDictionary()
"""Open scratch files by location."""

_HOLDERS = frozenset(
    ("GraphProto", "NodeProto", "AttributeProto", "FunctionProto", "TrainingInfoProto")
    + ("TensorProto", "SparseTensorProto")
)
"""Messages that hold tensors."""

# Files to which this process attached tensors; other absolute paths in protos are not trusted.
_own_locations: set[str] = set()


@dataclass(frozen=True)
class ExternalTensor:
    """Values of a tensor in a file.

    Attributes:
        name: of the tensor.
        location: absolute path or scratch file; relative to the model in a file, as ONNX defines it.
        offset: of the first byte.
        length: bytes from `offset` on, None for all.
        data_type: ONNX element type.
        shape: of the tensor.
        state: stamp of the file when the reference was made, empty when unknown.
    """

    name: str
    location: str
    offset: int
    length: int | None
    data_type: int
    shape: tuple[int, ...]
    state: str = ""

    @classmethod
    def of(cls, tensor: TensorProto) -> ExternalTensor:
        """Read the external_data of `tensor`. Raises ValueError for a malformed number."""
        fields: Mapping[str, str] = {entry.key: entry.value for entry in tensor.external_data}
        return cls(
            name=tensor.name,
            location=fields.get("location", ""),
            offset=int(fields.get("offset", "0")),
            length=int(fields["length"]) if "length" in fields else None,
            data_type=tensor.data_type,
            shape=tuple(tensor.dims),
            state=fields.get("checksum", ""),
        )

    @property
    def is_own(self) -> bool:
        """Tell whether onnxfq made this reference."""
        return str(self.location).startswith(SCRATCH) or self.location in _own_locations

    def content(self) -> NDArray[np.uint8]:
        """Return the bytes, mapped and not read.

        Raises ModelError when the file has changed or disappeared since the reference was made, ValueError
        when it was a scratch file.
        """
        if not self.length:
            return np.zeros(0, np.uint8)
        file: str | IO[bytes] = self.location
        if self.location.startswith(SCRATCH):
            try:
                file = scratch_files[self.location]
            except KeyError:
                raise ValueError(
                    "the temporary file of its values is gone; keep the result of quantize"
                ) from None
        elif self.is_own and self.state and self.state != _state(self.location):
            raise ModelError(
                f"the weights of {self.name!r} are in {self.location}, which has changed since it was "
                "loaded; load the model again"
            )
        return np.memmap(file, np.uint8, "r", offset=self.offset, shape=(self.length,))

    def array(self) -> NDArray[Any]:
        """Return the values, mapped if elements occupy whole bytes. Raises as `content`."""
        content = self.content()
        dtype = np.dtype(helper.tensor_dtype_to_np_dtype(self.data_type))
        if dtype.itemsize * int(np.prod(self.shape, dtype=np.int64)) == content.size:
            return np.asarray(content.view(dtype).reshape(self.shape))
        packed = TensorProto(data_type=self.data_type, dims=self.shape, raw_data=content.tobytes())
        return np.asarray(numpy_helper.to_array(packed))


def list_tensors(proto: onnx.ModelProto) -> Iterator[TensorProto]:
    """Yield every tensor in `proto`, the initializers of its main graph first.

    Values and indices of sparse tensors, attributes, bodies and functions are included.
    """
    yield from proto.graph.initializer
    for part, but in ((proto.graph, "initializer"), (proto, "graph")):
        yield from _tensors_in(part, but)


def _tensors_in(message: Any, but: str = "") -> Iterator[TensorProto]:
    for field, value in message.ListFields():
        if field.message_type is None or field.message_type.name not in _HOLDERS or field.name == but:
            continue
        for one in value if hasattr(value, "append") else (value,):
            if isinstance(one, TensorProto):
                yield one
            else:
                yield from _tensors_in(one)


def is_external(tensor: TensorProto) -> bool:
    """Tell whether the values of `tensor` are in a file."""
    return bool(tensor.data_location == TensorProto.EXTERNAL)


def attach(tensor: TensorProto, location: Path | str, offset: int, length: int) -> TensorProto:
    """Make `tensor` refer to values in a file instead of its own values; return it.

    Args:
        tensor: changed in place.
        location: an absolute path, a scratch file, or a path relative to the model.
        offset: of the first byte.
        length: in bytes.
    """
    tensor.ClearField("raw_data")
    del tensor.external_data[:]
    tensor.data_location = TensorProto.EXTERNAL
    fields = {"location": str(location), "offset": str(offset), "length": str(length)}
    if os.path.isabs(location):
        _own_locations.add(str(location))
        fields["checksum"] = _state(location)
    for key, value in fields.items():
        tensor.external_data.add(key=key, value=value)
    return tensor


def embed(tensor: TensorProto) -> TensorProto:
    """Return `tensor`, or a copy that holds its values when it is external."""
    if not is_external(tensor):
        return tensor
    copy = strip_values(tensor)
    copy.raw_data = ExternalTensor.of(tensor).content().tobytes()
    return copy


def strip_values(tensor: TensorProto) -> TensorProto:
    """Return a copy of `tensor` without values: name, type, shape and annotations."""
    return take_fields(TensorProto(), tensor, "name", "data_type", "dims", "doc_string", "metadata_props")


def tensor_array(tensor: TensorProto) -> NDArray[Any]:
    """Return the values of `tensor`, mapped when it is external. Raises ValueError for damaged values."""
    if is_external(tensor):
        return ExternalTensor.of(tensor).array()
    return np.asarray(numpy_helper.to_array(tensor))


def tensor_content(tensor: TensorProto) -> NDArray[np.uint8]:
    """Return the values of `tensor` as ONNX stores them in bytes, little endian; mapped when external."""
    if is_external(tensor):
        return ExternalTensor.of(tensor).content()
    if not tensor.HasField("raw_data"):
        tensor = numpy_helper.from_array(tensor_array(tensor))
    return np.frombuffer(tensor.raw_data, np.uint8)


def _state(path: Path | str) -> str:
    """Return a stamp of the file at `path`, empty if it is missing; a hash would read all of it."""
    try:
        now = os.stat(path)
    except OSError:
        return ""
    return f"{now.st_ino} {now.st_size} {now.st_mtime_ns}"
