"""Local ONNX functions equivalent to TensorRT's MXFP8 operators.

TensorRT's parser takes its own operators and ignores the bodies; ONNX Runtime runs the bodies. They match
`block_scales`, scale_type e8m0, to the bit: floor(log2 amax) is looked up between exact powers of two, one
step to either side of the result of Log, so the rounding of Log has no effect.
"""

from __future__ import annotations

from copy import deepcopy
from functools import cache

import numpy as np
import onnx
from onnx import numpy_helper, parser

from onnxfq.graph.model import default_opset, list_nodes
from onnxfq.targets.tensorrt.rewrites.block_formats import DOMAIN

QUANTIZE = "TRT_MXFP8DynamicQuantize"
DEQUANTIZE = "TRT_MXFP8DequantizeLinear"

# Both reshape a tensor to [rows, blocks, block, rest]: axes before, the axis in two, axes after.
# Not Size (shape): onnxruntime 1.31.1 mistakes it for the size of the tensor with this shape.
_AS_BLOCKS = """
    wide = Cast <to = 1> (TENSOR)
    shape = Shape (wide)
    zero = Constant <value_int: int = 0> ()
    ranks = Shape (shape)
    rank = Gather (ranks, zero)
    at = Constant <value_int: int = @axis> ()
    block = Constant <value_int: int = @block_size> ()
    positive = Mod (at, rank)
    length = Gather (shape, positive)
    blocks = Div (length, block)
    matrix = Flatten <axis: int = @axis> (wide)
    sizes = Shape (matrix)
    one = Constant <value_int: int = 1> ()
    rows = Gather (sizes, zero)
    behind = Gather (sizes, one)
    rest = Div (behind, length)
    first = Constant <value_ints = [0]> ()
    rows_1 = Unsqueeze (rows, first)
    blocks_1 = Unsqueeze (blocks, first)
    block_1 = Unsqueeze (block, first)
    one_1 = Unsqueeze (one, first)
    rest_1 = Unsqueeze (rest, first)
    split = Concat <axis = 0> (rows_1, blocks_1, block_1, rest_1)
    values = Reshape <allowzero = 1> (wide, split)
"""

# Above 2^127 comes infinity, which no amax reaches; e8m0 has no scale below 2^-127. emax of e4m3 is 8.
_QUANTIZE_BODY = """
    nan = IsNaN (values)
    inf = IsInf (values)
    other = Or (nan, inf)
    nothing = Constant <value_float = 0.0> ()
    finite = Where (other, nothing, values)
    magnitudes = Abs (finite)
    along = Constant <value_ints = [2]> ()
    largest = ReduceMax <keepdims = 1> (magnitudes, along)
    smallest = Gather (powers, one)
    amax = Max (largest, smallest)
    log = Log (amax)
    ln2 = Constant <value_float = 0.6931471805599453> ()
    log2 = Div (log, ln2)
    floor = Floor (log2)
    near = Cast <to = 7> (floor)
    bias = Constant <value_int: int = 127> ()
    biased = Add (near, bias)
    last = Constant <value_int: int = 254> ()
    guess = Clip (biased, one, last)
    guessed = Gather (powers, guess)
    over = Less (amax, guessed)
    down = Cast <to = 7> (over)
    lower = Sub (guess, down)
    upper = Add (lower, one)
    next = Gather (powers, upper)
    under = GreaterOrEqual (amax, next)
    up = Cast <to = 7> (under)
    exponent = Add (lower, up)
    emax = Constant <value_int: int = 8> ()
    shifted = Sub (exponent, emax)
    code = Clip (shifted, zero, last)
    scale = Gather (powers, code)
    steps = Div (values, scale)
    flat = Reshape <allowzero = 1> (steps, shape)
    codes = Cast <saturate = 1, to: int = @output_dtype> (flat)
    axes = Range (zero, rank, one)
    blocked = Equal (axes, positive)
    scales_shape = Where (blocked, blocks, shape)
    small = Cast <to = 2> (code)
    scales = Reshape <allowzero = 1> (small, scales_shape)
"""

_DEQUANTIZE_BODY = """
    index = Cast <to = 7> (scales)
    looked_up = Gather (powers, index)
    each = Concat <axis = 0> (rows_1, blocks_1, one_1, rest_1)
    scale = Reshape <allowzero = 1> (looked_up, each)
    real = Mul (values, scale)
    whole = Reshape <allowzero = 1> (real, shape)
    y = Cast <to: int = @output_dtype> (whole)
"""

_HEADS = {
    QUANTIZE: "<axis, block_size, output_dtype> (x) => (codes, scales)",
    DEQUANTIZE: "<axis, block_size, output_dtype> (codes, scales) => (y)",
}


def with_mxfp8_functions(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return `proto` with a function for each MXFP8 operator that it has; itself if it has none."""
    used = {node.op_type for node in list_nodes(proto.graph) if node.domain == DOMAIN} & set(_HEADS)
    if not used:
        return proto
    made = deepcopy(proto)
    made.functions.extend(_function(op, default_opset(proto)) for op in sorted(used))
    return made


@cache
def _function(op: str, opset: int) -> onnx.FunctionProto:
    tensor, rest = ("x", _QUANTIZE_BODY) if op == QUANTIZE else ("codes", _DEQUANTIZE_BODY)
    body = _AS_BLOCKS.replace("TENSOR", tensor) + rest
    function = parser.parse_function(
        f'<domain: "{DOMAIN}", opset_import: ["" : {opset}]> {op} {_HEADS[op]} {{ {body} }}'
    )
    exponents = np.arange(-127, 128)
    powers = np.append(np.ldexp(np.float32(1), exponents), np.float32(np.inf)).astype(np.float32)
    table = onnx.helper.make_node("Constant", [], ["powers"], value=numpy_helper.from_array(powers))
    function.node.insert(0, table)
    return function
