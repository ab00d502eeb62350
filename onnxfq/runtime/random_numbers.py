"""Random numbers of models that run: equal for equal feeds, in every form of a model and at every run.

ONNX Runtime's kernels carry a state from run to run, so that the order of runs and their threads decide what
is drawn, even with a seed. Here each random operator becomes a function of standard ones. It hashes the
digest of the feed, the name of its output, the number of the iteration of a Loop or Scan, and the place of
the element. A float model and its quantized form thus draw the same numbers, and every feed others. Integers
and single products of float32 are all that is computed: no bit depends on threads, other runs or processors.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from copy import deepcopy
from functools import cache
from statistics import NormalDist

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper, parser

from onnxfq.data import Feed
from onnxfq.graph.index import GraphIndex
from onnxfq.graph.model import bodies, default_opset, list_nodes, replace_nodes
from onnxfq.graph.node_fields import attributes_of, constant_value
from onnxfq.graph.normalize.opset import lowest_ir, raise_opset
from onnxfq.graph.normalize.shapes import with_shapes
from onnxfq.graph.normalize.steps import inline_functions, name_tensors
from onnxfq.graph.ops import ONNXFQ_DOMAIN, RANDOM_OPS, STANDARD_DOMAINS
from onnxfq.support.plurals import name_first

SEED_INPUT = f"{ONNXFQ_DOMAIN}/seed"
"""Input of a model that draws: an integer from `seed_of`."""

_DOMAIN = f"{ONNXFQ_DOMAIN}.draws"
_QUANTILES = f"{ONNXFQ_DOMAIN}/quantiles"
_PRIME = 2**31 - 1
_OPSET = 13
_CAST_LIKE = 15
_FUNCTIONS_IR = 8
_NAMED = 4

# x -> x^5 permutes the integers below the prime, because 5 does not divide 2^31 - 2; products are below 2^62.
_TEXTS = (
    """Mix (a, b) => (c) {
        prime = Constant<value_int = 2147483647>()
        factor = Constant<value_int = 48271>()
        scaled = Mul(a, factor) sum = Add(scaled, b) x = Mod(sum, prime)
        x2 = Mul(x, x) r2 = Mod(x2, prime)
        x4 = Mul(r2, r2) r4 = Mod(x4, prime)
        x5 = Mul(r4, x) c = Mod(x5, prime) }""",
    """Draw (size, key) => (x) {
        zero = Constant<value_int = 0>() one = Constant<value_int = 1>()
        prime = Constant<value_int = 2147483647>()
        count = ReduceProd<keepdims = 0>(size)
        all = Range(zero, count, one) place = Mod(all, prime)
        first = onnxfq.draws.Mix(place, key)
        other = onnxfq.draws.Mix(key, one)
        flat = onnxfq.draws.Mix(first, other)
        x = Reshape(flat, size) }""",
    """Uniform (size, key) => (u) {
        x = onnxfq.draws.Draw(size, key)
        low_bits = Constant<value_int = 128>() unit = Constant<value_float = 5.9604644775390625e-08>()
        high = Div(x, low_bits) whole = Cast<to = 1>(high) u = Mul(whole, unit) }""",
    """Normal (size, key, quantiles) => (z) {
        x = onnxfq.draws.Draw(size, key)
        low_bits = Constant<value_int = 32768>() high = Div(x, low_bits)
        z = Gather(quantiles, high) }""",
    """Toss (chance, key) => (hit) {
        size = Shape(chance) u = onnxfq.draws.Uniform(size, key)
        least = Cast<to = 1>(chance) hit = Less(u, least) }""",
    """Choose (logits, key, samples) => (found) {
        one = Constant<value_ints = [1]>() two = Constant<value_ints = [2]>() axis = Constant<value_int = 1>()
        zero = Constant<value_ints = [0]>()
        wide = Cast<to = 1>(logits) shares = Softmax<axis = 1>(wide) sums = CumSum(shares, axis)
        shape = Shape(logits) rows = Slice(shape, zero, one) size = Concat<axis = 0>(rows, samples)
        u = onnxfq.draws.Uniform(size, key)
        ends = Unsqueeze(sums, one) drawn = Unsqueeze(u, two)
        passed = GreaterOrEqual(drawn, ends) ones = Cast<to = 7>(passed)
        place = ReduceSum<keepdims = 0>(ones, two)
        classes = Slice(shape, one, two) last = Sub(classes, one) found = Min(place, last) }""",
    """Drop (data, ratio, training, key) => (mask, factor) {
        size = Shape(data) u = onnxfq.draws.Uniform(size, key)
        one = Constant<value_float = 1.0>()
        least = Cast<to = 1>(ratio) kept = GreaterOrEqual(u, least)
        off = Not(training) mask = Or(kept, off)
        rest = Sub(one, least) scaled = Div(one, rest) factor = Where(training, scaled, one) }""",
)


def random_nodes(proto: onnx.ModelProto) -> list[onnx.NodeProto]:
    """Return the nodes that draw random numbers, in bodies and local functions too.

    A Dropout draws if its training_mode is true, or not constant.
    """
    drawing, constants = [], None
    for owner in (proto.graph, *proto.functions):
        for node in list_nodes(owner):
            if node.domain not in STANDARD_DOMAINS:
                continue
            if node.op_type in RANDOM_OPS:
                drawing.append(node)
            elif node.op_type == "Dropout" and len(node.input) > 2 and node.input[2]:
                constants = _false_constants(proto) if constants is None else constants
                if node.input[2] not in constants:
                    drawing.append(node)
    return drawing


def needs_seed(proto: onnx.ModelProto) -> bool:
    """Tell whether a run of `proto` depends on SEED_INPUT, before or after `fix_draws`."""
    return any(value.name == SEED_INPUT for value in proto.graph.input) or bool(random_nodes(proto))


def explain_draws(proto: onnx.ModelProto) -> str:
    """Return a note that names the nodes that draw, and how they do it here; empty without one."""
    nodes = random_nodes(proto)
    if not nodes:
        return ""
    names = [f"{node.op_type} {node.name or node.output[0]!r}" for node in nodes]
    return (
        f"random numbers of {name_first(names, _NAMED)} depend here on the feed and the name of the tensor, "
        "and are the same at every run, in float and quantized models; a written model draws as the given one"
    )


def seed_of(feed: Feed) -> int:
    """Return a digest of the arrays of a feed, without inputs of onnxfq, as an integer below 2^31 - 1."""
    digest = 0
    for name in sorted(feed):
        if not name.startswith(f"{ONNXFQ_DOMAIN}/"):
            array = np.asarray(feed[name])
            digest = zlib.crc32(f"{name} {array.shape}".encode(), digest)
            texts = array.dtype.kind in "OSU"
            digest = zlib.crc32(repr(array.tolist()).encode() if texts else array.tobytes(), digest)
    return digest % _PRIME


def with_seed(feed: Feed) -> Feed:
    """Return `feed` with the seed of its numbers; a feed that has one is returned unchanged."""
    return feed if SEED_INPUT in feed else {**feed, SEED_INPUT: np.asarray(seed_of(feed), np.int64)}


def fix_draws(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return `proto` itself if it draws nothing, otherwise a copy that draws by SEED_INPUT.

    Raises ModelError for an opset below 13 that cannot be raised.
    """
    if not random_nodes(proto):
        return proto
    rewritten = deepcopy(proto)
    # Names decide what is drawn: the model as given gets the names of the normalised one. The inliner keeps
    # clear of names of nodes too, and a node without one may have been called like its output.
    for owner in (rewritten.graph, *rewritten.functions):
        for node in list_nodes(owner):
            node.name = "" if node.name in node.output else node.name
    inline_functions(rewritten)
    name_tensors(rewritten)
    rewritten, _ = raise_opset(rewritten, _OPSET, "the model")
    _RandomRewriter(rewritten).rewrite(rewritten.graph, [])
    rewritten.graph.input.append(helper.make_tensor_value_info(SEED_INPUT, TensorProto.INT64, []))
    rewritten.graph.initializer.append(numpy_helper.from_array(_quantiles(), _QUANTILES))
    rewritten.ir_version = max(rewritten.ir_version, _FUNCTIONS_IR, lowest_ir(default_opset(rewritten)))
    rewritten.opset_import.append(helper.make_opsetid(_DOMAIN, 1))
    rewritten.functions.extend(_functions())
    return rewritten


class _RandomRewriter:
    """Replacement of the random nodes of one model, in place."""

    def __init__(self, proto: onnx.ModelProto) -> None:
        self._random = {node.output[0] for node in random_nodes(proto)}
        self._taken = GraphIndex.of_model(proto).names
        self._types: dict[str, int] | None = None
        if default_opset(proto) < _CAST_LIKE:
            self._types = GraphIndex.of_model(with_shapes(proto)).types
        self._nodes: list[onnx.NodeProto] = []

    def rewrite(self, graph: onnx.GraphProto, steps: Sequence[str]) -> None:
        """Rewrite `graph` and its bodies; `steps` are the numbers of the iterations around it."""
        nodes: list[onnx.NodeProto] = []
        for node in graph.node:
            for body in bodies(node):
                if self._random.isdisjoint(name for child in list_nodes(body) for name in child.output):
                    continue
                inner = [*steps]
                if node.op_type == "Loop":
                    inner.append(body.input[0].name)
                elif node.op_type == "Scan":
                    inner.append(self._count_steps(node, body, nodes))
                self.rewrite(body, inner)
            nodes += self._draw(node, steps) if node.output[0] in self._random else [node]
        replace_nodes(graph, nodes)

    def _count_steps(self, node: onnx.NodeProto, body: onnx.GraphProto, before: list[onnx.NodeProto]) -> str:
        """Give a Scan a state that counts its steps; return the name of the count."""
        start, count, after, end, one = (self._taken.claim(f"{node.output[0]}/step") for _ in range(5))
        before.append(_constant(start, 0))
        node.input.insert(0, start)
        node.output.insert(0, end)
        for values, name in ((body.input, count), (body.output, after)):
            values.insert(0, helper.make_tensor_value_info(name, TensorProto.INT64, []))
        body.node.extend([_constant(one, 1), helper.make_node("Add", [count, one], [after])])
        return count

    def _draw(self, node: onnx.NodeProto, steps: Sequence[str]) -> list[onnx.NodeProto]:
        """Return the nodes that take the place of `node`."""
        self._nodes = []
        given = attributes_of(node)
        # Equal seeds draw equal numbers, as in ONNX Runtime.
        name = f"seed {given['seed']}" if "seed" in given else node.output[0]
        key = self._call("Mix", SEED_INPUT, self._constant(zlib.crc32(name.encode()) % _PRIME))
        for step in steps:
            key = self._call("Mix", key, step)
        kind, first = node.op_type, node.input[0] if node.input else ""
        to = given.get("dtype")
        if kind == "Multinomial":
            samples = self._constant([given.get("sample_size", 1)])
            self._cast(self._call("Choose", first, key, samples), to or TensorProto.INT32, "", node.output[0])
        elif kind == "Bernoulli":
            self._cast(self._call("Toss", first, key), to, first, node.output[0])
        elif kind == "Dropout":
            self._drop(node, key)
        else:
            size = self._constant(given["shape"]) if "shape" in given else self._add("Shape", first)
            if kind.startswith("RandomNormal"):
                scale, shift = given.get("scale", 1.0), given.get("mean", 0.0)
                drawn = self._call("Normal", size, key, _QUANTILES)
            else:
                shift = given.get("low", 0.0)
                scale = given.get("high", 1.0) - shift
                drawn = self._call("Uniform", size, key)
            drawn = self._add("Mul", drawn, self._constant(np.float32(scale)))
            drawn = self._add("Add", drawn, self._constant(np.float32(shift)))
            self._cast(drawn, to or (None if first else TensorProto.FLOAT), first, node.output[0])
        return self._nodes

    def _drop(self, node: onnx.NodeProto, key: str) -> None:
        data, ratio, training = node.input
        ratio = ratio or self._constant(np.float32(0.5))
        mask = next(filter(None, node.output[1:]), "") or self._taken.claim(f"{data}/kept")
        factor = self._taken.claim(f"{data}/factor")
        call = helper.make_node("Drop", [data, ratio, training, key], [mask, factor], domain=_DOMAIN)
        self._nodes.append(call)
        scaled = self._add("Mul", data, self._cast(factor, None, data))
        zero = self._cast(self._constant(np.float32(0)), None, data)
        self._nodes.append(helper.make_node("Where", [mask, scaled, zero], node.output[:1]))

    def _cast(self, name: str, to: int | None, like: str, output: str = "") -> str:
        """Cast a tensor to the type `to`, by default the type of the tensor `like`; return the result."""
        output = output or self._taken.claim(f"{name}/cast")
        if to is None and self._types is not None:
            to = self._types.get(like, TensorProto.FLOAT)
        cast = helper.make_node("CastLike", [name, like], [output])
        if to is not None:
            cast = helper.make_node("Cast", [name], [output], to=to)
        self._nodes.append(cast)
        return output

    def _call(self, function: str, *inputs: str) -> str:
        return self._add(function, *inputs, domain=_DOMAIN)

    def _add(self, operator: str, *inputs: str, domain: str = "") -> str:
        output = self._taken.claim(f"{ONNXFQ_DOMAIN}/{operator}")
        self._nodes.append(helper.make_node(operator, inputs, [output], domain=domain))
        return output

    def _constant(self, value: int | Sequence[int] | np.float32) -> str:
        name = self._taken.claim(f"{ONNXFQ_DOMAIN}/constant")
        self._nodes.append(_constant(name, value))
        return name


def _constant(name: str, value: int | Sequence[int] | np.float32) -> onnx.NodeProto:
    array = np.asarray(value, np.float32 if isinstance(value, np.float32) else np.int64)
    return helper.make_node("Constant", [], [name], value=numpy_helper.from_array(array))


def _false_constants(proto: onnx.ModelProto) -> set[str]:
    """Return the names of constants that are False."""
    nodes = [node for owner in (proto.graph, *proto.functions) for node in list_nodes(owner)]
    made = [(node.output[0], constant_value(node)) for node in nodes if node.op_type == "Constant"]
    tensors = (*GraphIndex.of_model(proto).constants.items(), *made)
    bools = ((name, t) for name, t in tensors if t is not None and t.data_type == TensorProto.BOOL)
    return {name for name, tensor in bools if not numpy_helper.to_array(tensor).any()}


@cache
def _functions() -> tuple[onnx.FunctionProto, ...]:
    head = f'<domain: "{_DOMAIN}", opset_import: ["" : {_OPSET}, "{_DOMAIN}" : 1]> '
    return tuple(parser.parse_function(head + text) for text in _TEXTS)


@cache
def _quantiles() -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    """Return 2^16 equally likely values of the standard normal distribution, the medians of equal parts."""
    find = NormalDist().inv_cdf
    upper = [find(0.5 + (at + 0.5) / 65536) for at in range(32768)]
    return np.asarray([*(-value for value in reversed(upper)), *upper], np.float32)
