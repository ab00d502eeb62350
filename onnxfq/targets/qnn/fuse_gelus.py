"""Gelus written as single operators become one, which the HTP has; it has no Erf, and rounds the parts.

A group of operators is a Gelu if it computes its numbers: the order and the constants may be any.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs
from numpy.typing import NDArray

from onnxfq.errors import ModelError
from onnxfq.graph.constants import constant_array
from onnxfq.graph.edit import Editor
from onnxfq.graph.model import Model, list_graphs
from onnxfq.graph.normalize.opset import edit_model
from onnxfq.graph.ops import STANDARD_DOMAINS

_OPSET = 20
"""First opset with Gelu."""
_PARTS: dict[str, Callable[..., Any]] = {
    "Add": np.add,
    "Div": np.divide,
    "Erf": np.vectorize(math.erf),
    "Mul": np.multiply,
    "Pow": np.power,
    "Tanh": np.tanh,
}
_ABOVE, _BELOW = 5, 3
"""Most operators before and behind the Erf or Tanh of a Gelu."""
_POINTS = np.linspace(-6.0, 6.0, 49)
_CUBIC = math.sqrt(2 / math.pi) * (_POINTS + 0.044715 * _POINTS**3)
# ONNX, Gelu. The forms differ by up to 5e-4, and constants of four digits by less than the tolerance.
_VALUES = {
    "none": _POINTS / 2 * (1 + _PARTS["Erf"](_POINTS / math.sqrt(2))),
    "tanh": _POINTS / 2 * (1 + np.tanh(_CUBIC)),
}
_TOLERANCE = 1e-4


def fuse_gelus(model: Model) -> Model:
    """Return `model` with Gelu in place of its parts; the model itself if it has none.

    A model that ONNX's converter cannot raise to the opset of Gelu keeps its parts, with a note.
    """
    if not {"Erf", "Tanh"} & {node.op_type for node in model.proto.graph.node}:
        return model
    try:
        return edit_model(
            model, lambda graph, opset: any([_fuse_in(graph, one) for one in list_graphs(graph)]), _OPSET
        )
    except ModelError as error:
        return replace(model, notes=(*model.notes, f"a Gelu in parts would stay in parts: {error}"))


def _fuse_in(graph: gs.Graph, scope: gs.Graph) -> bool:
    """Fuse the Gelus of one scope of `graph`; tell whether there were any."""
    editor, outputs = Editor(graph), {id(tensor) for tensor in scope.outputs}
    is_changed = False
    for node in [node for node in scope.nodes if node.op in ("Erf", "Tanh")]:
        found = next(_find(node, outputs), None)
        if found is None:
            continue
        source, result, parts, form = found
        made = gs.Node("Gelu", f"{result.name}/gelu", {"approximate": form}, [source])
        editor.insert_after_node(scope, result.inputs[0], [made])
        gone = {id(part) for part in parts}
        for part in parts:
            part.inputs, part.outputs = [], []
        scope.nodes[:] = [one for one in scope.nodes if id(one) not in gone]
        made.outputs, is_changed = [result], True
    return is_changed


def _find(node: gs.Node, outputs: set[int]) -> Iterator[tuple[gs.Tensor, gs.Tensor, list[gs.Node], str]]:
    """Yield (source, result, parts, form) of each Gelu around an Erf or Tanh, the largest first."""
    for result in reversed(list(_results(node.outputs[0]))):
        for source in _sources(node.inputs[0], _ABOVE):
            parts = _between(source, result, outputs)
            if parts is None or not any(part is node for part in parts):
                continue
            with np.errstate(all="ignore"):
                values = _evaluate(result, {id(source): _POINTS})
            for form, wanted in _VALUES.items():
                if np.abs(values - wanted).max() < _TOLERANCE:
                    yield source, result, parts, form


def _results(tensor: gs.Tensor) -> Iterator[gs.Tensor]:
    for _ in range(_BELOW):
        if len(tensor.outputs) != 1 or tensor.outputs[0].op not in ("Add", "Mul"):
            return
        tensor = tensor.outputs[0].outputs[0]
        yield tensor


def _sources(tensor: gs.Tensor, steps: int) -> Iterator[gs.Tensor]:
    if isinstance(tensor, gs.Constant):
        return
    yield tensor
    if steps and tensor.inputs and tensor.inputs[0].op in _PARTS:
        for above in tensor.inputs[0].inputs:
            yield from _sources(above, steps - 1)


def _between(source: gs.Tensor, result: gs.Tensor, outputs: set[int]) -> list[gs.Node] | None:
    """Return the nodes that compute `result` from `source` and numbers, read by nothing else; else None."""
    parts: list[gs.Node] = []
    waiting = [result]
    while waiting:
        tensor = waiting.pop()
        node = tensor.inputs[0] if tensor.inputs else None
        if tensor is source or any(node is part for part in parts):
            continue
        if isinstance(tensor, gs.Constant) and math.prod(tensor.shape) == 1:
            continue
        if node is None or node.op not in _PARTS or node.domain not in STANDARD_DOMAINS:
            return None
        if len(parts) > _ABOVE + _BELOW:
            return None
        parts.append(node)
        waiting += node.inputs
    known = {id(part) for part in parts}
    inner = [part.outputs[0] for part in parts if part.outputs[0] is not result]
    alone = all(id(one) not in outputs and {id(r) for r in one.outputs} <= known for one in inner)
    return parts if alone else None


def _evaluate(tensor: gs.Tensor, known: dict[int, NDArray[np.float64]]) -> NDArray[np.float64]:
    if isinstance(tensor, gs.Constant):
        return np.asarray(constant_array(tensor), np.float64).reshape(())
    if id(tensor) not in known:
        node = tensor.inputs[0]
        known[id(tensor)] = _PARTS[node.op](*(_evaluate(one, known) for one in node.inputs))
    return known[id(tensor)]
