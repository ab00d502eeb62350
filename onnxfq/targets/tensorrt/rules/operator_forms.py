"""Rule about forms of operators that TensorRT has: attributes, outputs and types that it refuses.

Each was tried on TensorRT for RTX 1.7.1, whose parser reports the operators as supported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np
from onnx import TensorProto

from onnxfq.targets.findings import Finding
from onnxfq.targets.tensorrt.rules.context import Reading, Rule, make_finding
from onnxfq.targets.tensorrt.rules.scopes import Site

MOST_TOP = 3840
"""Largest K of TopK (ITopKLayer)."""


def _find_antialias(site: Site) -> str:
    return "antialias is 1, and TensorRT has 0 only; resize without it" if site.attribute("antialias") else ""


def _find_indices(site: Site) -> str:
    several = len(site.node.output) > 1 and site.node.output[1]
    return "it returns indices, and TensorRT returns values only; export without them" if several else ""


def _find_large_k(site: Site) -> str:
    k = site.scope.value(site.input(1))
    if k is None or np.max(k, initial=0) <= MOST_TOP:
        return ""
    return f"K is {int(np.max(k))}, and TensorRT takes up to {MOST_TOP}; select fewer"


def _find_reduction(site: Site) -> str:
    found = site.attribute("reduction", b"none").decode()
    remedy = "compute it by other operators"
    return "" if found == "none" else f"reduction is {found!r}, and TensorRT has 'none' only; {remedy}"


def _find_upper_case(site: Site) -> str:
    equation = site.attribute("equation", b"").decode()
    remedy = "rename them, as `onnxfq quantize` does"
    lower = equation == equation.lower()
    return (
        "" if lower else f"{equation!r} has upper-case labels, and TensorRT takes lower-case ones; {remedy}"
    )


def _find_plugin(site: Site) -> str:
    return "TensorRT for RTX 1.7.1 lacks its plugin; export without it, or build with a TensorRT that has one"


def _find_float32(site: Site) -> str:
    output = site.outputs[0]
    if output.scope.dtype(output.name) != TensorProto.FLOAT:
        return ""
    return "TensorRT has ONNX's Attention in half types only; write it as MatMul, Softmax, MatMul"


FORMS: Mapping[str, Callable[[Site], str]] = {
    "Attention": _find_float32,
    "Einsum": _find_upper_case,
    "MaxPool": _find_indices,
    "NonZero": _find_plugin,
    "Resize": _find_antialias,
    "ScatterElements": _find_reduction,
    "ScatterND": _find_reduction,
    "TopK": _find_large_k,
}
"""Op type -> why TensorRT refuses this form of it, with the remedy; empty if it takes it."""


def operator_forms(reading: Reading) -> Iterator[Finding]:
    """Refuse forms of operators that the parser or the builder refuses."""
    for site in reading.sites:
        why = FORMS[site.op](site) if site.op in FORMS else ""
        if why:
            yield make_finding("operator-form", "refused", site, why)


RULES: tuple[Rule, ...] = (operator_forms,)
