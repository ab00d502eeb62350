"""Names in what commands print: which of them no file has, and a model with marks in place of its names.

A word that goes on behind a name of a file was invented, unless it is a name itself. Marks show more: a word
around one is a name, and without names of nodes an operator with a number is invented.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from copy import deepcopy

import onnx
from onnx import helper

MARK = r"Q[0-9a-f]{8}Q"
WORD = re.compile(rf"[^\s'\"`,;()\[\]{{}}<>=|]*{MARK}[^\s'\"`,;()\[\]{{}}<>=|]*")
SEPARATOR = re.compile(r"[\s'\"`,;()\[\]{}<>=|]+")
NUMBERED = re.compile(r"(?<![\w/.-])(?:[A-Z][a-z0-9]+)+_\d+\b")
TYPES = re.compile(r"(?:type|type is|element type|data type|elem_type) \d+\b")


def mark(name: str) -> str:
    """Return the mark of a name: equal names of two models have equal marks."""
    return f"Q{zlib.crc32(name.encode()):08x}Q" if name else ""


def mark_names(proto: onnx.ModelProto, nameless: bool = False) -> onnx.ModelProto:
    """Return the model with a mark for each name; the nodes of a nameless one have no names."""
    marked = deepcopy(proto)
    for graph in list_graphs(marked.graph):
        for node in graph.node:
            node.name = "" if nameless else mark(node.name)
            node.input[:] = [mark(name) for name in node.input]
            node.output[:] = [mark(name) for name in node.output]
        for one in (*graph.initializer, *graph.input, *graph.output, *graph.value_info):
            one.name = mark(one.name)
        for sparse in graph.sparse_initializer:
            sparse.values.name = mark(sparse.values.name)
        del graph.quantization_annotation[:]
    return marked


def list_graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Yield the graph and its bodies."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            held = helper.get_attribute_value(attribute)
            for one in held if isinstance(held, list) else [held]:
                if isinstance(one, onnx.GraphProto):
                    yield from list_graphs(one)


def list_names(proto: onnx.ModelProto) -> set[str]:
    """Return the names of all nodes and tensors."""
    names = set()
    for graph in list_graphs(proto.graph):
        for node in graph.node:
            names |= {node.name, *node.input, *node.output}
        names |= {one.name for one in (*graph.initializer, *graph.input, *graph.output)}
    return names


def derived_names(text: str, known: set[str]) -> list[str]:
    """Return the words of a text that begin with a name in `known` and are not in it."""
    words = {word.strip("'.,:;") for word in SEPARATOR.split(text) if "/" in word}
    starts = (word.rpartition("/")[0] for word in words)
    return sorted(
        word for word, start in zip(words, starts, strict=True) if word not in known and start in known
    )


def invented_names(text: str, known: set[str]) -> list[str]:
    """Return the words of a text that are names of nothing known, and numbers of types."""
    words = [word.rstrip(".:") for word in WORD.findall(text)]
    numbered = [word for word in NUMBERED.findall(text) if word not in known]
    return sorted({word for word in words if word not in known} | {*numbered, *TYPES.findall(text)})
