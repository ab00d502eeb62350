"""Inlining of local functions."""

from __future__ import annotations

from collections.abc import Collection

import onnx
from onnx import inliner

from onnxfq.errors import ModelError
from onnxfq.graph.model import list_nodes

MOST_NODES = 250_000
"""Most nodes of a model with local functions written out; networks have up to some ten thousand."""

_Call = tuple[str, str, str]
"""Domain, name and overload."""


def inline_model(proto: onnx.ModelProto, kept: Collection[str] = ()) -> onnx.ModelProto:
    """Return `proto` with its local functions inlined; may change `proto`.

    onnx's inliner (1.23.2) drops the default of an attribute that a call omits, which changes the result.
    Defaults are therefore written into the calls first, one level of functions at a time, because passed-on
    attributes may be missing too.

    Args:
        proto: the model.
        kept: names of functions that stay.

    Raises ModelError for a call with more inputs or outputs than its function has, and for functions that
    call themselves or unfold to more than MOST_NODES nodes.
    """
    _check_unfolded(proto)
    while inside := {(f.domain, f.name) for f in proto.functions if f.name not in kept}:
        _write_defaults(proto)
        called = {
            (node.domain, node.op_type)
            for function in proto.functions
            if function.name not in kept
            for node in list_nodes(function)
        }
        outer = sorted(inside - called) or sorted(inside)
        proto = inliner.inline_selected_functions(proto, outer)
    return proto


def _check_unfolded(proto: onnx.ModelProto) -> None:
    """Raise ModelError for functions that unfold without end: each may call the one before it twice."""
    functions = {_id(function, function.name): function for function in proto.functions}
    sizes: dict[_Call, int] = {}

    def size(called: _Call) -> int:
        if called not in functions:
            return 1
        if called not in sizes:
            sizes[called] = MOST_NODES + 1  # a call of itself
            sizes[called] = sum(size(_id(node, node.op_type)) for node in list_nodes(functions[called]))
        return sizes[called]

    try:
        count = sum(size(_id(node, node.op_type)) for node in list_nodes(proto.graph)) if functions else 0
    except RecursionError:
        count = MOST_NODES + 1
    if count > MOST_NODES:
        raise ModelError(
            f"the model's local functions unfold to more than {MOST_NODES:,} nodes; export the model again"
        )


def _write_defaults(proto: onnx.ModelProto) -> None:
    """Add to every call of a local function the attributes that it leaves to their defaults."""
    functions = {_id(function, function.name): function for function in proto.functions}
    for caller in (proto.graph, *proto.functions):
        for node in list_nodes(caller):
            function = functions.get(_id(node, node.op_type))
            if function is None:
                continue
            for what in ("input", "output"):
                have, takes = len(getattr(node, what)), len(getattr(function, what))
                if have > takes:
                    name = node.name or ", ".join(node.output)
                    raise ModelError(
                        f"node {name!r} calls local function {function.name!r} with {have} {what}(s), and it "
                        f"has {takes}; export the model again"
                    )
            given = {attribute.name for attribute in node.attribute}
            missing = function.attribute_proto
            node.attribute.extend(attribute for attribute in missing if attribute.name not in given)


def _id(one: onnx.NodeProto | onnx.FunctionProto, name: str) -> _Call:
    return one.domain, name, one.overload
