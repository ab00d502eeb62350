"""Rules about operators of opset 23 and later: what the builder takes whole, and what it wants written out.

Measured with TensorRT for RTX 1.7.1. It takes RMSNormalization, RotaryEmbedding and Swish, and TensorScatter
into a linear cache of four axes. It takes an Attention with one output. Its list of operators names
LinearAttention and CausalConvWithState, and it cannot load them.
"""

from __future__ import annotations

from collections.abc import Iterator

from onnx import helper

from onnxfq.targets.findings import Finding
from onnxfq.targets.reading.context import CheckContext, Rule, make_finding
from onnxfq.targets.reading.node_sites import NodeSite

REMEDY = "`onnxfq quantize` and `onnxfq cast` write it out in other operators"

_CACHE_AXES = 4


def newer_operators(reading: CheckContext) -> Iterator[Finding]:
    """Refuse forms of new operators that the builder does not take. Parser and builder: see the file."""
    for site in reading.sites:
        explain = _EXPLAIN.get(site.op)
        why = explain(site) if explain is not None else ""
        if why:
            yield make_finding("operator-form", "refused", site, why)


def _explain_attention(site: NodeSite) -> str:
    if sum(bool(name) for name in site.node.output) > 1:
        return f"TensorRT takes an Attention with one output only; {REMEDY}"
    if any(attribute.name == "softmax_precision" for attribute in site.node.attribute):
        return f"TensorRT takes no softmax_precision of Attention; {REMEDY}"
    return ""


def _explain_plugin(site: NodeSite) -> str:
    return f"TensorRT cannot load its plugin of {site.op}; {REMEDY}"


def _explain_scatter(site: NodeSite) -> str:
    given = {one.name: helper.get_attribute_value(one) for one in site.node.attribute}
    if given.get("mode", b"linear") != b"linear":
        mode = given["mode"].decode()
        return f"TensorRT writes into a linear cache only, and its mode is {mode!r}; use ScatterND"
    shape = site.inputs[0].shape
    if shape is not None and len(shape) != _CACHE_AXES:
        return f"TensorRT takes a cache of {_CACHE_AXES} axes, and this has {len(shape)}; reshape it"
    return ""


_EXPLAIN = {
    "Attention": _explain_attention,
    "CausalConvWithState": _explain_plugin,
    "LinearAttention": _explain_plugin,
    "TensorScatter": _explain_scatter,
}
"""Operator -> why a form of it is refused; empty if it is taken."""

RULES: tuple[Rule, ...] = (newer_operators,)
