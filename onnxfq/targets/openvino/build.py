"""Precision of each promised node in the graph that OpenVINO's CPU plugin runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from onnxfq.errors import RuntimeLibraryError
from onnxfq.graph.ops import WEIGHTED_INPUTS
from onnxfq.targets.findings import Verdict, about_model
from onnxfq.targets.openvino.runtime import DEVICE, compile_model, load_library, version_of
from onnxfq.targets.reading.context import CheckContext
from onnxfq.targets.reading.marks import find_marks, mark_promises
from onnxfq.targets.reading.operands import ExpectedPrecision
from onnxfq.targets.reading.proof import Built, describe_node
from onnxfq.targets.target import BuildOptions

_LOW = frozenset({"i8", "u8"})
_SMALL = _LOW | {"i4", "u4"}
_PRODUCTS = frozenset({"Convolution", "Deconvolution", "FullyConnected", "MatMul", "Subgraph"})
# A layer that multiplies may have lost the name of its node; its weight keeps it behind these.
_CARRIERS = frozenset({"Const", "Convert", "Reorder", "Reshape", "Transpose"})
# Layers around a node that compute no part of it: they change types and layouts.
_GLUE = frozenset({"Convert", "FakeQuantize", "Input", "Output", "Reorder", *_CARRIERS})


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
    library = load_library()
    builder = f"OpenVINO {version_of(library)}"
    proto = mark_promises(reading, options.shapes)
    try:
        compiled = compile_model(proto)
    except RuntimeLibraryError as error:
        return Built(builder, (about_model("build", str(error)),))
    layers = [read_layer(op) for op in compiled.get_runtime_model().get_ordered_ops()]
    return Built(
        builder,
        nodes=tuple(
            describe_node(promised, DEVICE, _judge(promised, _find_layer(layers, number, promised)))
            for number, promised in enumerate(reading.promises)
        ),
    )


def read_layer(op: Any) -> RuntimeLayer:
    """Return the record of a node of a runtime model."""
    ports = [op.input_value(at) for at in range(op.get_input_size())]
    types = tuple(port.get_element_type().get_type_name() for port in ports)
    weights = [name for port in ports for name in _names_behind(port.get_node())]
    names = frozenset(",".join(_names(op)).split(","))
    return RuntimeLayer(_kind(op), types, names, frozenset(find_marks(names)), frozenset(find_marks(weights)))


def _names_behind(op: Any) -> list[str]:
    """Return the names of a stored constant, and of what moves it."""
    names: list[str] = []
    while _kind(op) in _CARRIERS:
        names += _names(op)
        if not op.get_input_size():
            return names
        op = op.input_value(0).get_node()
    return []


def _names(op: Any) -> list[str]:
    given = op.get_rt_info()
    original = str(given["originalLayersNames"].astype(str)) if "originalLayersNames" in given else ""
    return [op.get_friendly_name(), original]


def _kind(op: Any) -> str:
    given = op.get_rt_info()
    return str(given["layerType"].astype(str)) if "layerType" in given else ""


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
