"""One small model for each structure, at every opset that has it, with every recipe: it works or is refused.

python -m pytest tests/graph/test_opsets.py --all-opsets -s
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from builders import Arrays, build_used, one_format, plain_quantize, scalars, weights, whole_recipe
from half_models import half_feed
from onnx import helper, numpy_helper

from onnxfq.documents.recipe import Recipe
from onnxfq.errors import OnnxfqError
from onnxfq.quantizing.pipeline import quantize
from onnxfq.runtime.session import Session
from onnxfq.runtime.unsupported_ops import explain_unsupported
from onnxfq.support.tables import table_lines
from onnxfq.targets.recipes import RECIPES

NEWEST = onnx.defs.onnx_opset_version()
QUICK_OPSETS, QUICK_RECIPES = (7, 12, 26), ("tensorrt-int8", "tensorrt-int4")
QUICK_REPAIRS = (13,)
"""Opsets at which remedies are tried too: what they do depends on the structure."""
LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"


CONSTANTS: Arrays = {
    **{"w": weights(4, 4), "v": weights(4, 4, seed=1), "bias": weights(4), "kernel": weights(4, 4, 3, 3)},
    **{
        "deep": weights(4, 1, 3, 3),
        "grow": weights(3, 2, 2, 2),
        "narrow": weights(3, 4),
        "three": weights(3),
    },
    **{"gain": weights(4), "shift": weights(4, seed=1), "mean": weights(4, seed=2), "turned": weights(4, 3)},
    # A width that blocks of 16, 32 and 128 divide, which the narrow ones do not have.
    **{"broad": weights(128, 256), "tall": weights(64, 256), "many": weights(64), "even": weights(128, 128)},
    **{"table": weights(9, 4), "tied": weights(5, 4), "double": weights(4, 4).astype(np.float64)},
    **{"half": weights(4, 4).astype(np.float16), "brain": weights(4, 4).astype(ml_dtypes.bfloat16)},
    **{f"w{gates}": weights(1, 2 * gates, 4) for gates in (1, 3, 4)},
    **{f"r{gates}": weights(1, 2 * gates, 2) for gates in (1, 3, 4)},
    **scalars(np.float32, sizes=[1, 1, 2, 2], none=[], zeros=[0] * 4, ones=[1] * 4, scale=0.1),
    **scalars(np.int64, pads=[0, 0, 1, 1, 0, 0, 1, 1], shape=[4, 4], two=2),
    **{"zero": np.asarray(0, np.int8), "yes": np.asarray(True)},
}
"""All constants; a structure gets the ones in its text."""


@dataclass(frozen=True)
class Structure:
    """A model as text, and the opsets [first, last] that have its operators so."""

    text: str
    first: int = 7
    last: int = NEWEST

    def model(self, opset: int) -> onnx.ModelProto:
        """Build it at `opset`."""
        lowest = helper.find_min_ir_version_for([helper.make_opsetid("", opset)])
        imports = {domain: 1 for domain in ("far", "own") if f"{domain}." in self.text}
        ir = max(lowest, 8 if "own" in imports else 4)
        return build_used(self.text, CONSTANTS, opset=opset, ir=ir, **imports)


def rows(nodes: str, x: str = "N,4", y: str = "N,4", **opsets: int) -> Structure:
    """Nodes from x to y, float32 of these sizes."""
    return Structure(f"g (float[{x}] x) => (float[{y}] y) {{ {nodes} }}", **opsets)


def image(nodes: str, x: str = "N,4,6,6", y: str = "N,4,6,6", **opsets: int) -> Structure:
    """A Conv of an image, and nodes behind its result c."""
    return rows(f"c = Conv <pads = [1,1,1,1]> (x, kernel, bias) {nodes}", x, y, **opsets)


STRUCTURES: dict[str, Structure] = {
    "conv2d": image("y = Identity (c)"),
    "conv depthwise": rows("y = Conv <group = 4, pads = [1,1,1,1]> (x, deep)", "N,4,6,6", "N,4,6,6"),
    "conv transpose": rows("y = ConvTranspose <strides = [2,2]> (x, grow)", "N,3,4,4", "N,2,8,8"),
    "conv, batch norm, relu": image("n = BatchNormalization (c, gain, shift, mean, ones) y = Relu (n)"),
    "residual": image("r = Relu (c) a = Add (r, x) y = Conv <pads = [1,1,1,1]> (a, kernel, bias)"),
    "max pool": image("y = MaxPool <kernel_shape = [2,2], strides = [2,2]> (c)", y="N,4,3,3"),
    "global pool, flatten": image("p = GlobalAveragePool (c) f = Flatten (p) y = MatMul (f, w)", y="N,4"),
    "upsample": image('y = Upsample <mode = "nearest"> (c, sizes)', y="N,4,12,12", first=9, last=9),
    "resize": image('y = Resize <mode = "nearest"> (c, none, sizes)', y="N,4,12,12", first=11),
    "pad": rows("p = Pad (x, pads) y = Conv (p, kernel, bias)", "N,4,6,6", "N,4,H,V", first=11),
    "concat": rows("a = MatMul (x, w) b = Relu (x) y = Concat <axis = 1> (a, b)", y="N,8"),
    "gemm": rows("y = Gemm (x, w, bias)"),
    "gemm without bias": rows("y = Gemm (x, w)", first=11),
    "gemm, B transposed": rows("y = Gemm <transB = 1> (x, narrow, three)", y="N,3"),
    "gemm, alpha and beta": rows("y = Gemm <alpha = 0.5, beta = 2.0> (x, w, bias)"),
    "matmul": rows("y = MatMul (x, w)"),
    "matmul, wide": rows("y = MatMul (x, broad)", "N,128", "N,256"),
    "gemm, wide": rows("y = Gemm <transB = 1> (x, tall, many)", "N,256", "N,64"),
    "matmul in if, wide": Structure(
        """g (float[N,128] x, bool c) => (float[N,128] y) { y = If (c) <
            then_branch = one () => (float[N,128] t) { t = MatMul (x, even) },
            else_branch = other () => (float[N,128] e) { e = Relu (x) }> }"""
    ),
    "matmul of activations": rows("a = MatMul (x, w) r = Relu (x) y = MatMul (a, r)", "N,4,4", "N,4,4"),
    "einsum": rows('y = Einsum <equation = "ij,jk->ik"> (x, turned)', y="N,3", first=12),
    **{
        op.lower(): rows(f"y = {op} <hidden_size = 2> (x, w{gates}, r{gates})", "3,N,4", "3,1,N,2")
        for op, gates in (("LSTM", 4), ("GRU", 3), ("RNN", 1))
    },
    "lstm and matmul": rows(
        """m = MatMul (x, w) l = LSTM <hidden_size = 2> (m, w4, r4)
        t = Transpose <perm = [1,0,2,3]> (l) y = ReduceMax <axes = [0], keepdims = 0> (t)""",
        *("3,N,4", "3,N,2"),
        last=17,
    ),
    "embedding": Structure("g (int64[N] x) => (float[N,4] y) { e = Gather (table, x) y = MatMul (e, w) }"),
    "tied embedding": Structure(
        """g (int64[N] x) => (float[N,5] y) { e = Gather (tied, x) r = Relu (e)
            k = Transpose <perm = [1,0]> (tied) y = MatMul (r, k) }"""
    ),
    "attention by hand": rows(
        """q = MatMul (x, w) k = MatMul (x, v) kt = Transpose <perm = [0,2,1]> (k) s = MatMul (q, kt)
        p = Softmax <axis = 2> (s) y = MatMul (p, x)""",
        *("N,3,4", "N,3,4"),
    ),
    "attention operator": rows(
        "q = MatMul (x, w) y = Attention <q_num_heads = 2, kv_num_heads = 2> (q, q, q)",
        *("N,3,4", "N,3,4"),
        first=23,
    ),
    "layer norm": rows("n = LayerNormalization (x, gain) y = MatMul (n, w)", first=17),
    "shared weight": rows("a = MatMul (x, w) r = Relu (a) y = MatMul (r, w)"),
    "shared through Transpose": rows("t = Transpose <perm = [1,0]> (w) a = MatMul (x, w) y = MatMul (a, t)"),
    "shared through Reshape": rows(
        "t = Reshape (v, shape) a = MatMul (x, w) b = MatMul (a, t) y = Mul (b, v)"
    ),
    "shared bias": rows("a = Gemm (x, w, bias) r = Relu (a) y = Gemm (r, v, bias)"),
    "one tensor twice": rows("r = Relu (x) y = MatMul (r, r)", "4,4", "4,4"),
    "inner output": Structure(
        "g (float[N,4] x) => (float[N,4] h, float[N,4] y) { h = Relu (x) y = MatMul (h, w) }"
    ),
    "constant nodes": rows(
        "k = Constant <value = float[4] {0.5, 1.0, -2.0, 3.0}> () d = MatMul (x, w) y = Mul (d, k)"
    ),
    "if": Structure(
        """g (float[N,4] x, bool c) => (float[N,4] y) { h = MatMul (x, w) y = If (c) <
            then_branch = one () => (float[N,4] t) { t = MatMul (h, v) },
            else_branch = other () => (float[N,4] e) { e = Relu (h) }> }"""
    ),
    "if in if": Structure(
        """g (float[N,4] x, bool c) => (float[N,4] y) { y = If (c) <
            then_branch = one () => (float[N,4] t) { t = If (c) <
                then_branch = one2 () => (float[N,4] t2) { t2 = MatMul (x, w) },
                else_branch = other2 () => (float[N,4] e2) { e2 = Relu (x) }> },
            else_branch = other () => (float[N,4] e) { e = Relu (x) }> }"""
    ),
    "loop": rows(
        """y = Loop (two, yes, x) <body = b (int64 i, bool g, float[N,4] s) => (bool k, float[N,4] o) {
            k = Identity (g) o = MatMul (s, w) }>"""
    ),
    "scan": Structure(
        """g (float[3,4] x) => (float[4] f, float[3,4] y) { f, y = Scan <num_scan_inputs = 1,
            body = b (float[4] s, float[4] i) => (float[4] n, float[4] o) {
                m = MatMul (i, w) n = Add (s, m) o = Relu (m) }> (zeros, x) }""",
        first=9,
    ),
    "mixed with double": rows(
        "a = MatMul (x, w) d = Cast <to = 11> (a) e = MatMul (d, double) y = Cast <to = 1> (e)", first=9
    ),
    "float16": Structure("g (float16[N,4] x) => (float16[N,4] y) { a = MatMul (x, half) y = Relu (a) }"),
    "bfloat16": Structure(
        "g (bfloat16[N,4] x) => (bfloat16[N,4] y) { a = MatMul (x, brain) y = Relu (a) }", first=14
    ),
    "quantized already": rows(
        "q = QuantizeLinear (x, scale, zero) d = DequantizeLinear (q, scale, zero) y = MatMul (d, w)",
        first=10,
    ),
    "foreign operator": rows("a = far.Thing (x) y = MatMul (a, w)"),
    "empty batch of names": rows("[n] a = MatMul (x, w) [n] y = MatMul (a, w)"),
    "softmax first": rows("a = MatMul (x, w) y = Softmax <axis = 1> (a)"),
    "reduce by axes": rows("a = MatMul (x, w) y = ReduceMean <axes = [1]> (a)", y="N,1", last=17),
    "squeeze by attribute": rows("s = Squeeze <axes = [1]> (x) y = MatMul (s, w)", "N,1,4", last=12),
    "clip by attributes": rows("a = MatMul (x, w) y = Clip <min = 0.0, max = 6.0> (a)", last=10),
    "dropout": rows("a = MatMul (x, w) y = Dropout (a)"),
    "split": rows("a, b = Split <axis = 1> (x) c = Concat <axis = 1> (b, a) y = MatMul (c, w)", last=17),
    "gelu by erf": rows("a = MatMul (x, w) e = Erf (a) m = Mul (a, e) y = MatMul (m, w)", first=9),
}


def initializers_are_inputs(opset: int) -> onnx.ModelProto:
    """A model of IR version 3, where every initializer has to be an input."""
    proto = STRUCTURES["gemm"].model(opset)
    proto.ir_version = 3
    for tensor in proto.graph.initializer:
        value = helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        proto.graph.input.append(value)
    return proto


def hostile_names(opset: int) -> onnx.ModelProto:
    """Names like ours, with blanks, slashes, quotes and other alphabets."""
    proto = STRUCTURES["shared weight"].model(opset)
    renamed = {"a": "x/q", "r": "größe 1/dq", "w": "x/scale", "x": "x", "y": 'it\'s "y"'}
    for node in proto.graph.node:
        node.input[:] = [renamed[name] for name in node.input]
        node.output[:] = [renamed[name] for name in node.output]
        node.name = "x/dq"
    for value in (*proto.graph.input, *proto.graph.output, *proto.graph.initializer):
        value.name = renamed[value.name]
    return proto


def sparse_weight(opset: int) -> onnx.ModelProto:
    """A weight that is mostly zero, stored so."""
    proto = STRUCTURES["matmul"].model(opset)
    del proto.graph.initializer[:]
    values = numpy_helper.from_array(weights(4), "w")
    indices = numpy_helper.from_array(np.asarray([0, 3, 6, 13]), "where")
    proto.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [4, 4]))
    return proto


def local_function(opset: int) -> onnx.ModelProto:
    """A MatMul inside a function of the model's own."""
    proto = rows("y = own.Layer (x, w)").model(opset)
    nodes = [helper.make_node("MatMul", ["a", "b"], ["c"]), helper.make_node("Relu", ["c"], ["d"])]
    imports = [helper.make_opsetid("", opset)]
    proto.functions.append(helper.make_function("own", "Layer", ["a", "b"], ["d"], nodes, imports))
    return proto


SPECIAL = {
    "initializers are inputs": (initializers_are_inputs, 7),
    "hostile names": (hostile_names, 7),
    "sparse weight": (sparse_weight, 11),
    "local function": (local_function, 13),
}


def models(opsets: tuple[int, ...]) -> list[tuple[str, int, onnx.ModelProto]]:
    """Return (structure, opset, model) for every structure at every opset that has it."""
    makers = {name: (one.model, one.first, one.last) for name, one in STRUCTURES.items()}
    makers |= {name: (make, first, NEWEST) for name, (make, first) in SPECIAL.items()}
    return [
        (name, opset, make(opset))
        for name, (make, first, last) in makers.items()
        for opset in opsets
        if first <= opset <= last
    ]


def feed_of(proto: onnx.ModelProto) -> Arrays:
    """Random values of inputs that have none; open dimensions get 4."""
    constants = {tensor.name for tensor in proto.graph.initializer}
    return {name: array for name, array in half_feed(proto).items() if name not in constants}


def outcome(proto: onnx.ModelProto, recipe: str | Recipe, path: Path, repairs: bool = True) -> str:
    """Quantize; return `quantized`, or why not. Fails when what is written is not valid or does not run."""
    feed = feed_of(proto)
    try:
        (quantize if repairs else plain_quantize)(proto, [feed], path, recipe=recipe)
    except OnnxfqError as refusal:
        assert not path.exists()
        return _kind(str(refusal))
    made = onnx.load(path)
    onnx.checker.check_model(made, full_check=not explain_unsupported(made))
    path.unlink()
    if explain_unsupported(made):
        return "valid, not for ONNX Runtime"
    for array in Session(made, 1).run(feed):
        assert array.size, "an output is empty"
    return "quantized"


REASONS = {
    "--custom-ops": "refused: needs --custom-ops",
    "nothing to quantize": "refused: nothing to quantize",
    "is already quantized": "refused: quantized already",
    "ONNX Runtime has no kernels": "refused: ONNX Runtime cannot run it",
    "onnxruntime cannot load": "refused: ONNX Runtime cannot run it",
    "converter refused": "refused: cannot be raised",
}


def _kind(refusal: str) -> str:
    return next((kind for words, kind in REASONS.items() if words in refusal), f"refused: {refusal[:150]}")


CHECKED = [pytest.param(QUICK_REPAIRS, marks=pytest.mark.sample), QUICK_OPSETS]


@pytest.mark.parametrize("opsets", CHECKED, ids=str)
def test_every_structure_at_every_opset(
    opsets: tuple[int, ...], request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """A written model is valid, loads and runs; any other has a reason; nothing else happens."""
    every = request.config.getoption("--all-opsets")
    if every and opsets == QUICK_OPSETS:
        opsets = tuple(opset for opset in range(7, NEWEST + 1) if opset not in QUICK_REPAIRS)
    recipes: dict[str, Recipe] = {"int16": one_format("int16")} if every else {}
    recipes |= {
        name: whole_recipe(name)
        for name, recipe in RECIPES.items()
        if name in QUICK_RECIPES or (every and recipe.target != "simulation")
    }
    assert len(STRUCTURES) + len(SPECIAL) >= 40
    counts: dict[str, Counter[str]] = {}
    wrong: list[str] = []
    for number, (name, opset, proto) in enumerate(models(opsets)):
        asked_here = list(recipes.items())
        for recipe, asked in asked_here if every else [asked_here[number % len(recipes)]]:
            try:
                found = outcome(proto, asked, tmp_path / "q.onnx", every or opset in QUICK_REPAIRS)
            except Exception as fault:  # all are counted, so that one does not hide the others
                found = "WRONG"
                wrong.append(f"{name} at opset {opset} with {recipe}: {type(fault).__name__}: {fault}")
                (tmp_path / "q.onnx").unlink(missing_ok=True)
            counts.setdefault(recipe, Counter())[found] += 1
    kinds = sorted({kind for count in counts.values() for kind in count})
    rows = [[recipe, *(str(count[kind]) for kind in kinds)] for recipe, count in counts.items()]
    print("", *table_lines([["recipe", *kinds], *rows]), sep="\n")
    assert not wrong, f"{len(wrong)} wrong:\n" + "\n".join(wrong[:60])
    assert counts["tensorrt-int8"]["quantized"] > 0.6 * counts["tensorrt-int8"].total()
    for recipe, count in counts.items():
        assert sum(count[kind] for kind in count if not kind.startswith("refused")), (
            f"{recipe}: none quantized"
        )


def test_light_models(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """The large networks that ONNX brings, their weights made by ConstantOfShape, at opset 9 and IR 3."""
    every = request.config.getoption("--all-opsets")
    names = sorted(path.name for path in LIGHT.glob("*.onnx"))
    assert len(names) == 9
    for name in names if every else ("light_squeezenet.onnx", "light_shufflenet.onnx"):
        proto = onnx.load(LIGHT / name)
        found = outcome(proto, "tensorrt-int8", tmp_path / "q.onnx", every)
        print(name, found)
        assert found == "quantized", name
