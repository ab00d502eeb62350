"""Products that stay in float by measured times: few bits are not faster there, with what lies between forms.

A tensor between a product in few bits and one in float is quantized or, where products write few bits,
dequantized. That also takes time: a depthwise convolution that is slower in int8 may still be cheaper than
its way to float and back. Between two products in few bits a pair is part of a kernel. The times of all
products and of these crossings are added up. From all in few bits, and from all in float, one product after
another changes its form while that lowers the sum; the lower of the two sums is taken.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from math import prod
from typing import NamedTuple

import onnx_graphsurgeon as gs

from onnxfq.documents.product_times import FoundTimes, ProductKind, ProductSize, ProductTimes
from onnxfq.graph.ops import DATA_MOVEMENT, is_weighted
from onnxfq.graph.queries import nodes_by_graph
from onnxfq.placement.prices import POINTWISE, count_multiplies, count_numbers, sizes_of
from onnxfq.placement.target_policy import NodeDecision, TargetPolicy


def leave_out_slow(
    decisions: list[NodeDecision], graph: gs.Graph, policy: TargetPolicy, times: ProductTimes
) -> list[NodeDecision]:
    """Return `decisions`, in float with a reason for products that few bits do not make faster by `times`.

    Products whose time the table does not tell stay as they are.
    """
    forms = {decision.node: form for decision in decisions if (form := _name_form(decision))}
    found: dict[str, FoundTimes] = {}
    for node in nodes_by_graph(graph):
        size = size_product(node) if node.name in forms else None
        told = None if size is None else times.find(size, forms[node.name])
        if told is not None:
            found[node.name] = told
    crossings = _find_crossings(graph, policy)
    convolved = {node.name for node in nodes_by_graph(graph) if node.op == "Conv"}
    costs = {
        source: times.cross(one.numbers, convolves=not convolved.isdisjoint({source, *one.readers}))
        for source, one in crossings.items()
    }
    free = {source: _FREE for source, one in crossings.items() if one.joins}
    starts = [
        dict.fromkeys((*forms, *free), is_low) | dict.fromkeys(forms.keys() - found, True)
        for is_low in (True, False)
    ]
    settled = [_settle(start, found | free, crossings, costs) for start in starts]
    _, low = min(settled, key=lambda one: one[0])
    return [
        decision.leave_out("times", _explain(found[decision.node], forms[decision.node], times))
        if decision.node in found and not low[decision.node]
        else decision
        for decision in decisions
    ]


def size_product(node: gs.Node) -> ProductSize | None:
    """Return the size of a product, or of a Conv as one; None for other operators and unknown sizes.

    Open axes count as in `prices`.
    """
    if node.op not in ("Conv", "MatMul", "Gemm") or not (multiplies := count_multiplies(node)):
        return None
    numbers, weight = count_numbers(node.outputs[0]), sizes_of(node.inputs[1].shape)
    if node.op == "Conv":
        groups, window = int(node.attrs.get("group", 1)), prod(weight[2:])
        columns = weight[0] // groups
        kind: ProductKind = "pointwise" if window == 1 else "convolution"
        if groups > 1 and weight[1] == 1:
            kind = "depthwise"
    else:
        one = len(weight) < 2 or node.op == "Gemm" or isinstance(node.inputs[1], gs.Constant)
        kind, columns = "product", 1 if len(weight) < 2 else sizes_of(node.outputs[0].shape)[-1]
        groups = 1 if one else max(1, prod(weight) * numbers // multiplies // columns)
    rows, summed = numbers // (groups * columns), multiplies // numbers
    if not (groups and rows and columns and summed):
        return None
    return ProductSize(kind=kind, groups=groups, rows=rows, columns=columns, summed=summed)


class _Crossing(NamedTuple):
    """Numbers of a tensor, and what reads it; an empty name stands for a reader in float.

    `joins` tells whether an operator that takes no time makes it from several others. `paired` tells whether
    its maker in few bits writes few bits, which readers in float turn back.
    """

    numbers: int
    readers: set[str]
    joins: bool = False
    paired: bool = False


_FREE = FoundTimes(0.0, 0.0, True)


def _name_form(decision: NodeDecision) -> str:
    """Return the number format of the activation, and that its scales are dynamic; empty for none."""
    specs = [placement.spec for placement in decision.placements if placement.role == "activation"]
    return f"{specs[0].qtype.name}{' dynamic' * bool(specs[0].dynamic)}" if specs else ""


def _find_crossings(graph: gs.Graph, policy: TargetPolicy) -> Mapping[str, _Crossing]:
    """Return by source what reads it through operators that run in few bits too, or in the same kernel.

    A source is a product, an operator that joins several sources, or a tensor that is in float in any case.
    """
    passes = DATA_MOVEMENT | (policy.operators.keys() | policy.absorbed or POINTWISE | {"Concat"})
    sources: dict[str, set[str]] = {}
    crossings: dict[str, _Crossing] = {}

    def find(tensor: gs.Tensor) -> set[str]:
        return sources.setdefault(tensor.name, {f"tensor {tensor.name}"})

    for node in nodes_by_graph(graph):
        read = [tensor for tensor in node.inputs if not isinstance(tensor, gs.Constant)]
        reached = set[str]().union(*map(find, read))
        passing = node.op in passes and not is_weighted(node)
        moves = passing and len(reached) < 2
        paired = node.op in policy.operators
        owns = (passing and not moves) or (is_weighted(node) and (paired or not policy.operators))
        for tensor in read:
            crossings.setdefault(f"tensor {tensor.name}", _Crossing(count_numbers(tensor), set()))
        for source in () if moves else reached:
            crossings[source].readers.add(node.name if owns or is_weighted(node) else "")
        for tensor in node.outputs if moves or owns else ():
            sources[tensor.name] = reached if moves else {node.name}
        if owns:
            crossings[node.name] = _Crossing(count_numbers(node.outputs[0]), set(), passing, paired)
    for source in set[str]().union(*map(find, graph.outputs)) & crossings.keys():
        crossings[source].readers.add("")
    return crossings


def _settle(
    low: dict[str, bool],
    found: Mapping[str, FoundTimes],
    crossings: Mapping[str, _Crossing],
    costs: Mapping[str, float],
) -> tuple[float, dict[str, bool]]:
    """Return the least sum of seconds by changes of one product at a time from `low`, and the forms there."""
    touched = defaultdict[str, list[str]](list)
    for source, one in crossings.items():
        for name in {source, *one.readers}:
            touched[name].append(source)

    def crosses(source: str) -> bool:
        forms = {low.get(name, False) for name in crossings[source].readers}
        return False in forms and crossings[source].paired if low.get(source, False) else True in forms

    def add(sources: Collection[str], names: Collection[str]) -> float:
        products = (found[name].low if low[name] else found[name].full for name in names)
        return sum(costs[source] for source in sources if crosses(source)) + sum(products)

    changed = True
    while changed:
        changed = False
        for name in found:
            before = add(touched[name], [name])
            low[name] = not low[name]
            if add(touched[name], [name]) < before:
                changed = True
            else:
                low[name] = not low[name]
    return add(crossings.keys(), found.keys()), low


def _explain(found: FoundTimes, form: str, times: ProductTimes) -> str:
    low, full = (f"{one * 1e6:.3g}" for one in (found.low, found.full))
    error = times.errors.get(form, (0.0, 0.0))[1]
    how = "measured" if found.is_measured else f"interpolated, 9 of 10 within {error:.0%}"
    ways = "" if found.full <= found.low else "; its ways to few bits and back take more than that saves"
    return (
        f"{form} takes {low} us and {times.float_type} {full} us ({how}) on {times.device}{ways}; to "
        "quantize it, leave out pays"
    )
