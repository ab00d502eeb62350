"""Replacement of weights by others of the same shape, only where their readers are quantized."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np
import onnx
from numpy.typing import NDArray

from onnxfq.documents.plan import Plan
from onnxfq.graph.constants import make_tensor
from onnxfq.graph.external.weightless import with_initializers
from onnxfq.graph.index import GraphIndex
from onnxfq.graph.model import Model, list_graphs, list_nodes
from onnxfq.graph.slots import Use


def separate_float_readers(model: Model, plan: Plan, tensors: Iterable[str]) -> Model:
    """Return `model` in which only the uses of `plan` read `tensors`.

    Other readers, such as a Gather of a tied embedding, read a copy with the same values.
    """
    uses = {p.tensor: set(p.uses) for p in plan.weights if p.tensor in set(tensors)}
    proto = with_initializers(model.proto, model.proto.graph.initializer)
    taken = GraphIndex(proto.graph).names
    copies: dict[str, str] = {}

    def copy_of(name: str) -> str:
        if name not in copies:
            copies[name] = taken.claim(f"{name}/float")
        return copies[name]

    for node in list_nodes(proto.graph):
        for slot, name in enumerate(node.input):
            if name in uses and Use(node.name, slot) not in uses[name]:
                node.input[slot] = copy_of(name)
    for graph in list_graphs(proto.graph)[1:]:
        for value in graph.output:
            if value.name in uses:
                value.name = copy_of(value.name)
    for tensor in list(proto.graph.initializer):
        if tensor.name in copies:
            proto.graph.initializer.add().CopyFrom(tensor)
            proto.graph.initializer[-1].name = copies[tensor.name]
    return with_same_form(model, proto)


def replace_weights(model: Model, values: Mapping[str, onnx.TensorProto]) -> Model:
    """Return `model` with the tensors `values`, of the same types and shapes, instead of the present ones."""
    tensors = (values.get(tensor.name, tensor) for tensor in model.proto.graph.initializer)
    return with_same_form(model, with_initializers(model.proto, tensors))


def weight_tensor(name: str, values: NDArray[np.float32], like: NDArray[np.generic]) -> onnx.TensorProto:
    """Return `values` as a tensor called `name` of the type of `like`."""
    return make_tensor(name, values.astype(like.dtype))


def with_same_form(model: Model, proto: onnx.ModelProto) -> Model:
    """Return `model` with `proto`, which differs from its own in the values of constants alone."""
    made = replace(model, proto=proto)
    # Weights of other values need no other preparation.
    made.prepared.update(dict.fromkeys((t for t, one in model.prepared.items() if one is None), None))
    return made
