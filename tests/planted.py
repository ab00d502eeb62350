"""Small Q/DQ models with one mistake each, the rule that names it, and what TensorRT for RTX does with it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from builders import Arrays, build, weights
from text_tables import read_table


def pair(name: str, real: str, stored: str, back: str) -> str:
    """Return the text of a pair from tensor `real` to `back`; its nodes are `name`q and `name`dq."""
    return f"""[{name}q] {stored} = QuantizeLinear ({real}, s, z)
    [{name}dq] {back} = DequantizeLinear ({stored}, s, z)"""


CONV = """g (float[1,8,6,6] x) => (float[1,8,6,6] y) {
    [xq] q = QuantizeLinear (x, s, z)
    [xdq] d = DequantizeLinear (q, s, z)
    [wdq] k = DequantizeLinear <axis = 0> (w, ws, wz)
    [conv] y = Conv <pads = [1,1,1,1]> (d, k) }"""
MATMUL = """g (float[2,4,64] x) => (float[2,4,32] y) {
    [xq] q = QuantizeLinear (x, s, z)
    [xdq] d = DequantizeLinear (q, s, z)
    [wdq] k = DequantizeLinear <axis = 1> (w, ws, wz)
    [mm] y = MatMul (d, k) }"""
INT4 = """g (float[4,256] x) => (float[4,32] y) {
    [wdq] k = DequantizeLinear <axis = 0, block_size = 64> (w, ws)
    [mm] y = MatMul (x, k) }"""
CHAIN = """g (float[1,8,6,6] x) => (float[1,8,6,6] y) {
    [xq] q = QuantizeLinear (x, s, z)
    [xdq] d = DequantizeLinear (q, s, z)
    [between] t = Relu (d)
    [wdq] k = DequantizeLinear <axis = 0> (w, ws, wz)
    [conv] y = Conv <pads = [1,1,1,1]> (t, k) }"""
CONCAT = """g (float[1,4,6,6] x, float[1,4,6,6] x2) => (float[1,8,6,6] y) {
    [xq] q = QuantizeLinear (x, s, z)
    [xdq] d = DequantizeLinear (q, s, z)
    [xq2] q2 = QuantizeLinear (x2, s2, z)
    [xdq2] d2 = DequantizeLinear (q2, s2, z)
    [join] t = Concat <axis = 1> (d, d2)
    [wdq] k = DequantizeLinear <axis = 0> (w, ws, wz)
    [conv] y = Conv <pads = [1,1,1,1]> (t, k) }"""
BRANCH = """g (float[1,8,6,6] x, bool cond) => (float[1,8,6,6] y) {
    [xq] q = QuantizeLinear (x, s, z)
    [xdq] d = DequantizeLinear (q, s, z)
    [wdq] k = DequantizeLinear <axis = 0> (w, ws, wz)
    [choose] y = If (cond) <
        then_branch = yes () => (float[1,8,6,6] t) { [conv] t = Conv <pads = [1,1,1,1]> (d, k) },
        else_branch = no () => (float[1,8,6,6] e) { [plain] e = Relu (d) }> }"""
RESIDUAL = """g (float[1,8,6,6] x) => (float[1,8,6,6] y) {
    [first] h = Relu (x)
    [xq] q = QuantizeLinear (h, s, z)
    [xdq] d = DequantizeLinear (q, s, z)
    [wdq] k = DequantizeLinear <axis = 0> (w, ws, wz)
    [conv] c = Conv <pads = [1,1,1,1]> (d, k)
    [add] y = Add (c, h) }"""
UP = """g (float[1,8,6,6] x) => (float[1,8,12,12] y) {
    [xq] q = QuantizeLinear (x, s, z)
    [xdq] d = DequantizeLinear (q, s, z)
    [wdq] k = DequantizeLinear (w, ws, wz)
    [conv] y = ConvTranspose <strides = [2,2]> (d, k) }"""
ATTENTION = f"""g (float[1,2,16,32] a, float[1,2,32,16] b, float[1,2,16,32] v) => (float[1,2,16,32] y) {{
    {pair("a", "a", "a1", "a2")}
    {pair("b", "b", "b1", "b2")}
    [scores] c = MatMul (a2, b2)
    [soft] p = Softmax <axis = -1> (c)
    {pair("p", "p", "p1", "p2")}
    {pair("v", "v", "v1", "v2")}
    [mm] y = MatMul (p2, v2) }}"""
LOOP = """g (float16[3,1,8] x) => (float[3,1,1,4] y) {
    [cast] c = Cast <to = 1> (x)
    [turn] t = Transpose <perm = [0,1,2]> (c)
    [mm] y = LSTM <hidden_size = 4> (t, w, r) }"""
PARTS = f"""g (float[2,64,64] x) => (float[2,64,64] y) {{
    {pair("x", "x", "q", "d")}
    [wdq] k = DequantizeLinear <axis = 1> (w, ws, wz)
    [mm] f = MatMul (d, k)
    [bias] g = Add (f, b)
    [heads] h = Reshape (g, shape)
    [turn] t = Transpose <perm = [2,0,3,1,4]> (h)
    [a0] a = Gather <axis = 0> (t, zero)
    [b0] bt = Gather <axis = 0> (t, one)
    [b1] bk = Transpose <perm = [0,1,3,2]> (bt)
    [v0] v = Gather <axis = 0> (t, two)
    [scale] a1 = Mul (a, factor)
    {pair("a", "a1", "a2", "a3")}
    {pair("b", "bk", "b2", "b3")}
    {pair("v", "v", "v2", "v3")}
    [scores] c = MatMul (a3, b3)
    [soft] p = Softmax <axis = -1> (c)
    {pair("p", "p", "p1", "p2")}
    [mix] m = MatMul (p2, v3)
    [back] n = Transpose <perm = [0,2,1,3]> (m)
    [join] j = Reshape (n, joined)
    {pair("j", "j", "j1", "j2")}
    [odq] o = DequantizeLinear <axis = 1> (wo, wos, woz)
    [out] y = MatMul (j2, o) }}"""
ONE_PAIR = (
    (
        "[heads] h = Reshape (g, shape)",
        "[gq] g1 = QuantizeLinear (g, s, z) [gdq] g2 = DequantizeLinear (g1, s, z) h = Reshape (g2, shape)",
    ),
    ("[aq] a2 = QuantizeLinear (a1, s, z)", ""),
    ("[adq] a3 = DequantizeLinear (a2, s, z)", ""),
    ("[bq] b2 = QuantizeLinear (bk, s, z)", ""),
    ("[bdq] b3 = DequantizeLinear (b2, s, z)", ""),
    ("[vq] v2 = QuantizeLinear (v, s, z)", ""),
    ("[vdq] v3 = DequantizeLinear (v2, s, z)", ""),
    ("MatMul (a3, b3)", "MatMul (a1, bk)"),
    ("MatMul (p2, v3)", "MatMul (p2, v)"),
)
OPERATOR = f"""g (float[1,2,16,32] a, float[1,2,16,32] b, float[1,2,16,32] v) => (float[1,2,16,32] y) {{
    {pair("a", "a", "a1", "a2")}
    {pair("b", "b", "b1", "b2")}
    {pair("v", "v", "v1", "v2")}
    [mm] y = Attention (a2, b2, v2) }}"""
PROJECTION = """g (float16[1,2,16,32] a, float16[1,2,32,16] b, float16[1,2,16,64] v) => (float16[1,16,32] y) {
    [scores] c = MatMul (a, b)
    [soft] p = Softmax <axis = -1> (c)
    [mix] m = MatMul (p, v)
    [turn] t = Transpose <perm = [0,2,1,3]> (m)
    [join] j = Reshape (t, joined)
    [wdq] k = DequantizeLinear <axis = 0, block_size = 64> (w, ws)
    [mm] y = MatMul (j, k) }"""
FLOAT4 = """g (float[16,256] x) => (float[16,128] y) {
    [dyn] q, qs = trt.TRT_FP4DynamicQuantize <axis = -1, block_size = 16, scale_type = 17> (x, gs)
    [sdq] s1 = DequantizeLinear (qs, gs)
    [xdq] d = DequantizeLinear <axis = -1, block_size = 16> (q, s1)
    [wsdq] s2 = DequantizeLinear (ws, gs)
    [wdq] k = DequantizeLinear <axis = 1, block_size = 16> (w, s2)
    [mm] y = Gemm <transB = 1> (d, k) }"""

BRANCH_INSIDE = """g (float[1,8,6,6] x, bool cond) => (float[1,8,6,6] y) {
    [choose] y = If (cond) <
        then_branch = yes () => (float[1,8,6,6] t) {
            [xq] q = QuantizeLinear (x, s, z)
            [xdq] d = DequantizeLinear (q, s, z)
            [wdq] k = DequantizeLinear <axis = 0> (w, ws, wz)
            [conv] t = Conv <pads = [1,1,1,1]> (d, k) },
        else_branch = no () => (float[1,8,6,6] e) {
            [xq2] q2 = QuantizeLinear (x, s, z)
            [xdq2] d2 = DequantizeLinear (q2, s, z)
            [wdq2] k2 = DequantizeLinear <axis = 0> (w, ws, wz)
            [other] e = Conv <pads = [1,1,1,1]> (d2, k2) }> }"""
AS_MATMUL = (
    "[wdq] k = DequantizeLinear <axis = 1, block_size = 16> (w, s2)\n    [mm] y = Gemm <transB = 1> (d, k)",
    "[wdq] k1 = DequantizeLinear <axis = 1, block_size = 16> (w, s2)\n    [turn] k = Transpose (k1)\n"
    "    [mm] y = MatMul (d, k)",
)
FLOAT4_TWICE = """g (float[16,64] x, float[64,64] x2) => (float[16,64] y) {
    [dyn] q, qs = trt.TRT_FP4DynamicQuantize <axis = -1, block_size = 16, scale_type = 17> (x, gs)
    [sdq] s1 = DequantizeLinear (qs, gs)
    [xdq] d = DequantizeLinear <axis = -1, block_size = 16> (q, s1)
    [dyn2] q2, qs2 = trt.TRT_FP4DynamicQuantize <axis = -2, block_size = 16, scale_type = 17> (x2, gs)
    [sdq2] s2 = DequantizeLinear (qs2, gs)
    [xdq2] d2 = DequantizeLinear <axis = -2, block_size = 16> (q2, s2)
    [mm] y = MatMul (d, d2) }"""
MXFP8_TWICE = """g (float[16,64] x, float[64,64] x2) => (float[16,64] y) {
    [dyn] q, qs = trt.TRT_MXFP8DynamicQuantize <axis = -1, block_size = 32, output_dtype = 17> (x)
    [xdq] d = trt.TRT_MXFP8DequantizeLinear <axis = -1, block_size = 32, output_dtype = 1> (q, qs)
    [dyn2] q2, qs2 = trt.TRT_MXFP8DynamicQuantize <axis = -2, block_size = 32, output_dtype = 17> (x2)
    [xdq2] d2 = trt.TRT_MXFP8DequantizeLinear <axis = -2, block_size = 32, output_dtype = 1> (q2, qs2)
    [mm] y = MatMul (d, d2) }"""


def f32(value: Any) -> np.ndarray:
    """Return a float32 array."""
    return np.asarray(value, np.float32)


def stored(*shape: int, dtype: Any = np.int8) -> np.ndarray:
    """Return random quantized weights."""
    return np.asarray(np.rint(weights(*shape) * 3).clip(-7, 7)).astype(dtype)


def int8_pair(**changes: Any) -> Arrays:
    """Return the constants of an int8 pair with zero points."""
    return {"s": f32(0.02), "z": np.int8(0), **changes}


def parts_constants() -> Arrays:
    """Return the constants of PARTS: one product of 64 by 192, two heads of 32."""
    numbers = {"zero": 0, "one": 1, "two": 2}
    return int8_pair(
        w=stored(64, 192, dtype=np.int8),
        ws=f32([0.01] * 192),
        wz=np.zeros(192, np.int8),
        b=f32([0.1] * 192),
        wo=stored(64, 64, dtype=np.int8),
        wos=f32([0.01] * 64),
        woz=np.zeros(64, np.int8),
        factor=f32(32**-0.5),
        shape=np.asarray([2, 64, 3, 2, 32], np.int64),
        joined=np.asarray([2, 64, 64], np.int64),
        **{name: np.asarray(value, np.int64) for name, value in numbers.items()},
    )


def conv_constants(kernel: int = 3, dtype: Any = np.int8, **changes: Any) -> Arrays:
    """Return the constants of CONV and of what is like it; a change to None takes one out."""
    values = {
        "s": f32(0.02),
        "z": np.asarray(0).astype(dtype),
        "w": stored(8, 8, kernel, kernel, dtype=dtype),
        "ws": f32([0.01] * 8),
        "wz": np.zeros(8).astype(dtype),
        **changes,
    }
    return {name: value for name, value in values.items() if value is not None}


def matmul_constants(dtype: Any = np.int8, **changes: Any) -> Arrays:
    """Return the constants of MATMUL."""
    weight = {"w": stored(64, 32, dtype=dtype), "ws": f32([0.01] * 32), "wz": np.zeros(32).astype(dtype)}
    return conv_constants(dtype=dtype, **weight | changes)


def int4_constants(k: int = 256, n: int = 32, scales: int = 4) -> Arrays:
    """Return the constants of INT4: a weight [k, n] with `scales` blocks along axis 0."""
    return {"w": stored(k, n, dtype=ml_dtypes.int4), "ws": np.full((scales, n), 0.1, np.float32)}


def float4_constants() -> Arrays:
    """Return the constants of FLOAT4, in two levels."""
    return {
        "w": stored(128, 256, dtype=ml_dtypes.float4_e2m1fn),
        "ws": np.full((128, 16), 1.0).astype(ml_dtypes.float8_e4m3fn),
        "gs": f32(0.01),
    }


def one_block_constants(columns: int) -> Arrays:
    """Return the constants of FLOAT4 for one block along the summed axis."""
    small = np.full((columns, 1), 1.0).astype(ml_dtypes.float8_e4m3fn)
    return {"w": stored(columns, 16, dtype=ml_dtypes.float4_e2m1fn), "ws": small, "gs": f32(0.01)}


FLOAT4_SCALE = {"gs": f32(0.01)}


def change(text: str, *pairs: tuple[str, str]) -> str:
    """Return `text` with replacements, each of which must occur."""
    for old, new in pairs:
        assert old in text, old
        text = text.replace(old, new)
    return text


@dataclass(frozen=True)
class Planted:
    """One mistake.

    rule, severity, node: of the finding, empty for a clean model. real: what TensorRT for RTX does: "low",
    "weight-only", "mixed" or "float" for node `mm` or `conv`; "parser ..." and "builder ..." with a piece of
    its message; "crash".
    """

    name: str
    make: Callable[[], onnx.ModelProto]
    rule: str
    severity: str
    node: str
    real: str


def case(name: str, text: str, constants: Arrays, verdict: str, opset: int = 21, **imports: int) -> Planted:
    """Make a case; verdict: `severity rule node -> real`, or ` -> real` for a clean model."""
    finding, _, real = verdict.partition(" -> ")
    severity, rule, node = finding.split() if finding else ("", "", "")
    ir = {13: 8, 17: 8, 21: 10, 23: 11, 24: 12, 26: 13, 27: 13}[opset]
    return Planted(
        name, lambda: build(text, constants, opset=opset, ir=ir, **imports), rule, severity, node, real
    )


def between(text: str) -> str:
    """Return the text of a product with `text`, from q to t, between the pair of its input."""
    return f"""g (float[4,64] x) => (float[N,32] y) {{
        [xq] q = QuantizeLinear (x, s, z)
        {text}
        [xdq] d = DequantizeLinear (t, s, z)
        [wdq] k = DequantizeLinear <axis = 1> (w, ws, wz)
        [mm] y = MatMul (d, k) }}"""


BETWEEN = matmul_constants(
    low=np.int8(3),
    token=stored(1, 64),
    table=stored(4, 64),
    index=np.asarray([0, 1], np.int64),
    pads=np.asarray([1, 0, 0, 0], np.int64),
    row=np.asarray([[1]], np.int64),
    size=np.asarray([4, 64], np.int64),
)
F8 = ml_dtypes.float8_e4m3fn


def looped(end: str) -> str:
    """Return a product in a Loop, whose result `end` gives to the next step."""
    product = change(MATMUL, ("(x, s, z)", "(last, s, z)"), ("y = MatMul (d, k) }", f"{end}"))
    product = product.partition("{")[2]
    kind = "float[2,4,64]"
    return (
        f"g ({kind} x) => ({kind} y) {{ y = Loop (n, go0, x) <body = step (int64 i, bool go, {kind} last) => "
        f"(bool more, {kind} next) {{ more = Identity (go) {product} }}> }}"
    )


# Forms of operators that TensorRT refuses: name, outputs, message, the opset if it is not 21, and the nodes.
FORMS = """
TopK of 4000 | float[4000] t | builder K exceeds the maximum
    f = Reshape (y, flat) e = Concat <axis = 0> (f, f, f, f, f, f, f, f, f, f, f, f, f, f, f, f, f, f, f, f)
    [odd] t, i = TopK (e, k1)
circular TensorScatter | float[1,8,6,6] t | parser Only linear mode | 24
    [odd] t = TensorScatter <mode = "circular"> (y, y)
TensorScatter of three axes | float[8,6,6] t | parser required to be 4D | 24
    f = Squeeze (y) [odd] t = TensorScatter (f, f)
Attention with its scores | float[1,8,6,6] t, float[1,8,6,6] o | parser one output | 23
    [odd] t, , , o = Attention (y, y, y)
LinearAttention | float[8,6,6] t, float[8,1,6,6] o | parser failed to load LinearAttention | 27
    f = Squeeze (y) [odd] t, o = LinearAttention <q_num_heads = 1, kv_num_heads = 1, update_rule = "linear">
    (f, f, f)
CausalConvWithState | float[8,6,6] t, float[8,6,1] o | parser failed to load CausalConvWithState | 27
    f = Squeeze (y) [odd] t, o = CausalConvWithState (f, taps)
antialias | float[1,8,3,3] t | parser Antialiasing is not supported
    [odd] t = Resize <mode = "linear", antialias = 1> (y, , half)
indices of MaxPool | int64[1,8,3,3] i | parser MaxPool
    [odd] t, i = MaxPool <kernel_shape = [2,2], strides = [2,2]> (y)
AveragePool with dilations | float[1,8,4,4] t | parser does not support dilations
    [odd] t = AveragePool <kernel_shape = [2,2], dilations = [2,2]> (y)
LpPool with dilations | float[1,8,4,4] t | parser does not support dilations
    [odd] t = LpPool <kernel_shape = [2,2], dilations = [2,2]> (y)
MaxPool with dilations | float[1,8,4,4] t | parser does not support dilations
    [odd] t = MaxPool <kernel_shape = [2,2], dilations = [2,2]> (y)
LpPool of the third power | float[1,8,5,5] t | parser Only L1 and L2
    [odd] t = LpPool <kernel_shape = [2,2], p = 3> (y)
LSTM of coupled gates | float[8,1,6,3] t | parser Coupled input/forget
    e = Reshape (y, steps) [odd] t = LSTM <hidden_size = 3, input_forget = 1> (e, lw, lr)
BatchNormalization in training mode | float[1,8,6,6] t | parser training_mode
    [odd] t, m, v = BatchNormalization <training_mode = 1> (y, each, each, each, each)
Dropout in training mode | float[1,8,6,6] t | parser training mode
    [odd] t = Dropout (y, half_of, training)
Cast to int16 | int16[1,8,6,6] t | parser Unsupported data type
    [odd] t = Cast <to = 5> (y)
Cast to float8 | float[1,8,6,6] t | builder datatype FP8
    [odd] e = Cast <to = 17> (y) t = Cast <to = 1> (e)
GRU of an affine gate | float[8,1,6,3] t | parser Unknown activation
    e = Reshape (y, steps) [odd] t = GRU <hidden_size = 3, activations = ["Sigmoid", "Affine"]> (e, gw, gr)
Loop without a condition | float[1,8,6,6] t | parser not registered
    [odd] t = Loop (three, , y) <body = step (int64 i, bool go, float[1,8,6,6] last) => (bool more,
    float[1,8,6,6] next) { more = Identity (go) next = Sqrt (last) }>
Scan without a state | float[1,8,6,6] t | parser Invalid Node
    [odd] t = Scan <num_scan_inputs = 1, body = one (float[8,6,6] i) => (float[8,6,6] o) { o = Sqrt (i) }>
    (y)
If of two ranks | float[N,M] t | builder equal ranks
    m = ReduceMax <keepdims = 0> (y) yes = Cast <to = 9> (m) [odd] t = If (yes) <then_branch = one () =>
    (float[8,36] a) { a = Reshape (y, two) }, else_branch = other () => (float[288] b) { b = Reshape (y,
    flat_all) }>
ReduceMax of computed axes | float[1,8,1,6] t | parser Axis input must resolve
    a = Add (first, first) [odd] t = ReduceMax (y, a)
Squeeze of axes from data | float[N,M,P] t | parser
    m = ReduceMin (y) c = Cast <to = 7> (m) a = Reshape (c, first) [odd] t = Squeeze (y, a)
cubic Resize of channels | float[1,16,12,12] t | parser cubic resizing
    [odd] t = Resize <mode = "cubic"> (y, , up_channels)
linear Resize of four axes | float[2,16,12,12] t | parser linear resizing
    [odd] t = Resize <mode = "linear"> (y, , up_all)
Resize by scales from data | float[N,M,P,Q] t | builder shape inference
    m = ReduceMax <keepdims = 0> (y) r = Reshape (m, first) by = Concat <axis = 0> (r, r, r, r) [odd] t =
    Resize (y, , by)
LRN of an even window | float[1,8,6,6] t | parser
    [odd] t = LRN <size = 4> (y)
InstanceNormalization of two axes | float[8,36] t | parser at least 3D
    f = Reshape (y, two) [odd] t = InstanceNormalization (f, each36, each36)
Conv of four spatial axes | float[1,8,6,6,1,1] t | parser
    e = Unsqueeze (y, ends) [odd] t = Conv (e, filter)
MaxPool of four spatial axes | float[1,8,5,5,1,1] t | parser kernel_shape misaligns
    e = Unsqueeze (y, ends) [odd] t = MaxPool <kernel_shape = [2,2,1,1]> (e)
tensor of nine axes | float[1,1,1,1,1,8,6,6,1] t | parser
    [odd] t = Reshape (y, nine)
NonZero | int64[4,M] t | parser plugin
    [odd] t = NonZero (y)
NonMaxSuppression | int64[M,3] t | builder has no runners
    [odd] t = NonMaxSuppression (boxes, points, few)
RoiAlign | float[2,8,3,3] t | parser ROIAlign plugin was not found
    [odd] t = RoiAlign <output_height = 3, output_width = 3> (y, rois, batches)
Resize by half_pixel_symmetric | float[1,8,12,12] t | parser transformationMode
    [odd] t = Resize <mode = "linear", coordinate_transformation_mode = "half_pixel_symmetric"> (y, , up)
Resize by tf_crop_and_resize | float[1,8,12,12] t | parser transformationMode
    [odd] t = Resize <mode = "linear", coordinate_transformation_mode = "tf_crop_and_resize"> (y, part, ,
    whole)
Resize by ratio | float[1,8,12,12] t | parser keep_aspect_ratio_policy
    [odd] t = Resize <mode = "linear", keep_aspect_ratio_policy = "not_larger", axes = [2, 3]> (y, , ,
    plane)
Resize by floor of tf_half_pixel_for_nn | float[1,8,12,12] t | parser
    [odd] t = Resize <coordinate_transformation_mode = "tf_half_pixel_for_nn", nearest_mode = "floor"> (y, ,
    up)
LayerNormalization with its mean | float[1,8,6,1] t | parser outputs for LayerNormalization
    [odd] l, t = LayerNormalization (y, ones)
MatMul of integers | int32[1,8,6,6] t | parser unsupported input type of INT32
    i = Cast <to = 6> (y) [odd] t = MatMul (i, i)
uint8 numbers that are moved | uint8[1,8,6,6] t | parser
    i = Cast <to = 2> (y) [odd] t = Transpose <perm = [0,1,3,2]> (i)
ScatterND that adds | float[1,8,6,6] t | parser reduction is not supported
    [odd] t = ScatterND <reduction = "add"> (y, at, y)
ScatterElements that adds | float[1,8,6,6] t | parser reduction
    [odd] t = ScatterElements <axis = 0, reduction = "add"> (y, places, y)
upper-case labels | float[1,8,6] t | parser Invalid character
    [odd] t = Einsum <equation = "NCHW->NCH"> (y)
"""
OPERANDS: Arrays = {
    "flat": np.asarray([-1]),
    "k1": np.asarray([4000]),
    "taps": f32(np.ones((6, 1, 2))),
    "half": f32([1, 1, 0.5, 0.5]),
    "steps": np.asarray([8, 6, 6]),
    "lw": f32(np.ones((1, 12, 6))),
    "lr": f32(np.ones((1, 12, 3))),
    "each": f32(np.ones(8)),
    "half_of": f32(0.5),
    "training": np.asarray(True),
    "gw": f32(np.ones((1, 9, 6))),
    "gr": f32(np.ones((1, 9, 3))),
    "three": np.asarray(3),
    "two": np.asarray([8, 36]),
    "flat_all": np.asarray([288]),
    "first": np.asarray([1]),
    "up_channels": f32([1, 2, 2, 2]),
    "up_all": f32([2, 2, 2, 2]),
    "each36": f32(np.ones(36)),
    "ends": np.asarray([4, 5]),
    "filter": f32(np.ones((8, 8, 1, 1, 1, 1))),
    "nine": np.asarray([1, 1, 1, 1, 1, 8, 6, 6, 1]),
    "boxes": f32(np.ones((1, 6, 4))),
    "points": f32(np.ones((1, 1, 6))),
    "few": np.asarray([2]),
    "rois": f32(np.ones((2, 4))),
    "batches": np.asarray([0, 0]),
    "up": f32([1, 1, 2, 2]),
    "part": f32([0, 0, 0, 0, 1, 1, 1, 1]),
    "whole": np.asarray([1, 8, 12, 12]),
    "plane": np.asarray([12, 12]),
    "ones": f32(np.ones(6)),
    "at": np.zeros((1, 1), np.int64),
    "places": np.zeros((1, 8, 6, 6), np.int64),
}
"""Constants that the nodes of `FORMS` read, by name."""


def named_in(text: str, arrays: Arrays) -> Arrays:
    """Return the arrays whose names a text has."""
    return {name: array for name, array in arrays.items() if re.search(rf"\b{name}\b", text)}


def refused_form(head: str, text: str) -> Planted:
    """Return CONV with the nodes of `text` behind it."""
    name, out, real, *opset = head.split(" | ")
    made = ("=> (float[1,8,6,6] y)", f"=> (float[1,8,6,6] y, {out})"), ("(d, k) }", f"(d, k) {text} }}")
    constants = conv_constants(**named_in(text, OPERANDS))
    finding = "refused operator-form odd"
    return case(
        f"{name} beside a Conv", change(CONV, *made), constants, f"{finding} -> {real}", *map(int, opset)
    )


NO_POINTS = (("(x, s, z)", "(x, s)"), ("(q, s, z)", "(q, s)"))
ZEROS8 = np.zeros(8, np.int8)
CUT = "parser Failed to import initializer"
POSITIVE, POINT = "parser must all be positive", "parser Non-zero zero point"
CONSTANT = "builder is only allowed before DQ"

# Operators that TensorRT moves a DQ through, with their constants, and the channels that they leave of 8.
COMMUTING_CONV: dict[str, tuple[Arrays, int]] = {
    "DepthToSpace <blocksize = 2> (d)": ({}, 2),
    "Dropout (d)": ({}, 8),
    "Expand (d, c)": ({"c": np.asarray([2, 8, 6, 6])}, 8),
    "Gather <axis = 2> (d, c)": ({"c": np.asarray([0, 2, 4])}, 8),
    "GlobalMaxPool (d)": ({}, 8),
    "Identity (d)": ({}, 8),
    "Div (d, c)": ({"c": f32(2)}, 8),
    "MaxPool <kernel_shape = [2,2]> (d)": ({}, 8),
    "Mul (c, d)": ({"c": f32(2)}, 8),
    "Neg (d)": ({}, 8),
    "Pad (d, c)": ({"c": np.asarray([0, 0, 1, 1, 0, 0, 1, 1])}, 8),
    "ReduceMax (d, c)": ({"c": np.asarray([2])}, 8),
    "Reshape (d, c)": ({"c": np.asarray([1, 4, 12, 6])}, 4),
    "Slice (d, b, c)": ({"b": np.asarray([0, 0, 0, 0]), "c": np.asarray([1, 4, 6, 6])}, 4),
    "SpaceToDepth <blocksize = 2> (d)": ({}, 32),
    "Tile (d, c)": ({"c": np.asarray([1, 1, 2, 2])}, 8),
    "Transpose <perm = [0,1,3,2]> (d)": ({}, 8),
}
COMMUTING_MATMUL: dict[str, Arrays] = {
    "Flatten <axis = 2> (d)": {},
    "Squeeze (d, c)": {"c": np.asarray([0])},
    "Unsqueeze (d, c)": {"c": np.asarray([0])},
}
COMMUTING_CONV |= {
    "Abs (d)": ({}, 8),
    "GatherElements <axis = 3> (d, c)": ({"c": np.zeros((1, 8, 6, 4), np.int64)}, 8),
    "GatherND (d, c)": ({"c": np.asarray([[0], [0]])}, 8),
    "ReduceMin (d, c)": ({"c": np.asarray([2])}, 8),
    'Einsum <equation = "abcd->abdc"> (d)': ({}, 8),
}
COMMUTING_CONV['Pad <mode = "reflect"> (d, c)'] = COMMUTING_CONV["Pad (d, c)"]
COMMUTING_CONV["Pad (d, c, b)"] = ({**COMMUTING_CONV["Pad (d, c)"][0], "b": f32(0)}, 8)
# Operators that it does not, tried likewise.
BLOCKING: dict[str, Arrays] = {
    "Pad (d, c, b)": {"c": np.asarray([0, 0, 1, 1, 0, 0, 1, 1]), "b": f32(0.7)},
    "AveragePool <kernel_shape = [3,3]> (d)": {},
    "Clip (d, lo, hi)": {"lo": f32(0), "hi": f32(6)},
    "GlobalAveragePool (d)": {},
    "HardSwish (d)": {},
    "LeakyRelu (d)": {},
    "Add (d, f)": {"f": f32(2)},
    "Mul (d, f)": {"f": np.full((1, 8, 1, 1), 2, np.float32)},
    "Ceil (d)": {},
    "CumSum (d, c)": {"c": np.asarray(2)},
    "LRN <size = 3> (d)": {},
    "LpPool <kernel_shape = [3,3]> (d)": {},
    "ReduceMean (d, c)": {"c": np.asarray([2])},
    "ReverseSequence <time_axis = 2, batch_axis = 0> (d, c)": {"c": np.asarray([6])},
    "Sign (d)": {},
    "Trilu (d)": {},
    "Relu (d)": {},
    "Resize (d, , up)": {"up": f32([1, 1, 2, 2])},
    "Sigmoid (d)": {},
    "Softmax (d)": {},
}
AROUND = (
    *(
        case(
            f"clean {op} between",
            change(CHAIN, ("Relu (d)", op)),
            conv_constants(w=stored(8, channels, 3, 3), **more),
            " -> low",
        )
        for op, (more, channels) in COMMUTING_CONV.items()
    ),
    *(
        case(
            f"clean {op} between",
            change(
                MATMUL,
                ("[2,4,64]", "[1,4,64]"),
                ("[mm] y = MatMul (d, k)", f"[between] t = {op} [mm] y = MatMul (t, k)"),
            ),
            matmul_constants(**more),
            " -> low",
        )
        for op, more in COMMUTING_MATMUL.items()
    ),
    *(
        case(
            f"pair before {op}",
            change(CHAIN, ("Relu (d)", op)),
            conv_constants(**more),
            "float pair-before conv -> float",
        )
        for op, more in BLOCKING.items()
    ),
)

# Operators that join two pairs, of equal scales or not.
JOINED = change(CONCAT, ("float[1,4,6,6]", "float[1,8,6,6]"))
JOINS = {"Max": "Max (d, d2)", "Min": "Min (d, d2)", "Where": "Where (c, d, d2)"}
CHOICE = {"c": np.asarray([True, False] * 3)}
# Operators between a weight's DQ and its reader: size of the weight, constants, whether it has many scales.
WEIGHT_PATHS: dict[str, tuple[int, Arrays, bool]] = {
    "Pad (k0, c)": (1, {"c": np.asarray([0, 0, 1, 1, 0, 0, 1, 1])}, False),
    "Gather <axis = 2> (k0, c)": (3, {"c": np.asarray([2, 1, 0])}, True),
    "Neg (k0)": (3, {}, True),
}
# Scales that are computed from constants.
FOLDED = {
    "Exp": "Exp (s1)",
    "Gather": "Gather (two, at)",
    "Max": "Max (s1, s2)",
    "Where": "Where (on, s1, s2)",
}
NOT_FOLDED = {"Pow": "Pow (s2, s2)", "ReduceMax": "ReduceMax <keepdims = 0> (two)", "Sigmoid": "Sigmoid (s1)"}
COMPUTED: Arrays = {
    "s1": f32(0.04),
    "s2": f32(0.02),
    "two": f32([0.02, 0.01]),
    "at": np.asarray(0),
    "on": np.asarray(True),
}
BLOCKS = "axis = 0, block_size = 64"
ONE_ROW = "float int4-weight mm"
# Scales that are computed from the sizes of the fed tensor, and scales of an open size.
SIZED = {
    "Size": "n = Size (x) c = Cast <to = 1> (n) s = Mul (c, f)",
    "a Gather of Shape": "n = Shape (x) g = Gather (n, at) c = Cast <to = 1> (g) s = Mul (c, f)",
    "a part": "n = Shape <start = 1, end = 2> (x) e = Squeeze (n) c = CastLike (e, f) s = Mul (c, f)",
    "Mod of a size": "n = Size (x) m = Mod (n, seven) c = CastLike (m, f) s = Mul (c, f)",
    "ReduceMax": "n = Shape (x) e = ReduceMax <keepdims = 0> (n) c = CastLike (e, f) s = Mul (c, f)",
    "the sine of a size": "n = Size (x) c = Cast <to = 1> (n) e = Div (f, c) s = Sin (e)",
}
NOT_SIZED = {
    "Size of an open input": "n = Size (x) c = Cast <to = 1> (n) s = Mul (c, f)",
    "an open size": "n = Shape (x) g = Gather (n, zero) c = Cast <to = 1> (g) s = Mul (c, f)",
    "Pow of a size": "n = Shape (x) g = Gather (n, at) c = Cast <to = 1> (g) e = Pow (c, f) s = Mul (e, f)",
    "Range of a size": "n = Shape (x) g = Gather (n, at) r = Range (zero, g, at) e = Gather (r, at) "
    "c = Cast <to = 1> (e) s = Mul (c, f)",
}
# The builder takes scales under 0, and one of an open size; NVIDIA does not allow them. NvInfer.h and the
# operator reference of Quantize: scales are positive constants of build time.
BEYOND = {
    "a difference under 0": ("s = Sub (s2, s1)", "1", "refused scale-value xq"),
    "a Neg": ("s = Neg (s1)", "1", "refused scale-value xq"),
    "ReduceMax of an open size": (SIZED["ReduceMax"], "N", "refused runtime-scale xq"),
}
INTEGERS = "e = PRelu (seven, seven) c = Cast <to = 1> (e) s = Mul (c, f)"
SIZES: Arrays = COMPUTED | {
    "f": f32(0.001),
    "at": np.asarray(1),
    "zero": np.asarray(0),
    "seven": np.asarray(7),
}
FED = {"int16": "parser Failed to convert", "uint32": "parser Failed to convert", "float8e4m3fn": "builder"}


def computed_scale(name: str, made: str, finding: str, real: str) -> Planted:
    """Return CONV with a scale that `made` computes from constants."""
    text = change(CONV, ("[xq]", f"[made] s = {made}\n    [xq]"))
    return case(
        f"{name} makes the scale",
        text,
        conv_constants(s=None, **named_in(made, COMPUTED)),
        f"{finding} -> {real}",
    )


# Kinds that later rounds found: types, paths of weights, scales, recurrent operators.
LATER = (
    *(computed_scale(name, made, "", "low") for name, made in FOLDED.items()),
    *(computed_scale(name, made, "refused runtime-scale xq", "crash") for name, made in NOT_FOLDED.items()),
    *(
        case(
            f"scale from {name}",
            change(
                CONV,
                ("[xq]", f"{made}\n    [xq]"),
                ("float[1,8,6,6] x", f"float[{batch},8,6,6] x"),
                ("(float[1,8,6,6] y)", "(float[] y)"),
            ),
            conv_constants(s=None, **named_in(made, SIZES)),
            f"{finding} -> {real}",
        )
        for name, made, batch, finding, real in (
            *((name, made, "1", "", "low") for name, made in SIZED.items()),
            *((f"{name}, open batch", SIZED[name], "N", "", "low") for name in list(SIZED)[1:3]),
            *((name, made, "N", "refused runtime-scale xq", "crash") for name, made in NOT_SIZED.items()),
            *((name, made, batch, finding, "low") for name, (made, batch, finding) in BEYOND.items()),
            ("a PRelu of integers", INTEGERS, "1", "refused runtime-scale xq", "parser input type of INT64"),
        )
    ),
    case(
        "Gather makes the scales of channels",
        change(CONV, ("[wdq]", "[made] ws = Gather (ws1, at)\n    [wdq]")),
        conv_constants(ws=None, ws1=f32([0.01] * 8), at=np.arange(8)),
        "refused runtime-scale wdq -> builder",
    ),
    case(
        "int8 scale of an activation",
        change(CONV, ("[xq]", "[made] s = DequantizeLinear (s8, s1)\n    [xq]")),
        conv_constants(s=None, s8=np.int8(2), s1=f32(0.01)),
        f"refused runtime-scale xq -> {CONSTANT}",
    ),
    *(
        case(
            f"{name} of {kind} scales",
            change(JOINED, ("Concat <axis = 1> (d, d2)", made)),
            conv_constants(s2=f32(scale), **(CHOICE if "c," in made else {})),
            f"{finding} -> {real}",
        )
        for name, made in JOINS.items()
        for kind, scale, finding, real in (
            ("equal", 0.02, "", "low"),
            ("unequal", 0.03, "float pair-before conv", "float"),
        )
    ),
    case(
        "Where with a number",
        change(CHAIN, ("Relu (d)", "Where (c, d, f)")),
        conv_constants(f=f32(0), **CHOICE),
        "float pair-before conv -> float",
    ),
    case(
        "largest of an axis",
        change(CHAIN, ("t = Relu (d)", "t, i = TopK (d, c)")),
        conv_constants(c=np.asarray([4])),
        " -> low",
    ),
    case(
        "two Casts between",
        change(CHAIN, ("[between] t = Relu (d)", "h = Cast <to = 10> (d) [between] t = Cast <to = 1> (h)")),
        conv_constants(),
        "float pair-before conv -> float",
    ),
    *(
        case(
            f"float8 pair before {op}",
            change(CHAIN, ("Relu (d)", f"{op} (d)")),
            conv_constants(kernel, F8),
            f"{finding} -> {real}",
        )
        for op, kernel, finding, real in (
            ("MaxPool <kernel_shape = [2,2]>", 3, "float pair-before conv", "float"),
            ("GlobalMaxPool", 1, "", "low"),
            ("Neg", 3, "", "low"),
        )
    ),
    *(
        case(
            f"weight behind {made.split()[0]}{', by channel' if by_channel else ''}",
            change(CONV, ("[wdq] k =", "[wdq] k0 ="), ("[conv]", f"[path] k = {made}\n    [conv]")),
            conv_constants(kernel, **more, **({} if by_channel else {"ws": f32(0.01), "wz": np.int8(0)})),
            "float pair-before conv -> float",
        )
        for made, (kernel, more, by_channel) in WEIGHT_PATHS.items()
    ),
    case(
        "clean weight behind Neg",
        change(CONV, ("[wdq] k =", "[wdq] k0 ="), ("[conv]", "[path] k = Neg (k0)\n    [conv]")),
        conv_constants(ws=f32(0.01), wz=np.int8(0)),
        " -> low",
    ),
    case(
        "a factor of each column of a weight of one scale",
        change(MATMUL, ("[wdq] k =", "[wdq] k0 ="), ("[mm]", "[path] k = Mul (k0, c)\n    [mm]")),
        matmul_constants(ws=f32(0.01), wz=np.int8(0), c=f32([2] * 32)),
        "float pair-before mm -> mixed",
    ),
    *(
        case(
            f"stack of weights with a scale each {what}",
            change(MATMUL, ("axis = 1", f"axis = {axis}")),
            matmul_constants(w=stored(2, 64, 32), ws=f32([0.01] * size), wz=np.zeros(size, np.int8)),
            f"{finding} -> {real}",
        )
        for what, axis, size, finding, real in (
            ("matrix", 0, 2, "float weight-axis mm", "mixed"),
            ("column", 2, 32, "", "low"),
        )
    ),
    case(
        "words and head in int4",
        """g (int64[4,8] x) => (float[4,8,256] y) {
        [wdq] k = DequantizeLinear <axis = 1, block_size = 64> (w, ws) e = Gather (k, x)
        t = Transpose <perm = [1,0]> (k) [mm] y = MatMul (e, t) }""",
        {"w": stored(256, 128, dtype=ml_dtypes.int4), "ws": np.full((256, 2), 0.1, np.float32)},
        " -> weight-only",
    ),
    *(
        case(
            f"int4 on the left of {op}",
            f"""g (float[256,4] x) => (float[32,4] y) {{
            [wdq] k = DequantizeLinear <axis = 1, block_size = 64> (w, ws) [mm] y = {op} (k, x) }}""",
            {"w": stored(32, 256, dtype=ml_dtypes.int4), "ws": np.full((32, 4), 0.1, np.float32)},
            "refused int4-weight mm -> crash",
        )
        for op in ("MatMul", "Gemm")
    ),
    case(
        "scales of two types by output_dtype",
        """g (float16[2,4,64] x) => (float16[2,4,32] y) {
        [xq] q = QuantizeLinear (x, s, z) [xdq] d = DequantizeLinear <output_dtype = 10> (q, s, z)
        [wdq] k = DequantizeLinear <axis = 1> (w, ws, wz) [mm] y = MatMul (d, k) }""",
        matmul_constants(ws=np.full(32, 0.01, np.float16)),
        "refused float-types mm -> builder CHECK_EQ",
        opset=23,
    ),
    case(
        "ConvTranspose in bfloat16",
        change(UP, ("float[", "bfloat16[")),
        conv_constants(
            2, s=np.asarray(0.02, ml_dtypes.bfloat16), ws=np.asarray(0.01, ml_dtypes.bfloat16), wz=np.int8(0)
        ),
        "refused conv-transpose conv -> builder",
    ),
    *(
        case(
            f"input of {kind}",
            change(
                MATMUL,
                ("float[2,4,64] x", f"{kind}[2,4,64] x0"),
                ("[xq]", "[cast] x = Cast <to = 1> (x0) [xq]"),
            ),
            matmul_constants(),
            f"refused tensor-type cast -> {real}",
        )
        for kind, real in FED.items()
    ),
    case(
        "a quantizer of QONNX",
        """g (float[4,64] x) => (float[4,32] y) {
        [quant] d = qonnx.custom_op.general.Quant <signed = 1, narrow = 0> (x, s, low, bits)
        [wdq] k = DequantizeLinear <axis = 1> (w, ws, wz) [mm] y = MatMul (d, k) }""",
        matmul_constants(low=f32(0), bits=f32(8)),
        "refused qonnx quant -> parser",
        **{"qonnx.custom_op.general": 1},
    ),
    *(
        case(
            f"uint8 numbers {what}",
            f"""g ({kind}[2,4,64] x) => (float[2,4,32] y) {{ {made}
            [xdq] d = DequantizeLinear (q, s, z) [wdq] k = DequantizeLinear <axis = 1> (w, ws, wz)
            [mm] y = MatMul (d, k) }}""",
            matmul_constants(z=np.uint8(0)),
            "refused uint8 xdq -> parser",
        )
        for what, kind, made in (
            ("as an input", "uint8", "q = Identity (x)"),
            ("by a Cast", "float", "q = Cast <to = 2> (x)"),
        )
    ),
    case(
        "GRU weights",
        """g (float[3,1,8] x) => (float[3,1,1,4] y) {
        [wdq] k = DequantizeLinear (w, s) [rdq] r = DequantizeLinear (rw, s)
        [mm] y = GRU <hidden_size = 4> (x, k, r) }""",
        {"w": stored(1, 12, 8), "rw": stored(1, 12, 4), "s": f32(0.1)},
        "refused recurrent mm -> builder",
    ),
    case(
        "ReduceMax of booleans beside a Conv",
        change(
            CONV,
            ("(float[1,8,6,6] y)", "(float[1,8,6,6] y, bool[1,8,1,6] t)"),
            ("}", "i = Greater (y, c) [odd] t = ReduceMax (i, at) }"),
        ),
        conv_constants(c=f32(0), at=np.asarray([2])),
        "refused operator-form odd -> parser BOOL",
    ),
)

LOOPED = {
    "w": stored(64, 64),
    "ws": f32([0.01] * 64),
    "wz": np.zeros(64, np.int8),
    "n": np.asarray(3),
    "go0": np.asarray(True),
}

CASES = (
    *AROUND,
    *LATER,
    # Clean ones: the rules say nothing and the engine has what is promised.
    case("clean int8 conv", CONV, conv_constants(), " -> low"),
    case("clean int8 conv at opset 13", CONV, conv_constants(), " -> low", opset=13),
    case("clean int8 matmul", MATMUL, matmul_constants(), " -> low"),
    case("clean float8 matmul", MATMUL, matmul_constants(F8), " -> low"),
    case("clean float8 conv", CONV, conv_constants(dtype=F8), " -> low"),
    case("clean int4", INT4, int4_constants(), " -> weight-only"),
    case("clean float4", FLOAT4, float4_constants(), " -> low", opset=23, trt=1),
    case(
        "clean output_dtype",
        change(CONV, ("QuantizeLinear (x, s, z)", "QuantizeLinear <output_dtype = 3> (x, s)"), NO_POINTS[1]),
        conv_constants(z=None),
        " -> low",
    ),
    case(
        "clean Concat",
        change(CONCAT, ("(x2, s2, z)", "(x2, s, z)"), ("(q2, s2, z)", "(q2, s, z)")),
        conv_constants(),
        " -> low",
    ),
    case(
        "clean scale by arithmetic",
        change(CONV, ("[xq]", "[half] s = Div (s1, two)\n    [xq]")),
        conv_constants(s=None, s1=f32(0.04), two=f32(2)),
        " -> low",
    ),
    # Element types.
    *(
        case(
            f"int8 constant of {name}",
            between(text),
            BETWEEN,
            f"refused quantized-constant {node} -> {CONSTANT}",
        )
        for name, node, text in (
            ("Max", "m", "[m] t = Max (q, low)"),
            ("Concat", "m", "[m] t = Concat <axis = 0> (token, q)"),
            ("Pad", "m", "[m] t = Pad (q, pads, low)"),
            ("Where", "m", "[c] c = Equal (q, q) [m] t = Where (c, q, low)"),
            ("ScatterND", "m", "[m] t = ScatterND (q, row, token)"),
            ("Equal", "c", "[c] c = Equal (q, low) [m] t = Where (c, q, q)"),
            ("Expand", "e", "[e] e = Expand (low, size) [m] t = Max (q, e)"),
            (
                "ConstantOfShape",
                "e",
                "[e] e = ConstantOfShape <value = int8[1] {3}> (size) [m] t = Max (q, e)",
            ),
            ("Gather", "m", "[m] t = Gather (table, index)"),
        )
    ),
    case("int8 limits of Clip", between("[m] t = Clip (q, low)"), BETWEEN, " -> low"),
    case(
        "int8 in Mod",
        between("[m] t = Mod (q, q)"),
        BETWEEN,
        "refused int8-operator m -> parser The fmod attribute",
    ),
    *(
        case(name, CONV, conv_constants(**changes), f"{finding} -> {real}")
        for name, changes, finding, real in (
            ("int16 activation", {"z": np.int16(0)}, "refused tensor-type xq", CUT),
            ("uint16 activation", {"z": np.uint16(0)}, "refused tensor-type xq", CUT),
            ("uint8 activation, zero point 0", {"z": np.uint8(0)}, "wrong uint8 xq", "low"),
            ("zero point 3", {"z": np.int8(3)}, "refused zero-point xq", POINT),
            ("uint8 zero point 128", {"z": np.uint8(128)}, "refused zero-point xq", POINT),
            ("scale 0", {"s": f32(0)}, "refused scale-value xq", POSITIVE),
            ("negative scale", {"s": f32(-1)}, "refused scale-value xq", POSITIVE),
            ("NaN scale", {"s": f32(np.nan)}, "refused scale-value xq", POSITIVE),
            ("one scale of a weight is 0", {"ws": f32([0.1] * 7 + [0])}, "refused scale-value wdq", POSITIVE),
            ("infinite scale", {"s": f32(np.inf)}, "wrong scale-value xq", "low"),
        )
    ),
    case(
        "int16 weight",
        CONV,
        conv_constants(w=stored(8, 8, 3, 3, dtype=np.int16), wz=np.zeros(8, np.int16)),
        f"refused tensor-type wdq -> {CUT}",
    ),
    case(
        "uint4 weight",
        INT4,
        {**int4_constants(), "w": np.ones((256, 32)).astype(ml_dtypes.uint4)},
        f"refused tensor-type wdq -> {CUT}",
    ),
    case("float8e5m2", MATMUL, matmul_constants(ml_dtypes.float8_e5m2), f"refused tensor-type xq -> {CUT}"),
    case(
        "float8e4m3fnuz",
        MATMUL,
        matmul_constants(ml_dtypes.float8_e4m3fnuz),
        f"refused tensor-type xq -> {CUT}",
    ),
    case(
        "e8m0 scales",
        """g (float[4,32] x) => (float[64,32] y) {
        [wdq] k = DequantizeLinear <axis = 0, block_size = 16, output_dtype = 1> (w, ws)
        [mm] y = Relu (k) }""",
        {"w": stored(64, 32, dtype=F8), "ws": np.ones((4, 32)).astype(ml_dtypes.float8_e8m0fnu)},
        f"refused tensor-type wdq -> {CUT}",
        opset=23,
    ),
    case(
        "output_dtype int16",
        change(
            CONV,
            ("(x, s, z)", "(x, s)"),
            ("(q, s, z)", "(q, s)"),
            ("QuantizeLinear (x", "QuantizeLinear <output_dtype = 5> (x"),
        ),
        conv_constants(z=None),
        "refused tensor-type xq -> parser",
    ),
    case(
        "uint8 weight",
        CONV,
        conv_constants(w=np.ones((8, 8, 3, 3), np.uint8), wz=np.zeros(8, np.uint8)),
        "refused uint8 wdq -> parser unsupported input type of UINT8",
    ),
    case(
        "neither zero point nor output_dtype",
        change(CONV, *NO_POINTS),
        conv_constants(z=None),
        "wrong undeclared-type xq -> low",
    ),
    case(
        "int32 bias",
        change(CONV, ("[conv]", "[bdq] bf = DequantizeLinear (b, bs)\n    [conv]"), ("(d, k)", "(d, k, bf)")),
        conv_constants(b=np.ones(8, np.int32), bs=f32(0.1)),
        "refused int32-dequantize bdq -> parser Int32 but must have type",
    ),
    case(
        "float8 by int8",
        MATMUL,
        matmul_constants(z=np.asarray(0).astype(F8)),
        "refused mixed-types mm -> builder same type",
    ),
    case(
        "float16 data, float32 scales",
        change(
            CONV,
            ("float[1,8,6,6] x", "float16[1,8,6,6] x"),
            ("[xq] q", "[xf] xf = Cast <to = 1> (x)\n    [xq] q"),
            ("(x, s, z)", "(xf, s, z)"),
            ("(d, k)", "(d, k, b)"),
        ),
        conv_constants(b=np.ones(8, np.float16)),
        "refused float-types conv -> parser must be of same type",
    ),
    # Scales and zero points.
    case(
        "one zero point of a weight",
        CONV,
        conv_constants(wz=np.eye(8, dtype=np.int8)[0]),
        f"refused zero-point wdq -> {POINT}",
    ),
    case(
        "too few scales",
        CONV,
        conv_constants(ws=f32([0.1] * 7), wz=ZEROS8[:7]),
        "refused scale-count wdq -> parser number of scales",
    ),
    case(
        "axis beyond the rank",
        change(CONV, ("<axis = 0>", "<axis = 5>")),
        conv_constants(),
        "refused scale-count wdq -> parser",
    ),
    case(
        "scale as an input",
        change(CONV, ("[1,8,6,6] x)", "[1,8,6,6] x, float s)")),
        conv_constants(s=None),
        "refused runtime-scale xq -> crash",
    ),
    case(
        "scale from data",
        change(CONV, ("[xq]", "[max] s = ReduceMax <keepdims = 0> (x)\n    [xq]")),
        conv_constants(s=None),
        "refused runtime-scale xq -> crash",
    ),
    # Operators, names, bodies.
    case(
        "DynamicQuantizeLinear",
        """g (float[4,64] x) => (float[4,64] y) {
        [dq] q, s, z = DynamicQuantizeLinear (x)
        [mm] y = DequantizeLinear (q, s, z) }""",
        {},
        "refused operator dq -> parser",
    ),
    case(
        "QLinearConv",
        """g (int8[1,8,6,6] x) => (int8[1,8,6,6] y) {
        [conv] y = QLinearConv <pads = [1,1,1,1]> (x, s, z, w, ws, wz, s, z) }""",
        conv_constants(),
        "refused operator conv -> parser",
    ),
    case(
        "MatMulInteger",
        """g (int8[4,64] x) => (int32[4,32] y) { [mm] y = MatMulInteger (x, w) }""",
        {"w": stored(64, 32)},
        "refused operator mm -> parser",
    ),
    case(
        "MatMulNBits",
        """g (float[4,64] x) => (float[4,32] y) {
        [mm] y = com.microsoft.MatMulNBits <K = 64, N = 32, bits = 4, block_size = 32> (x, w, ws) }""",
        {"w": np.ones((32, 2, 16), np.uint8), "ws": f32([0.1] * 64)},
        "refused operator mm -> parser",
        **{"com.microsoft": 1},
    ),
    case(
        "FakeQuantize left in",
        """g (float[4,64] x) => (float[4,64] y) {
        [fq] y = onnxfq.FakeQuantize <qtype = "int8"> (x, s, z) }""",
        int8_pair(),
        "refused operator fq -> parser Plugin not found",
        onnxfq=1,
    ),
    case(
        "unknown operator",
        "g (float[4,64] x) => (float[4,64] y) { [mine] y = my.Own (x) }",
        {},
        "refused operator mine -> parser Plugin not found",
        my=1,
    ),
    case(
        "two nodes of one name",
        change(CONV, ("[wdq]", "[xdq]")),
        conv_constants(),
        "refused duplicate-name xdq -> parser already in use",
    ),
    case("pair outside of an If", BRANCH, conv_constants(), "float outside-body conv -> float"),
    case(
        "nothing quantized",
        "g (float[4,64] x) => (float[4,32] y) { [mm] y = MatMul (x, w) }",
        {"w": weights(64, 32)},
        "warning not-quantized mm -> float",
    ),
    case(
        "a pair behind the product alone",
        f"""g (float[4,64] x) => (float[4,32] y) {{ [mm] a = MatMul (x, w) {pair("a", "a", "b", "y")} }}""",
        int8_pair(w=weights(64, 32)),
        "warning not-quantized mm -> float",
    ),
    case(
        "constant of both branches",
        BRANCH_INSIDE,
        conv_constants(),
        "refused shared-constant wdq2 -> builder Quantized constant",
    ),
    # Forms of operators.
    *(refused_form(*found) for found in read_table(FORMS)),
    case(
        "clean TopK",
        change(
            CONV,
            ("=> (float[1,8,6,6] y)", "=> (float[1,8,6,6] y, float[1,8,6,2] t)"),
            ("(d, k) }", "(d, k) t, i = TopK (y, two) }"),
        ),
        conv_constants(two=np.asarray([2])),
        " -> low",
    ),
    case(
        "Attention operator in float32",
        OPERATOR,
        int8_pair(),
        "refused operator-form mm -> builder CHECK",
        opset=23,
    ),
    case(
        "int32 numbers quantized",
        change(MATMUL, ("(float[2,4,64] x)", "(int32[2,4,64] x)")),
        matmul_constants(),
        "refused operator-form xq -> parser",
    ),
    case(
        "joined weights",
        change(
            MATMUL, ("[wdq] k =", "[wdq] half ="), ("[mm]", "[join] k = Concat <axis = 0> (half, half) [mm]")
        ),
        matmul_constants(w=stored(32, 32)),
        "refused operator-form join -> builder CHECK(is_tensor())",
    ),
    case(
        "scales of two types behind a Cast",
        change(
            MATMUL,
            ("DequantizeLinear (q, s, z)", "DequantizeLinear (q, sh, z)"),
            ("[mm]", "[cast] kh = Cast <to = 10> (k) [mm]"),
            ("MatMul (d, k)", "MatMul (d, kh)"),
            ("=> (float[", "=> (float16["),
        ),
        matmul_constants(sh=np.float16(0.02)),
        "refused float-types mm -> builder CHECK_EQ",
    ),
    case(
        "static float4 activation",
        MATMUL,
        matmul_constants(z=np.asarray(0).astype(ml_dtypes.float4_e2m1fn)),
        "refused float4 mm -> builder CHECK",
        opset=23,
    ),
    *(
        case(name, looped(end), matmul_constants(**LOOPED), f"{finding} -> {real}")
        for name, end, finding, real in (
            ("product that a Loop carries", "next = MatMul (d, k)", "float loop-result mm", "float"),
            ("clean product in a Loop", "m = MatMul (d, k) next = Identity (m)", "", "low"),
        )
    ),
    # Blocks and int4.
    case(
        "blocked Conv",
        change(CONV, ("<axis = 0> (w, ws, wz)", "<axis = 1, block_size = 4> (w, ws)")),
        conv_constants(ws=np.full((8, 2, 3, 3), 0.1, np.float32), wz=None),
        "refused block-axis wdq -> parser last or second to last",
    ),
    case(
        "block does not divide",
        change(INT4, ("[4,256]", "[4,248]")),
        int4_constants(k=248),
        "wrong block-size wdq -> weight-only",
    ),
    case(
        "blocks on both sides",
        """g (float[16,64] x) => (float[16,32] y) {
        [xq] q = QuantizeLinear <axis = 1, block_size = 16, output_dtype = 3> (x, s)
        [xdq] d = DequantizeLinear <axis = 1, block_size = 16> (q, s)
        [wdq] k = DequantizeLinear <axis = 0, block_size = 16> (w, ws)
        [mm] y = MatMul (d, k) }""",
        {
            "s": np.full((16, 4), 0.1, np.float32),
            "w": stored(64, 32),
            "ws": np.full((4, 32), 0.1, np.float32),
        },
        "wrong blocks-both-sides mm -> low",
    ),
    case(
        "blocked int8 by int8",
        change(MATMUL, ("<axis = 1> (w, ws, wz)", "<axis = 0, block_size = 16> (w, ws)")),
        matmul_constants(ws=np.full((4, 32), 0.1, np.float32), wz=None),
        "refused blocked-weight mm -> builder is_constant",
    ),
    case(
        "int4 by int8",
        change(MATMUL, ("<axis = 1> (w, ws, wz)", "<axis = 0, block_size = 16> (w, ws)")),
        matmul_constants(
            w=stored(64, 32, dtype=ml_dtypes.int4), ws=np.full((4, 32), 0.1, np.float32), wz=None
        ),
        "refused blocked-weight mm -> builder is_constant",
    ),
    case(
        "blocked int8 weight-only",
        INT4,
        {**int4_constants(), "w": stored(256, 32)},
        "float blocked-weight mm -> float",
    ),
    case(
        "odd count of int4",
        change(INT4, ("[4,256]", "[4,15]"), ("[4,32]", "[4,7]"), ("axis = 0, block_size = 64", "axis = 1")),
        {"w": stored(15, 7, dtype=ml_dtypes.int4), "ws": f32([0.1] * 7)},
        "refused odd-int4 wdq -> builder odd tensor volume",
    ),
    case(
        "odd last axis of int4",
        change(INT4, ("[4,32]", "[4,31]")),
        int4_constants(n=31),
        "float int4-weight mm -> float",
    ),
    case(
        "int4 per tensor",
        change(INT4, ("<axis = 0, block_size = 64> ", "")),
        {**int4_constants(), "ws": f32(0.1)},
        "float int4-weight mm -> float",
    ),
    case(
        "int4 per channel",
        change(INT4, ("axis = 0, block_size = 64", "axis = 1")),
        {**int4_constants(), "ws": f32([0.1] * 32)},
        "float int4-weight mm -> float",
    ),
    case(
        "int4 in one block",
        change(INT4, ("size = 64", "size = 256")),
        int4_constants(scales=1),
        "float int4-weight mm -> float",
    ),
    case(
        "int4 through a Cast",
        change(
            INT4,
            ("float[4,256] x", "float16[4,256] x"),
            ("float[4,32]", "float16[4,32]"),
            ("[mm] y = MatMul (x, k)", "[c] c = Cast <to = 10> (k)\n    [mm] y = MatMul (x, c)"),
        ),
        int4_constants(),
        "float int4-weight mm -> float",
    ),
    case(
        "int4 blocks along outputs",
        change(INT4, ("axis = 0, block_size = 64", "axis = 1, block_size = 16")),
        {**int4_constants(), "ws": np.full((256, 2), 0.1, np.float32)},
        "warning int4-axis mm -> weight-only",
    ),
    case(
        "int4 in blocks of 32",
        change(INT4, ("size = 64", "size = 32")),
        int4_constants(scales=8),
        "warning int4-block mm -> weight-only",
    ),
    case(
        "clean int4 in blocks of 128",
        change(INT4, ("size = 64", "size = 128")),
        int4_constants(scales=2),
        " -> weight-only",
    ),
    case(
        "int4 by int4 in blocks",
        """g (float[16,64] x) => (float[16,32] y) {
        [xq] q = QuantizeLinear <axis = 1, block_size = 16, output_dtype = 22> (x, s)
        [xdq] d = DequantizeLinear <axis = 1, block_size = 16> (q, s)
        [wdq] k = DequantizeLinear <axis = 0, block_size = 16> (w, ws)
        [mm] y = MatMul (d, k) }""",
        {**int4_constants(k=64), "s": np.full((16, 4), 0.1, np.float32)},
        "float int4-activation mm -> weight-only",
    ),
    # Placement.
    case(
        "only the activation",
        change(CONV, ("    [wdq] k = DequantizeLinear <axis = 0> (w, ws, wz)\n", ""), ("(d, k)", "(d, w)")),
        conv_constants(w=weights(8, 8, 3, 3), ws=None, wz=None),
        "float one-side conv -> float",
    ),
    case(
        "only the weight of a Conv",
        "g (float[1,8,6,6] x) => (float[1,8,6,6] y) {"
        " [wdq] k = DequantizeLinear <axis = 0> (w, ws) [conv] y = Conv <pads = [1,1,1,1]> (x, k) }",
        conv_constants(s=None, z=None, wz=None),
        "float weight-only-conv conv -> float",
    ),
    case(
        "float weight with Q and DQ, int8 weight-only",
        "g (float[1,4,64] x) => (float[1,4,32] y) {"
        " [wq] q = QuantizeLinear <axis = 1> (w, ws, wz) [wdq] k = DequantizeLinear <axis = 1> (q, ws, wz)"
        " [mm] y = MatMul (x, k) }",
        matmul_constants(s=None, z=None, w=weights(64, 32)),
        "float weight-only-form mm -> float",
    ),
    case(
        "float weight with Q and DQ, as a matrix",
        "g (float[4,64] x) => (float[4,32] y) {"
        " [wq] q = QuantizeLinear <axis = 1> (w, ws, wz) [wdq] k = DequantizeLinear <axis = 1> (q, ws, wz)"
        " [mm] y = MatMul (x, k) }",
        matmul_constants(s=None, z=None, w=weights(64, 32)),
        "warning weight-only-form mm -> weight-only",
    ),
    case("Concat of two scales", CONCAT, conv_constants(s2=f32(0.03)), "float concat-scales conv -> float"),
    case(
        "Concat with a bare input",
        change(CONCAT, ("(d, d2)", "(d, x2)")),
        conv_constants(s2=f32(0.02)),
        "float concat-scales conv -> float",
    ),
    case(
        "scale of shape [1]",
        CONV,
        conv_constants(s=f32([0.02]), z=np.zeros(1, np.int8)),
        "float scale-rank conv -> float",
    ),
    case(
        "activation per channel",
        CONV,
        conv_constants(s=f32([0.02] * 8), z=ZEROS8),
        "float activation-axis conv -> float",
    ),
    case(
        "activation along the summed axis",
        change(
            MATMUL,
            ("QuantizeLinear (x", "QuantizeLinear <axis = 2> (x"),
            ("DequantizeLinear (q", "DequantizeLinear <axis = 2> (q"),
        ),
        matmul_constants(s=f32([0.02] * 64), z=np.zeros(64, np.int8)),
        "float activation-axis mm -> mixed",
    ),
    case(
        "activation along rows of two matrices",
        change(
            MATMUL,
            ("QuantizeLinear (x", "QuantizeLinear <axis = 1> (x"),
            ("DequantizeLinear (q", "DequantizeLinear <axis = 1> (q"),
        ),
        matmul_constants(s=f32([0.02] * 4), z=np.zeros(4, np.int8)),
        "float activation-axis mm -> weight-only",
    ),
    case(
        "activation along rows",
        change(
            MATMUL,
            ("float[2,4,64]", "float[1,4,64]"),
            ("float[2,4,32]", "float[1,4,32]"),
            ("QuantizeLinear (x", "QuantizeLinear <axis = 1> (x"),
            ("DequantizeLinear (q", "DequantizeLinear <axis = 1> (q"),
        ),
        matmul_constants(s=f32([0.02] * 4), z=np.zeros(4, np.int8)),
        "warning activation-axis mm -> low",
    ),
    case(
        "weight axis 1 of Conv",
        change(CONV, ("axis = 0", "axis = 1")),
        conv_constants(),
        "float weight-axis conv -> float",
    ),
    case(
        "weight along the summed axis",
        change(MATMUL, ("axis = 1", "axis = 0")),
        matmul_constants(ws=f32([0.01] * 64), wz=np.zeros(64, np.int8)),
        "float weight-axis mm -> mixed",
    ),
    case(
        "float8 window 7x7",
        change(CONV, ("[1,1,1,1]", "[3,3,3,3]")),
        conv_constants(7, F8),
        "float float8-kernel conv -> float",
    ),
    case(
        "ConvTranspose",
        UP,
        conv_constants(2, ws=f32(0.01), wz=np.int8(0)),
        "warning conv-transpose conv -> float",
    ),
    case("skip branch without a pair", RESIDUAL, conv_constants(), "warning skip-branch add -> low"),
    case("float8 at opset 17", MATMUL, matmul_constants(F8), "warning opset xq -> low", opset=17),
    case(
        "int4 per channel by int8, Conv",
        CONV,
        conv_constants(w=stored(8, 8, 3, 3, dtype=ml_dtypes.int4), wz=np.zeros(8).astype(ml_dtypes.int4)),
        "refused mixed-types conv -> builder W.type()",
    ),
    case(
        "int8 weight of one row",
        """g (float[1,256] x) => (float[1,1000] y) {
        [wdq] k = DequantizeLinear <axis = 1> (w, ws, wz)
        [mm] y = MatMul (x, k) }""",
        {"w": stored(256, 1000), "ws": f32([0.01] * 1000), "wz": np.zeros(1000, np.int8)},
        "float one-row mm -> float",
    ),
    case(
        "small int4 Gemm of one row, whose bias is another kernel",
        """g (float[1,256] x) => (float[1,32] y) {
        [wdq] k = DequantizeLinear <axis = 0, block_size = 64> (w, ws)
        [mm] y = Gemm (x, k, b) }""",
        {**int4_constants(), "b": np.linspace(-1, 1, 32, dtype=np.float32)},
        " -> weight-only",
    ),
    *(
        case(
            f"int4 of one row {what}",
            change(
                INT4, ("float[4,256] x", f"float[1,{k}] x"), ("float[4,32]", f"float[1,{n}]"), (BLOCKS, given)
            ),
            {"w": stored(k, n, dtype=ml_dtypes.int4), "ws": np.full(shape, 0.1, np.float32)},
            f"{finding} -> {real}",
        )
        for what, k, n, given, shape, finding, real in (
            ("in one block", 128, 64, "axis = 0, block_size = 128", (1, 64), "", "weight-only"),
            ("by channel", 128, 64, "axis = 1", (64,), "warning int4-block mm", "weight-only"),
            ("in one number", 256, 512, "axis = 0", (), "warning int4-block mm", "weight-only"),
            ("in one block, long", 1538, 64, "axis = 0, block_size = 1538", (1, 64), ONE_ROW, "float"),
            ("in one block, wide", 256, 514, "axis = 0, block_size = 256", (1, 514), ONE_ROW, "float"),
            ("in one block, large", 1024, 130, "axis = 0, block_size = 1024", (1, 130), ONE_ROW, "float"),
        )
    ),
    case(
        "blocks that are no whole number",
        change(INT4, ("[4,256]", "[4,320]"), ("block_size = 64", "block_size = 128")),
        int4_constants(320, 32, 3),
        "refused block-size wdq -> parser divide into whole blocks",
    ),
    case(
        "zero point by Squeeze",
        change(CONV, ("[xq] q", "sz = Squeeze (zs) [xq] q"), ("(x, s, z)", "(x, s, sz)")),
        conv_constants(zs=np.zeros(1, np.int8)),
        f"refused zero-point xq -> {CONSTANT}",
    ),
    case("clean int8 conv at opset 26", CONV, conv_constants(), "warning classic-opset xq -> low", opset=26),
    case(
        "odd groups",
        change(CONV, ("= Conv <", "= Conv <group = 4, ")),
        conv_constants(w=stored(8, 2, 3, 3)),
        "warning classic-groups conv -> low",
    ),
    case(
        "int4 scales of a stack",
        """g (float[2,4,256] x) => (float[2,4,32] y) {
        [wdq] k = DequantizeLinear <axis = 1, block_size = 64> (w, ws)
        [mm] y = MatMul (x, k) }""",
        {"w": stored(2, 256, 32, dtype=ml_dtypes.int4), "ws": np.full((2, 4, 32), 0.1, np.float32)},
        "warning classic-scales wdq -> weight-only",
    ),
    case(
        "LSTM weights",
        """g (float[3,1,8] x) => (float[3,1,1,4] y) {
        [wdq] k = DequantizeLinear (w, s) [rdq] r = DequantizeLinear (rw, s)
        [mm] y = LSTM <hidden_size = 4> (x, k, r) }""",
        {"w": stored(1, 16, 8), "rw": stored(1, 16, 4), "s": f32(0.1)},
        "warning recurrent mm -> weight-only",
    ),
    case(
        "Cast in front of an LSTM",
        LOOP,
        {"w": weights(1, 16, 8), "r": weights(1, 16, 4)},
        "refused recurrent-cast mm -> builder Error during shape inference",
    ),
    case(
        "clean Cast in front of one step",
        change(LOOP, ("float16[3,", "float16[1,"), ("(float[3,", "(float[1,")),
        {"w": weights(1, 16, 8), "r": weights(1, 16, 4)},
        " -> float",
    ),
    # Attention and float4.
    case(
        "Attention operator",
        change(OPERATOR, ("float[", "float16[")),
        int8_pair(s=np.float16(0.02)),
        "float attention-operator mm -> float",
        opset=23,
    ),
    case("attention without a quantized reader", ATTENTION, int8_pair(), "warning attention scores -> low"),
    case(
        "int8 attention of one query",
        change(
            ATTENTION,
            ("[1,2,16,32] a,", "[1,2,1,32] a,"),
            ("[1,2,16,32] y)", "[1,2,1,32] y)"),
            ("float[", "float16["),
        ),
        int8_pair(s=np.float16(0.02)),
        "warning attention scores -> low",
    ),
    case(
        "half an attention",
        change(ATTENTION, ("(p2, v2)", "(p2, v)"), ("(p2, v)", "(p, v)")),
        int8_pair(),
        "warning attention scores -> float",
    ),
    case(
        "Softmax without a pair",
        change(ATTENTION, ("(p2, v2)", "(p, v2)")),
        int8_pair(),
        "float one-side mm -> mixed",
    ),
    case("a pair for each part", PARTS, parts_constants(), "warning attention-parts mm -> mixed"),
    case("one pair for all parts", change(PARTS, *ONE_PAIR), parts_constants(), " -> low"),
    case(
        "int4 behind an attention of one sample",
        PROJECTION,
        {
            **int4_constants(k=128, scales=2),
            "ws": np.full((2, 32), 0.01, np.float16),
            "joined": np.asarray([1, 16, 128], np.int64),
        },
        "float attention-projection mm -> float",
        opset=21,
    ),
    case(
        "float4 in blocks of 32",
        change(FLOAT4, ("axis = -1, block_size = 16, scale", "axis = -1, block_size = 32, scale")),
        float4_constants(),
        "refused dynamic-block dyn -> parser block_size == 16",
        opset=23,
        trt=1,
    ),
    case(
        "float4 of four axes",
        change(
            FLOAT4, ("float[16,256]", "float[1,2,8,256]"), ("float[16,128]", "float[1,2,8,128]"), AS_MATMUL
        ),
        float4_constants(),
        "refused dynamic-rank dyn -> parser must be 2D or 3D",
        opset=23,
        trt=1,
    ),
    case("clean float4 of two computed tensors", FLOAT4_TWICE, FLOAT4_SCALE, " -> low", opset=23, trt=1),
    case(
        "float4 by an open float4",
        change(
            FLOAT4_TWICE,
            ("float[16,64] x, float[64,64] x2", "float[N,16,64] x, float[N,64,64] x2"),
            ("float[16,64] y", "float[N,16,64] y"),
        ),
        FLOAT4_SCALE,
        "refused float4-open mm -> builder CHECK",
        opset=23,
        trt=1,
    ),
    case(
        "float4 of one block a row",
        change(FLOAT4, ("float[16,256]", "float[16,16]")),
        one_block_constants(128),
        "float one-block mm -> float",
        opset=23,
        trt=1,
    ),
    case(
        "float4 of one block",
        change(FLOAT4, ("float[16,256]", "float[1,16]"), ("float[16,128]", "float[1,128]")),
        one_block_constants(128),
        "refused one-block mm -> parser ScaleMode",
        opset=23,
        trt=1,
    ),
    case(
        "clean float4 of one block a row and an open size",
        change(FLOAT4, ("float[16,256]", "float[N,16]"), ("float[16,128]", "float[N,128]")),
        one_block_constants(128),
        " -> low",
        opset=23,
        trt=1,
    ),
    case(
        "MXFP8 of one block a row",
        """g (float[16,32] x) => (float[16,64] y) {
        [dyn] q, qs = trt.TRT_MXFP8DynamicQuantize <axis = -1, block_size = 32, output_dtype = 17> (x)
        [xdq] d = trt.TRT_MXFP8DequantizeLinear <axis = -1, block_size = 32, output_dtype = 1> (q, qs)
        [wdq] k = trt.TRT_MXFP8DequantizeLinear <axis = 0, block_size = 32, output_dtype = 1> (w, ws)
        [mm] y = MatMul (d, k) }""",
        {"w": stored(32, 64, dtype=ml_dtypes.float8_e4m3fn), "ws": np.full((1, 64), 127, np.uint8)},
        "refused one-block mm -> builder",
        trt=1,
    ),
    case("MXFP8 of two computed tensors", MXFP8_TWICE, {}, "float mxfp8-product mm -> float", trt=1),
    case(
        "float4 weight-only",
        """g (float[16,256] x) => (float[16,128] y) {
        [wsdq] s2 = DequantizeLinear (ws, gs)
        [wdq] k = DequantizeLinear <axis = 1, block_size = 16> (w, s2)
        [mm] y = Gemm <transB = 1> (x, k) }""",
        float4_constants(),
        "float float4 mm -> float",
        opset=23,
    ),
)
