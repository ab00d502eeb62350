"""`find_states`: outputs that a caller feeds back as inputs, such as the state of a recurrence."""

from __future__ import annotations

import onnx

from onnxfq.graph.index import GraphIndex

_TELLING = 2
"""Known sizes from which equal shapes tell without equal names."""


def find_states(graph: onnx.GraphProto, index: GraphIndex) -> dict[str, str]:
    """Return the outputs that are fed back, with the input that takes each.

    The first input and the first output belong to the task. Another output is a state if another input has
    its type and shape: the same rank, the same size on each axis where both are known, and either two such
    axes or a name that begins alike, as `state` and `stateN`. Each input takes one output.
    """
    inputs = [value.name for value in graph.input if value.name not in index.constants][1:]
    found: dict[str, str] = {}
    for output in [value.name for value in graph.output][1:]:
        free = [name for name in inputs if name not in found.values()]
        fitting = {name: _count_equal(index, output, name) for name in free}
        named = [name for name in free if fitting[name] >= 0 and _begin_alike(output, name)]
        alike = named or [name for name in free if fitting[name] >= _TELLING]
        if alike:
            found[output] = alike[0]
    return found


def _count_equal(index: GraphIndex, output: str, name: str) -> int:
    """Return on how many axes both have the same known size; -1 if no tensor can be both."""
    one, other = index.shape(output), index.shape(name)
    if one is None or other is None or len(one) != len(other):
        return -1
    if index.types.get(output) != index.types.get(name):
        return -1
    known = [pair for pair in zip(one, other, strict=True) if None not in pair]
    return len(known) if all(size == length for size, length in known) else -1


def _begin_alike(output: str, name: str) -> bool:
    one, other = ("".join(filter(str.isalpha, text)).lower() for text in (output, name))
    return bool(one and other) and (one.startswith(other) or other.startswith(one))
