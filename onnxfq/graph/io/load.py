"""Model loading: read, check, normalise."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from pathlib import Path

import google.protobuf.message
import onnx
from onnx import shape_inference

from onnxfq.errors import ArgumentError, ModelError
from onnxfq.graph.checker import check_model
from onnxfq.graph.external import sizes
from onnxfq.graph.external.scratch_file import current_scratch
from onnxfq.graph.external.streaming import hash_model, read_without_values
from onnxfq.graph.external.tensor import ExternalTensor, embed, is_external, list_tensors
from onnxfq.graph.external.weightless import move_weights
from onnxfq.graph.index import GraphIndex
from onnxfq.graph.io.check_sizes import check_operands, check_products, check_sizes, check_unfolded
from onnxfq.graph.io.data_paths import resolve
from onnxfq.graph.model import Model, list_graphs, list_nodes
from onnxfq.graph.normalize import steps as normalize
from onnxfq.graph.normalize.decided_branches import take_branches
from onnxfq.graph.normalize.decompose_attention import write_out_attention
from onnxfq.graph.normalize.einsum_labels import lower_labels
from onnxfq.graph.normalize.fold_weights import fold_computed_weights
from onnxfq.graph.normalize.loop_constants import read_loop_constants
from onnxfq.graph.normalize.opset import raise_opset
from onnxfq.graph.normalize.repair import repair
from onnxfq.graph.normalize.shapes import add_shapes, correct_shapes
from onnxfq.graph.normalize.stored_scales import find_stored_scales
from onnxfq.graph.normalize.write_out_functions import lower_opset, write_out_functions
from onnxfq.graph.saturation import ValueLimit
from onnxfq.graph.stored_grid import StoredWeight
from onnxfq.support.other_words import explain_missing, explain_model
from onnxfq.support.reading import open_input, read_bytes
from onnxfq.support.records import join_lines

MIN_OPSET = 13
"""First opset in which QuantizeLinear and DequantizeLinear have an axis."""

_GIVEN = "the given model"

_FORMS = (
    normalize.inline_functions,
    normalize.drop_training,
    normalize.name_negative_dims,
    normalize.drop_initializer_inputs,
    normalize.name_tensors,
    normalize.sparse_to_dense,
    take_branches,
    normalize.constants_to_initializers,
    read_loop_constants,
)

_FOLDS = (
    normalize.fold_moves,
    fold_computed_weights,
    normalize.name_nodes,
    normalize.separate_depthwise_weights,
    normalize.note_batch_statistics,
    lower_labels,
)


_OWN = ("proto", "qdq", "model_proto")
"""Attributes of objects that hold a ModelProto: of `Model`, a result, and what torch exports."""

TakeOut = Callable[[onnx.ModelProto, str], tuple[str, dict[str, ValueLimit]]]
"""Removal of quantizers from a model, in place, with its source: a note, and the limits that it leaves."""


def load(model: str | Path | onnx.ModelProto | Model) -> Model:
    """Read a model from a path or a ModelProto and normalise it; return a `Model` unchanged.

    The file and the ModelProto are never changed.

    Args:
        model: a path, a ModelProto or a `Model`.

    Raises:
        ModelError: in one line, for a missing file, a file that is not ONNX, an invalid model, or an opset
            that cannot be raised.
    """
    if isinstance(model, Model):
        return model
    return normalize_model(*read_model(model))


def normalize_model(
    proto: onnx.ModelProto, sha256: str, source: str, take_out: TakeOut | None = None
) -> Model:
    """Normalise the result of `read_model`; may change `proto`. Raises ModelError as `load` does."""
    try:
        notes = [step(proto) for step in _FORMS]
        scales = find_stored_scales(proto)
        notes += [step(proto) for step in _FOLDS]
        check_operands(proto, source)  # again: functions are inlined now
        check_unfolded(proto, source)
        limits: dict[str, ValueLimit] = {}
        if take_out is not None:
            note, limits = take_out(proto, source)
            notes += [note, normalize.fold_moves(proto), fold_computed_weights(proto)]
        notes.append(correct_shapes(proto))
        proto, note = raise_opset(proto, MIN_OPSET, source)
        add_shapes(proto)
        notes.append(normalize.drop_same_reshapes(proto))
        check_products(proto, source)
        attention = write_out_attention(proto)
        written = write_out_functions(proto)
        lowered = lower_opset(proto)
        if attention:
            add_shapes(proto)
        constants = GraphIndex(proto.graph).constants
        stored = {name: StoredWeight(constants[name], scales[name]) for name in scales if name in constants}
        said = tuple(filter(None, [*notes, note, attention, written, lowered]))
        return Model(proto, sha256, source, said, stored, limits)
    except shape_inference.InferenceError as fault:
        raise ModelError(
            f"{source} is not a valid ONNX model: {join_lines(fault)[:200]}; export it again"
        ) from None
    except UnicodeDecodeError:
        raise _make_text_error(source) from None


def standard_form(proto: onnx.ModelProto) -> list[str]:
    """Normalise `proto` in place, except its opset; return the changes."""
    return [note for step in (*_FORMS, *_FOLDS) if (note := step(proto))]


def read_model(
    model: str | Path | onnx.ModelProto, data: Path | None = None, in_memory: int | None = None
) -> tuple[onnx.ModelProto, str, str]:
    """Return (a checked copy of the ModelProto, SHA-256, name for messages), not normalised.

    Weights in a data file or a large ONNX file stay there. Weights of a ModelProto go to a scratch file if
    one is open. Raises ModelError as `load` does.

    Args:
        model: a path or a ModelProto.
        data: the data file, if it is not next to the model yet.
        in_memory: bytes of a file up to which it is read as a whole, by default and at most IN_MEMORY.
    """
    if isinstance(model, onnx.ModelProto):
        read = _from_proto(model)
    elif not isinstance(model, str | os.PathLike):
        kind = f"{type(model).__module__}.{type(model).__name__}"
        own = [name for name in _OWN if isinstance(getattr(model, name, None), onnx.ModelProto)]
        found = f", which is its .{own[0]}" if own else ""
        found = ", which onnx.load_from_string makes of bytes" if isinstance(model, bytes) else found
        raise ArgumentError(f"the model is of type {kind}; give a path or an onnx.ModelProto{found}")
    else:
        read = _from_path(Path(model), data, sizes.limit_in_memory(in_memory))
    _check(read[0], read[2])
    return read


def _from_proto(proto: onnx.ModelProto) -> tuple[onnx.ModelProto, str, str]:
    scratch = current_scratch.get()
    try:
        inside = 0
        for tensor in list_tensors(proto):
            if not is_external(tensor):
                inside += sizes.tensor_bytes(tensor)
            elif not ExternalTensor.of(tensor).is_own:
                raise ModelError(
                    f"the given model holds {tensor.name!r} in an external file; give its path, or load "
                    "it with its data"
                )
        if scratch is None and inside > sizes.LIMIT:
            raise ModelError(
                "the given model holds over 2 GB, more than one message can; save it with external data and "
                "give its path"
            )
        digest = hash_model(proto)
        if scratch is not None:
            return move_weights(proto, scratch), digest, _GIVEN
        return deepcopy(proto), digest, _GIVEN
    except ValueError as fault:
        raise ModelError(f"{_GIVEN} is damaged: {join_lines(fault)[:200]}; export it again") from None


def _from_path(path: Path, data: Path | None, in_memory: int) -> tuple[onnx.ModelProto, str, str]:
    proto, digest = _read(path, in_memory)
    initializers = len(proto.graph.initializer)
    for number, tensor in enumerate(list_tensors(proto)):
        if not is_external(tensor):
            continue
        try:
            values = resolve(tensor, path, data)
            if values.location != str(path.absolute()):  # else it is hashed with the file
                digest.update(values.content().data)
            if number >= initializers or sizes.tensor_bytes(tensor) <= sizes.SMALL:
                tensor.CopyFrom(embed(tensor))
        except (OSError, onnx.checker.ValidationError, ValueError) as fault:
            raise ModelError(
                f"{path}: the external data of {tensor.name!r} cannot be read ({join_lines(fault)}); "
                "keep the data file next to the model"
            ) from None
    return proto, digest.hexdigest(), str(path)


def _read_head(path: Path) -> bytes:
    """Return the first bytes of a file, for a message; none of a path that no file can have."""
    try:
        with open_input(path) as stream:
            return stream.read(32)
    except OSError:
        return b""


def _read(path: Path, in_memory: int) -> tuple[onnx.ModelProto, hashlib._Hash]:
    """Return (the model at `path`, its hash); the values of a large model stay in the file."""
    try:
        if path.stat().st_size > in_memory:
            proto = read_without_values(path, sizes.SMALL)  # first: a file that is not ONNX is not hashed
            digest = hashlib.sha256()
            with open_input(path) as stream:
                while part := stream.read(1 << 24):
                    digest.update(part)
            return proto, digest
        content = read_bytes(path, in_memory)
        with ThreadPoolExecutor(1) as beside:  # hashing lets go of the interpreter
            hashed = beside.submit(hashlib.sha256, content)
            return onnx.ModelProto.FromString(content), hashed.result()
    except FileNotFoundError:
        raise ModelError(f"no such file: {path}; {explain_missing(path)}") from None
    except OSError as fault:
        raise ModelError(f"cannot read {path}: {fault.strerror or fault}; give an .onnx file") from None
    except (google.protobuf.message.DecodeError, ValueError):
        remedy = explain_model(path.suffix, _read_head(path))
        raise ModelError(f"{path} is not an ONNX file, or it is damaged; {remedy}") from None


def _check(proto: onnx.ModelProto, source: str) -> None:
    if not proto.graph.node:
        raise ModelError(f"{source} is not an ONNX model, or it has no nodes; export it again")
    try:
        # protobuf does not check text: a damaged string reads as bytes or raises an error.
        notes = [text for entry in proto.metadata_props for text in (entry.key, entry.value)]
        if not all(isinstance(text, str) for text in (*notes, *_texts(proto.graph))):
            raise _make_text_error(source)
        _check_types(proto.graph, source)
        check_sizes(proto, source)
        repair(proto, source)
        check_model(proto)
        check_operands(proto, source)
        check_unfolded(proto, source)
    except UnicodeDecodeError:
        raise _make_text_error(source) from None
    except onnx.checker.ValidationError as fault:
        # Custom ops and dimensions of -1 are accepted: the checker allows the former,
        # and normalising repairs the latter.
        raise ModelError(
            f"{source} is not a valid ONNX model: {join_lines(fault)[:200]}; export it again"
        ) from None


def _check_types(graph: onnx.GraphProto, source: str) -> None:
    """Raise ModelError for element types that ONNX does not define; its checker ignores them."""
    known = frozenset(onnx.TensorProto.DataType.values())
    for inner in list_graphs(graph):
        values = (*inner.input, *inner.output, *inner.value_info)
        types = [(value.name, value.type.tensor_type.elem_type) for value in values]
        types += [(tensor.name, tensor.data_type) for tensor in inner.initializer]
        for name, kind in types:
            if kind not in known:
                raise ModelError(
                    f"{source} is not a valid ONNX model: {name!r} has element type {kind}, which the "
                    "installed onnx lacks; export it again, or upgrade onnx"
                )


def _texts(graph: onnx.GraphProto) -> Iterator[object]:
    """Yield every name in `graph` and in the bodies below it."""
    yield graph.name
    for node in list_nodes(graph):
        yield from (node.name, node.op_type, node.domain, *node.input, *node.output)
    yield from (tensor.name for tensor in graph.initializer)
    for value in (*graph.input, *graph.output, *graph.value_info):
        yield value.name
        yield from (dim.dim_param for dim in value.type.tensor_type.shape.dim)


def _make_text_error(source: str) -> ModelError:
    return ModelError(f"{source} is damaged: a name in it is not UTF-8 text; export it again")
