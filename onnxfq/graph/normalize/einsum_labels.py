"""Lower-case labels in Einsum equations: TensorRT's parser refuses upper-case ones, which ONNX allows."""

from __future__ import annotations

import string

import onnx

from onnxfq.graph.model import list_nodes
from onnxfq.graph.ops import STANDARD_DOMAINS


def lower_labels(proto: onnx.ModelProto) -> str:
    """Rewrite upper-case labels of Einsum equations in place, bodies included; return a note."""
    changed = 0
    for node in list_nodes(proto.graph):
        if node.op_type != "Einsum" or node.domain not in STANDARD_DOMAINS:
            continue
        equation = next(attribute for attribute in node.attribute if attribute.name == "equation")
        given = equation.s.decode()
        equation.s = rename_labels(given).encode()
        changed += equation.s.decode() != given
    return f"{changed} Einsum equation(s) written with lower-case labels" if changed else ""


def rename_labels(equation: str) -> str:
    """Return `equation` with lower-case labels only, of the same meaning.

    An upper-case label becomes its lower-case letter, or the first free one if that is taken. The equation
    stays if 26 letters are not enough, and if it has labels of both cases and no output: the output is sorted
    by label then, and runtimes sort upper-case letters differently.
    """
    labels = sorted(set(filter(str.isalpha, equation)))
    upper, taken = [c for c in labels if c.isupper()], {c for c in labels if c.islower()}
    if len(labels) > len(string.ascii_lowercase) or (taken and "->" not in equation):
        return equation
    renamed = {c: c.lower() for c in upper if c.lower() not in taken}
    free = (c for c in string.ascii_lowercase if c not in taken | set(renamed.values()))
    renamed |= {c: next(free) for c in upper if c not in renamed}
    return "".join(renamed.get(c, c) for c in equation)
