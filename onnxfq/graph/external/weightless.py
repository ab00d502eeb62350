"""Models without weight values, for editing and handing on.

Only one weight at a time is in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import onnx
from onnx import helper

from onnxfq.graph.external.messages import take_fields
from onnxfq.graph.external.scratch_file import Scratch
from onnxfq.graph.external.sizes import is_small, large_tensors
from onnxfq.graph.external.tensor import attach, embed, is_external, strip_values, tensor_content


def read_structure(model: onnx.ModelProto | Path) -> onnx.ModelProto:
    """Return a model; the one at a path without the values in its data files."""
    return onnx.load(model, load_external_data=False) if isinstance(model, Path) else model


def with_initializers(proto: onnx.ModelProto, tensors: Iterable[onnx.TensorProto]) -> onnx.ModelProto:
    """Return a copy of `proto` with `tensors` as its initializers; the old ones are not copied."""
    made = onnx.ModelProto()
    made.graph.SetInParent()
    for new, old, left in ((made, proto, "graph"), (made.graph, proto.graph, "initializer")):
        take_fields(new, old, *(field.name for field, _ in old.ListFields() if field.name != left))
    made.graph.initializer.extend(tensors)
    return made


def strip_weights(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy of `proto` whose large initializers have type and shape but no values."""
    return with_initializers(proto, (t if is_small(t) else strip_values(t) for t in proto.graph.initializer))


def with_weights(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy of `proto` that holds all its values; it must not be large."""
    return with_initializers(proto, map(embed, proto.graph.initializer))


def split_weights(proto: onnx.ModelProto, path: Path, location: str = "", align: int = 1) -> onnx.ModelProto:
    """Write the large initializers of `proto` to a file; return a copy of the model that refers to it.

    Args:
        proto: the model.
        path: the file to write.
        location: path of the file relative to the copy's future folder; by default they share a folder.
        align: bytes; each tensor starts at a multiple of it.
    """
    with path.open("wb") as stream:

        def write(tensor: onnx.TensorProto) -> onnx.TensorProto:
            if is_small(tensor):
                return tensor
            content, start = tensor_content(tensor), -(-stream.tell() // align) * align
            stream.write(b"\0" * (start - stream.tell()))
            stream.write(content.data)
            return attach(strip_values(tensor), location or path.name, start, content.size)

        return with_initializers(proto, map(write, proto.graph.initializer))


def move_weights(proto: onnx.ModelProto, scratch: Scratch) -> onnx.ModelProto:
    """Return a copy of `proto` with large initializers in `scratch`; external ones stay in their files.

    Raises ValueError when one is damaged.
    """

    def move(one: onnx.TensorProto) -> onnx.TensorProto:
        return one if is_small(one) or is_external(one) else scratch.store(one, tensor_content(one))

    return with_initializers(proto, map(move, proto.graph.initializer))


def change_without_weights(
    proto: onnx.ModelProto, change: Callable[[onnx.ModelProto], onnx.ModelProto]
) -> onnx.ModelProto:
    """Apply `change` to `proto` while its large tensors are graph inputs; return the result with them."""
    large = large_tensors(proto)
    if not large:
        return change(proto)
    names = {tensor.name for tensor in large}
    bare = with_initializers(proto, (t for t in proto.graph.initializer if t.name not in names))
    added = names - {value.name for value in bare.graph.input}
    bare.graph.input.extend(
        helper.make_tensor_value_info(t.name, t.data_type, t.dims) for t in large if t.name in added
    )
    bare.ir_version = max(bare.ir_version, 4)  # before 4, every initializer is an input
    changed = change(bare)
    inputs = [value for value in changed.graph.input if value.name not in added]
    del changed.graph.input[:]
    changed.graph.input.extend(inputs)
    changed.graph.initializer.extend(large)
    return changed
