"""`Reading`: all that the rules ask about a model, gathered once."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import onnx

from onnxfq.graph.model import all_nodes, default_opset
from onnxfq.graph.names import unused
from onnxfq.targets.tensorrt.rules.findings import Finding, Severity
from onnxfq.targets.tensorrt.rules.operands import Promise, promise
from onnxfq.targets.tensorrt.rules.quantizers import DEQUANTIZE_OPS, QUANTIZE_OPS, Quantizer, quantizer
from onnxfq.targets.tensorrt.rules.scopes import Scope, Site, inferred

# Characters with a meaning in the log of TensorRT's builder.
_UNQUOTABLE = re.compile(r"[\]\[|\n]")


@dataclass(frozen=True, eq=False)
class Reading:
    """A model with its nodes, its quantizers and what it promises; bodies are included in all.

    proto: the model with local functions inlined, types inferred and a name for each node.
    """

    proto: onnx.ModelProto
    main: Scope
    sites: tuple[Site, ...]
    quantizers: tuple[Quantizer, ...]
    promises: tuple[Promise, ...]


Rule = Callable[[Reading], Iterator[Finding]]
"""Yields a finding for each place in the model that breaks one rule."""


def read(proto: onnx.ModelProto, known: frozenset[str]) -> Reading:
    """Gather what `proto` has; known: names of operators that are no local functions for the target."""
    proto = inferred(proto, known)
    make_names_quotable(proto)
    main = Scope(proto.graph, default_opset(proto))
    sites = tuple(main.all_sites())
    return Reading(
        proto,
        main,
        sites,
        tuple(found for site in sites if (found := quantizer(site)) is not None),
        tuple(made for site in sites if (made := promise(site)) is not None),
    )


def make_names_quotable(proto: onnx.ModelProto) -> None:
    """Give each node, in bodies too, a name of its own that a log can quote; Q and DQ keep what they have.

    The builder tells by name what became of a node. Equal names of Q and DQ it refuses, which is to be seen.
    """
    taken: set[str] = set()
    for node in all_nodes(proto.graph):
        pair = node.name and (node.op_type in QUANTIZE_OPS or node.op_type in DEQUANTIZE_OPS)
        if not pair:
            name = node.name or (node.output[0] if node.output else node.op_type)
            node.name = unused(_UNQUOTABLE.sub("_", name), taken)
        taken.add(node.name)


def finding(rule: str, severity: Severity, site: Site, message: str, tensor: str = "") -> Finding:
    """Return a finding about `site`."""
    return Finding(
        rule=rule, severity=severity, node=site.name, op_type=site.op, tensor=tensor, message=message
    )
