"""Products split into heads: one for each part in what is written for TensorRT, with the same numbers."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import Arrays, Staged, build_used, constants, feed_for, scalars, stage, weights, whole_recipe
from builders import plain_quantize as quantize

from onnxfq.documents.cast_plan import FloatOptions
from onnxfq.passes.insert_qdq import with_qdq
from onnxfq.passes.qdq_form import QdqForm
from onnxfq.runtime.session import Session
from onnxfq.stages.insert import insert_qdq
from onnxfq.stages.options import QuantizeOptions
from onnxfq.targets.target import BuildOptions
from onnxfq.targets.tensorrt.builder.jobs import builder_installed
from onnxfq.targets.tensorrt.rewrites.block_formats import block_writer
from onnxfq.tools.check import check

_HEADS = "".join(f"{n}2 = Reshape ({n}1, heads) " for n in "qkv")
_TOKENS = "d = Shape (f) d2 = Gather <axis = 0> (d, last) "
_THIRDS = "t1 = Div (d2, three) t2 = Mul (t1, two) "
_ENDS = "".join(f"e{i} = Unsqueeze ({n}, zero) " for i, n in enumerate(("t1", "t2", "d2")))
SPLITS = {
    "Split": "q1, k1, v1 = Split <axis = 2, num_outputs = 3> (f) ",
    "sizes": "q1, k1, v1 = Split <axis = -1> (f, sizes) ",
    "Slice": "".join(f"{n}1 = Slice (f, i{i}, i{i + 1}, axis) " for i, n in enumerate("qkv")),
    # As torch's exporter of TorchScript writes chunk where the batch is open.
    "computed": _TOKENS
    + _THIRDS
    + _ENDS
    + "q1 = Slice (f, zero, e0, axis, one) k1 = Slice (f, e0, e1, axis, one) "
    "v1 = Slice (f, e1, e2, axis, one) ",
}
_PACKED = "h = Reshape (f, pack) t = Transpose <perm = [2,0,1,3,4]> (h) "
_SQUEEZE = "".join(f"{n}2 = Squeeze ({n}1, zero) " for n in "qkv")
_GATHER = "".join(f"{n}2 = Gather <axis = 0> (t, n{i}) " for i, n in enumerate("qkv"))
_CUT = "".join(f"{n}1 = Slice (t, p{i}, p{i + 1}, zero) " for i, n in enumerate("qkv"))
PACKED = {
    "Gather": _PACKED + _GATHER,
    "no Transpose": "h = Reshape (f, pack) "
    + "".join(f"{n}2 = Gather <axis = 2> (h, n{i}) " for i, n in enumerate("qkv")),
    "packed Split": _PACKED + "q1, k1, v1 = Split <axis = 0, num_outputs = 3> (t) " + _SQUEEZE,
    "packed Slice": _PACKED + _CUT + _SQUEEZE,
    "open": "c = Shape (x) c2 = Gather <axis = 0> (c, places) pack = Concat <axis = 0> (c2, inner) "
    + _PACKED + _GATHER,
}  # fmt: skip
"""Reshaped to [.., 3, heads, size] before it is taken apart."""
PRODUCTS = {
    "bias": "f0 = MatMul (x, w) f = Add (b, f0) ",
    "bare": "f = MatMul (x, w) ",
    "turned": "wt = Transpose <perm = [1,0]> (wn) f = MatMul (x, wt) ",
    "Gemm": "r = Reshape (x, rows) g = Gemm (r, w, b) f = Reshape (g, again) ",
    "transB": "r = Reshape (x, rows) g = Gemm <transB = 1> (r, wn, b) f = Reshape (g, again) ",
    "joined": "a = Shape (x) n = Gather <axis = 0> (a, places) r = Reshape (x, rows) g = Gemm (r, w, b) "
    "z = Concat <axis = 0> (n, wide) f = Reshape (g, z) ",
}
# A rotation of queries and keys stands between the product and the attention.
_REST = (
    "q3 = Mul (q2, turns) k3 = Mul (k2, turns) q4 = Transpose <perm = [0,2,1,3]> (q3) "
    "k4 = Transpose <perm = [0,2,3,1]> (k3) v4 = Transpose <perm = [0,2,1,3]> (v2) s = MatMul (q4, k4) "
    "p = Softmax <axis = -1> (s) m = MatMul (p, v4) mt = Transpose <perm = [0,2,1,3]> (m) "
    "y = Reshape (mt, joined)"
)


def attend(
    split: str = "Split", product: str = "bias", heads: str = _HEADS, outputs: str = ""
) -> onnx.ModelProto:
    """One attention of 4 heads of 16, over 8 tokens, whose queries and keys are multiplied by a constant."""
    whole, size = 192, 64
    arrays: Arrays = {
        "w": weights(size, whole) * np.float32(0.1),
        "wn": weights(whole, size) * np.float32(0.1),
        "b": weights(whole),
        "turns": weights(1, 8, 1, 16),
        **scalars(np.int64, heads=[0, 8, 4, 16], joined=[0, 8, size], rows=[-1, size], again=[-1, 8, whole]),
        **scalars(np.int64, sizes=[size] * 3, places=[0, 1], wide=[whole], axis=[2], zero=[0], one=[1]),
        **scalars(np.int64, last=2, two=2, three=3, inner=[3, 4, 16], pack=[0, 8, 3, 4, 16]),
        **scalars(np.int64, **{f"i{i}": [i * size] for i in range(4)}, **{f"n{i}": i for i in range(3)}),
        **scalars(np.int64, **{f"p{i}": [i] for i in range(4)}),
    }
    if split == "open":
        del arrays["pack"]
    text = f"{PRODUCTS[product]} {PACKED[split] if split in PACKED else SPLITS[split] + heads} {_REST}"
    shape = "float[N,8,64]"
    return build_used(f"g ({shape} x) => ({shape} y{outputs}) {{ {text} }}", arrays, opset=18)


def written(model: onnx.ModelProto, recipe: str = "tensorrt-int8") -> tuple[Staged, onnx.ModelProto]:
    """Return the stages of `model`, and the Q/DQ model, valid."""
    staged = stage(model, recipe)
    made = insert_qdq(staged.model, staged.plan, staged.encodings)
    onnx.checker.check_model(made, full_check=True)
    return staged, made


def products(model: onnx.ModelProto) -> int:
    """Count the products that read a dequantized weight, turned or not."""
    makers, stored = {name: node for node in model.graph.node for name in node.output}, constants(model)
    read = [makers.get(node.input[1]) for node in model.graph.node if node.op_type in ("Gemm", "MatMul")]
    turned = [makers[one.input[0]] if one and one.op_type == "Transpose" else one for one in read]
    return sum(one is not None and one.input[0] in stored for one in turned)


@pytest.mark.grid
@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("split", [*SPLITS, *PACKED])
def test_a_split_product_is_divided(split: str, product: str) -> None:
    """Each part has its own product, nothing is split or asked for its size, and numbers stay."""
    model = attend(split, product)
    staged, made = written(model)
    ops = Counter(node.op_type for node in made.graph.node)
    assert products(made) == 3
    assert not ops["Split"] + ops["Slice"] and ops["Shape"] == (product == "joined") + (split == "open")
    assert len({node.name for node in made.graph.node}) == len(made.graph.node)
    stored = [(tensor.data_type, len(tensor.dims)) for tensor in made.graph.initializer]
    assert stored.count((onnx.TensorProto.INT8, 2)) == 3
    feed = feed_for(model, seed=5)
    plain = with_qdq(staged.model, staged.plan, staged.encodings).proto
    expected = Session(plain, 1).run(feed)
    # Kernels add up products of other widths in another order, and a later pair may round the other way.
    np.testing.assert_allclose(Session(made, 1).run(feed)[0], expected[0], rtol=0, atol=0.02)


@pytest.mark.parametrize("split", ["Split", "Gather"])
def test_nvfp4_is_divided(split: str) -> None:
    """The codes and scales of blocks are cut, the global scale is shared, and the values are the whole's."""
    staged, made = written(attend(split), "tensorrt-nvfp4")
    codes = [t for t in made.graph.initializer if t.data_type == onnx.TensorProto.FLOAT4E2M1]
    blocks = [t for t in made.graph.initializer if t.data_type == onnx.TensorProto.FLOAT8E4M3FN]
    assert [list(t.dims) for t in codes] == [[64, 64]] * 3 and [list(t.dims) for t in blocks] == [[4, 64]] * 3
    plain = with_qdq(staged.model, staged.plan, staged.encodings, form=QdqForm(block_writer))
    for kind, parts in ((onnx.TensorProto.FLOAT4E2M1, codes), (onnx.TensorProto.FLOAT8E4M3FN, blocks)):
        (whole,) = (t for t in plain.proto.graph.initializer if t.data_type == kind)
        joined = np.concatenate([onnx.numpy_helper.to_array(t) for t in parts], axis=1)
        np.testing.assert_array_equal(joined, onnx.numpy_helper.to_array(whole))


@pytest.mark.sample
@pytest.mark.parametrize("recipe", ["onnxruntime-int8", "tensorrt-int8", "tensorrt-fp8"])
def test_only_where_tensorrt_needs_it(recipe: str) -> None:
    """Other targets keep one product; float8 is divided as int8 is."""
    assert products(written(attend(), recipe)[1]) == (1 if recipe.startswith("onnxruntime") else 3)


WHOLE = {
    "a part is read in place": (_HEADS + "other = Relu (v1) ", ", float[N,8,64] other"),
    "the whole is an output": (_HEADS, ", float[N,8,192] f"),
    "a part is an output": (_HEADS, ", float[N,8,64] k1"),
    "its shape is asked for": (_HEADS + "size = Shape (f) ", ", int64[3] size"),
}


@pytest.mark.parametrize("why", WHOLE)
def test_what_stays_whole(why: str) -> None:
    """A product stays one where anything but the parts in their heads is read: TensorRT keeps it as it is."""
    heads, outputs = WHOLE[why]
    assert products(written(attend(heads=heads, outputs=outputs))[1]) == 1


@pytest.mark.grid
@pytest.mark.skipif(not builder_installed(), reason="needs tensorrt_rtx")
@pytest.mark.parametrize("recipe", [f"tensorrt-{name}" for name in ("int8", "int8-weights", "fp8", "nvfp4")])
@pytest.mark.parametrize("split", ["computed", "Gather", "open"])
def test_tensorrt_keeps_the_weights(split: str, recipe: str, tmp_path: Path) -> None:
    """The builder keeps every promise of the divided products, of a half model in NVFP4."""
    path = tmp_path / "q.onnx"
    floats = FloatOptions("fp16" if recipe == "tensorrt-nvfp4" else "fp32")
    model, options = attend(split), QuantizeOptions(floats=floats)
    quantize(model, [feed_for(model)], path, recipe=whole_recipe(recipe), options=options)
    result = check(path, build=BuildOptions())
    assert result.passed, result.findings
    assert len({node.node for node in result.engine}) >= 3
