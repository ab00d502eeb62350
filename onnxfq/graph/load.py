"""Loading a model: read, check, normalise."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import google.protobuf.message
import onnx
from onnx import external_data_helper

from onnxfq.documents import one_line
from onnxfq.errors import ModelError
from onnxfq.graph import normalize
from onnxfq.graph.model import Model, all_nodes
from onnxfq.graph.opset import add_shapes, raise_opset
from onnxfq.graph.weightless import without_weights

MIN_OPSET = 13
"""QuantizeLinear and DequantizeLinear have an axis from this opset on."""

_STEPS = (
    normalize.inline_functions,
    normalize.name_negative_dims,
    normalize.drop_initializer_inputs,
    normalize.sparse_to_dense,
    normalize.constants_to_initializers,
    normalize.fold_moves,
    normalize.name_nodes,
)


def load(model: str | Path | onnx.ModelProto | Model) -> Model:
    """Read a model from a path or a ModelProto and normalise it; a `Model` is returned as it is.

    Raises ModelError in one line: no such file, not an ONNX file, invalid, or an opset that cannot
    be raised. The file and the given proto are never changed.
    """
    if isinstance(model, Model):
        return model
    return normalised(*read_model(model))


def normalised(proto: onnx.ModelProto, sha256: str, source: str) -> Model:
    """Normalise what `read_model` gave; `proto` is the caller's to lose. Raises ModelError as `load` does."""
    try:
        notes = standard_form(proto)
        proto, note = raise_opset(proto, MIN_OPSET, source)
        add_shapes(proto)
        return Model(proto, sha256, source, tuple(filter(None, [*notes, note])))
    except UnicodeDecodeError:
        raise _not_text(source) from None


def standard_form(proto: onnx.ModelProto) -> list[str]:
    """Normalise `proto` in place but for its opset; return what was done."""
    return [note for step in _STEPS if (note := step(proto))]


def read_model(model: str | Path | onnx.ModelProto) -> tuple[onnx.ModelProto, str, str]:
    """Return (a checked ModelProto of its own with all weights inside, SHA-256, name for messages).

    Raises ModelError as `load` does; nothing is normalised.
    """
    read = _from_proto(model) if isinstance(model, onnx.ModelProto) else _from_path(Path(model))
    _check(read[0], read[2])
    return read


def _from_proto(proto: onnx.ModelProto) -> tuple[onnx.ModelProto, str, str]:
    for tensor in external_data_helper._get_all_tensors(proto):
        if external_data_helper.uses_external_data(tensor):
            raise ModelError(
                f"the given model holds {tensor.name!r} in an external file; give its path, or load "
                "it with its data"
            )
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    digest = hashlib.sha256(proto.SerializeToString(deterministic=True)).hexdigest()
    return copy, digest, "the given model"


def _from_path(path: Path) -> tuple[onnx.ModelProto, str, str]:
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise ModelError(f"no such file: {path}; check the path") from None
    except OSError as fault:
        raise ModelError(f"cannot read {path}: {fault.strerror or fault}; give an .onnx file") from None
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(content)
    except google.protobuf.message.DecodeError:
        raise ModelError(f"{path} is not an ONNX file, or it is damaged; export it again") from None
    digest = hashlib.sha256(content)
    for tensor in external_data_helper._get_all_tensors(proto):
        if external_data_helper.uses_external_data(tensor):
            try:
                external_data_helper.load_external_data_for_tensor(tensor, str(path.parent))
            except (OSError, onnx.checker.ValidationError, ValueError) as fault:
                raise ModelError(
                    f"{path}: the external data of {tensor.name!r} cannot be read ({one_line(fault)}); "
                    "keep the data file beside the model"
                ) from None
            tensor.data_location = onnx.TensorProto.DEFAULT
            del tensor.external_data[:]
            digest.update(tensor.raw_data)
    return proto, digest.hexdigest(), str(path)


def _check(proto: onnx.ModelProto, source: str) -> None:
    if not proto.graph.node:
        raise ModelError(f"{source} is not an ONNX model, or it has no nodes; export it again")
    try:
        # protobuf checks no text: a damaged string is met as bytes, or as an error, when it is read.
        if not all(isinstance(text, str) for text in _texts(proto.graph)):
            raise _not_text(source)
        onnx.checker.check_model(without_weights(proto, emptied=True))
        for tensor in proto.graph.initializer:  # one at a time: checking makes a copy
            onnx.checker.check_tensor(tensor)
    except UnicodeDecodeError:
        raise _not_text(source) from None
    except onnx.checker.ValidationError as fault:
        # Custom ops and dimensions of -1 are no reason to refuse; the checker knows the former,
        # and the latter is repaired by normalising.
        raise ModelError(
            f"{source} is not a valid ONNX model: {one_line(fault)[:200]}; export it again"
        ) from None


def _texts(graph: onnx.GraphProto) -> Iterator[object]:
    """Yield every name in `graph` and in the bodies below it."""
    yield graph.name
    for node in all_nodes(graph):
        yield from (node.name, node.op_type, node.domain, *node.input, *node.output)
    yield from (tensor.name for tensor in graph.initializer)
    for value in (*graph.input, *graph.output, *graph.value_info):
        yield value.name
        yield from (dim.dim_param for dim in value.type.tensor_type.shape.dim)


def _not_text(source: str) -> ModelError:
    return ModelError(f"{source} is damaged: a name in it is not UTF-8 text; export it again")
