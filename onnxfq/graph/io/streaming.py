"""Large ONNX files without their weights in memory: the values are found in the file, and streamed into one.

Of protobuf's encoding only what that takes: a message is a row of fields, each a tag (number and kind) and a
value; those that are looked into have a length before them. https://protobuf.dev/programming-guides/encoding
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import onnx

from onnxfq.graph.io.external_tensors import chunks, is_stored, keep_in_file, tensor_bytes
from onnxfq.graph.io.weightless import without_initializers

# Numbers of fields in onnx.proto: of ModelProto, GraphProto and TensorProto.
_GRAPH, _INITIALIZER, _RAW_DATA = 7, 5, 9
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5


def read_without_values(path: Path, large: int) -> tuple[onnx.ModelProto, set[str]]:
    """Return (the model in the file at `path`, the names of the initializers whose values stay in it).

    Those are all of over `large` bytes; they refer to their place in the file. Raises ValueError or
    protobuf's DecodeError when the file is no sound message, OSError as open does.
    """
    with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
        found: list[tuple[int, int] | None] = []
        proto = onnx.ModelProto.FromString(_light_model(content, found, large))
    if len(found) != len(proto.graph.initializer):
        raise ValueError("its initializers are not where its fields say")
    inside = set()
    for tensor, place in zip(proto.graph.initializer, found, strict=True):
        if place is not None:
            # Not resolved: a file without a name has only the link that leads to it.
            keep_in_file(tensor, path.absolute(), *place)
            inside.add(tensor.name)
    return proto, inside


def serialized(proto: onnx.ModelProto) -> Iterator[bytes]:
    """Yield `proto` as one message with all its values inside, a part at a time.

    Those in files come from there. Where there are none, the parts are what SerializeToString gives.
    """
    light = without_initializers(proto)
    head = _fields_where(light.graph, lambda number: number < _INITIALIZER)
    tail = _fields_where(light.graph, lambda number: number > _INITIALIZER)
    sizes = [_size(tensor) for tensor in proto.graph.initializer]
    total = len(head) + sum(len(_field(_INITIALIZER, size)) + size for size in sizes) + len(tail)
    yield _fields_where(light, lambda number: number < _GRAPH) + _field(_GRAPH, total) + head
    for tensor, size in zip(proto.graph.initializer, sizes, strict=True):
        yield _field(_INITIALIZER, size)
        if not is_stored(tensor):
            yield tensor.SerializeToString(deterministic=True)
            continue
        yield _head(tensor) + _field(_RAW_DATA, tensor_bytes(tensor))
        yield from chunks(tensor)
    yield tail + _fields_where(light, lambda number: number > _GRAPH)


def _fields_where(message: Any, wanted: Callable[[int], bool]) -> bytes:
    """Return the fields of `message` whose number is `wanted`."""
    part = type(message)()
    part.CopyFrom(message)
    for field, _ in message.ListFields():
        if not wanted(field.number):
            part.ClearField(field.name)
    return bytes(part.SerializeToString(deterministic=True))


def _size(tensor: onnx.TensorProto) -> int:
    """Return how many bytes `tensor` takes in the file."""
    if not is_stored(tensor):
        return int(tensor.ByteSize())
    length = tensor_bytes(tensor)
    return len(_head(tensor)) + len(_field(_RAW_DATA, length)) + length


def _head(tensor: onnx.TensorProto) -> bytes:
    """Return the fields of a stored tensor that are not about its values."""
    head = onnx.TensorProto()
    head.CopyFrom(tensor)
    head.ClearField("data_location")
    head.ClearField("external_data")
    return bytes(head.SerializeToString(deterministic=True))


def _field(number: int, length: int) -> bytes:
    """Return the tag and the length before a field that has a length."""
    return _varint(number << 3 | _LENGTH) + _varint(length)


def _varint(value: int) -> bytes:
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])


def _light_model(content: mmap.mmap, found: list[tuple[int, int] | None], large: int) -> bytes:
    """Return the message with light initializers; put into `found` where the values of each one are."""
    parts = []
    for number, start, body, end in _fields(content, 0, len(content)):
        if number == _GRAPH and body is not None:
            graph = b"".join(_light_graph(content, body, end, found, large))
            parts.append(_field(_GRAPH, len(graph)) + graph)
        else:
            parts.append(content[start:end])
    return b"".join(parts)


def _light_graph(
    content: mmap.mmap, first: int, last: int, found: list[tuple[int, int] | None], large: int
) -> Iterator[bytes]:
    for number, start, body, end in _fields(content, first, last):
        if number != _INITIALIZER or body is None:
            yield content[start:end]
            continue
        place, kept = None, []
        for inner, inner_start, inner_body, inner_end in _fields(content, body, end):
            if inner == _RAW_DATA and inner_body is not None and inner_end - inner_body > large:
                place = inner_body, inner_end - inner_body
            else:
                kept.append(content[inner_start:inner_end])
        found.append(place)
        tensor = b"".join(kept)
        yield _field(_INITIALIZER, len(tensor)) + tensor


def _fields(content: mmap.mmap, at: int, last: int) -> Iterator[tuple[int, int, int | None, int]]:
    """Yield (number, start, start of the value if it has a length, end) of each field in [at, last)."""
    while at < last:
        start, body = at, None
        tag, at = _read_varint(content, at, last)
        kind = tag & 7
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
