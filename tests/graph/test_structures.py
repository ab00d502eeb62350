"""Every structure that multiplies: quantized, run, and its Q/DQ form equal to its simulation to the bit."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import onnx
import pytest
from builders import Arrays, assert_forms_agree, assert_same_outputs, feed_for, planned, stage, weights
from builders import build as build_text
from onnx import helper, shape_inference

from onnxfq.errors import ModelError
from onnxfq.graph.ops import einsum_product
from onnxfq.runtime.session import Session
from onnxfq.stages.insert import insert_fake_quantize, insert_qdq

Case = tuple[str, Arrays]


def build(text: str, constants: Arrays | None = None, **versions: int) -> onnx.ModelProto:
    """Build a model whose outputs have the shapes that ONNX infers, or as many open axes as it can tell."""
    proto = build_text(text, constants, **versions)
    for value in proto.graph.output:
        value.type.tensor_type.ClearField("shape")
    inferred = shape_inference.infer_shapes(proto).graph.output
    for value, found in zip(proto.graph.output, inferred, strict=True):
        value.CopyFrom(found)
        if not value.type.tensor_type.HasField("shape"):
            value.CopyFrom(helper.make_tensor_value_info(value.name, 1, [None, None, None]))
    return proto


def conv(rank: int, group: int = 1, **attributes: Any) -> Case:
    """A Conv over `rank` axes with a bias."""
    size, kernel = ",".join("5" * rank), [3] * rank
    given = "".join(f", {name} = {value}" for name, value in attributes.items())
    text = f"g (float[N,4,{size}] x) => (float[] y) {{ [op] y = Conv <group = {group}{given}> (x, w, b) }}"
    return text, {"w": weights(8, 4 // group, *kernel), "b": weights(8)}


def transposed(rank: int, group: int = 1) -> Case:
    """A ConvTranspose over `rank` axes."""
    size = ",".join("3" * rank)
    text = f"g (float[N,4,{size}] x) => (float[] y) {{ [op] y = ConvTranspose <group = {group}> (x, w) }}"
    return text, {"w": weights(4, 6 // group, *[2] * rank)}


def gemm(trans_a: int, trans_b: int, alpha: float, beta: float, bias: tuple[int, ...] | None) -> Case:
    """A Gemm of [6, 4] and [4, 3] with its inputs stored as the flags say."""
    text = f"""g (float[{"4,6" if trans_a else "6,4"}] x) => (float[6,3] y) {{ [op] y = Gemm
        <transA = {trans_a}, transB = {trans_b}, alpha = {alpha}, beta = {beta}>
        (x, w{"" if bias is None else ", b"}) }}"""
    constants: Arrays = {"w": weights(*((3, 4) if trans_b else (4, 3)))}
    return text, constants if bias is None else constants | {"b": weights(*bias)}


def matmul(x: str, w: tuple[int, ...], left: bool = False) -> Case:
    """A MatMul with a constant on one side."""
    return (
        f"g (float[{x}] x) => (float[] y) {{ [op] y = MatMul ({'w, x' if left else 'x, w'}) }}",
        {"w": weights(*w)},
    )


def einsum(equation: str, x: str, w: tuple[int, ...]) -> Case:
    """An Einsum with a constant second operand."""
    text = f'g (float[{x}] x) => (float[] y) {{ [op] y = Einsum <equation = "{equation}"> (x, w) }}'
    return text, {"w": weights(*w)}


CASES: dict[str, Case] = {
    **{f"conv {rank}d": conv(rank) for rank in (1, 2, 3)},
    **{f"grouped conv {rank}d": conv(rank, 2) for rank in (1, 2, 3)},
    "depthwise conv": conv(2, 4),
    "strided, dilated, padded conv": conv(2, strides="[2,1]", dilations="[1,2]", pads="[1,2,1,2]"),
    "conv with auto_pad": conv(2, auto_pad='"SAME_UPPER"'),
    **{f"conv transpose {rank}d": transposed(rank) for rank in (1, 2, 3)},
    "grouped conv transpose": transposed(2, 2),
    **{
        f"gemm {a} {b} {alpha} {beta} {bias}": gemm(a, b, alpha, beta, bias)
        for a, b, alpha, beta, bias in itertools.product(
            (0, 1), (0, 1), (1.0, -0.5), (1.0, 0.0), (None, (3,), (6, 1))
        )
    },
    "matmul right": matmul("N,4", (4, 3)),
    "matmul left": matmul("4,3", (5, 4), left=True),
    "matmul 3d": matmul("2,N,4", (4, 3)),
    "matmul batched": matmul("2,N,4", (2, 4, 3)),
    "matmul batched left": matmul("2,4,3", (2, 5, 4), left=True),
    "matmul 4d broadcast": matmul("2,1,N,4", (3, 4, 5)),
    "matmul by a vector": matmul("N,4", (4,)),
    "vector by a matrix": matmul("4", (4, 3)),
    "einsum as matmul": einsum("bmk,kn->bmn", "2,N,4", (4, 3)),
    "einsum transposed": einsum("bmk,nk->bmn", "2,N,4", (3, 4)),
    "einsum of two sums": einsum("bthd,hdn->btn", "2,N,2,3", (2, 3, 5)),
    "einsum to two axes": einsum("btd,dhe->bthe", "2,N,4", (4, 2, 3)),
    "einsum batched": einsum("bij,bjk->bik", "2,N,4", (2, 4, 3)),
    "einsum with an ellipsis": einsum("...k,kn->...n", "2,N,4", (4, 3)),
    "einsum without an arrow": einsum("mk,kn", "N,4", (4, 3)),
    "einsum with spaces": einsum("m k, k n -> m n", "N,4", (4, 3)),
}


@pytest.mark.grid
@pytest.mark.parametrize("recipe", ["tensorrt-int8", "onnxruntime-int8", "tensorrt-fp8"])
@pytest.mark.parametrize("name", CASES)
def test_structure(name: str, recipe: str) -> None:
    """Covered, valid, run as it is; Q/DQ and simulation agree to the bit, near the float model."""
    text, constants = CASES[name]
    proto = build(text, constants, opset=19, ir=9)
    onnx.checker.check_model(proto, full_check=True)
    one = stage(proto, recipe)
    (row,) = one.plan.coverage()
    assert (row.quantized, row.total) == (1, 1)
    (got,) = Session(assert_forms_agree(one), 1, exact=True).run(one.feed)
    (real,) = Session(proto, 1).run(one.feed)
    assert np.linalg.norm(got - real) < 0.15 * np.linalg.norm(real)


PER_AXIS = {
    **dict.fromkeys(("conv 1d", "grouped conv 3d", "matmul left"), 0),
    **dict.fromkeys(("matmul right", "matmul batched left", "einsum as matmul", "einsum transposed"), 1),
    **dict.fromkeys(("einsum of two sums", "einsum to two axes", "einsum with an ellipsis"), 1),
    **dict.fromkeys(("matmul batched", "einsum batched"), 2),
}


@pytest.mark.parametrize("name", PER_AXIS)
def test_channel_axes(name: str) -> None:
    """Scales go along the axis that the constant alone has. An Einsum is the MatMul that TensorRT gets."""
    text, constants = CASES[name]
    (weight,) = planned(build(text, constants, opset=19, ir=9)).weights
    assert weight.spec.granularity.axis == PER_AXIS[name]


@pytest.mark.parametrize(
    ("equation", "summed"),
    [
        ("ij,jk->ik", "j"),
        ("bhqd,bhkd->bhqk", "d"),
        ("i,i->", "i"),
        ("...ij,...jk->...ik", "j"),
        ("ij,jk,kl->il", None),  # three operands
        ("ii,ij->j", None),  # a diagonal
        ("ij,ij->ij", None),  # nothing is summed
        ("ij,k->k", None),  # summed over what one side has
        ("ij->ji", None),
    ],
)
def test_products_among_einsums(equation: str, summed: str | None) -> None:
    """An Einsum is quantized when it sums products of two tensors, as NumPy's tensordot does."""
    product = einsum_product(equation)
    assert (None if product is None else product.summed) == summed


def test_an_einsum_of_two_activations() -> None:
    """Scores of attention written as Einsum become a MatMul. Both sides are placed per tensor."""
    proto = build(
        """g (float[2,N,2,3] q, float[2,N,2,3] k) => (float[] s) {
            [scores] s = Einsum <equation = "bqhd,bkhd->bhqk"> (q, k) }"""
    )
    assert [str(row) for row in planned(proto).coverage()] == ["MatMul 1/1"]


OPAQUE = {
    "lstm": ("y, h, c = LSTM <hidden_size = 5> (r, w, u)", {"w": weights(1, 20, 16), "u": weights(1, 20, 5)}),
    "gru": ("y, h = GRU <hidden_size = 5> (r, w, u)", {"w": weights(1, 15, 16), "u": weights(1, 15, 5)}),
    "rnn": ("y, h = RNN <hidden_size = 5> (r, w, u)", {"w": weights(1, 5, 16), "u": weights(1, 5, 5)}),
    "fused matmul": ("y = com.microsoft.FusedMatMul (r, w)", {"w": weights(16, 4)}),
    "contrib attention": ("y = com.microsoft.MultiHeadAttention <num_heads = 2> (r, r, r)", {}),
    "group query attention": (
        """y, pk, pv = com.microsoft.GroupQueryAttention <num_heads = 2, kv_num_heads = 2>
            (r, r, r, past, past, lengths, total)""",
        {"past": np.zeros((3, 2, 8, 8), np.float32), "lengths": np.int32([1, 1, 1]), "total": np.int32(2)},
    ),
}


@pytest.mark.parametrize("name", OPAQUE)
def test_operators_that_multiply_inside(name: str) -> None:
    """They stay in float, are counted and have a reason; the MatMul before them is quantized."""
    node, constants = OPAQUE[name]
    text = f"g (float[3,2,16] x) => (float[] y) {{ r = MatMul (x, v) [inner] {node} }}"
    # The text form takes no dots in a domain's name.
    proto = build(text.replace(".", "_", 1), constants | {"v": weights(16, 16)}, com_microsoft=1)
    for holder in (*proto.graph.node, *proto.opset_import):
        holder.domain = holder.domain.replace("_", ".")
    made = stage(proto)
    rows = {row.op_type: (row.quantized, row.total) for row in made.plan.coverage()}
    assert rows.pop("MatMul") == (1, 1)
    assert list(rows.values()) == [(0, 1)]
    (reason,) = [s for s in made.plan.skipped if s.kind == "node"]
    assert reason.name == "inner" and reason.why
    parts = (made.model, made.plan, made.encodings)
    assert_same_outputs(insert_fake_quantize(*parts), insert_qdq(*parts), made.feed)


def test_standard_attention() -> None:
    """An Attention of ONNX is written as products, also where its size is open."""
    proto = build(
        """g (float[2,3,4] x, float[2,3,N] k) => (float[] y) {
            q = MatMul (x, w) [inner] y = Attention <q_num_heads = 2, kv_num_heads = 2> (q, k, k) }""",
        {"w": weights(4, 4)},
        opset=23,
        ir=11,
    )
    plan = planned(proto)
    assert [str(row) for row in plan.coverage()] == ["MatMul 3/3"]
    assert Session(stage(proto).model.proto, 1).run(feed_for(proto))


def test_nothing_but_what_multiplies_inside() -> None:
    """A model of such operators alone is refused with the operator and the reason."""
    text = "g (float[3,2,4] x) => (float[] y) { [rec] y, h = RNN <hidden_size = 5> (x, w, u) }"
    with pytest.raises(ModelError, match="nothing to quantize: RNN 'rec' stays in float, recurrent"):
        planned(build(text, {"w": weights(1, 5, 4), "u": weights(1, 5, 5)}))


def test_embeddings_have_a_reason() -> None:
    """A table that is only looked up stays in float, and the plan says why."""
    proto = build(
        "g (int64[N] ids) => (float[N,3] y) { e = Gather (table, ids) y = MatMul (e, w) }",
        {"table": weights(5, 4), "w": weights(4, 3)},
    )
    (table,) = [s for s in planned(proto).skipped if s.name == "table"]
    assert table.why == "embedding table: looked up, not multiplied"
