"""Tiny models from ONNX text, with the pieces of structure that quantization cares about."""

from __future__ import annotations

import re
import subprocess
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import helper, numpy_helper, parser

from onnxfq.calibration.statistics import Statistics
from onnxfq.documents.encodings import Encodings
from onnxfq.documents.plan import Plan
from onnxfq.documents.recipe import Recipe
from onnxfq.graph.io.load import load
from onnxfq.graph.model import Model
from onnxfq.judging.accuracy_target import AccuracyTarget
from onnxfq.numerics.qtypes import qtype_by_name
from onnxfq.quantizing.pipeline import quantize
from onnxfq.runtime.session import Session
from onnxfq.stages.calibrate import calibrate
from onnxfq.stages.insert import insert_fake_quantize, insert_qdq, with_target_qdq
from onnxfq.stages.observe import collect_statistics
from onnxfq.stages.observers import ObserveOptions
from onnxfq.stages.plan import make_plan
from onnxfq.targets.recipes import load_recipe

Arrays = dict[str, NDArray[np.generic]]
plain_quantize = partial(quantize, accuracy=AccuracyTarget(repair=None))
"""`quantize` without remedies, for tests of what they leave as it is."""


def weights(*shape: int, seed: int = 0) -> NDArray[np.float32]:
    """Random float32 of `shape` whose rows differ in size, as in trained weights."""
    rng = np.random.default_rng([seed, *shape])
    rows = np.linspace(0.2, 2.0, shape[0] if shape else 1).reshape(-1, *[1] * (max(len(shape), 1) - 1))
    return (rng.normal(size=shape) * rows.reshape(rows.shape if shape else ())).astype(np.float32)


def scalars(kind: type[np.generic], **values: Any) -> Arrays:
    """Return constants of rank 0 of one type by name."""
    return {name: np.asarray(value, kind) for name, value in values.items()}


def build(
    text: str, constants: Arrays | None = None, *, opset: int = 17, ir: int = 8, **imports: int
) -> onnx.ModelProto:
    """Parse `text`, the graph without its header, and add `constants` as initializers."""
    domains = "".join(f', "{domain}" : {version}' for domain, version in imports.items())
    model = parser.parse_model(f'<ir_version: {ir}, opset_import: ["" : {opset}{domains}]> {text}')
    tensors = [numpy_helper.from_array(np.asarray(a), name) for name, a in (constants or {}).items()]
    model.graph.initializer.extend(tensors)
    return model


def build_used(text: str, constants: Arrays, **options: int) -> onnx.ModelProto:
    """`build` with the constants that a node of the graph or of a body reads; others are left out."""
    words = set(re.findall(r"[\w/]+", text))
    return build(text, {name: array for name, array in constants.items() if name in words}, **options)


def square(nodes: str, constants: Arrays | None = None, **options: int) -> onnx.ModelProto:
    """`build_used` of nodes from x [N, 4] to y [N, 4], with w [4, 4] and the constants."""
    arrays: Arrays = {"w": weights(4, 4), **(constants or {})}
    return build_used(f"g (float[N,4] x) => (float[N,4] y) {{ {nodes} }}", arrays, **options)


def choice(then: str, other: str, before: str = "", **constants: NDArray[np.generic]) -> onnx.ModelProto:
    """`build_used` of an If on input c, of nodes from x [N, 4] to u or v alike, with weights w and w2."""
    text = f"""g (float[N,4] x, bool c) => (float[N,4] y) {{ {before}
        y = If (c) <then_branch = a () => (float[N,4] u) {{ {then} }},
                    else_branch = b () => (float[N,4] v) {{ {other} }}> }}"""
    return build_used(text, {"w": weights(4, 4), "w2": weights(4, 4, seed=1), **constants})


def conv_relu(opset: int = 17) -> onnx.ModelProto:
    """One Conv with a bias, one Relu."""
    return build(
        """g (float[N,3,6,6] x) => (float[N,4,6,6] y) {
            [conv] c = Conv <pads = [1,1,1,1]> (x, w, b)
            [relu] y = Relu (c) }""",
        {"w": weights(4, 3, 3, 3), "b": weights(4)},
        opset=opset,
    )


def two_branch() -> onnx.ModelProto:
    """An identity skip around two Convs with BatchNormalization, and a Conv that reads the sum."""
    return build(
        """g (float[N,4,6,6] x) => (float[N,4,6,6] y) {
            [head] h = Relu (x)
            [conv1] c1 = Conv <pads = [1,1,1,1]> (h, w1)
            [relu1] r1 = Relu (c1)
            [conv2] c2 = Conv <pads = [1,1,1,1]> (r1, w2, b2)
            [bn] n = BatchNormalization (c2, gain, shift, mean, var)
            [add] s = Add (n, h)
            [relu2] r2 = Relu (s)
            [conv3] y = Conv <pads = [1,1,1,1]> (r2, w3) }""",
        {
            **{f"w{i}": weights(4, 4, 3, 3, seed=i) for i in (1, 2, 3)},
            **{name: weights(4, seed=i) for i, name in enumerate(("b2", "gain", "shift", "mean"))},
            "var": np.ones(4, np.float32),
        },
    )


def downsample() -> onnx.ModelProto:
    """A residual block whose skip branch is a 1x1 Conv; both branches end in a Conv."""
    return build(
        """g (float[N,4,6,6] x) => (float[N,4,3,3] y) {
            [conv1] c1 = Conv <pads = [1,1,1,1], strides = [2,2]> (x, w1)
            [relu1] r1 = Relu (c1)
            [conv2] main = Conv <pads = [1,1,1,1]> (r1, w2)
            [skip] down = Conv <strides = [2,2]> (x, ws)
            [add] y = Add (main, down) }""",
        {"w1": weights(4, 4, 3, 3, seed=1), "w2": weights(4, 4, 3, 3, seed=2), "ws": weights(4, 4, 1, 1)},
    )


def shared_weight() -> onnx.ModelProto:
    """Two MatMuls that read one weight."""
    return build(
        """g (float[N,4] x) => (float[N,4] y) {
            [first] h = MatMul (x, w)
            [relu] r = Relu (h)
            [second] y = MatMul (r, w) }""",
        {"w": weights(4, 4)},
    )


def gemm(trans_a: int = 0, trans_b: int = 0) -> onnx.ModelProto:
    """One Gemm [6, 4] x [4, 3] with a bias, its inputs stored as the flags say."""
    return build(
        f"""g (float[{"4,6" if trans_a else "6,4"}] x) => (float[6,3] y) {{
            [gemm] y = Gemm <transA = {trans_a}, transB = {trans_b}> (x, w, b) }}""",
        {"w": weights(*((3, 4) if trans_b else (4, 3))), "b": weights(3)},
    )


def transposed_weight() -> onnx.ModelProto:
    """A MatMul whose weight is stored transposed, as torch exports a Linear layer."""
    return build(
        """g (float[N,4] x) => (float[N,3] y) {
            [turn] t = Transpose <perm = [1,0]> (w)
            [mm] y = MatMul (x, t) }""",
        {"w": weights(3, 4)},
    )


def tied_embedding() -> onnx.ModelProto:
    """A table that is looked up at the start and multiplied, transposed, at the end."""
    return build(
        """g (int64[N] ids) => (float[N,5] y) {
            [look] e = Gather <axis = 0> (table, ids)
            [relu] h = Relu (e)
            [turn] t = Transpose <perm = [1,0]> (table)
            [mm] y = MatMul (h, t) }""",
        {"table": weights(5, 4)},
    )


def if_body() -> onnx.ModelProto:
    """A MatMul outside an If, one inside that reads a weight and a tensor from outside."""
    return build(
        """g (float[N,4] x, bool cond) => (float[N,4] y) {
            [outside] h = MatMul (x, w)
            [choose] y = If (cond) <
                then_branch = yes () => (float[N,4] t) { [inside] t = MatMul (h, inner) },
                else_branch = no () => (float[N,4] e) { [plain] e = Relu (h) }> }""",
        {"w": weights(4, 4), "inner": weights(4, 4, seed=1)},
    )


def attention() -> onnx.ModelProto:
    """Scores of queries and keys, Softmax, times values: MatMuls of two activations."""
    return build(
        """g (float[N,3,4] x) => (float[N,3,4] y) {
            [q] q = MatMul (x, wq)
            [k] k = MatMul (x, wk)
            [kt] kt = Transpose <perm = [0,2,1]> (k)
            [scores] s = MatMul (q, kt)
            [soft] p = Softmax <axis = -1> (s)
            [mix] m = MatMul (p, x)
            [project] o = MatMul (m, wo)
            [add] y = Add (o, x) }""",
        {f"w{n}": weights(4, 4, seed=i) for i, n in enumerate("qko")},
    )


def conv_transpose() -> onnx.ModelProto:
    """One ConvTranspose from 3 to 2 channels."""
    return build(
        "g (float[N,3,4,4] x) => (float[N,2,8,8] y) { [up] y = ConvTranspose <strides = [2,2]> (x, w) }",
        {"w": weights(3, 2, 2, 2)},
    )


def left_constant() -> onnx.ModelProto:
    """A MatMul whose constant is on the left."""
    return build("g (float[4,N] x) => (float[3,N] y) { [mm] y = MatMul (w, x) }", {"w": weights(3, 4)})


def vector_weight() -> onnx.ModelProto:
    """A MatMul by a vector: a weight without a channel axis."""
    return build("g (float[N,4] x) => (float[N] y) { [mm] y = MatMul (x, w) }", {"w": weights(4)})


def same_tensor_twice() -> onnx.ModelProto:
    """A MatMul whose both inputs are one tensor."""
    return build("g (float[4,4] x) => (float[4,4] y) { [relu] h = Relu (x) [mm] y = MatMul (h, h) }")


def inner_output() -> onnx.ModelProto:
    """A tensor that is quantized for a reader and is an output of the graph as well."""
    return build(
        "g (float[N,4] x) => (float[N,4] h, float[N,3] y) { [relu] h = Relu (x) [mm] y = MatMul (h, w) }",
        {"w": weights(4, 3)},
    )


BUILDERS = {
    make.__name__: make
    for make in (
        *(conv_relu, two_branch, downsample, shared_weight, gemm, transposed_weight, tied_embedding),
        *(if_body, attention, conv_transpose, left_constant, vector_weight, same_tensor_twice),
        inner_output,
    )
}


def feed_for(proto: onnx.ModelProto, seed: int = 0, count: int = 4) -> Arrays:
    """Random values for every input; open dimensions get `count`."""
    rng = np.random.default_rng(seed)
    feed: Arrays = {}
    for value in proto.graph.input:
        shape = [d.dim_value or count for d in value.type.tensor_type.shape.dim]
        kind = value.type.tensor_type.elem_type
        if kind == onnx.TensorProto.BOOL:
            feed[value.name] = np.asarray(True)
        elif kind == onnx.TensorProto.INT64:
            feed[value.name] = rng.integers(0, 4, shape)
        else:
            feed[value.name] = rng.normal(size=shape).astype(np.float32)
    return feed


@dataclass(frozen=True)
class Staged:
    """A model with everything that the stages up to the encodings make of it."""

    model: Model
    plan: Plan
    statistics: Statistics
    encodings: Encodings
    feed: Arrays


def without(statistics: Statistics, kind: str) -> Statistics:
    """Return statistics with one kind left out."""
    return replace(statistics, values={key: one for key, one in statistics.values.items() if key[1] != kind})


EVERYTHING = {"small_shapes": "quantize", "depthwise": "quantize", "conv_transpose": "quantize"}
"""Fields of a recipe that leaves out no operator; the models of tests are small."""


def whole_recipe(recipe: str | Recipe) -> Recipe:
    """Return a built-in recipe by name with EVERYTHING quantized, a given recipe as it is."""
    found = load_recipe(recipe)
    return found if isinstance(recipe, Recipe) else found.model_copy(update=EVERYTHING)


def stage(proto: onnx.ModelProto, recipe: str | Recipe = "tensorrt-int8") -> Staged:
    """Load, plan, observe and calibrate `proto` on one random feed."""
    model, feed = load(proto), feed_for(proto)
    plan = make_plan(model, whole_recipe(recipe))
    statistics = collect_statistics(model, plan, [feed], ObserveOptions(threads=1))
    return Staged(model, plan, statistics, calibrate(model, plan, statistics), feed)


def planned(proto: onnx.ModelProto, recipe: str | Recipe = "tensorrt-int8") -> Plan:
    """Plan `proto`."""
    return make_plan(load(proto), whole_recipe(recipe))


def with_weights(recipe: str, **changes: object) -> Recipe:
    """Return a built-in recipe with other fields of its weight scheme."""
    base = load_recipe(recipe).model_dump()
    return Recipe.model_validate(base | {"weights": base["weights"] | changes})


def one_format(qtype: str, target: str = "onnxruntime", **changes: object) -> Recipe:
    """Return a recipe with `qtype` everywhere, symmetric where it can be; changes: of the weights."""
    scheme = {"qtype": qtype, "symmetric": qtype_by_name(qtype).qmin < 0}
    fields = {"activations": scheme | {"calibrator": "minmax"}, "weights": scheme | changes}
    return Recipe.model_validate({"name": "all", "target": target, **fields})


def qdq_of(staged: Staged) -> onnx.ModelProto:
    """Return the Q/DQ model."""
    return with_target_qdq(staged.model, staged.plan, staged.encodings).proto


def linear(k: int, n: int) -> onnx.ModelProto:
    """One MatMul of [N, k] with a weight [k, n]."""
    return build(f"g (float[N,{k}] x) => (float[N,{n}] y) {{ [mm] y = MatMul (x, w) }}", {"w": weights(k, n)})


def with_override(recipe: str = "tensorrt-int8", **override: object) -> Recipe:
    """Return a built-in recipe with one override."""
    return Recipe.model_validate(whole_recipe(recipe).model_dump() | {"overrides": [override]})


def graph_text(proto: onnx.ModelProto) -> list[str]:
    """Return the nodes as short lines `[name] outputs = op<attributes>(inputs)`; a golden to compare with."""
    lines = []
    for node in proto.graph.node:
        attributes = " ".join(f"{a.name}={onnx.helper.get_attribute_value(a)}" for a in node.attribute)
        inside = f" <{attributes}>" if attributes else ""
        lines.append(
            f"[{node.name}] {', '.join(node.output)} = {node.op_type}{inside} ({', '.join(node.input)})"
        )
    return lines


def open_as_written(proto: onnx.ModelProto | str, **settings: int) -> onnxruntime.InferenceSession:
    """Return a session of ONNX Runtime without its optimisations, which would move pairs."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    for name, value in settings.items():
        setattr(options, name, value)
    content = proto if isinstance(proto, str) else proto.SerializeToString()
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def run_as_written(proto: onnx.ModelProto, feed: Arrays) -> list[NDArray[np.generic]]:
    """Return the outputs by ONNX Runtime without its optimisations."""
    return open_as_written(proto).run(None, feed)


def assert_same_outputs(
    one: onnx.ModelProto, other: onnx.ModelProto, feed: Arrays | None = None, exact: bool = True
) -> None:
    """Both give the same bits for `feed`, else for a random feed of the second."""
    given = feed_for(other) if feed is None else feed
    want, got = (Session(proto, 1, exact=exact).run(given) for proto in (one, other))
    for left, right in zip(want, got, strict=True):
        np.testing.assert_array_equal(right, left)


def assert_forms_agree(one: Staged) -> onnx.ModelProto:
    """The Q/DQ model is valid and gives the bits of the simulation; it is returned."""
    made = insert_qdq(one.model, one.plan, one.encodings)
    onnx.checker.check_model(made, full_check=True)
    assert_same_outputs(insert_fake_quantize(one.model, one.plan, one.encodings), made, one.feed)
    return made


def ends_process(model: onnx.ModelProto, path: Path) -> bool:
    """Write `model`, and tell whether a process ends that opens it with default optimizations."""
    onnx.save(model, path)
    code = "import onnxruntime as o, sys; o.InferenceSession(sys.argv[1], providers=['CPUExecutionProvider'])"
    return subprocess.run([sys.executable, "-c", code, path], capture_output=True, check=False).returncode < 0


@cache
def onnx_cases() -> list[Any]:
    """Return ONNX's own cases of all operators; making them takes seconds."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some casts overflow
        return [case for case in collect_testcases(None) if case.model is not None]


def add_large_product(proto: onnx.ModelProto) -> None:
    """Append a large product on its own; every plan quantizes it."""
    proto.graph.node.append(helper.make_node("MatMul", ["other", "big"], ["z"], "large"))
    proto.graph.input.append(helper.make_tensor_value_info("other", 1, [32, 32]))
    proto.graph.output.append(helper.make_tensor_value_info("z", 1, [32, 32]))
    proto.graph.initializer.append(numpy_helper.from_array(weights(32, 32), "big"))


def constants(proto: onnx.ModelProto) -> Arrays:
    """Return the initializers by name."""
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}


def with_constants(
    proto: onnx.ModelProto, change: Callable[[str, NDArray[Any]], NDArray[Any]]
) -> onnx.ModelProto:
    """Return a copy whose constants are what `change` makes of their names and arrays."""
    copy = onnx.ModelProto.FromString(proto.SerializeToString())
    for tensor in copy.graph.initializer:
        changed = change(tensor.name, numpy_helper.to_array(tensor))
        tensor.CopyFrom(numpy_helper.from_array(changed, tensor.name))
    return copy
