"""Limits of TensorRT's parser and kernels, which the policy keeps to and the rules check.

Measured on TensorRT for RTX 1.7.1, unless a source is named.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import onnx

from onnxfq.graph.follow import Node
from onnxfq.graph.ops import CONVOLUTIONS, RECURRENT_OPS
from onnxfq.targets.reading.limits import Product, TargetLimit, needs_both

TENSOR_TYPES = frozenset(
    onnx.TensorProto.DataType.Value(name)
    for name in ("FLOAT", "FLOAT16", "BFLOAT16", "DOUBLE", "INT32", "INT64", "BOOL", "UINT8", "INT8")
)
"""Element types of tensors without scales: of inputs that the parser takes, and of what Cast gives."""

LARGEST_FLOAT8_KERNEL = 32
"""Largest Conv window in elements that the builder has a float8 kernel for: 5 x 5 fits, 6 x 6 does not."""

ONE_ROW_INT8 = (1024, 512)
"""Largest K and N of int8 weights that stay int8 with one input row and float activations.

Measured one by one; two or more rows, an open number, and int4 have no limit.
"""

ONE_ROW_INT4 = (1536, 512, 1 << 17)
"""Largest K, N and K * N of int4 weights in less than two blocks that stay int4 with one input row.

Measured one by one. Weights with up to `FEW_SUMMED` numbers to sum over stay for any N.
"""
FEW_SUMMED = 4

INT8_HEADS = (16, 32, 64)
"""Head sizes of the fused int8 kernel (NVIDIA, fused attention)."""
INT8_TOKENS = 512
FLOAT8_HEAD = 256
FLOAT8_KEYS = 32
"""Fewest keys of the fused float8 kernel, at the least end of the profile if their number is open.

The documentation does not name it. Queries have no such limit, int8 and half types neither.
"""
HALF_HEADS = (16, 256)
"""Smallest and largest head of the fused kernel of half types, which takes any number of tokens."""

ONE_QUERY = "TensorRT has one kernel for an attention of one query, which multiplies in float"
NO_BFLOAT16_OPS = frozenset({"ConvTranspose"})
NO_BFLOAT16 = "TensorRT for RTX builds no quantized {} in bfloat16"
TWO_COMPUTED = "TensorRT multiplies two computed tensors in float, MXFP8 or not"
CAST_BEFORE_LOOP = "{} {!r} reads it, and TensorRT builds no Cast in front of a loop of several steps"


ZERO_POINTS = "TensorRT takes zero points of 0 only; use symmetric: true"
"""Source: NvInfer.h, IQuantizeLayer; parser: "Non-zero zero point is not supported"."""

ONE_PER_TENSOR = "TensorRT takes one scale of an activation; use granularity: per_tensor"
"""Source: NvInfer.h: activations are quantized per tensor."""


def _explain_types(product: Product) -> str:
    """Refuse products of two number formats: TensorRT multiplies tensors of one type."""
    own, others = product.numbers, product.others
    if product.op not in CONVOLUTIONS or own != "int4":
        others = others & BOTH_SIDES - {own} if own in BOTH_SIDES and not product.is_weight else frozenset()
    if not others:
        return ""
    return f"TensorRT multiplies two tensors of one type only, not {own} and {min(others)}; use one"


def _explain_window(product: Product) -> str:
    """Explain float8 convolutions with a window of too many elements."""
    float8 = product.op == "Conv" and product.is_weight and product.numbers == "float8e4m3fn"
    count = prod(size or 0 for size in (product.kernel or ())[2:])
    if not float8 or product.weight_only or count <= LARGEST_FLOAT8_KERNEL:
        return ""
    return (
        f"TensorRT has float8 kernels up to {LARGEST_FLOAT8_KERNEL} elements a window, this one has {count}"
    )


def _explain_expanded(product: Product) -> str:
    """Report blocked weights of 8 bits whose product has a float operand: TensorRT expands them first."""
    blocked = product.scales == "blocks" and product.op not in CONVOLUTIONS
    if not product.weight_only or not blocked or product.numbers not in BOTH_SIDES:
        return ""
    return f"TensorRT expands blocked {product.numbers} weights to float before it multiplies; use per_axis"


def _explain_blocked(product: Product) -> str:
    """Explain weights in blocks whose activation has one scale; convolutions have their own rule."""
    blocked = product.is_weight and product.scales == "blocks" and product.op not in CONVOLUTIONS
    if not blocked or product.weight_only or product.beside_blocks:
        return ""
    if product.numbers not in (*BOTH_SIDES, "int4"):
        return ""
    return f"TensorRT builds no blocked {product.numbers} weights beside quantized activations; use per_axis"


BOTH_SIDES = frozenset({"int8", "float8e4m3fn"})
"""Types that are multiplied with a partner of the same type."""

MIXED_TYPES = TargetLimit("mixed-types", "refused", _explain_types)
"""Source: TensorRT for RTX 1.7.1 ("Input and filter have to be the same type", "CHECK(dtype == W.type())").

Products of int4 per channel by int8 are built.
"""

EXPANDED = TargetLimit("blocked-weight", "float", _explain_expanded)
BLOCKED = TargetLimit("blocked-weight", "refused", _explain_blocked)
"""Source: TensorRT for RTX 1.7.1 ("CHECK(is_constant())")."""

FLOAT8_WINDOW = TargetLimit(
    "float8-kernel", "float", _explain_window, "; leave this node in float, or use int8"
)
"""Source: TensorRT for RTX 1.7.1, and ModelOpt, which excludes them."""

ALONE = needs_both("TensorRT", "weight-only-conv")
"""Source: NVIDIA, explicit quantization: both inputs of a convolution."""


def explain_one_row(k: int, n: int) -> str:
    """Return why int8 weights would become float with one input row; empty if they stay."""
    most_k, most_n = ONE_ROW_INT8
    if k <= most_k and n <= most_n:
        return ""
    return (
        f"for one fixed row TensorRT keeps int8 weights up to {most_k} by {most_n}, not {k} by {n}; export "
        "with an open batch, or use int4"
    )


def keeps_one_row_int4(k: int, n: int) -> bool:
    """Tell whether TensorRT for RTX keeps an int4 weight of less than two blocks with one input row."""
    most_k, most_n, most = ONE_ROW_INT4
    return k <= FEW_SUMMED or (k <= most_k and n <= most_n and k * n <= most)


def explain_int4(shape: Sequence[int | None], axis: int | None, block: int) -> str:
    """Return why TensorRT would make an int4 weight float; empty if it keeps it.

    Args:
        shape: of the weight.
        axis: of its blocks; None without blocks.
        block: numbers in a block; TensorRT reads it from shapes, K / scales.
    """
    if axis is None:
        return "TensorRT has int4 kernels for blocks only; use granularity: blocked"
    size = shape[axis]
    if size == block:
        rule = f"the summed axis has {block}, one block"
        return f"TensorRT has int4 kernels for two blocks and more: {rule}{suggest_block(block)}"
    if prod(size or 0 for size in shape) % 2 or (shape[-1] or 0) % 2:
        return f"TensorRT packs two int4 numbers in a byte: the last axis of {list(shape)} is odd"
    return ""


def suggest_block(count: int) -> str:
    """Return the end of a refusal: the largest block size that cuts `count` numbers into equal blocks."""
    # TensorRT for RTX 1.7.1 builds all of these; the documentation of TensorRT names 64 and 128 only.
    size = next((n for n in (128, 64, 32, 16) if count % n == 0 and count > n), None)
    return "" if size is None else f"; block_size {size} would do"


def explain_one_block(name: str, shape: Sequence[int | str | None], is_one: bool, is_weight: bool) -> str:
    """Return why TensorRT for RTX 1.7.1 has no MXFP8 or NVFP4 of one block a row; empty if it has.

    With fixed sizes it builds no such product in MXFP8 ("myelin_graph.h") and multiplies in float in NVFP4. A
    tensor of a single block does not pass its parser ("ScaleMode"). With an open size it runs.

    Args:
        name: MXFP8 or NVFP4.
        shape: of the tensor.
        is_one: whether its summed axis is one block.
        is_weight: whether it is a weight, of which rows may have one block beside open sizes.
    """
    sizes = [size for size in shape if isinstance(size, int)]
    whole = is_weight and sum(size > 1 for size in sizes) > 1
    if not is_one or len(sizes) < len(shape) or whole:
        return ""
    return f"TensorRT has {name} of fixed sizes for two blocks and more along the summed axis, not one"


def explain_right_side(shape: Sequence[int | str | None] | None) -> str:
    """Return why no NVFP4 product with a computed right-hand tensor of `shape` is built; empty if one is."""
    if shape is None or all(isinstance(size, int) for size in shape):
        return ""
    return f"TensorRT builds NVFP4 products for right-hand tensors of fixed sizes only, not {list(shape)}"


def exceed_limit(is_float8: bool, head: int | None, tokens: int | None, keys: int | None) -> str:
    """Return the exceeded limit of TensorRT's fused attention; empty for none, or for unknown sizes.

    Args:
        is_float8: whether queries are float8, int8 otherwise.
        head: size of a query.
        tokens: number of queries or keys, the larger one.
        keys: number of keys.
    """
    if is_float8 and keys is not None and keys < FLOAT8_KEYS:
        return f"{FLOAT8_KEYS} keys and more, these are {keys}"
    if head is not None and (head > FLOAT8_HEAD if is_float8 else head not in INT8_HEADS):
        allowed = f"up to {FLOAT8_HEAD}" if is_float8 else ", ".join(map(str, INT8_HEADS))
        return f"heads of {allowed}, these have {head}"
    if not is_float8 and tokens is not None and tokens > INT8_TOKENS:
        return f"up to {INT8_TOKENS} tokens, these are {tokens}"
    return ""


def needs_least_keys(is_float8: bool, keys: int | None) -> str:
    """Return what a profile needs for a fused attention with this number of keys, None for an open one."""
    if not is_float8 or keys is not None:
        return ""
    return f"its number of keys is open, and float8 is fused if the profile begins at {FLOAT8_KEYS} keys"


def is_one_query(scores: Node) -> bool:
    """Tell whether `scores` multiplies a single query by the keys: one token is decoded at a time."""
    shape = scores.inputs[0].shape
    return shape is not None and len(shape) > 2 and shape[-2] == 1


def loops_several_steps(node: onnx.NodeProto, shape: Sequence[int | None] | None) -> bool:
    """Tell whether `node` is a recurrent operator with an input of `shape`, of two fixed steps or more."""
    if node.op_type not in RECURRENT_OPS or shape is None or len(shape) != 3:
        return False
    batch_first = any(a.name == "layout" and a.i == 1 for a in node.attribute)
    return (shape[1 if batch_first else 0] or 0) > 1
