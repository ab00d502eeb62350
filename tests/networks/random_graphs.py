"""Random valid models, and what they compute when they are quantized, found by running node by node."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
from builders import open_as_written
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from onnxfq.documents.encodings import Encodings
from onnxfq.documents.plan import Placement, Plan

BATCH, WIDTHS, CHANNELS, SIDE = 2, (2, 3, 4), (2, 4), 4
OPSETS = (9, 11, 12, 13, 17, 19, 21, 23, 25)
# Names like those that onnxfq gives, and characters that files, formats and text break on.
NASTY = ("x/q", "x/dq", "x/fq", "x/scale", "a b", "größe", "0", "/", "x.1::y", "%s", "x/dq_2", "[c]")

Array = NDArray[np.generic]
Draw = Callable[[st.SearchStrategy], object]


@dataclass
class Maker:
    """A model while it is drawn: tensors by shape, nodes, constants; names are drawn too."""

    draw: Draw
    opset: int
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: dict[str, Array] = field(default_factory=dict)
    tensors: list[tuple[str, tuple[int, ...]]] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    functions: list[onnx.FunctionProto] = field(default_factory=list)

    def pick(self, options: list) -> object:
        """Draw one of `options`."""
        return self.draw(st.sampled_from(options))

    def name(self, otherwise: str) -> str:
        """Return a new tensor name, now and then a nasty one."""
        name = self.pick([otherwise, otherwise, *NASTY])
        while name in self.names:
            name += "_"
        self.names.add(name)
        return name

    def constant(self, shape: tuple[int, ...]) -> str:
        """Return a constant of `shape`: one that is there already, or a new one in one of its forms."""
        kind = (shape, np.float32)
        same = [name for name, value in self.constants.items() if (value.shape, value.dtype) == kind]
        if same and self.pick([True, False]):
            return self.pick(same)
        value = np.random.default_rng(self.pick(range(99))).normal(size=shape).astype(np.float32)
        name = self.name(f"w{len(self.constants)}")
        form = self.pick(["initializer", "initializer", "Constant", "Transpose", "Identity", "Reshape"])
        if form == "Constant":
            tensor = numpy_helper.from_array(value, name)
            self.nodes.append(helper.make_node("Constant", [], [name], value=tensor))
            return name
        if form == "initializer":
            self.constants[name] = value
            return name
        made = self.name(f"{name}'")
        if form == "Transpose":
            self.constants[name] = np.ascontiguousarray(value.T)
            self.node("Transpose", [name], made, perm=list(range(value.ndim))[::-1])
        elif form == "Identity":
            self.constants[name] = value
            self.node("Identity", [name], made)
        else:
            self.constants[name] = value.reshape(-1)
            target = self.name(f"{name} shape")
            self.constants[target] = np.asarray(shape, np.int64)
            self.node("Reshape", [name, target], made)
        return made

    def node(self, op: str, inputs: list[str], output: str, **attributes: object) -> None:
        """Add a node with a name that may be missing or another node's."""
        name = self.pick([f"{op}{len(self.nodes)}", f"{op}{len(self.nodes)}", "", "node", "größe"])
        self.nodes.append(helper.make_node(op, inputs, [output], name, **attributes))

    def give(self, op: str, inputs: list[str], shape: tuple[int, ...], **attributes: object) -> None:
        """Add a node that gives a new tensor of `shape`."""
        output = self.name(f"t{len(self.nodes)}")
        self.node(op, inputs, output, **attributes)
        self.tensors.append((output, shape))

    def body(self, op: str, source: str, shape: tuple[int, ...], weight: str) -> onnx.GraphProto:
        """Return a body of one node that reads `source` and `weight` from outside."""
        output = self.pick(["out", self.name("inner")])
        inputs = [source] if op == "Relu" else [source, weight]
        value = helper.make_tensor_value_info(output, TensorProto.FLOAT, shape)
        return helper.make_graph([helper.make_node(op, inputs, [output], "inside")], op, [], [value])


def _matmul(m: Maker, x: str, shape: tuple[int, ...]) -> None:
    width = m.pick(list(WIDTHS))
    m.give("MatMul", [x, m.constant((shape[1], width))], (shape[0], width))


def _gemm(m: Maker, x: str, shape: tuple[int, ...]) -> None:
    width, flip = m.pick(list(WIDTHS)), m.pick([0, 1])
    inputs = [x, m.constant((width, shape[1]) if flip else (shape[1], width))]
    if m.opset < 11 or m.pick([True, False]):
        inputs.append(m.constant((width,)))
    m.give("Gemm", inputs, (shape[0], width), transB=flip, alpha=m.pick([1.0, 0.5]), beta=m.pick([1.0, 2.0]))


def _left(m: Maker, x: str, shape: tuple[int, ...]) -> None:
    height = m.pick(list(WIDTHS))
    m.give("MatMul", [m.constant((height, shape[0])), x], (height, shape[1]))


def _self_product(m: Maker, x: str, shape: tuple[int, ...]) -> None:
    turned = m.name("turned")
    m.node("Transpose", [x], turned, perm=[1, 0])
    m.give("MatMul", [x, turned], (shape[0], shape[0]))


def _branches(m: Maker, x: str, shape: tuple[int, ...]) -> None:
    weight = m.constant((shape[1], shape[1]))
    one, other = (m.body(m.pick(["MatMul", "Relu"]), x, shape, weight) for _ in range(2))
    m.give("If", ["cond"], shape, then_branch=one, else_branch=other)


def _loop(m: Maker, x: str, shape: tuple[int, ...]) -> None:
    weight, info = m.constant((shape[1], shape[1])), helper.make_tensor_value_info
    state, out, going, step = (m.name(name) for name in ("state", "next", "going", "step"))
    nodes = [
        helper.make_node("Identity", [f"{going}?"], [going]),
        helper.make_node("MatMul", [state, weight], [f"{out} raw"], "inside"),
        helper.make_node("Tanh", [f"{out} raw"], [out]),
    ]
    asked, goes = info(f"{going}?", TensorProto.BOOL, []), info(going, TensorProto.BOOL, [])
    inputs = [info(step, TensorProto.INT64, []), asked, info(state, TensorProto.FLOAT, shape)]
    body = helper.make_graph(nodes, "loop", inputs, [goes, info(out, TensorProto.FLOAT, shape)])
    count, start = m.name("count"), m.name("goes")
    m.constants |= {count: np.asarray(m.pick([1, 3])), start: np.asarray(True)}
    m.give("Loop", [count, start, x], shape, body=body)


def _call(m: Maker, x: str, shape: tuple[int, ...]) -> None:
    """A call of a local function."""
    if not m.functions:
        nodes = [helper.make_node("MatMul", ["a", "b"], ["c"]), helper.make_node("Relu", ["c"], ["d"])]
        imports = [helper.make_opsetid("", m.opset)]
        m.functions.append(helper.make_function("own", "Layer", ["a", "b"], ["d"], nodes, imports))
    m.give("Layer", [x, m.constant((shape[1], shape[1]))], shape, domain="own")


def _activation(m: Maker, x: str, shape: tuple[int, ...]) -> None:
    m.give(m.pick(["Relu", "Sigmoid", "Tanh", "Identity", "Neg"]), [x], shape)


def _sum(m: Maker, x: str, shape: tuple[int, ...]) -> None:
    other = m.pick([name for name, own in m.tensors if own == shape])
    m.give(m.pick(["Add", "Mul", "Sub"]), [x, other], shape)


def _softmax(m: Maker, x: str, shape: tuple[int, ...]) -> None:
    m.give("Softmax", [x], shape, axis=len(shape) - 1)


def _conv(m: Maker, x: str, shape: tuple[int, ...]) -> None:
    kernel, group, out = m.pick([1, 3]), m.pick([1, shape[1]]), m.pick(list(CHANNELS))
    out = out * shape[1] if group > 1 else out
    inputs = [x, m.constant((out, shape[1] // group, kernel, kernel))]
    if m.pick([True, False]):
        inputs.append(m.constant((out,)))
    pads = {"pads": [kernel // 2] * 4, "kernel_shape": [kernel] * 2, "group": group}
    m.give("Conv", inputs, (shape[0], out, *shape[2:]), **pads)


def _conv_transpose(m: Maker, x: str, shape: tuple[int, ...]) -> None:
    group, out = m.pick([1, 2] if shape[1] % 2 == 0 else [1]), m.pick([1, 2])
    weight = m.constant((shape[1], out, 1, 1))
    m.give("ConvTranspose", [x, weight], (shape[0], out * group, *shape[2:]), group=group)


def _norm(m: Maker, x: str, shape: tuple[int, ...]) -> None:
    gain, shift, mean = (m.constant(shape[1:2]) for _ in range(3))
    spread = m.name("var")
    m.constants[spread] = np.linspace(0.5, 2, shape[1]).astype(np.float32)
    m.give("BatchNormalization", [x, gain, shift, mean, spread], shape)


def _flatten(m: Maker, x: str, shape: tuple[int, ...]) -> None:
    pooled = m.name("pooled")
    m.node("GlobalAveragePool", [x], pooled)
    m.give("Flatten", [pooled], shape[:2])


FLAT = (_matmul, _matmul, _gemm, _left, _self_product, _branches, _loop, _call, _activation, _sum, _softmax)
IMAGES = (_conv, _conv, _conv_transpose, _norm, _flatten, _activation, _sum)


@st.composite
def random_models(draw: Draw) -> onnx.ModelProto:
    """Draw a valid model of some nodes, with an opset, sharing, bodies, functions and unusual names."""
    m = Maker(draw, draw(st.sampled_from(OPSETS)))
    m.names |= {"cond", "image", "flat", "out"}
    m.tensors = [("flat", (BATCH, draw(st.sampled_from(WIDTHS))))]
    m.tensors.append(("image", (BATCH, draw(st.sampled_from(CHANNELS)), SIDE, SIDE)))
    given = list(m.tensors)
    for _ in range(draw(st.integers(1, 7))):
        # Mostly the newest tensor, so that graphs grow long; sometimes any.
        x, shape = m.pick([m.tensors[-1], m.tensors[-1], *m.tensors])
        make = m.pick(list(FLAT if len(shape) == 2 else IMAGES))
        if make is not _call or m.opset >= 13:  # below, functions are not of ONNX
            make(m, x, shape)
    if len(m.tensors) == len(given):
        _matmul(m, *m.tensors[0])
    inner = [pair for pair in m.tensors[2:-1] if m.pick([False, False, True])]
    outputs = [*inner, m.tensors[-1]]
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["N", *s[1:]]) for n, s in given]
    values.append(helper.make_tensor_value_info("cond", TensorProto.BOOL, []))
    older = m.opset < 13 and m.pick([True, False])  # initializers that are inputs too, as IR 3 demands
    if older:
        values += [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
            for n, a in m.constants.items()
        ]
    graph = helper.make_graph(
        m.nodes,
        draw(st.sampled_from(["g", "größe", "a b"])),
        values,
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, [None] * len(s)) for n, s in outputs],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in m.constants.items()],
    )
    imports = [helper.make_opsetid("", m.opset)]
    imports += [helper.make_opsetid("own", 1)] if m.functions else []
    lowest = helper.find_min_ir_version_for(imports[:1])
    model = helper.make_model(graph, opset_imports=imports, functions=m.functions)
    model.ir_version = 3 if older else max(lowest, 8 if m.functions else 4)
    onnx.checker.check_model(model)
    return model


def random_feed(model: onnx.ModelProto, seed: int, cond: bool) -> dict[str, Array]:
    """Return values for the inputs of a random model."""
    rng = np.random.default_rng(seed)
    feed: dict[str, Array] = {"cond": np.asarray(cond)}
    for value in model.graph.input[:2]:
        shape = [d.dim_value or BATCH for d in value.type.tensor_type.shape.dim]
        feed[value.name] = rng.normal(size=shape).astype(np.float32)
    return feed


_LIMITS = {"int8": (-128, 127), "uint8": (0, 255), "int4": (-8, 7), "int32": (-(2**31), 2**31 - 1)}


def slow_fake_quantize(x: Array, placement: Placement, encodings: Encodings) -> Array:
    """Round x by the definition, a channel at a time; independent of onnxfq's arithmetic."""
    encoding = encodings[placement.tensor]
    spec = placement.spec
    scales, offsets = np.asarray(encoding.scale, np.float32), np.asarray(encoding.zero_point, np.float32)
    if spec.granularity.axis is None:
        return _rounded(x, scales.reshape(()), offsets.reshape(()), spec.qtype.name)
    parts = zip(np.moveaxis(x, spec.granularity.axis, 0), scales.ravel(), offsets.ravel(), strict=True)
    done = [_rounded(part, s, z, spec.qtype.name) for part, s, z in parts]
    return np.moveaxis(np.stack(done), 0, spec.granularity.axis)


def _rounded(x: Array, scale: np.float32, offset: np.float32, qtype: str) -> Array:
    steps = x / scale
    if qtype == "float8e4m3fn":
        return np.clip(steps, -448, 448).astype(ml_dtypes.float8_e4m3fn).astype(np.float32) * scale
    low, high = _LIMITS[qtype]
    codes = [min(max(int(np.rint(step)) + int(offset), low), high) for step in steps.ravel()]
    return ((np.asarray(codes, np.float32) - offset) * scale).astype(np.float32).reshape(x.shape)


class NodeByNode:
    """Runs a normalised model one node at a time, what a plan places rounded before its readers."""

    def __init__(self, model: onnx.ModelProto, plan: Plan, encodings: Encodings) -> None:
        self.graph, self.imports, self.encodings = model.graph, model.opset_import, encodings
        self.placed = {use: placement for placement in plan.placements for use in placement.uses}

    def run(self, feed: dict[str, Array]) -> list[Array]:
        """Return the outputs."""
        values = {t.name: numpy_helper.to_array(t) for t in self.graph.initializer} | feed
        outputs = self._run(self.graph, values)
        return [self._rounded("", number, output) for number, output in enumerate(outputs)]

    def _run(self, graph: onnx.GraphProto, values: dict[str, Array]) -> list[Array]:
        for node in graph.node:
            inputs = [
                self._rounded(node.name, slot, values[name]) if name else None
                for slot, name in enumerate(node.input)
            ]
            bodies = {a.name: a.g for a in node.attribute if a.HasField("g")}
            if node.op_type == "If":
                made = self._run(bodies["then_branch" if inputs[0] else "else_branch"], dict(values))
            elif node.op_type == "Loop":
                made = self._loop(bodies["body"], inputs, values)
            else:
                made = self._one(node, inputs)
            values |= dict(zip(node.output, made, strict=True))
        return [values[output.name] for output in graph.output]

    def _loop(self, body: onnx.GraphProto, inputs: list[Array], values: dict[str, Array]) -> list[Array]:
        going, state = inputs[1], inputs[2:]
        for step in range(int(inputs[0])):
            names = [value.name for value in body.input]
            given = dict(zip(names, [np.asarray(step), going, *state], strict=True))
            going, *state = self._run(body, values | given)
        return state

    def _rounded(self, node: str, slot: int, value: Array) -> Array:
        placement = self.placed.get((node, slot))
        return value if placement is None else slow_fake_quantize(value, placement, self.encodings)

    def _one(self, node: onnx.NodeProto, inputs: list[Array]) -> list[Array]:
        bare = onnx.NodeProto()
        bare.CopyFrom(node)
        bare.name = ""
        bare.input[:] = [f"i{n}" if array is not None else "" for n, array in enumerate(inputs)]
        bare.output[:] = [f"o{n}" for n, _ in enumerate(node.output)]
        types = tuple((str(a.dtype), a.ndim) for a in inputs if a is not None)
        version = next(o.version for o in self.imports if o.domain in ("", "ai.onnx"))
        session = _session(bare.SerializeToString(), types, version)
        given = {f"i{n}": array for n, array in enumerate(inputs) if array is not None}
        return session.run(None, given)


@lru_cache(maxsize=2000)
def _session(node: bytes, types: tuple[tuple[str, int], ...], version: int) -> onnxruntime.InferenceSession:
    """Return a session of one node, nothing optimised: the same kernel as in the model."""
    proto = onnx.NodeProto.FromString(node)
    names = [name for name in proto.input if name]
    values = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(kind)), [None] * rank)
        for name, (kind, rank) in zip(names, types, strict=True)
    ]
    outputs = [helper.make_empty_tensor_value_info(name) for name in proto.output]
    graph = helper.make_graph([proto], "one", values, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", version)])
    model.ir_version = helper.find_min_ir_version_for(model.opset_import)
    return open_as_written(model, log_severity_level=4, intra_op_num_threads=1)
