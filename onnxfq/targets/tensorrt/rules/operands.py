"""Where the multiplied inputs of a node come from, and what the graph thereby promises for the node."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from onnxfq.graph.ops import DATA_MOVEMENT, SCALES, WEIGHTED_INPUTS
from onnxfq.targets.tensorrt.rules.quantizers import DEQUANTIZE_OPS, DYNAMIC_OPS, Quantizer, quantizer
from onnxfq.targets.tensorrt.rules.scopes import Scope, Site

COMMUTING = DATA_MOVEMENT | {"Dropout", "GlobalMaxPool", "Neg", "Pad", "ReduceMax"}
"""Operators behind which a DQ still reaches its reader: tried one by one on TensorRT for RTX 1.7.1."""

# How far above a float operand a lost pair is looked for, and what says nothing about one.
_DEPTH = 8
_OWN_QUANTIZATION = frozenset({*WEIGHTED_INPUTS, "Attention"})


@dataclass(frozen=True, eq=False)
class Operand:
    """One multiplied input of a node.

    constant: it follows from constants alone. pair: the DQ that it comes from, None for float. path: the
    nodes between, first the one that the DQ feeds. stopped_at: for float, the node that gives it, through
    which TensorRT moves no DQ. lost: a DQ above that node. crossed: the DQ stands in a graph around that of
    the node.
    """

    tensor: str
    slot: int
    constant: bool
    pair: Quantizer | None = None
    path: tuple[Site, ...] = ()
    lost: Quantizer | None = None
    stopped_at: Site | None = None
    crossed: bool = False

    def axis(self, of_pair: int) -> int | None:
        """Return which axis of the operand is axis `of_pair` of the quantized tensor; None if unknown."""
        for site in self.path:
            if site.op == "Transpose":
                shape = self.pair.shape if self.pair is not None else None
                rank = len(shape) if shape is not None else 2
                order = list(site.attribute("perm", list(reversed(range(rank)))))
                of_pair = order.index(of_pair) if of_pair in order else of_pair
            elif site.op not in ("Identity", "Cast", "Dropout"):
                return None
        return of_pair


@dataclass(frozen=True, eq=False)
class Promise:
    """A node that the graph wants in low precision: at least one of its multiplied inputs is quantized.

    expects: "weight-only" where the constant alone is quantized, "low" for all else.
    """

    site: Site
    operands: tuple[Operand, ...]
    expects: Literal["low", "weight-only"] = field(default="low")

    @property
    def weight(self) -> Operand | None:
        """The quantized constant, None where there is none."""
        return next((o for o in self.operands if o.constant and o.pair is not None), None)

    @property
    def activations(self) -> tuple[Operand, ...]:
        """The operands that are computed from data."""
        return tuple(operand for operand in self.operands if not operand.constant)


def promise(site: Site) -> Promise | None:
    """Return what the graph promises for `site`; None for no multiplication, or one in float."""
    slots = WEIGHTED_INPUTS.get(site.op, (0, 1, 2) if site.op == "Attention" else ())
    if not slots or len(site.node.input) <= max(slots):
        return None
    operands = tuple(operand(site, slot) for slot in slots)
    paired = [o for o in operands if o.pair is not None]
    if not paired or (site.op == "Attention" and len(paired) < len(operands)):
        return None
    floats = [o for o in operands if o.pair is None]
    # A pair before Relu was meant for the node behind; without any above, the float side is meant so.
    only_weight = all(o.constant for o in paired) and floats and all(o.lost is None for o in floats)
    block_format = not floats and any(o.pair is not None and "MXFP8" in o.pair.site.op for o in operands)
    return Promise(site, operands, "weight-only" if only_weight or block_format else "low")


def operand(site: Site, slot: int) -> Operand:
    """Follow input `slot` of `site` upwards to a DQ."""
    scope, tensor = site.scope, site.input(slot)
    constant = scope.is_constant(tensor)
    given = tensor
    path: list[Site] = []
    while True:
        maker = scope.maker(tensor)
        if maker is None:
            return Operand(given, slot, constant)
        if maker.op in DEQUANTIZE_OPS:
            break
        if not _passes(maker, constant, [*path, maker]):
            return Operand(given, slot, constant, lost=_lost(maker), stopped_at=maker)
        path.insert(0, maker)
        scope, tensor = maker.scope, maker.input(_data_slot(maker))
    crossed = maker.scope is not site.scope
    return Operand(given, slot, constant, quantizer(maker), tuple(path), crossed=crossed)


def concat_pairs(site: Site) -> list[Quantizer | None]:
    """Return the DQ behind each input of a Concat, None for those without."""
    # Kept: a Concat of a Concat of a Concat, as in a dense block, is asked for many times.
    known = site.scope.concat_pairs
    name = str(site.node.output[0])
    if name not in known:
        known[name] = [operand(site, slot).pair for slot in range(len(site.node.input))]
    found: list[Quantizer | None] = known[name]
    return found


def equal_scales(pairs: list[Quantizer | None]) -> bool:
    """Tell whether all of `pairs` are there, of one type and one scale."""
    scales = [(p.qtype, p.scale) for p in pairs if p is not None]
    single = {(qtype, float(scale)) for qtype, scale in scales if scale is not None and scale.ndim == 0}
    several = any(scale is None or scale.ndim for _, scale in scales)
    return len(scales) == len(pairs) and not several and len(single) == 1


def _passes(site: Site, constant: bool, path: list[Site]) -> bool:
    """Tell whether TensorRT moves a DQ down through `site`."""
    if site.op == "Concat":
        return equal_scales(concat_pairs(site))
    if site.op == "Cast":  # one is absorbed, two are computed
        return sum(other.op == "Cast" for other in path) == 1
    if site.op in SCALES:
        other = site.input(1 - _data_slot(site))
        factor = site.scope.value(other)
        if factor is None:
            return site.scope.is_number(other)
        # One factor joins the scale; one for each channel joins that of a weight alone.
        return factor.size == 1 or (constant and site.op == "Mul")
    return site.op in COMMUTING


def _data_slot(site: Site) -> int:
    """Return the input that carries the data: 0, but for a product with a number before it."""
    first = site.input(0)
    plain = site.scope.value(first) is not None or site.scope.is_number(first)
    return int(site.op == "Mul" and plain)


def _lost(site: Site) -> Quantizer | None:
    """Look for a DQ above `site`, an operator that TensorRT does not move one through."""
    if site.op == "Concat":
        return next((pair for pair in concat_pairs(site) if pair is not None), None)
    for _ in range(_DEPTH):
        if site.op in _OWN_QUANTIZATION or site.op in DYNAMIC_OPS:
            return None
        data = [name for name in site.node.input if name and not _plain(site.scope, name)]
        above = site.scope.maker(data[0]) if data else None
        if above is None:
            return None
        if above.op in DEQUANTIZE_OPS:
            return quantizer(above)
        site = above
    return None


def _plain(scope: Scope, tensor: str) -> bool:
    """Tell whether `tensor` is a constant that no DQ makes."""
    maker = scope.maker(tensor)
    return scope.is_constant(tensor) and (maker is None or maker.op not in DEQUANTIZE_OPS)
