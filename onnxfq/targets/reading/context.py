"""Check context: model facts shared by all rules."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import onnx

from onnxfq.graph.model import list_nodes
from onnxfq.graph.names import pick_name
from onnxfq.graph.normalize.node_sites import NodeSite, SiteIndex, infer_types
from onnxfq.targets.findings import Finding, Severity
from onnxfq.targets.reading.operands import (
    JOINING,
    ExpectedPrecision,
    QuantizedOperand,
    Units,
    joined_pairs,
    promise,
)
from onnxfq.targets.reading.quantizer_reader import DEQUANTIZE_OPS, QUANTIZE_OPS, Quantizer, quantizer

# Characters with a meaning in the log of TensorRT's builder.
_UNQUOTABLE = re.compile(r"[\]\[|\n]")


@dataclass(frozen=True, eq=False)
class CheckContext:
    """Model with its nodes, its quantizers and their expected precision; all include bodies.

    Attributes:
        proto: the model with local functions inlined, types inferred and a name for each node.
        sums: residual sums, each with its skip branch alone, for a target that fuses them.
    """

    proto: onnx.ModelProto
    index: SiteIndex
    sites: tuple[NodeSite, ...]
    quantizers: tuple[Quantizer, ...]
    promises: tuple[ExpectedPrecision, ...]
    sums: tuple[ExpectedPrecision, ...] = ()

    @property
    def counted(self) -> tuple[ExpectedPrecision, ...]:
        """The nodes of a coverage: promised ones, and residual sums with a pair on their skip branch."""
        return (*self.promises, *(one for one in self.sums if one.pairs))

    def weights(self) -> Iterator[tuple[ExpectedPrecision, QuantizedOperand, Quantizer]]:
        """Yield each promised node that has a quantized constant, the constant and its DQ."""
        for promised in self.promises:
            weight = promised.weight
            if weight is not None and weight.pair is not None:
                yield promised, weight, weight.pair

    def activations(self) -> Iterator[tuple[ExpectedPrecision, QuantizedOperand, Quantizer]]:
        """Yield each quantized operand that is computed from data, with its promised node and its DQ."""
        for promised in self.promises:
            for operand in promised.activations:
                if operand.pair is not None:
                    yield promised, operand, operand.pair


Rule = Callable[[CheckContext], Iterator[Finding]]
"""Yields a finding for each place in the model that breaks one rule."""


def read(
    proto: onnx.ModelProto, known: frozenset[str] = frozenset(), units: Units | None = None
) -> CheckContext:
    """Return the check context of a model.

    Args:
        proto: the model.
        known: names of operators that the target has, whose local functions are not inlined.
        units: operators beside products that the target runs in low precision between pairs. With them a
            product counts only if all its operands are quantized, or only its constant is.
    """
    proto = infer_types(proto, known)
    make_names_quotable(proto)
    index = SiteIndex(proto)
    sites = tuple(index.sites)
    for site in sites:  # in this order each finds the pairs of the one before it
        if site.op in JOINING:
            joined_pairs(site)
    return CheckContext(
        proto,
        index,
        sites,
        tuple(found for site in sites if (found := quantizer(site)) is not None),
        tuple(made for site in sites if (made := promise(site, units)) is not None),
    )


def make_names_quotable(proto: onnx.ModelProto) -> None:
    """Give each node, bodies included, a unique name that a log can quote; Q and DQ keep their names.

    The builder reports nodes by name. It rejects equal names of Q and DQ, so the rules must see these.
    """
    taken: set[str] = set()
    for node in list_nodes(proto.graph):
        pair = node.name and (node.op_type in QUANTIZE_OPS or node.op_type in DEQUANTIZE_OPS)
        if not pair:
            name = node.name or (node.output[0] if node.output else node.op_type)
            node.name = pick_name(_UNQUOTABLE.sub("_", name), taken)
        taken.add(node.name)


def make_finding(rule: str, severity: Severity, site: NodeSite, message: str, tensor: str = "") -> Finding:
    """Return a finding about `site`."""
    return Finding(
        rule=rule, severity=severity, node=site.name, op_type=site.op, tensor=tensor, message=message
    )
