"""Forms of operators that a runtime refuses, computes otherwise or does not run, from a table that it made.

`runtime_forms.json` has the release of each target's runtime and what it says: of operators between two
products in ONNX Runtime and OpenVINO, next to the simulation, and what in float cures them; of operators in 8
and in 16 bits in the HTP's emulation; of attributes, outputs and types in TensorRT's parser.
`scripts/runtime_forms.py` makes the table, and tests compare it. Plans and `check` read it, alike on every
machine.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from onnx.defs import get_schema
from onnx.helper import get_attribute_value

from onnxfq.documents.override import Override
from onnxfq.graph.follow import Node, Tensor
from onnxfq.graph.normalize.node_sites import NodeSite
from onnxfq.graph.ops import QDQ_OPS, STANDARD_DOMAINS
from onnxfq.graph.queries import is_never_negative
from onnxfq.targets.findings import Finding, Severity
from onnxfq.targets.reading.context import CheckContext, Rule, make_finding
from onnxfq.targets.reading.quantizer_reader import quantizer

TABLE_FILE = Path(__file__).with_suffix(".json")

OTHER = "other"
"""Stands for a float, or a list with a number, other than the default of the attribute."""

REFUSES = "refuses"
"""Word for a runtime that does not open a form, or ends the process."""

LAST = 99
"""Opset that stands for those that do not exist yet."""

CURES = ((), ("tried",), ("product2",), ("product0",), ("product0", "product2"))
"""Nodes that may stay in float to cure a form, the cheapest first; none for a form without a cure."""

_PRODUCTS = frozenset({"Conv", "Gemm", "MatMul"})
_DEFAULTS = {"pads": 0, "strides": 1, "dilations": 1}
"""Numbers of lists that are the default; a float has its default in its schema."""


class RuntimeForm(NamedTuple):
    """A form of an operator that a runtime computes otherwise, or refuses.

    Attributes:
        op: the operator.
        says: what the runtime makes of it.
        attributes: those that matter, with their values or OTHER.
        dtype: name of the element type of the first input; empty for any.
        output: position of an output that is asked for; 0 for none.
        missing: position of an input that is left out; 0 for none.
        bits: of the pairs around it; 0 for any.
        rank: axes of its input; 0 for any.
        opsets: least and largest opset.
        between: operator of the product in front; empty for any.
        reducer: operator that makes the second input of the first one; empty for none.
        signed: whether only numbers of both signs are computed otherwise.
        cure: what in float cures it: "tried" is the operator, "product0" the product in front, "product2" the
            one behind.
        words: the runtime's own, if it refuses.
    """

    op: str
    says: str = ""
    attributes: Mapping[str, Any] = {}
    dtype: str = ""
    output: int = 0
    missing: int = 0
    bits: int = 0
    rank: int = 0
    opsets: Sequence[int] = (1, LAST)
    between: str = ""
    reducer: str = ""
    signed: bool = False
    cure: Sequence[str] = ()
    words: str = ""


class FoundForm(NamedTuple):
    """A place of a model with such a form, the input that it computes with, and its cure in float."""

    node: Node
    form: RuntimeForm
    data: Tensor
    cure: Sequence[Node]


@cache
def read_table() -> Mapping[str, tuple[str, tuple[RuntimeForm, ...]]]:
    """Return the name with the release, and the forms, by target."""
    content = json.loads(TABLE_FILE.read_text(encoding="utf-8"))
    return {
        target: (part["release"], tuple(RuntimeForm(**row) for row in part["forms"]))
        for target, part in content.items()
    }


def forms_by_operator(target: str) -> Mapping[str, list[RuntimeForm]]:
    """Return the forms of a target by operator."""
    _, forms = read_table().get(target, ("", ()))
    return {op: [form for form in forms if form.op == op] for op in {form.op for form in forms}}


def find_forms(nodes: Iterable[Node], opset: int, target: str) -> Iterator[FoundForm]:
    """Yield the places among `nodes`, of a float model or a quantized one, with a form of the table."""
    by_op = forms_by_operator(target)
    for node in nodes:
        for form in by_op.get(node.op, ()):
            found = _match(node, form) if form.opsets[0] <= opset <= form.opsets[1] else None
            if found is not None:
                yield found
                break


def keep_forms(nodes: Sequence[Node], opset: int, target: str) -> tuple[Override, ...]:
    """Return what leaves the cures of a float model in float, for a recipe of `target`."""
    standard = (node for node in nodes if node.domain in STANDARD_DOMAINS)
    found = {
        node.name: _describe(one, target)
        for one in find_forms(standard, opset, target)
        if not (one.form.signed and is_never_negative(one.data))
        for node in one.cure
    }
    return tuple(Override(nodes=(name,), keep_float=True, why=why) for name, why in found.items())


def check_forms(target: str) -> Rule:
    """Return the rule of `check` about the forms of a target whose cure is quantized."""

    def rule(reading: CheckContext) -> Iterator[Finding]:
        """Report operators between pairs in a form that the runtime, asked, refuses or computes otherwise."""
        sites = [site for site in reading.sites if site.node.domain in STANDARD_DOMAINS]
        for found in find_forms(sites, reading.index.opset, target):
            pair = quantizer(found.data.inputs[0]) if found.form.signed else None
            computed = pair is None or not pair.starts_at_zero
            if computed and all(map(_is_quantized, found.cure)):
                severity: Severity = "refused" if found.form.says == REFUSES else "wrong"
                kept = " and ".join(f"{node.op} {node.name!r}" for node in found.cure)
                message = f"{_describe(found, target)}; leave {kept} in float"
                yield make_finding("session-form", severity, found.node, message)

    return rule


def _describe(found: FoundForm, target: str) -> str:
    form, (release, _) = found.form, read_table()[target]
    values = [f"{name} {'' if value == OTHER else value}".strip() for name, value in form.attributes.items()]
    with_values = f" with {' and '.join(values)}" if values else ""
    behind = f" of a {form.reducer}" if form.reducer else ""
    what = f"{form.op}{behind}{with_values} between pairs"
    refuses = form.says == REFUSES
    return f"{release} refuses {what}" if refuses else f"{release} computes {what} otherwise than they mean"


def _match(node: Node, form: RuntimeForm) -> FoundForm | None:
    """Return `form` at `node` with its cure; None if the node has another form."""
    if not all(_has(node, *one) for one in form.attributes.items()):
        return None
    computed = [tensor for tensor in node.inputs if tensor.name and tensor.inputs]
    is_reduced = [bool(form.reducer) and _maker(tensor, form.reducer) is not None for tensor in computed]
    data = [tensor for tensor, reduced in zip(computed, is_reduced, strict=True) if not reduced]
    if not data or any(is_reduced) != bool(form.reducer):
        return None
    places = {
        "tried": node,
        "product0": _maker(data[0], form.between),
        "product2": next((one for one in _readers(node) if one.op in _PRODUCTS), None),
    }
    needed = [*places.values()] if list(form.cure) != ["tried"] else [node]
    if any(one is None for one in needed):
        return None
    return FoundForm(node, form, data[0], [places[name] for name in form.cure])


def _has(node: Node, name: str, value: Any) -> bool:
    given = node.attrs.get(name)
    if value == OTHER and name in _DEFAULTS:
        return given is not None and any(one != _DEFAULTS[name] for one in given)
    if value == OTHER:
        usual = get_schema(node.op).attributes[name].default_value
        return given is not None and given != get_attribute_value(usual)
    return bool(given == value)


def _maker(tensor: Tensor, op: str) -> Node | None:
    """Return the node of type `op` that makes `tensor`, whose pairs do not count; None for another."""
    while tensor.inputs and tensor.inputs[0].op in QDQ_OPS:
        tensor = tensor.inputs[0].inputs[0]
    return tensor.inputs[0] if tensor.inputs and tensor.inputs[0].op == op else None


def _readers(node: Node) -> Iterator[Node]:
    """Yield the nodes that read the first output of `node`, behind pairs too."""
    tensors = list(node.outputs[:1])
    while tensors:
        for reader in tensors.pop().outputs:
            if reader.op in QDQ_OPS:
                tensors += reader.outputs
            else:
                yield reader


def _is_quantized(node: NodeSite) -> bool:
    return any(tensor.inputs and tensor.inputs[0].op == "DequantizeLinear" for tensor in node.inputs)
