"""Streaming of large ONNX files without their weights in memory.

Only the needed part of protobuf's encoding is implemented. A message is a sequence of fields, each a tag
(number and kind) and a value; nested messages have a length. https://protobuf.dev/programming-guides/encoding
"""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import onnx

from onnxfq.graph.external.messages import take_fields
from onnxfq.graph.external.sizes import tensor_bytes
from onnxfq.graph.external.tensor import attach, is_external, strip_values, tensor_content
from onnxfq.graph.external.weightless import with_initializers
from onnxfq.support.reading import open_input

# Numbers of fields in onnx.proto: of ModelProto, GraphProto and TensorProto.
_GRAPH, _INITIALIZER, _RAW_DATA = 7, 5, 9
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5


def read_without_values(path: Path, large: int) -> onnx.ModelProto:
    """Return the model at `path`; initializers of over `large` bytes refer to their values in the file.

    Raises ValueError or protobuf's DecodeError for a damaged message, OSError as open does.
    """
    with open_input(path) as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:

        def refer(first: int, last: int) -> bytes:
            if last - first <= large:
                return b""
            # The link is not resolved: a file without a name is reachable by its link only.
            place = attach(onnx.TensorProto(), path.absolute(), first, last - first)
            return bytes(place.SerializeToString())

        message = _replace(content, (0, len(content)), (_GRAPH, _INITIALIZER, _RAW_DATA), refer)
        return onnx.ModelProto.FromString(b"".join(message))


def serialize(proto: onnx.ModelProto) -> Iterator[bytes | memoryview]:
    """Yield `proto` as one message with all its values inside, a part at a time.

    External values are read from their files. Without any, the parts equal SerializeToString.
    """
    light = with_initializers(proto, ())
    head = _fields_where(light.graph, lambda number: number < _INITIALIZER)
    tail = _fields_where(light.graph, lambda number: number > _INITIALIZER)
    sizes = [_size(tensor) for tensor in proto.graph.initializer]
    total = len(head) + sum(len(_field(_INITIALIZER, size)) + size for size in sizes) + len(tail)
    yield _fields_where(light, lambda number: number < _GRAPH) + _field(_GRAPH, total) + head
    for tensor, size in zip(proto.graph.initializer, sizes, strict=True):
        yield _field(_INITIALIZER, size)
        if is_external(tensor):
            yield _head(tensor)
            yield tensor_content(tensor).data
        else:
            yield tensor.SerializeToString(deterministic=True)
    yield tail + _fields_where(light, lambda number: number > _GRAPH)


def hash_model(proto: onnx.ModelProto) -> str:
    """Return the SHA-256 of `proto` as one message with all its values inside."""
    digest = hashlib.sha256()
    for part in serialize(proto):
        digest.update(part)
    return digest.hexdigest()


def _fields_where(message: Any, wanted: Callable[[int], bool]) -> bytes:
    """Return the fields of `message` whose number is `wanted`."""
    names = (field.name for field, _ in message.ListFields() if wanted(field.number))
    return bytes(take_fields(type(message)(), message, *names).SerializeToString(deterministic=True))


def _size(tensor: onnx.TensorProto) -> int:
    """Return the size of `tensor` in the file in bytes."""
    return len(_head(tensor)) + tensor_bytes(tensor) if is_external(tensor) else int(tensor.ByteSize())


def _head(tensor: onnx.TensorProto) -> bytes:
    """Return the fields of an external tensor before its values, and the start of the values' field."""
    head = strip_values(tensor).SerializeToString(deterministic=True)
    return bytes(head) + _field(_RAW_DATA, tensor_bytes(tensor))


def _field(number: int, length: int) -> bytes:
    """Return the tag and the length that precede a field with a length."""
    return _varint(number << 3 | _LENGTH) + _varint(length)


def _varint(value: int) -> bytes:
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])


def _replace(
    content: mmap.mmap, span: tuple[int, int], path: tuple[int, ...], make: Callable[[int, int], bytes]
) -> Iterator[bytes]:
    """Yield the message in `span` with some fields replaced.

    Args:
        content: of the file.
        span: first byte of the message, and the first byte after it.
        path: number of the field to replace, after the numbers of its enclosing fields.
        make: called with the span of a value; returns the replacing fields, or nothing to keep the value.
    """
    for number, start, body, end in _fields(content, *span):
        if number != path[0] or body is None:
            yield content[start:end]
        elif len(path) > 1:
            inner = b"".join(_replace(content, (body, end), path[1:], make))
            yield _field(number, len(inner)) + inner
        else:
            yield make(body, end) or content[start:end]


def _fields(content: mmap.mmap, at: int, last: int) -> Iterator[tuple[int, int, int | None, int]]:
    """Yield (number, start, start of the value if it has a length, end) of each field in [at, last)."""
    while at < last:
        start, body = at, None
        tag, at = _read_varint(content, at, last)
        kind = tag & 7
        if not tag >> 3:  # protobuf counts from 1; zeros behind a model would be read one by one
            raise ValueError(f"field of number 0 at byte {start}")
        if kind == _VARINT:
            _, at = _read_varint(content, at, last)
        elif kind == _LENGTH:
            length, body = _read_varint(content, at, last)
            at = body + length
        elif kind in (_FIXED32, _FIXED64):
            at += 4 if kind == _FIXED32 else 8
        else:
            raise ValueError(f"field of kind {kind} at byte {start}")
        if at > last:
            raise ValueError(f"the field at byte {start} is cut off")
        yield tag >> 3, start, body, at


def _read_varint(content: mmap.mmap, at: int, last: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= last:
            break
        byte = content[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ValueError(f"the number at byte {at} does not end")
