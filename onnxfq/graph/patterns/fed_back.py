"""`find_states`: outputs that a caller feeds back as inputs, such as the state of a recurrence."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

import onnx

from onnxfq.graph.index import GraphIndex
from onnxfq.graph.patterns.makers import MOVERS

_TELLING = 2
"""Known sizes from which equal shapes tell without equal names."""

CACHES: dict[str, dict[int, int]] = {
    "GroupQueryAttention": {1: 3, 2: 4},
    "MultiHeadAttention": {1: 6, 2: 7},
    "DecoderMaskedMultiHeadAttention": {1: 5, 2: 6},
    "Attention": {1: 4, 2: 5},
    "Concat": {0: 0},
}
"""Outputs of an operator that hand on a cache, and the inputs that take it.

Sources: the operators of ONNX Runtime (ContribOperators.md), Attention-23 of ONNX, and the Concat of past and
new keys that exporters write. com.microsoft's Attention has both in one, at 4 and 1.
"""

_named: ContextVar[tuple[tuple[str, str], ...]] = ContextVar("named", default=())
"""Outputs that are states by the configuration of the model, each with the input that takes it."""

_ROLES = re.compile(
    r"past|present|key_values|prev(?:ious)?|new|next|in(?:put)?(?![a-z])|out(?:put)?(?![a-z])|\W|_"
)
"""Words by which the names of a state and its successor differ."""


@contextmanager
def naming_states(states: Mapping[str, str]) -> Iterator[None]:
    """Let `find_states` take the states of a configuration first inside: outputs, with the input of each."""
    token = _named.set(tuple(states.items()))
    try:
        yield
    finally:
        _named.reset(token)


def find_states(graph: onnx.GraphProto, index: GraphIndex) -> dict[str, str]:
    """Return the outputs that are fed back, with the input that takes each.

    A configuration of the model names them, see `naming_states`. A cache is one: an attention, or a Concat,
    reads an input and returns the output with what is new. The first output belongs to the task, and of
    other states the first input. Such an output is a state if another input has its type and shape: the same
    rank, the same size on each axis where both are known, and either two such axes, a name that begins
    alike, as `state` and `stateN`, or one that differs in words as `past` and `present`. Each input takes
    one output.
    """
    inputs = [value.name for value in graph.input if value.name not in index.constants]
    outputs = [value.name for value in graph.output][1:]
    found = {output: past for output in outputs for past in _find_pasts(output, inputs, index)}
    found |= {output: past for output, past in _named.get() if output in outputs and past in inputs}
    for output in [name for name in outputs if name not in found]:
        free = [name for name in inputs[1:] if name not in found.values()]
        fitting = {name: _count_equal(index, output, name) for name in free}
        named = [name for name in free if fitting[name] >= 0 and _are_named_alike(output, name)]
        alike = named or [name for name in free if fitting[name] >= _TELLING]
        if alike:
            found[output] = alike[0]
    return found


def _find_pasts(output: str, inputs: list[str], index: GraphIndex) -> Iterator[str]:
    """Yield the input whose cache `output` hands on."""
    made = index.origin(output, MOVERS)
    node = index.makers.get(made)
    if node is None:
        return
    slot = CACHES.get(node.op_type, {}).get([*node.output].index(made), -1)
    past = index.origin(node.input[slot], MOVERS) if 0 <= slot < len(node.input) else ""
    # A Concat may also join the data of the task with a result.
    if past in (inputs[1:] if node.op_type == "Concat" else inputs):
        yield past


def _count_equal(index: GraphIndex, output: str, name: str) -> int:
    """Return on how many axes both have the same known size; -1 if no tensor can be both."""
    one, other = index.shape(output), index.shape(name)
    if one is None or other is None or len(one) != len(other):
        return -1
    if index.types.get(output) != index.types.get(name):
        return -1
    known = [pair for pair in zip(one, other, strict=True) if None not in pair]
    return len(known) if all(size == length for size, length in known) else -1


def _are_named_alike(output: str, name: str) -> bool:
    bare = [_ROLES.sub("", text.lower()) for text in (output, name)]
    one, other = ("".join(filter(str.isalpha, text)).lower() for text in (output, name))
    alike = bool(one and other) and (one.startswith(other) or other.startswith(one))
    return alike or bool(bare[0]) and bare[0] == bare[1]
