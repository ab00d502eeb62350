"""Rules about attention: what TensorRT fuses into one low-precision kernel, and what it does not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from onnx import TensorProto

from onnxfq.graph.follow import MOVES, SCALES, SPLITS
from onnxfq.graph.ops import SIZES
from onnxfq.targets.findings import Finding
from onnxfq.targets.tensorrt.attention import FLOAT8_HEAD, INT8_HEADS, INT8_TOKENS
from onnxfq.targets.tensorrt.rules.context import Reading, Rule, finding
from onnxfq.targets.tensorrt.rules.operands import Operand, operand
from onnxfq.targets.tensorrt.rules.quantizers import QUANTIZE_OPS
from onnxfq.targets.tensorrt.rules.scopes import Scope, Site

# Between the two products, beside Softmax: the scale, the mask, windows of it, and what masks are made with.
_BETWEEN = frozenset({"Add", "Cast", "Div", "Identity", "Mul", "Reshape", "Sub", "Where"})
_AFTER = frozenset({"Cast", "Identity", "Reshape", "Transpose"})
# Rows that see nothing are replaced by 0 behind the second product.
_GUARDED = _AFTER | {"Where"}
_STEPS = 6
_HALVES = (TensorProto.FLOAT16, TensorProto.BFLOAT16)


@dataclass(frozen=True, eq=False)
class Attended:
    """Two products with a Softmax between: queries by keys, and what comes of it by values."""

    scores: Site
    mix: Site
    operands: tuple[Operand, Operand, Operand, Operand]


def attention_operators(reading: Reading) -> Iterator[Finding]:
    """Name quantized Attention operators: TensorRT fuses them in half and rounds their inputs for nothing."""
    for promised in reading.promises:
        if promised.site.op == "Attention":
            message = (
                "its inputs are quantized, and TensorRT runs ONNX's Attention in float; write it as MatMul, "
                "Softmax, MatMul before quantizing"
            )
            yield finding("attention-operator", "float", promised.site, message)


def attentions(reading: Reading) -> Iterator[Finding]:
    """Warn of quantized attention with heads that stays in separate kernels.

    Source: NVIDIA, fused attention: pairs on queries, keys, the Softmax and values; for int8 a quantized
    reader too, heads of 16, 32 or 64 and up to 512 tokens; for float8 heads of up to 256.
    """
    for found in filter(None, (_attended(site) for site in reading.sites)):
        pairs = [o.pair for o in found.operands if o.pair is not None]
        shape = found.scores.scope.shape(found.scores.input(0))
        if not pairs or shape is None or len(shape) != 4:
            continue
        why = _not_fused(found, shape[-1], shape[-2])
        if why:
            message = f"its attention, up to {found.mix.name!r}, is not fused: {why}"
            yield finding("attention", "warning", found.scores, message)


def projections(reading: Reading) -> Iterator[Finding]:
    """Name weight-only products behind a fused attention of one sample: their weight is made float first.

    Tried on TensorRT for RTX 1.7.1: so in float16 with a batch that is fixed at 1, int4 and int8 alike; not
    with a batch of 2 or an open one, nor in float32, where attention is not fused.
    """
    weight_only = {p.site.name: p for p in reading.promises if p.expects == "weight-only"}
    for found in filter(None, (_attended(site) for site in reading.sites)):
        scope, output = found.mix.scope, str(found.mix.node.output[0])
        shape = scope.shape(found.scores.input(0))
        fused = scope.dtype(output) in _HALVES and all(o.pair is None for o in found.operands)
        if not fused or shape is None or len(shape) != 4 or shape[0] != 1 or shape[2] == 1:
            continue
        for site in _readers_behind(scope, output):
            if site.name in weight_only:
                message = (
                    f"its weight is made float before each run, for it is behind the attention of "
                    f"{found.mix.name!r} and the batch is fixed at 1; export it with an open batch, or leave "
                    "this weight in float"
                )
                yield finding("attention-projection", "float", site, message)


def parts(reading: Reading) -> Iterator[Finding]:
    """Warn of a product whose parts, read by attention, have a pair each: its weight is made float.

    Tried on TensorRT for RTX 1.7.1, where few ways to write the split keep it low: so a warning.
    """
    takers = {id(maker.node) for site in reading.sites for maker in _quantizers(site)}
    for promised in reading.promises:
        site = promised.site
        if site.op not in ("MatMul", "Gemm") or promised.expects != "low" or promised.weight is None:
            continue
        leaves = list(_leaves(site.scope, _with_bias(site), whole=True))
        names = {leaf.name for leaf in leaves if leaf is not None}
        if len(names) > 1 and all(leaf is not None and id(leaf.node) in takers for leaf in leaves):
            message = (
                "its parts, which attention reads, have a pair each, and TensorRT makes its weight float for "
                "that; put one pair behind it and its bias instead"
            )
            yield finding("attention-parts", "warning", site, message)


def _quantizers(mix: Site) -> Iterator[Site]:
    """Yield the Q of each quantized input of the attention that ends in `mix`."""
    found = _attended(mix)
    for read in () if found is None else found.operands:
        maker = None if read.pair is None else read.pair.site.scope.maker(read.pair.data)
        if maker is not None and maker.op in QUANTIZE_OPS:
            yield maker


def _with_bias(site: Site) -> str:
    """Return the output of `site`, behind its bias where an Add of a constant follows."""
    scope, tensor = site.scope, str(site.node.output[0])
    while len(scope.readers(tensor)) == 1:
        (reader,) = scope.readers(tensor)
        if reader.op == "Add" and any(scope.is_constant(name) for name in reader.node.input):
            return str(reader.node.output[0])
        if reader.op not in MOVES:
            break
        tensor = str(reader.node.output[0])
    return str(site.node.output[0])


def _leaves(scope: Scope, tensor: str, whole: bool) -> Iterator[Site | None]:
    """Yield what reads `tensor` behind moves, splits and factors; None where nothing was split off."""
    if any(tensor == output.name for output in scope.graph.output):
        yield None
    for reader in scope.readers(tensor):
        if reader.op in SIZES:
            continue
        if not (reader.op in MOVES | SPLITS and reader.input(0) == tensor) and not _scales(reader, tensor):
            yield None if whole else reader
            continue
        for output in reader.node.output:
            yield from _leaves(reader.scope, str(output), whole and reader.op not in SPLITS)


def _scales(site: Site, tensor: str) -> bool:
    return site.op in SCALES and any(site.scope.is_number(name) for name in site.node.input if name != tensor)


def _readers_behind(scope: Scope, tensor: str) -> Iterator[Site]:
    for site in scope.readers(tensor):
        if site.op in _AFTER:
            yield from _readers_behind(site.scope, str(site.node.output[0]))
        else:
            yield site


def _not_fused(found: Attended, head: int | None, tokens: int | None) -> str:
    bare = [o.tensor for o in found.operands if o.pair is None]
    halves = [{o.pair is None for o in found.operands[i : i + 2]} for i in (0, 2)]
    if any(len(half) > 1 for half in halves):
        return ""  # a product with one side in float: placement.one_side tells
    if bare:
        return f"{', '.join(map(repr, bare))} stays in float; quantize all four inputs or none"
    q = found.operands[0].pair
    if q is not None and q.qtype == TensorProto.FLOAT8E4M3FN:
        if head is not None and head > FLOAT8_HEAD:
            return f"float8 kernels have heads of up to {FLOAT8_HEAD}, these have {head}; leave it in float"
        return ""
    if head is not None and head not in INT8_HEADS:
        return f"int8 kernels have heads of {', '.join(map(str, INT8_HEADS))}, these have {head}; use float8"
    if tokens is not None and tokens > INT8_TOKENS:
        return f"int8 kernels have up to {INT8_TOKENS} tokens, these are {tokens}; use float8"
    if not _read_quantized(found.mix.scope, str(found.mix.node.output[0])):
        return "int8 kernels have an int8 result; put a pair in front of what reads it"
    return ""


def _attended(mix: Site) -> Attended | None:
    if mix.op != "MatMul":
        return None
    weights = operand(mix, 0)
    above = weights.pair.site if weights.pair is not None else mix
    soft = _above(above.scope, above.input(0), {*QUANTIZE_OPS, "Cast", "Identity", "Dropout"}, "Softmax")
    scores = None if soft is None else _above(soft.scope, soft.input(0), _BETWEEN, "MatMul")
    if scores is None:
        return None
    return Attended(scores, mix, (operand(scores, 0), operand(scores, 1), weights, operand(mix, 1)))


def _above(scope: Scope, tensor: str, through: frozenset[str] | set[str], wanted: str) -> Site | None:
    """Return the nearest node of type `wanted` above `tensor`, past nodes of the types in `through`."""
    level = [(scope, tensor)]
    for _ in range(_STEPS):
        makers = [maker for scope, name in level if (maker := scope.maker(name)) is not None]
        for maker in makers:
            if maker.op == wanted:
                return maker
        level = [(m.scope, name) for m in makers if m.op in through for name in m.node.input if name]
    return None


def _read_quantized(scope: Scope, tensor: str) -> bool:
    readers = scope.readers(tensor)
    moved = [name for site in readers if site.op in _GUARDED for name in site.node.output]
    return any(site.op in QUANTIZE_OPS for site in readers) or any(_read_quantized(scope, n) for n in moved)


RULES: tuple[Rule, ...] = (attention_operators, attentions, projections, parts)
