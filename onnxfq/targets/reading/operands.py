"""Origins of the multiplied inputs of a node, and the expected precision of the node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from onnx import TensorProto

from onnxfq.documents.proof import Expected
from onnxfq.graph.normalize.node_sites import NodeSite, SiteIndex
from onnxfq.graph.ops import BLOCK_PRODUCTS, DATA_MOVEMENT, INTEGER_PRODUCTS, SCALES, WEIGHTED_INPUTS
from onnxfq.graph.queries import pads_by_zero
from onnxfq.placement.residual_adds import RESIDUAL
from onnxfq.targets.reading.quantizer_reader import DEQUANTIZE_OPS, DYNAMIC_OPS, Quantizer, quantizer

COMMUTING = DATA_MOVEMENT | set(
    "Abs Dropout GatherElements GatherND GlobalMaxPool Neg Pad ReduceMax ReduceMin TopK".split()
)
"""Operators that TensorRT moves a DQ through: measured one by one on TensorRT for RTX 1.7.1."""

JOINING = {"Concat": 0, "Max": 0, "Min": 0, "Where": 1}
"""Operators that it moves the DQ of all inputs through, if they have one scale; first slot of the data."""

# It moves no DQ of a constant through these; the second ones only with one scale for the whole constant.
_KEPT_IN_FLOAT = frozenset({"Pad"})
_KEPT_BY_CHANNEL = frozenset({"Abs", "Gather", "GatherElements", "GatherND", "Neg"})

# Search depth for a lost pair above a float operand, and operators that end the search.
_DEPTH = 8
_OWN_QUANTIZATION = frozenset({*WEIGHTED_INPUTS, "Attention"})


@dataclass(frozen=True, eq=False)
class QuantizedOperand:
    """One multiplied input of a node.

    Attributes:
        constant: whether it is computed from constants alone.
        pair: the DQ that it comes from; None for float.
        path: the nodes between, first the one that the DQ feeds.
        lost: a DQ above `stopped_at`.
        stopped_at: for float, the node that produces it, through which TensorRT moves no DQ.
        crossed: whether the DQ stands in a graph around the node's graph.
    """

    tensor: str
    slot: int
    constant: bool
    pair: Quantizer | None = None
    path: tuple[NodeSite, ...] = ()
    lost: Quantizer | None = None
    stopped_at: NodeSite | None = None
    crossed: bool = False

    def axis(self, of_pair: int) -> int | None:
        """Return the axis of the operand that is axis `of_pair` of the quantized tensor; None if unknown."""
        for site in self.path:
            if site.op == "Transpose":
                shape = self.pair.shape if self.pair is not None else None
                rank = len(shape) if shape is not None else 2
                order = list(site.attrs.get("perm", list(reversed(range(rank)))))
                of_pair = order.index(of_pair) if of_pair in order else of_pair
            elif site.op not in ("Identity", "Cast", "Dropout"):
                return None
        return of_pair


@dataclass(frozen=True, eq=False)
class ExpectedPrecision:
    """Node that the graph wants in low precision: at least one of its multiplied inputs is quantized.

    Attributes:
        operands: empty for an operator of integers, which names no pairs.
        expects: "weight-only" if only the constant is quantized, "MXFP8" if both are, otherwise "low".
        is_sum: whether it is a residual sum, whose skip branch alone is quantized.
    """

    site: NodeSite
    operands: tuple[QuantizedOperand, ...]
    expects: Expected = field(default="low")
    is_sum: bool = False

    @property
    def counts_as(self) -> str:
        """The operator, or the name of residual sums, as a plan counts them."""
        return RESIDUAL if self.is_sum else self.site.op

    @property
    def weight(self) -> QuantizedOperand | None:
        """The quantized constant; None if there is none."""
        return next((o for o in self.operands if o.constant and o.pair is not None), None)

    @property
    def pairs(self) -> list[Quantizer]:
        """The DQ of each quantized operand."""
        return [operand.pair for operand in self.operands if operand.pair is not None]

    @property
    def activations(self) -> tuple[QuantizedOperand, ...]:
        """The operands that are computed from data."""
        return tuple(operand for operand in self.operands if not operand.constant)


def one_row_sizes(promised: ExpectedPrecision) -> tuple[int, int] | None:
    """Return (summed size, columns) of a matrix weight on the right of a single fixed row; None otherwise."""
    site, weight = promised.site, promised.weight
    rows, shape = site.index.shape(site.input(0)), site.index.shape(site.input(1))
    if weight is None or weight.slot != 1 or rows is None or any(size != 1 for size in rows[:-1]):
        return None
    if shape is None or len(shape) != 2:
        return None
    first, last = (size or 0 for size in shape)
    if not first or not last:
        return None
    return (last, first) if site.attrs.get("transB", 0) else (first, last)


Units = Mapping[str, tuple[int, ...]]
"""Operators without a product that a target runs in low precision between pairs, and the slots of their data.

An empty tuple means all inputs."""


def promise(site: NodeSite, units: Units | None = None) -> ExpectedPrecision | None:
    """Return the expected precision of `site`; None for float, or neither a product nor of `units`.

    With `units` a product of a quantized and a float operand counts as float.
    """
    if units is not None and site.op in units:
        operands = tuple(operand(site, s) for s in units[site.op] or range(len(site.node.input)))
        computed = not site.index.is_constant(site.node.output[0])
        return ExpectedPrecision(site, operands) if computed and all(o.pair for o in operands) else None
    if site.op in INTEGER_PRODUCTS | BLOCK_PRODUCTS:
        return ExpectedPrecision(site, (), "low" if site.op in INTEGER_PRODUCTS else "weight-only")
    slots = WEIGHTED_INPUTS.get(site.op, (0, 1, 2) if site.op == "Attention" else ())
    if not slots or len(site.node.input) <= max(slots):
        return None
    operands = tuple(operand(site, slot) for slot in slots)
    paired = [o for o in operands if o.pair is not None]
    if not paired or (site.op == "Attention" and len(paired) < len(operands)):
        return None
    floats = [o for o in operands if o.pair is None]
    # A lost pair above was meant for this node; without one the side is float on purpose.
    only_weight = all(o.constant for o in paired) and floats and all(o.lost is None for o in floats)
    block_format = not floats and any(o.pair is not None and "MXFP8" in o.pair.site.op for o in operands)
    if units is not None and floats and not only_weight:
        return None
    return ExpectedPrecision(
        site, operands, "weight-only" if only_weight else "MXFP8" if block_format else "low"
    )


def operand(site: NodeSite, slot: int) -> QuantizedOperand:
    """Follow input `slot` of `site` upwards to a DQ."""
    tensor = given = site.input(slot)
    constant = site.index.is_constant(tensor)
    path: list[NodeSite] = []  # upwards
    casts = 0
    while True:
        maker = site.index.maker(tensor)
        if maker is None:
            return QuantizedOperand(given, slot, constant)
        if maker.op in DEQUANTIZE_OPS:
            break
        if not _passes(maker, constant, casts):
            return QuantizedOperand(given, slot, constant, lost=_find_lost_quantizer(maker), stopped_at=maker)
        path.append(maker)
        casts += maker.op == "Cast"
        tensor = maker.input(_data_slot(maker))
    pair = quantizer(maker)
    if pair is not None and pair.is_blocked and not constant and pair.data in site.index.stored:
        return QuantizedOperand(given, slot, constant)  # rows of a table in blocks are real numbers
    stop = next((one for one in path if pair is not None and _keeps(one, pair, constant, site.op)), None)
    if stop is not None:
        return QuantizedOperand(given, slot, constant, lost=pair, stopped_at=stop)
    crossed = maker.graph != site.graph
    return QuantizedOperand(given, slot, constant, pair, tuple(reversed(path)), crossed=crossed)


def _keeps(site: NodeSite, pair: Quantizer, constant: bool, reader: str) -> bool:
    """Tell whether TensorRT moves this DQ not through `site`, on the way to an operator `reader`."""
    if not constant:
        return site.op == "MaxPool" and pair.qtype == TensorProto.FLOAT8E4M3FN
    if site.op in SCALES:  # a factor of each column, where the weight has one scale
        factor = site.index.value(site.input(1 - _data_slot(site)))
        return reader == "MatMul" and not pair.scale_shape and factor is not None and factor.size > 1
    return site.op in _KEPT_IN_FLOAT or (bool(pair.scale_shape) and site.op in _KEPT_BY_CHANNEL)


def joined_pairs(site: NodeSite) -> list[Quantizer | None]:
    """Return the DQ behind each input that an operator of `JOINING` joins, None for those without."""
    # Cached: nested Concats, as in a dense block, are queried many times.
    known = site.index.joined_pairs
    name = str(site.node.output[0])
    if name not in known:
        slots = range(JOINING[site.op], len(site.node.input))
        known[name] = [operand(site, slot).pair for slot in slots]
    found: list[Quantizer | None] = known[name]
    return found


def equal_scales(pairs: list[Quantizer | None]) -> bool:
    """Tell whether all of `pairs` exist, with one type and one scale."""
    scales = [(p.qtype, p.scale) for p in pairs if p is not None]
    single = {(qtype, float(scale)) for qtype, scale in scales if scale is not None and scale.ndim == 0}
    several = any(scale is None or scale.ndim for _, scale in scales)
    return len(scales) == len(pairs) and not several and len(single) == 1


def _passes(site: NodeSite, constant: bool, casts: int) -> bool:
    """Tell whether TensorRT moves a DQ down through `site`, with a number of `casts` below it."""
    if site.op in JOINING:
        # A Max of one operand stands there to set a node apart.
        return len(site.node.input) > 1 and equal_scales(joined_pairs(site))
    if site.op == "Einsum":
        return _permutes(site)
    if site.op == "Cast":  # one is absorbed, two are computed
        return casts == 0
    if site.op in SCALES:
        other = site.input(1 - _data_slot(site))
        factor = site.index.value(other)
        if factor is None:
            return site.index.is_number(other)
        # A single factor joins any scale; a factor per channel joins the scale of a weight only.
        return factor.size == 1 or (constant and site.op == "Mul")
    if site.op == "Pad":
        return pads_by_zero(site, lambda tensor: site.index.value(tensor.name))
    return site.op in COMMUTING


def _permutes(site: NodeSite) -> bool:
    """Tell whether an Einsum only changes the order of axes."""
    before, arrow, after = site.attrs.get("equation", "").replace(" ", "").partition("->")
    return bool(arrow) and sorted(before) == sorted(after) and len(set(before)) == len(before)


def _data_slot(site: NodeSite) -> int:
    """Return the data input: 0, except for Where and for a product with a number first."""
    if site.op in JOINING:
        return JOINING[site.op]
    first = site.input(0)
    plain = site.index.value(first) is not None or site.index.is_number(first)
    return int(site.op == "Mul" and plain)


def _find_lost_quantizer(site: NodeSite) -> Quantizer | None:
    """Return a DQ above `site`, an operator that TensorRT moves none through; None if not found."""
    if site.op in JOINING:
        return next((pair for pair in joined_pairs(site) if pair is not None), None)
    for _ in range(_DEPTH):
        if site.op in _OWN_QUANTIZATION or site.op in DYNAMIC_OPS:
            return None
        data = [name for name in site.node.input if name and not _plain(site.index, name)]
        above = site.index.maker(data[0]) if data else None
        if above is None:
            return None
        if above.op in DEQUANTIZE_OPS:
            return quantizer(above)
        site = above
    return None


def _plain(index: SiteIndex, tensor: str) -> bool:
    """Tell whether `tensor` is a constant that no DQ makes."""
    maker = index.maker(tensor)
    return index.is_constant(tensor) and (maker is None or maker.op not in DEQUANTIZE_OPS)
