"""Products by their operands, rank, bias and readers, in 8 and in 16 bits: whether a runtime keeps promises.

Each form is one network, and the recipe of the runtime quantizes it. It is wrong if the runtime runs a
product in float that the file promises in integers, or computes other numbers.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from math import prod
from typing import Any, NamedTuple

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper, parser

import onnxfq
from form_tables import Tried
from onnxfq.errors import OnnxfqError
from onnxfq.graph.ops import WEIGHTED_INPUTS
from onnxfq.targets.reading.runtime_forms import RuntimeForm
from onnxfq.targets.target import BuildOptions

RECIPES: Mapping[str, Mapping[int, str]] = {
    "onnxruntime": {8: "onnxruntime-int8"},
    "openvino": {8: "openvino-int8"},
    "qnn": {8: "qnn-int8", 16: "qnn-a16w8"},
    "tensorrt": {8: "tensorrt-int8"},
}
"""The recipe of a runtime by the bits of its activations; others have no kernels of 16 bits."""

READERS = {
    "pair": "r = Tanh (s)",
    "Relu": "r = Relu (s)",
    "Relu and Pow": "t = Relu (s) r = Pow (t, two)",
    "Max": "t = Max (s, two) r = Tanh (t)",
    "two": "t = Tanh (s) u = Sigmoid (s) r = Mul (t, u)",
    "output": "r = Identity (s)",
}
"""Readers of the product, or of its sum with a bias."""

_WIDTH = 16


class Product(NamedTuple):
    """A form: the operator, and what it multiplies.

    Attributes:
        op: the operator, with its attributes.
        shape: of the data, with the samples.
        weight: shape of the constant; None for two computed operands.
        left: whether the constant is the first operand.
        biases: where a bias may be added.
    """

    op: str
    shape: tuple[int, ...]
    weight: tuple[int, ...] | None
    left: bool = False
    biases: tuple[str, ...] = ("", "Add")


def list_products() -> Iterator[tuple[dict[str, Any], Product]]:
    """Yield what tells a product from others, and the product."""
    for rank, groups, op in itertools.product((1, 2, 3), (1, 4), ("Conv", "ConvTranspose")):
        weight = (_WIDTH, _WIDTH // groups, *[3] * rank)
        words = f"{op} <pads = {[1] * 2 * rank}, group = {groups}>"
        found = Product(words, (1, _WIDTH, *[6] * rank), weight, biases=("", "own"))
        yield {"rank": rank + 2, "groups": groups}, found
    square = (_WIDTH, _WIDTH)
    for rank in (2, 3, 4):
        data = (2, 3, _WIDTH, _WIDTH)[4 - rank :]
        for constant, weight in (("right", square), ("left", square), ("none", None)):
            yield {"rank": rank, "constant": constant}, Product("MatMul", data, weight, constant == "left")
    for attributes in ("", "<transB = 1>", "<alpha = 0.5, beta = 2.0>"):
        found = Product(f"Gemm {attributes}", square, square, biases=("", "own"))
        yield {"rank": 2, "form": attributes}, found
    for equation in ("bij,jk->bik", "bij,kj->bik"):
        found = Product(f'Einsum <equation = "{equation}">', (2, _WIDTH, _WIDTH), square)
        yield {"rank": 3, "form": equation}, found


def build_network(product: Product, bias: str, reader: str) -> onnx.ModelProto:
    """Return a product behind a Sigmoid, with a bias and readers."""
    operands = ["a", "a" if product.weight is None else "w"]
    operands = operands[:: -1 if product.left else 1] + (["c"] if bias == "own" else [])
    added = "s = Add (p, c)" if bias == "Add" else "s = Identity (p)"
    text = f"a = Sigmoid (x) [tried] p = {product.op} ({', '.join(operands)}) {added} {READERS[reader]}"
    text = text.replace("s = Identity (p) ", "").replace("(s", "(p") if bias != "Add" else text
    sizes = ",".join(map(str, product.shape))
    head = f'<ir_version: 9, opset_import: ["" : 17]> g (float[{sizes}] x) => (float[] y)'
    proto = parser.parse_model(f"{head} {{ {text} y = Neg (r) }}")
    if reader == "output":
        proto.graph.output.append(helper.make_tensor_value_info("s" if bias == "Add" else "p", 1, None))
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    rng = np.random.default_rng(0)
    values: dict[str, NDArray[Any]] = {"two": np.float32(2), "c": rng.normal(size=_WIDTH)}
    if product.weight is not None:
        values["w"] = rng.normal(size=product.weight) / prod(product.weight[1:]) ** 0.5
    read = {name for node in proto.graph.node for name in node.input}
    proto.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(array, np.float32), name)
        for name, array in values.items()
        if name in read
    )
    return proto


def ask(proto: onnx.ModelProto, target: str, recipe: str) -> str:
    """Return what `target` makes of a promise of `recipe`; empty if it is kept, or none is made."""
    shape = [dim.dim_value for dim in proto.graph.input[0].type.tensor_type.shape.dim]
    feeds = [{"x": np.random.default_rng(at).normal(size=shape).astype(np.float32)} for at in range(8)]
    try:
        made = onnxfq.quantize(proto, feeds, recipe=recipe, accuracy=onnxfq.AccuracyTarget(repair=None))
    except OnnxfqError as error:  # nothing is quantized
        return "" if "nothing to quantize" in str(error) else str(error)
    if made.proof is not None and (made.proof.kept_float or made.proof.difference):
        return "computes otherwise"
    rows = onnxfq.check(made.qdq, target, build=BuildOptions()).coverage
    kept = all(row.kept == row.promised for row in rows if row.op_type in WEIGHTED_INPUTS)
    return "" if kept else "runs in float"


def ask_all(target: str, part: slice) -> list[Tried]:
    """Return what a runtime makes of `part` of the products."""
    asked = [
        (
            RuntimeForm(
                product.op.split()[0], attributes=place | {"bias": bias, "read by": reader}, bits=bits
            ),
            build_network(product, bias, reader),
            recipe,
        )
        for bits, recipe in RECIPES[target].items()
        for place, product in list_products()
        for bias in product.biases
        for reader in READERS
    ]
    return [Tried(form._replace(says=ask(proto, target, recipe))) for form, proto, recipe in asked[part]]
