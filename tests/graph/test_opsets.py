"""One small model for each structure, at every opset that has it, with every recipe: it works or is refused.

python -m pytest tests/graph/test_opsets.py --all-opsets -s
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from builders import Arrays, build, one_format, plain_quantize, weights, whole_recipe
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


@dataclass(frozen=True)
class Structure:
    """A model as text with its constants, and the opsets [first, last] that have its operators so."""

    text: str
    constants: Arrays = field(default_factory=dict)
    first: int = 7
    last: int = NEWEST
    imports: dict[str, int] = field(default_factory=dict)

    def model(self, opset: int) -> onnx.ModelProto:
        """Build it at `opset`."""
        lowest = helper.find_min_ir_version_for([helper.make_opsetid("", opset)])
        functions = 8 if "own" in self.imports else 4
        return build(self.text, self.constants, opset=opset, ir=max(lowest, functions), **self.imports)


def _matmul(x: str, body: str, y: str, **constants: np.ndarray) -> Structure:
    return Structure(f"g (float[{x}] x) => (float[{y}] y) {{ {body} }}", constants)


W = {"w": weights(4, 4)}
SQUARE = "g (float[N,4] x) => (float[N,4] y)"
IMAGE = "g (float[N,4,6,6] x) => (float[N,4,6,6] y)"
FEATURES = {"w": weights(4, 4, 3, 3), "b": weights(4)}
RECURRENT = "g (float[3,N,4] x) => (float[3,1,N,2] y)"


def _recurrent(op: str, gates: int) -> Structure:
    shapes = {"w": weights(1, 2 * gates, 4), "r": weights(1, 2 * gates, 2)}
    return Structure(f"{RECURRENT} {{ y = {op} <hidden_size = 2> (x, w, r) }}", shapes)


STRUCTURES: dict[str, Structure] = {
    "conv2d": Structure(f"{IMAGE} {{ y = Conv <pads = [1,1,1,1]> (x, w, b) }}", FEATURES),
    "conv depthwise": Structure(
        f"{IMAGE} {{ y = Conv <group = 4, pads = [1,1,1,1]> (x, w) }}", {"w": weights(4, 1, 3, 3)}
    ),
    "conv transpose": Structure(
        "g (float[N,3,4,4] x) => (float[N,2,8,8] y) { y = ConvTranspose <strides = [2,2]> (x, w) }",
        {"w": weights(3, 2, 2, 2)},
    ),
    "conv, batch norm, relu": Structure(
        f"""{IMAGE} {{ c = Conv <pads = [1,1,1,1]> (x, w) n = BatchNormalization (c, s, b, m, v)
            y = Relu (n) }}""",
        {
            "w": weights(4, 4, 3, 3),
            **{name: weights(4, seed=i) for i, name in enumerate("sbm")},
            "v": np.ones(4, np.float32),
        },
    ),
    "residual": Structure(
        f"""{IMAGE} {{ c = Conv <pads = [1,1,1,1]> (x, w, b) r = Relu (c) a = Add (r, x)
            y = Conv <pads = [1,1,1,1]> (a, w, b) }}""",
        FEATURES,
    ),
    "max pool": Structure(
        """g (float[N,4,6,6] x) => (float[N,4,3,3] y) { c = Conv <pads = [1,1,1,1]> (x, w, b)
            y = MaxPool <kernel_shape = [2,2], strides = [2,2]> (c) }""",
        FEATURES,
    ),
    "global pool, flatten": Structure(
        """g (float[N,4,6,6] x) => (float[N,4] y) { c = Conv <pads = [1,1,1,1]> (x, w, b)
            p = GlobalAveragePool (c) f = Flatten (p) y = MatMul (f, d) }""",
        FEATURES | {"d": weights(4, 4)},
    ),
    "upsample": Structure(
        """g (float[N,4,6,6] x) => (float[N,4,12,12] y) { c = Conv <pads = [1,1,1,1]> (x, w, b)
            y = Upsample <mode = "nearest"> (c, s) }""",
        FEATURES | {"s": np.asarray([1, 1, 2, 2], np.float32)},
        first=9,
        last=9,
    ),
    "resize": Structure(
        """g (float[N,4,6,6] x) => (float[N,4,12,12] y) { c = Conv <pads = [1,1,1,1]> (x, w, b)
            y = Resize <mode = "nearest"> (c, r, s) }""",
        FEATURES | {"s": np.asarray([1, 1, 2, 2], np.float32), "r": np.zeros(0, np.float32)},
        first=11,
    ),
    "pad": Structure(
        """g (float[N,4,6,6] x) => (float[N,4,H,V] y) { p = Pad (x, k) y = Conv (p, w, b) }""",
        FEATURES | {"k": np.asarray([0, 0, 1, 1, 0, 0, 1, 1])},
        first=11,
    ),
    "concat": Structure(
        f"""{SQUARE.replace("4] y", "8] y")} {{ a = MatMul (x, w) b = Relu (x)
            y = Concat <axis = 1> (a, b) }}""",
        W,
    ),
    "gemm": Structure(f"{SQUARE} {{ y = Gemm (x, w, b) }}", W | {"b": weights(4)}),
    "gemm without bias": Structure(f"{SQUARE} {{ y = Gemm (x, w) }}", W, first=11),
    "gemm, B transposed": Structure(
        "g (float[N,4] x) => (float[N,3] y) { y = Gemm <transB = 1> (x, w, b) }",
        {"w": weights(3, 4), "b": weights(3)},
    ),
    "gemm, alpha and beta": Structure(
        f"{SQUARE} {{ y = Gemm <alpha = 0.5, beta = 2.0> (x, w, b) }}", W | {"b": weights(4)}
    ),
    "matmul": _matmul("N,4", "y = MatMul (x, w)", "N,4", **W),
    # A width that blocks of 16, 32 and 128 divide, which the narrow ones do not have.
    "matmul, wide": _matmul("N,128", "y = MatMul (x, w)", "N,256", w=weights(128, 256)),
    "gemm, wide": _matmul(
        "N,256", "y = Gemm <transB = 1> (x, w, b)", "N,64", w=weights(64, 256), b=weights(64)
    ),
    "matmul in if, wide": Structure(
        """g (float[N,128] x, bool c) => (float[N,128] y) { y = If (c) <
            then_branch = yes () => (float[N,128] t) { t = MatMul (x, w) },
            else_branch = no () => (float[N,128] e) { e = Relu (x) }> }""",
        {"w": weights(128, 128)},
    ),
    "matmul of activations": _matmul(
        "N,4,4", "a = MatMul (x, w) r = Relu (x) y = MatMul (a, r)", "N,4,4", **W
    ),
    "einsum": Structure(
        """g (float[N,4] x) => (float[N,3] y) { y = Einsum <equation = "ij,jk->ik"> (x, w) }""",
        {"w": weights(4, 3)},
        first=12,
    ),
    "lstm": _recurrent("LSTM", 4),
    "gru": _recurrent("GRU", 3),
    "rnn": _recurrent("RNN", 1),
    "lstm and matmul": Structure(
        """g (float[3,N,4] x) => (float[3,N,2] y) { m = MatMul (x, k) l = LSTM <hidden_size = 2> (m, w, r)
            t = Transpose <perm = [1,0,2,3]> (l) y = ReduceMax <axes = [0], keepdims = 0> (t) }""",
        {"k": weights(4, 4), "w": weights(1, 8, 4), "r": weights(1, 8, 2)},
        last=17,
    ),
    "embedding": Structure(
        """g (int64[N] x) => (float[N,4] y) { e = Gather (t, x) y = MatMul (e, w) }""",
        {"t": weights(9, 4)} | W,
    ),
    "tied embedding": Structure(
        """g (int64[N] x) => (float[N,5] y) { e = Gather (t, x) r = Relu (e)
            k = Transpose <perm = [1,0]> (t) y = MatMul (r, k) }""",
        {"t": weights(5, 4)},
    ),
    "attention by hand": Structure(
        """g (float[N,3,4] x) => (float[N,3,4] y) { q = MatMul (x, w) k = MatMul (x, v)
            kt = Transpose <perm = [0,2,1]> (k) s = MatMul (q, kt) p = Softmax <axis = 2> (s)
            y = MatMul (p, x) }""",
        W | {"v": weights(4, 4, seed=1)},
    ),
    "attention operator": Structure(
        """g (float[N,3,4] x) => (float[N,3,4] y) { q = MatMul (x, w)
            y = Attention <q_num_heads = 2, kv_num_heads = 2> (q, q, q) }""",
        W,
        first=23,
    ),
    "layer norm": Structure(
        f"{SQUARE} {{ n = LayerNormalization (x, s) y = MatMul (n, w) }}", W | {"s": weights(4)}, first=17
    ),
    "shared weight": _matmul("N,4", "a = MatMul (x, w) r = Relu (a) y = MatMul (r, w)", "N,4", **W),
    "shared through Transpose": _matmul(
        "N,4", "t = Transpose <perm = [1,0]> (w) a = MatMul (x, w) y = MatMul (a, t)", "N,4", **W
    ),
    "shared through Reshape": Structure(
        f"{SQUARE} {{ t = Reshape (v, s) a = MatMul (x, w) b = MatMul (a, t) y = Mul (b, v) }}",
        W | {"v": weights(4, 4, seed=1), "s": np.asarray([4, 4])},
    ),
    "shared bias": Structure(
        f"{SQUARE} {{ a = Gemm (x, w, b) r = Relu (a) y = Gemm (r, v, b) }}",
        W | {"v": weights(4, 4, seed=1), "b": weights(4)},
    ),
    "one tensor twice": Structure("g (float[4,4] x) => (float[4,4] y) { r = Relu (x) y = MatMul (r, r) }"),
    "inner output": Structure(
        "g (float[N,4] x) => (float[N,4] h, float[N,4] y) { h = Relu (x) y = MatMul (h, w) }", W
    ),
    "constant nodes": Structure(
        f"""{SQUARE} {{ k = Constant <value = float[4] {{0.5, 1.0, -2.0, 3.0}}> ()
            d = MatMul (x, w) y = Mul (d, k) }}""",
        W,
    ),
    "if": Structure(
        """g (float[N,4] x, bool c) => (float[N,4] y) { h = MatMul (x, w) y = If (c) <
            then_branch = yes () => (float[N,4] t) { t = MatMul (h, v) },
            else_branch = no () => (float[N,4] e) { e = Relu (h) }> }""",
        W | {"v": weights(4, 4, seed=1)},
    ),
    "if in if": Structure(
        """g (float[N,4] x, bool c) => (float[N,4] y) { y = If (c) <
            then_branch = yes () => (float[N,4] t) { t = If (c) <
                then_branch = yes2 () => (float[N,4] t2) { t2 = MatMul (x, w) },
                else_branch = no2 () => (float[N,4] e2) { e2 = Relu (x) }> },
            else_branch = no () => (float[N,4] e) { e = Relu (x) }> }""",
        W,
    ),
    "loop": Structure(
        """g (float[N,4] x) => (float[N,4] y) { y = Loop (n, c, x) <
            body = b (int64 i, bool g, float[N,4] s) => (bool k, float[N,4] o) {
                k = Identity (g) o = MatMul (s, w) }> }""",
        W | {"n": np.asarray(2), "c": np.asarray(True)},
    ),
    "scan": Structure(
        """g (float[3,4] x) => (float[4] f, float[3,4] y) { f, y = Scan <num_scan_inputs = 1,
            body = b (float[4] s, float[4] i) => (float[4] n, float[4] o) {
                m = MatMul (i, w) n = Add (s, m) o = Relu (m) }> (z, x) }""",
        W | {"z": np.zeros(4, np.float32)},
        first=9,
    ),
    "mixed with double": Structure(
        f"{SQUARE} {{ a = MatMul (x, w) d = Cast <to = 11> (a) e = MatMul (d, v) y = Cast <to = 1> (e) }}",
        W | {"v": weights(4, 4).astype(np.float64)},
        first=9,
    ),
    "float16": Structure(
        "g (float16[N,4] x) => (float16[N,4] y) { a = MatMul (x, w) y = Relu (a) }",
        {"w": weights(4, 4).astype(np.float16)},
    ),
    "bfloat16": Structure(
        "g (bfloat16[N,4] x) => (bfloat16[N,4] y) { a = MatMul (x, w) y = Relu (a) }",
        {"w": weights(4, 4).astype(ml_dtypes.bfloat16)},
        first=14,
    ),
    "quantized already": Structure(
        f"{SQUARE} {{ q = QuantizeLinear (x, s, z) d = DequantizeLinear (q, s, z) y = MatMul (d, w) }}",
        W | {"s": np.asarray(0.1, np.float32), "z": np.asarray(0, np.int8)},
        first=10,
    ),
    "foreign operator": Structure(
        f"{SQUARE} {{ a = far.Thing (x) y = MatMul (a, w) }}", W, imports={"far": 1}
    ),
    "empty batch of names": Structure(f"{SQUARE} {{ [n] a = MatMul (x, w) [n] y = MatMul (a, w) }}", W),
    "softmax first": Structure(f"{SQUARE} {{ a = MatMul (x, w) y = Softmax <axis = 1> (a) }}", W),
    "reduce by axes": Structure(
        f"{SQUARE} {{ a = MatMul (x, w) y = ReduceMean <axes = [1]> (a) }}".replace("4] y", "1] y"),
        W,
        last=17,
    ),
    "squeeze by attribute": Structure(
        "g (float[N,1,4] x) => (float[N,4] y) { s = Squeeze <axes = [1]> (x) y = MatMul (s, w) }", W, last=12
    ),
    "clip by attributes": Structure(
        f"{SQUARE} {{ a = MatMul (x, w) y = Clip <min = 0.0, max = 6.0> (a) }}", W, last=10
    ),
    "dropout": Structure(f"{SQUARE} {{ a = MatMul (x, w) y = Dropout (a) }}", W),
    "split": Structure(
        f"{SQUARE} {{ a, b = Split <axis = 1> (x) c = Concat <axis = 1> (b, a) y = MatMul (c, w) }}",
        W,
        last=17,
    ),
    "gelu by erf": Structure(
        f"{SQUARE} {{ a = MatMul (x, w) e = Erf (a) m = Mul (a, e) y = MatMul (m, w) }}", W, first=9
    ),
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
    proto = Structure(f"{SQUARE} {{ y = own.Layer (x, w) }}", W, imports={"own": 1}).model(opset)
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


@pytest.mark.parametrize(
    "opsets", [pytest.param(QUICK_REPAIRS, marks=pytest.mark.sample), QUICK_OPSETS], ids=str
)
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
