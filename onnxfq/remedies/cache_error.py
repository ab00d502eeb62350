"""Cost of a quantized cache for attention, on texts longer than those that its ranges come from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import onnx

from onnxfq.data import Feed
from onnxfq.documents.encodings import Encodings
from onnxfq.documents.plan import Plan
from onnxfq.errors import DataError
from onnxfq.graph.index import GraphIndex
from onnxfq.graph.model import Model
from onnxfq.graph.ops import MOVES, REPEATS
from onnxfq.graph.signature import with_outputs
from onnxfq.passes.insert_fake_quantize import ENABLED_INPUT
from onnxfq.placement.caches import ATTENTION
from onnxfq.runtime.session import Session
from onnxfq.stages.insert import insert_fake_quantize

_TIMES = (1, 4, 16)
"""Lengths in times the length of a sample."""

_MOST_TOKENS = 4096
"""Tokens of the longest text: a plain kernel holds their square for each head."""


def describe_cache_error(
    model: Model, plan: Plan, encodings: Encodings, samples: Sequence[Feed], threads: int
) -> str:
    """Return a line with the relative error of attention over caches as `plan` stores them; empty without.

    Everything but the caches is in float. The error of a layer is the root of its summed squares,
    divided by the same root of the float values; the line has the mean over all layers.

    Args:
        model: the float model.
        plan: of the whole model.
        encodings: of its caches.
        samples: texts with empty caches, which are joined to longer ones.
        threads: of a run, 0 for all cores.
    """
    caches = tuple(placement for placement in plan.placements if placement.stored)
    if not caches:
        return ""
    part = plan.model_copy(update={"placements": caches, "bridges": ()})
    proto = insert_fake_quantize(model, part, encodings, switches="one")
    tensors = list(dict.fromkeys(_attended(proto, [use.node for p in caches for use in p.uses])))
    session = Session(with_outputs(proto, tensors), threads, exact=True)
    parts: list[str] = []
    for feed, tokens in _join_texts(samples, _find_limit(proto)):
        try:
            switched = [feed | {ENABLED_INPUT: np.array(on)} for on in (False, True)]
            wanted, rounded = (session.run(one, tensors) for one in switched)
        except DataError:  # the model has positions for fewer tokens
            parts.append(f"it does not run on {tokens}")
            break
        shares = [_relative(*pair) for pair in zip(wanted, rounded, strict=True)]
        parts.append(f"{float(np.mean(shares)):.2%} at {tokens} tokens")
    return f"error of attention over the quantized cache alone: {', '.join(parts) or 'no text to measure it'}"


def _relative(wanted: np.ndarray, rounded: np.ndarray) -> float:
    real = wanted.astype(np.float64)
    return float(np.linalg.norm(rounded - real) / max(np.linalg.norm(real), np.finfo(np.float64).tiny))


def _attended(proto: onnx.ModelProto, readers: Sequence[str]) -> Iterator[str]:
    """Yield the results of attention, or of the products of an attention, that read the caches."""
    index = GraphIndex.of_model(proto)
    nodes = [node for node in index.nodes if node.name in readers]
    while nodes:
        node = nodes.pop(0)
        if node.op_type in (ATTENTION, "MatMul"):
            yield node.output[0]
        elif node.op_type in MOVES | REPEATS:
            nodes += index.readers.get(node.output[0], ())


def _find_limit(proto: onnx.ModelProto) -> int:
    """Return the number of tokens that tables of angles have rows for, and that memory allows."""
    index = GraphIndex.of_model(proto)
    tables = [node.input[2] for node in index.nodes if node.op_type == "RotaryEmbedding"]
    rows = [int(index.constants[name].dims[0]) for name in tables if name in index.constants]
    return min([_MOST_TOKENS, *rows])


def _join_texts(samples: Sequence[Feed], limit: int) -> Iterator[tuple[Feed, int]]:
    """Yield longer and longer texts from empty caches, with their number of tokens, `limit` at most."""
    rows = [{name: array[:1] for name, array in feed.items()} for feed in samples]
    length = max((array.shape[1] for row in rows[:1] for array in row.values() if array.ndim == 2), default=0)
    lengths = dict.fromkeys(min(times * length, max(limit, length)) for times in _TIMES if length)
    for tokens in lengths:
        parts = [rows[at % len(rows)] for at in range(-(-tokens // length))]
        yield {name: _join([row[name] for row in parts], tokens) for name in rows[0]}, tokens


def _join(parts: Sequence[np.ndarray], tokens: int) -> np.ndarray:
    """Return the first token numbers and masks in a row, positions continued, and anything else as it is."""
    first = parts[0]
    if first.ndim != 2 or first.dtype.kind != "i":
        return first
    joined = np.concatenate(parts, axis=1)[:, :tokens]
    counts = first.shape[1] > 1 and (first == np.arange(first.shape[1])).all()
    return np.arange(joined.shape[1], dtype=first.dtype)[None] if counts else joined
