"""Large ONNX files without their weights in memory: the values are found in the file, and streamed into one.

Of protobuf's encoding only what that takes: a message is a row of fields, each a tag (number and kind) and a
value; those that are looked into have a length before them. https://protobuf.dev/programming-guides/encoding
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import onnx

from onnxfq.graph.stored import chunks, keep_in_file, referring, tensor_bytes

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
            keep_in_file(tensor, path.resolve(), *place)
            inside.add(tensor.name)
    return proto, inside


def write_streamed(proto: onnx.ModelProto, stream: BinaryIO) -> None:
    """Write `proto` with all its values inside; initializers come from where they are, a part at a time."""
    light = referring(proto, dict.fromkeys((t.name for t in proto.graph.initializer), (0, 0)), "")
    heads = [_tensor_head(tensor) for tensor in light.graph.initializer]
    lengths = [_byte_count(tensor) for tensor in proto.graph.initializer]
    del light.graph.initializer[:]
    graph = light.graph.SerializeToString(deterministic=True)
    light.ClearField("graph")
    bodies = [len(head) + len(_field(_RAW_DATA, n)) + n for head, n in zip(heads, lengths, strict=True)]
    total = len(graph) + sum(len(_field(_INITIALIZER, size)) + size for size in bodies)
    stream.write(light.SerializeToString(deterministic=True) + _field(_GRAPH, total) + graph)
    for tensor, head, size, length in zip(proto.graph.initializer, heads, bodies, lengths, strict=True):
        stream.write(_field(_INITIALIZER, size) + head + _field(_RAW_DATA, length))
        for part in chunks(tensor):
            stream.write(part)


def _tensor_head(reference: onnx.TensorProto) -> bytes:
    """Return the fields of a tensor without its values."""
    reference.ClearField("data_location")
    reference.ClearField("external_data")
    return bytes(reference.SerializeToString(deterministic=True))


def _byte_count(tensor: onnx.TensorProto) -> int:
    if tensor.HasField("raw_data") or tensor.external_data:
        return tensor_bytes(tensor)
    return sum(map(len, chunks(tensor)))


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
