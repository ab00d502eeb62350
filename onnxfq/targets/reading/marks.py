"""Copy of a model whose promised nodes carry marks: names by which a runtime's own graph tells them again.

Runtimes fuse, split and rename nodes. The result keeps a part of the name of the node, of an output or of the
weight. A mark is unique in each.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy

import onnx

from onnxfq.graph.model import list_graphs, list_nodes
from onnxfq.graph.ops import SCALES
from onnxfq.targets.profiles import Range, fix_sizes, profiles
from onnxfq.targets.reading.context import CheckContext

# A runtime may give the name of such an operator to the product that it is joined with.
_JOINING = SCALES | {"Add"}
_MARK = re.compile(r"promised(\d+)mark")


def find_marks(names: Iterable[str]) -> set[int]:
    """Return the positions in `CheckContext.promises` of the nodes whose marks are in `names`."""
    return {int(number) for name in names for number in _MARK.findall(name)}


def mark_promises(reading: CheckContext, shapes: Mapping[str, Sequence[int | Range]]) -> onnx.ModelProto:
    """Return a copy of the model with marked promised nodes, for a runtime to open.

    Args:
        reading: the model.
        shapes: shapes of inputs with open dimensions, which are fixed in the copy.

    Raises DataError for an unknown input or a shape that does not fit.
    """
    wanted = profiles(reading.proto, shapes)
    tensors: dict[str, str] = {}
    names = {p.site.name: f"promised{number}mark" for number, p in enumerate(reading.promises)}
    for number, promised in enumerate(reading.promises):
        mark = f"promised{number}mark"
        tensors |= {name: f"{mark}_{at}" for at, name in enumerate(promised.site.node.output) if name}
        weight = promised.weight
        if weight is not None and weight.pair is not None and weight.pair.data in reading.index.constants:
            stored = weight.pair.data  # several nodes may read it
            tensors[stored] = f"{tensors.get(stored, 'stored')}_{mark}"
        readers = promised.site.outputs[0].outputs
        if len(readers) == 1 and readers[0].op in _JOINING:
            names.setdefault(readers[0].name, f"{mark}_behind")
            tensors.setdefault(readers[0].node.output[0], f"{mark}_behind_0")  # what a last layer is named by
    marked = deepcopy(reading.proto)
    for node in list_nodes(marked.graph):
        node.name = names.get(node.name, node.name)
        for read in (node.input, node.output):
            read[:] = [tensors.get(name, name) for name in read]
    for graph in list_graphs(marked.graph):
        for tensor in (*graph.initializer, *graph.output):
            tensor.name = tensors.get(tensor.name, tensor.name)
    fix_sizes(marked, {name: usual for name, (_, usual, _) in wanted.items() if name in shapes})
    return marked
