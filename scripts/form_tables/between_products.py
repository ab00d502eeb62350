"""Operators that ONNX Runtime or OpenVINO computes otherwise between quantized products.

Each standard operator stands between two products, with values of its attributes, in each of its versions
from opset 7 on. The network is quantized for the runtime and runs as users open it there. It is wrong if it
has more than 1 dB less than its simulation, or is refused. Then each of these stays in float in turn:
the operator, the product behind it, the one before it.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import TensorProto, defs, helper, numpy_helper

from form_tables import Tried
from onnxfq.documents.override import Override
from onnxfq.errors import OnnxfqError
from onnxfq.graph.ops import RANDOM_OPS
from onnxfq.judging.candidate import Sources, build_candidate
from onnxfq.remedies.forms import Models
from onnxfq.runtime.session import Session
from onnxfq.stages.inputs import open_inputs
from onnxfq.stages.options import QuantizeOptions
from onnxfq.support.clock import Clock
from onnxfq.targets.reading import runtime_forms
from onnxfq.targets.reading.runtime_forms import CURES, OTHER, REFUSES, RuntimeForm
from onnxfq.targets.recipes import load_recipe
from onnxfq.targets.target import target_by_name

LAST_OPSET = 25
"""Newest opset that ONNX Runtime 1.31.1 takes in all operators."""

OPSETS = (7, 9, 11, 13, 17, 18, 21, 23, 25)
"""Opsets of the networks; of an operator one for each of its versions, and the last two."""

SAMPLES, TRIED = 24, 8
"""Samples that give the ranges, and those that are compared."""

RECIPES = {"onnxruntime": "onnxruntime-int8", "openvino": "openvino-int8"}

LOST_DB = 1.0
"""Loss in dB from which a runtime computes something else than the simulation."""

SHAPES = {"Conv": (8, 8, 8), "MatMul": (6, 8), "Gemm": (8,)}
"""Shape of a sample of the operator's input, by the product in front of it."""

RANDOM = RANDOM_OPS | {"Dropout"}

_VALUES: dict[str, Sequence[Any]] = {
    "alpha": (0.3,),
    "beta": (0.3,),
    "gamma": (1.5,),
    "lambd": (0.3,),
    "bias": (0.1,),
    "epsilon": (1e-2,),
    "axis": (1, -1),
    "keepdims": (0,),
    "ceil_mode": (1,),
    "count_include_pad": (1,),
    "strides": ([2, 2],),
    "pads": ([1, 1, 1, 1],),
    "dilations": ([2, 2],),
    "auto_pad": ("SAME_UPPER", "SAME_LOWER", "VALID"),
    "p": (1,),
    "approximate": ("tanh",),
    "mode": ("linear", "cubic", "CRD", "reflect", "edge", "wrap"),
    "coordinate_transformation_mode": ("align_corners", "asymmetric", "pytorch_half_pixel"),
    "nearest_mode": ("floor", "ceil", "round_prefer_ceil"),
    "antialias": (1,),
    "exclusive": (1,),
    "reverse": (1,),
    "upper": (0,),
    "fmod": (1,),
    "storage_order": (1,),
    "max": (0.5,),
    "min": (-0.5,),
    "threshold": (0.3,),
    "direction": ("reverse", "bidirectional"),
    "linear_before_reset": (1,),
    "normalize_variance": (0,),
    "across_channels": (1,),
    "noop_with_empty_axes": (1,),
    "num_groups": (4,),
    "stash_type": (),
}
"""Values of attributes next to their default. Others are part of the operator below, or have none."""


def floats(*shape: int, seed: int = 0, scale: float = 0.5) -> NDArray[np.float32]:
    """Return normal numbers."""
    return (np.random.default_rng([seed, *shape]).normal(size=shape) * scale).astype(np.float32)


@dataclass(frozen=True)
class Form:
    """An operator between two products.

    Attributes:
        op: the operator.
        attributes: those that differ from the default.
        product: the operator of both products.
        opset: of the network.
        inputs: of the operator. "a" is the result of the product, "b" that of another one, "a2" "a" behind
            the reducer; others are constants, "" is left out.
        constants: by name.
        reducer: operator in front of a second input, empty for none.
        relu: whether a Relu stands behind the product.
    """

    op: str
    attributes: Mapping[str, Any]
    product: str
    opset: int
    inputs: tuple[str, ...] = ("a",)
    constants: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    reducer: str = ""
    relu: bool = False

    def row(self, says: str = "") -> RuntimeForm:
        """Return its row in the table: operator, attributes that matter, product and reducer."""
        given = {
            name: OTHER if isinstance(value, list | float) else value
            for name, value in sorted(self.attributes.items())
            if name not in _SHAPING
        }
        return RuntimeForm(self.op, says, given, between=self.product, reducer=self.reducer)


def list_forms(last: int) -> Iterator[Form]:
    """Yield the forms of all operators up to opset `last`."""
    for op in sorted({schema.name for schema in defs.get_all_schemas() if schema.domain == ""} - RANDOM):
        for product in SHAPES:
            versions: dict[int, int] = {}
            for opset in (one for one in OPSETS if one <= last):  # the last opset of each version
                try:
                    versions[defs.get_schema(op, opset).since_version] = opset
                except defs.SchemaError:
                    continue
            opsets = {*versions.values(), last}
            for opset in sorted(opsets):
                try:
                    schema = defs.get_schema(op, opset)
                except defs.SchemaError:
                    continue
                if not schema.deprecated:
                    yield from _list_versions(schema, product, opset)


def _list_versions(schema: defs.OpSchema, product: str, opset: int) -> Iterator[Form]:
    shape, op = SHAPES[product], schema.name
    for base, inputs, constants, reducer in _bases(op, shape, opset):
        names = [
            name
            for name, one in schema.attributes.items()
            if name not in base and _VALUES.get(name) and not _is_part(op, name)
        ]
        for count in range(min(len(names), _MOST.get(op, 2)) + 1):
            for chosen in itertools.combinations(names, count):
                for values in itertools.product(*(_fitting(_VALUES[name], shape) for name in chosen)):
                    attributes = base | dict(zip(chosen, values, strict=True))
                    if {"auto_pad", "pads"} <= attributes.keys():
                        continue
                    yield Form(op, attributes, product, opset, inputs, constants, reducer)


def _is_part(op: str, name: str) -> bool:
    """Tell whether an attribute belongs to what `_bases` gives an operator."""
    return (op, name) in {("Dropout", "seed"), ("Cast", "to"), ("PRelu", "slope"), ("Concat", "axis")}


def _fitting(values: Sequence[Any], shape: Sequence[int]) -> Sequence[Any]:
    return values if len(shape) == 3 else [one for one in values if not isinstance(one, list)]


_SHAPING = frozenset(
    {"kernel_shape", "axes", "perm", "blocksize", "size", "equation", "to", "num_groups", "group"}
)
"""Attributes whose values do not tell forms apart."""

_MOST = {"AveragePool": 3, "LpPool": 1, "Resize": 1, "ConvTranspose": 1, "Conv": 1}
"""Most attributes with other values than their default at once, by operator."""

_DOMAINS = dict.fromkeys(("Acos", "Asin", "Atanh", "Log", "Sqrt", "ReduceLogSum"), "Sigmoid") | {
    "Acosh": "Cosh"
}
"""Operators that take some numbers only, and the operator in front that gives such numbers."""

Bases = Iterator[tuple[dict[str, Any], tuple[str, ...], dict[str, NDArray[Any]], str]]
_BINARY = ("Add", "Sub", "Mul", "Div", "Pow", "Min", "Max", "Mean", "Sum", "Mod")
_REDUCERS = ("ReduceMax", "ReduceMean", "ReduceSum", "ReduceMin", "ReduceL2")


def _bases(op: str, shape: Sequence[int], opset: int) -> Bases:
    """Yield the attributes, inputs, constants and reducer without which an operator is not valid."""
    channels = shape[0] if len(shape) == 3 else shape[-1]
    image = len(shape) == 3
    wide = (1, channels, *[1] * (len(shape) - 1)) if image else (channels,)
    ints = lambda *values: np.asarray(values, np.int64)  # noqa: E731
    if op in _BINARY:
        extra = {"fmod": 1} if op == "Mod" else {}
        yield extra, ("a", "b"), {}, ""
        for constant in (abs(floats(*wide, seed=5)) + 0.5, np.float32(0.7)):
            yield extra, ("a", "c"), {"c": constant}, ""
            yield extra, ("c", "a"), {"c": constant}, ""
        if op in ("Add", "Sub", "Mul", "Div"):
            for reducer in _REDUCERS:
                yield extra, ("a", "a2"), {}, reducer
    elif op == "Where":
        yield {}, ("m", "a", "b"), {"m": np.arange(shape[-1]) % 2 == 0}, ""
        yield {}, ("m", "a", "c"), {"m": np.arange(shape[-1]) % 2 == 0, "c": np.float32(0)}, ""
    elif op == "PRelu":
        yield {}, ("a", "c"), {"c": np.reshape(floats(channels, seed=4), wide[1:] if image else wide)}, ""
    elif op == "Concat":
        for axis in (1, -1):
            yield {"axis": axis}, ("a", "b"), {}, ""
            yield {"axis": axis}, ("a", "a"), {}, ""
    elif op == "Clip":
        if opset < 11:
            yield {"min": -0.5, "max": 0.5}, ("a",), {}, ""
            yield {"min": 0.0, "max": 6.0}, ("a",), {}, ""
        else:
            for low, high in ((-0.5, 0.5), (0.0, 0.5), (0.0, 6.0)):
                yield {}, ("a", "l", "h"), {"l": np.float32(low), "h": np.float32(high)}, ""
            yield {}, ("a", "l"), {"l": np.float32(0.1)}, ""
            yield {}, ("a", "", "h"), {"h": np.float32(0.4)}, ""
    elif op in ("AveragePool", "MaxPool", "LpPool"):
        if image:
            yield {"kernel_shape": [3, 3]}, ("a",), {}, ""
    elif op == "Reshape":
        target = (0, -1, 4) if image else ((0, 2, -1, shape[-1]) if len(shape) == 2 else (0, 2, -1))
        yield {}, ("a", "s"), {"s": ints(*target)}, ""
        yield {}, ("a", "s"), {"s": ints(0, -1)}, ""
        yield {}, ("a", "s"), {"s": ints(-1, np.prod(shape[1:]))}, ""
    elif op == "Transpose":
        for perm in itertools.permutations(range(1, len(shape) + 1)):
            yield {"perm": [0, *perm]}, ("a",), {}, ""
    elif op in ("Squeeze", "Unsqueeze"):
        if op == "Unsqueeze":
            yield (
                ({"axes": [1]}, ("a",), {}, "")
                if opset < 13
                else ({}, ("a", "along"), {"along": ints(1)}, "")
            )
    elif op == "Slice":
        if opset < 10:
            yield {"axes": [1], "starts": [1], "ends": [5]}, ("a",), {}, ""
        else:
            for axis, step in ((1, 1), (-1, 2), (-1, -1)):
                start, end = (-1, -100) if step < 0 else (0, 6)
                constants = {"s": ints(start), "e": ints(end), "along": ints(axis), "t": ints(step)}
                yield {}, ("a", "s", "e", "along", "t"), constants, ""
    elif op == "Split":
        return
    elif op == "Gather":
        for axis in (1, -1):
            yield {"axis": axis}, ("a", "i"), {"i": ints(3, 0, 1, 2)}, ""
    elif op == "Pad":
        ends = [0] * len(shape) + [0] + [0] * len(shape) + [1]
        modes = ({}, {"mode": "reflect"}, {"mode": "edge"})
        for mode in modes:
            if opset < 11:
                yield {"pads": ends} | mode, ("a",), {}, ""
            else:
                yield {**mode}, ("a", "n"), {"n": ints(*ends)}, ""
        if opset >= 11:
            yield {}, ("a", "n", "c"), {"n": ints(*ends), "c": np.float32(0.7)}, ""
    elif op == "Resize" and image:
        for mode in ("nearest", "linear", "cubic"):
            for scale in (2.0, 1.5):
                scales = np.asarray([1, 1, scale, scale], np.float32)
                if opset < 11:
                    if mode != "cubic":
                        yield {"mode": mode}, ("a", "s"), {"s": scales}, ""
                else:
                    yield {"mode": mode}, ("a", "", "s"), {"s": scales}, ""
    elif op == "Upsample" and image and opset == 9:
        yield {"mode": "nearest"}, ("a", "s"), {"s": np.asarray([1, 1, 2, 2], np.float32)}, ""
    elif op == "Tile":
        yield {}, ("a", "n"), {"n": ints(*[1] * len(shape), 2)}, ""
    elif op == "Expand":
        yield {}, ("a", "n"), {"n": ints(1, *shape)}, ""
    elif op in ("DepthToSpace", "SpaceToDepth") and image:
        yield {"blocksize": 2}, ("a",), {}, ""
    elif op == "BatchNormalization" and image:
        constants = {
            name: abs(floats(channels, seed=at)) + 0.3 for at, name in enumerate(("g", "h", "mean", "var"))
        }
        yield {}, ("a", "g", "h", "mean", "var"), constants, ""
    elif op == "InstanceNormalization" and len(shape) > 1:
        count = shape[0]
        yield {}, ("a", "g", "h"), {"g": floats(count) + 1, "h": floats(count, seed=1)}, ""
    elif op in ("LayerNormalization", "RMSNormalization"):
        gain = {"g": floats(shape[-1]) + 1}
        yield {}, ("a", "g"), gain, ""
        if op == "LayerNormalization":
            yield {}, ("a", "g", "h"), gain | {"h": floats(shape[-1], seed=1)}, ""
    elif op == "GroupNormalization" and image:
        count = channels if opset >= 21 else 4
        yield {"num_groups": 4}, ("a", "g", "h"), {"g": floats(count) + 1, "h": floats(count, seed=1)}, ""
    elif op == "LRN" and image:
        yield {"size": 3}, ("a",), {}, ""
    elif op.startswith("Reduce"):
        for axes in [[1], [2, 3], [-1]] if image else [[1], [-1]]:
            in_inputs = opset >= 18 or (opset >= 13 and op == "ReduceSum")
            yield (
                ({}, ("a", "along"), {"along": ints(*axes)}, "")
                if in_inputs
                else ({"axes": axes}, ("a",), {}, "")
            )
    elif op == "Cast":
        return
    elif op == "TopK" and opset >= 11:
        yield {"axis": -1}, ("a", "k"), {"k": ints(4)}, ""
    elif op == "CumSum":
        yield {}, ("a", "along"), {"along": np.int64(1)}, ""
    elif op == "GatherElements":
        index = np.tile(np.arange(shape[-1])[::-1], (TRIED, *shape[:-1], 1))
        yield {"axis": -1}, ("a", "i"), {"i": index.astype(np.int64)}, ""
    elif op == "Einsum":
        letters = "cdef"[: len(shape)]
        yield (
            {"equation": f"n{letters},{letters[-1]}k->n{letters[:-1]}k"},
            ("a", "w2"),
            {"w2": floats(shape[-1], 8)},
            "",
        )
    elif op == "MatMul":
        yield {}, ("a", "w2"), {"w2": floats(shape[-1], 8)}, ""
        if len(shape) > 1:
            yield {}, ("w2", "a"), {"w2": floats(shape[-2], shape[-2])}, ""
        if len(shape) > 1 and image:
            yield {}, ("a", "b"), {}, ""
    elif op == "Gemm" and len(shape) == 1:
        yield {}, ("a", "w2"), {"w2": floats(8, 8)}, ""
        yield {"transB": 1}, ("a", "w2", "c"), {"w2": floats(8, 8), "c": floats(8)}, ""
    elif op == "Conv" and image:
        for base in ({}, {"group": 8}, {"strides": [2, 2]}, {"dilations": [2, 2]}):
            group = base.get("group", 1)
            yield base, ("a", "w2"), {"w2": floats(8, 8 // group, 3, 3, scale=0.3)}, ""
    elif op == "ConvTranspose" and image:
        for base in ({}, {"group": 8}, {"strides": [2, 2]}):
            group = base.get("group", 1)
            yield base, ("a", "w2"), {"w2": floats(8, 8 // group, 3, 3, scale=0.3)}, ""
    else:
        schema = defs.get_schema(op, opset)
        formals = [one for one in schema.inputs if one.option != defs.OpSchema.FormalParameterOption.Optional]
        graphs = any(one.type == defs.OpSchema.AttrType.GRAPH for one in schema.attributes.values())
        needed = any(one.required for one in schema.attributes.values())
        if len(formals) == 1 and schema.inputs and not graphs and not needed:
            yield {}, ("a",), {}, ""


def build_network(form: Form) -> onnx.ModelProto | None:
    """Return the float network of a form; None if it is not valid, or its result not a float tensor."""
    shape = SHAPES[form.product]
    nodes = [_product(form.product, "x", "a", "w", 0)]
    constants = {"w": _weight(form.product, shape[0] if len(shape) == 3 else shape[-1], 0)} | form.constants
    if "b" in form.inputs:
        nodes.append(_product(form.product, "x", "b", "wb", 1))
        constants["wb"] = _weight(form.product, 8, 1)
    if form.op in _DOMAINS:
        nodes[0].output[0] = "before"
        nodes.append(helper.make_node(_DOMAINS[form.op], ["before"], ["a"], name="domain"))
    if form.relu:
        nodes[-1].output[0] = "before"
        nodes.append(helper.make_node("Relu", ["before"], ["a"], name="relu"))
    if form.reducer:
        axes = [1] if len(shape) == 3 else [-1]
        in_inputs = form.opset >= 18 or (form.opset >= 13 and form.reducer == "ReduceSum")
        more = {} if in_inputs else {"axes": axes}
        names = ["a", "axes"] if in_inputs else ["a"]
        nodes.append(helper.make_node(form.reducer, names, ["a2"], name="reducer", **more))
        if in_inputs:
            constants["axes"] = np.asarray(axes, np.int64)
    more = [f"beside{at}" for at in range(1, defs.get_schema(form.op, form.opset).min_output)]
    nodes.append(helper.make_node(form.op, [*form.inputs], ["p", *more], name="tried", **form.attributes))
    half = _assemble(nodes, constants, "p", form.opset)
    result = _run_float(half, shape)
    if result is None or result.dtype != np.float32 or result.ndim < 2:
        return None
    image = result.ndim == 4
    channels = result.shape[1] if image else result.shape[-1]
    if channels < 2 or not np.isfinite(result).all() or float(np.std(result)) < 1e-3:
        return None
    behind = "Conv" if image else "Gemm" if result.ndim == 2 and form.product == "Gemm" else "MatMul"
    nodes.append(_product(behind, "p", "y", "v", 2, pads=False))
    weight = floats(6, channels, 1, 1) if image else floats(channels, 6)
    network = _assemble(nodes, constants | {"v": weight}, "y", form.opset)
    found = _run_float(network, shape)
    if found is None:
        return None
    kind = network.graph.output[0].type.tensor_type
    kind.shape.CopyFrom(helper.make_tensor_type_proto(1, [None] * found.ndim).tensor_type.shape)
    return network


def _product(op: str, data: str, result: str, weight: str, at: int, pads: bool = True) -> onnx.NodeProto:
    more = {"pads": [1, 1, 1, 1]} if op == "Conv" and pads else {}
    return helper.make_node(op, [data, weight], [result], name=f"product{at}", **more)


def _weight(op: str, count: int, seed: int) -> NDArray[np.float32]:
    return floats(8, 8, 3, 3, seed=seed, scale=0.2) if op == "Conv" else floats(count, 8, seed=seed)


def _assemble(
    nodes: Sequence[onnx.NodeProto], constants: Mapping[str, NDArray[Any]], output: str, opset: int
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "network",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", *SHAPES[nodes[0].op_type]])],
        [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
    )
    version = 9 if opset < 23 else 11
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=version)


def samples(shape: Sequence[int], count: int, seed: int) -> NDArray[np.float32]:
    """Return samples of the networks' input."""
    return np.random.default_rng(seed).normal(size=(count, *shape)).astype(np.float32)


def _run_float(proto: onnx.ModelProto, shape: Sequence[int]) -> NDArray[Any] | None:
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        session = onnxruntime.InferenceSession(
            proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        result = session.run(None, {"x": samples(shape, TRIED, 1)})[0]
    except Exception:  # invalid by ONNX, or an operator without a kernel: one class for each status code
        return None
    return result if isinstance(result, np.ndarray) else None


@dataclass(frozen=True)
class Answer:
    """Result of a network in a runtime.

    Attributes:
        simulated: SQNR in dB of the simulation, to the float model.
        computed: the same of the runtime; None if it refuses the file.
        says: its words, if it does.
    """

    simulated: float
    computed: float | None
    says: str = ""

    @property
    def is_wrong(self) -> bool:
        """Whether the runtime loses what the simulation keeps."""
        return self.computed is None or self.computed < min(self.simulated, MOST_DB) - LOST_DB


MOST_DB = 50.0
"""SQNR in dB above which roundings of another order of sums count."""


def quantize(proto: onnx.ModelProto, runtime: str, kept: Sequence[str] = ()) -> Models:
    """Return the forms of a quantized network with the nodes `kept` in float; the table is not asked."""
    kept_float = [Override(nodes=tuple(kept), keep_float=True)] if kept else []
    recipe = load_recipe(RECIPES[runtime])
    recipe = recipe.with_overrides(kept_float)
    options = QuantizeOptions(threads=1)
    session = open_inputs(proto, {"x": samples(_sample_shape(proto), SAMPLES, 0)}, recipe, options)
    return Models(build_candidate(session, recipe, Sources(), options), options, Clock())


def ask(proto: onnx.ModelProto, forms: Models, runtime: str) -> Answer:
    """Return what `runtime` makes of a quantized network."""
    feed = {"x": samples(_sample_shape(proto), TRIED, 1)}
    (wanted,) = Session(proto, 1, exact=True).run(feed)
    (simulated,) = Session(forms.simulation, 1, exact=True).run(feed)
    opener = target_by_name(runtime).values
    assert opener is not None
    try:
        found = opener(forms.qdq, 1)(feed)["y"]
    except OnnxfqError as error:
        return Answer(sqnr(wanted, simulated), None, str(error)[:160])
    if found.shape != wanted.shape:
        return Answer(sqnr(wanted, simulated), None, f"its output has shape {list(found.shape)}")
    return Answer(sqnr(wanted, simulated), sqnr(wanted, found))


def _sample_shape(proto: onnx.ModelProto) -> list[int]:
    return [dim.dim_value for dim in proto.graph.input[0].type.tensor_type.shape.dim][1:]


def sqnr(wanted: NDArray[Any], found: NDArray[Any]) -> float:
    """Return the SQNR in dB."""
    noise = float(((wanted.astype(np.float64) - found) ** 2).sum())
    return (
        float("inf") if noise == 0 else 10 * float(np.log10((wanted.astype(np.float64) ** 2).sum() / noise))
    )


def try_form(form: Form, runtime: str) -> Tried | None:
    """Return how a form runs in `runtime`; None without a network, or if the float network runs as badly."""
    network = build_network(form)
    if network is None:
        return None
    try:
        answer = ask(network, quantize(network, runtime), runtime)
    except OnnxfqError:  # nothing in it is quantized
        return None
    if not answer.is_wrong:
        return Tried(form.row(), form.opset)
    opener, feed = target_by_name(runtime).values, {"x": samples(_sample_shape(network), TRIED, 1)}
    assert opener is not None
    try:
        (wanted,) = Session(network, 1, exact=True).run(feed)
        found = opener(network, 1)(feed)["y"]
    except OnnxfqError:
        return None
    if found.shape != wanted.shape or sqnr(wanted, found) < MOST_DB:
        return None
    cures = frozenset(kept for kept in CURES[1:] if _is_cured(network, runtime, kept))
    behind = None if form.relu else try_form(replace(form, relu=True), runtime)
    says = REFUSES if answer.computed is None else "computes otherwise"
    return Tried(form.row(says), form.opset, cures, signed=behind is not None and not behind.form.says)


def _is_cured(network: onnx.ModelProto, runtime: str, kept: Sequence[str]) -> bool:
    try:
        return not ask(network, quantize(network, runtime, kept), runtime).is_wrong
    except OnnxfqError:  # nothing is left to quantize
        return False


def ask_all(runtime: str, part: slice) -> list[Tried]:
    """Return what a runtime makes of `part` of the forms, each in a process that may crash."""
    forms, found = list(list_forms(LAST_OPSET))[part], list[Tried]()
    while forms:
        with ProcessPoolExecutor(1, initializer=_forget_table) as pool:
            try:
                for one in pool.map(partial(try_form, runtime=runtime), tuple(forms)):
                    if len(forms) % 100 == 0:
                        print(f"{runtime}: {len(forms)} left, {forms[0].op}", flush=True)
                    forms = forms[1:]
                    found += [] if one is None else [one]
            except BrokenProcessPool:
                found.append(Tried(forms[0].row(REFUSES), forms[0].opset, frozenset()))
                forms = forms[1:]
    return found


def _forget_table() -> None:
    """Quantize as if the table were empty, and say nothing."""
    runtime_forms.read_table = dict
    logging.disable(logging.CRITICAL)
