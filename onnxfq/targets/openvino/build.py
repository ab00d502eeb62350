"""Precision of each promised node in the graph that OpenVINO's CPU plugin runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass

import onnx

from onnxfq.errors import RuntimeLibraryError
from onnxfq.graph.index import GraphIndex
from onnxfq.graph.model import list_graphs
from onnxfq.graph.normalize.shapes import with_shapes
from onnxfq.graph.ops import WEIGHTED_INPUTS
from onnxfq.targets.findings import Verdict, about_model
from onnxfq.targets.openvino.runtime import DEVICE, list_layers, name_release
from onnxfq.targets.reading.context import CheckContext
from onnxfq.targets.reading.marks import find_marks, mark_promises
from onnxfq.targets.reading.operands import ExpectedPrecision
from onnxfq.targets.reading.proof import Built, describe_node
from onnxfq.targets.target import BuildOptions

_LOW = frozenset({"i8", "u8"})
_SMALL = _LOW | {"i4", "u4"}
_PRODUCTS = frozenset({"Convolution", "Deconvolution", "FullyConnected", "MatMul", "Subgraph"})
# Layers around a node that compute no part of it: they change types and layouts.
_GLUE = frozenset({"Const", "Convert", "FakeQuantize", "Input", "Output", "Reorder", "Reshape", "Transpose"})


@dataclass(frozen=True)
class RuntimeLayer:
    """One layer of the compiled graph.

    Attributes:
        kind: such as Convolution.
        types: of its inputs that are not scales or shapes, such as u8.
        names: of what it computes.
        own: positions of the promised nodes that it names.
        weights: positions of those whose weight it reads.
    """

    kind: str
    types: tuple[str, ...]
    names: frozenset[str]
    own: frozenset[int]
    weights: frozenset[int]


def build_model(reading: CheckContext, options: BuildOptions) -> Built:
    """Compile the model for the CPU and return the precision of each promised node.

    Raises RuntimeLibraryError if OpenVINO is missing, DataError for shapes that do not fit.
    """
    builder = name_release()
    proto = mark_promises(reading, options.shapes)
    try:
        given = [*list_layers(proto), *_list_inner_layers(proto)]
    except RuntimeLibraryError as error:
        return Built(builder, (about_model("build", str(error)),))
    layers = [
        RuntimeLayer(
            kind, tuple(types), frozenset(names), frozenset(find_marks(names)), frozenset(find_marks(behind))
        )
        for kind, types, names, behind in given
    ]
    nodes = (
        describe_node(promised, DEVICE, _judge(promised, _find_layer(layers, number, promised)))
        for number, promised in enumerate(reading.promises)
    )
    return Built(builder, nodes=tuple(nodes))


def _list_inner_layers(proto: onnx.ModelProto) -> Iterator[tuple[str, list[str], list[str], list[str]]]:
    """Yield the layers of each body, compiled as a model: OpenVINO shows no layer of a body.

    A body without layers has an input of unknown type, or does not compile alone.
    """
    if len(list_graphs(proto.graph)) == 1:
        return
    shaped = with_shapes(proto)
    index = GraphIndex.of_model(shaped)
    for graph in list_graphs(shaped.graph)[1:]:
        own = GraphIndex(*list_graphs(graph))
        taken = sorted(own.used - own.makers.keys() - own.values.keys() - own.constants.keys())
        if all(name in index.values or name in index.constants for name in taken):
            body = deepcopy(graph)
            body.initializer.extend(index.constants[name] for name in taken if name in index.constants)
            body.input.extend(index.values[name] for name in taken if name not in index.constants)
            model = onnx.helper.make_model(
                body, opset_imports=proto.opset_import, ir_version=proto.ir_version
            )
            with suppress(RuntimeLibraryError):
                yield from list_layers(model)


def _find_layer(
    layers: Sequence[RuntimeLayer], number: int, promised: ExpectedPrecision
) -> RuntimeLayer | None:
    """Return the layer that computes promised node `number`; None if none names it or its weight."""
    named = [layer for layer in layers if number in layer.own and layer.kind not in _GLUE]
    if promised.operands and promised.site.op not in WEIGHTED_INPUTS:
        return next(iter(named), None)
    reading = [layer for layer in layers if number in layer.weights]
    return next((layer for layer in (*named, *reading) if layer.kind in _PRODUCTS), None)


def _judge(promised: ExpectedPrecision, layer: RuntimeLayer | None) -> Verdict:
    """Return the precision of a promised node in `layer`.

    OpenVINO adds the float sums of a convolution to a side of 8 bits: one such side makes another operator
    than a product low. A chain of products in one Subgraph has the pairs of its activations inside.
    """
    if layer is None:
        return "missing"
    if promised.operands and promised.site.op not in WEIGHTED_INPUTS:
        return "low" if _LOW & set(layer.types) else "float"
    if layer.kind == "Subgraph" and _LOW & set(layer.types):
        computed = [one.pair for one in promised.operands if not one.constant]
        if all(pair is not None and pair.data in layer.names for pair in computed):
            return "low"
    data, *others = layer.types
    if data in _LOW:
        return "low" if others and others[0] in _LOW else "mixed"
    return "weight-only" if others and others[0] in _SMALL else "float"
