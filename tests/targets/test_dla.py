"""`check --gpu dla`: limits from NVIDIA's documents, on both sides, and forms that these leave unknown.

No builder for DLA runs here. The cases are the numbers of NvInfer.h of TensorRT 11.1, of NVIDIA's page of
restrictions, and of its matrix of ONNX operators.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from builders import build, feed_for, weights

import onnxfq
from onnxfq.targets.tensorrt.rules.dla_forms import FORMS, find_limits

IMAGE = "1,8,40,40"
CONSTANTS = {
    "w": weights(8, 8, 3, 3),
    "one": weights(8, 8, 1, 1),
    "w5": weights(8, 8, 5, 5),
    "w33": weights(8, 8, 33, 33),
    "wide": weights(8, 8, 1, 64),
    "square": weights(8, 8, 64, 64),
    "deep": weights(8, 8, 3, 3, 3),
    "grouped": weights(8, 4, 3, 3),
    "many": weights(8193, 8, 1, 1),
    "slope": weights(8, 1, 1),
    "twice": np.asarray([1, 1, 2, 2], np.float32),
    "five": np.asarray([1, 1, 5, 5], np.float32),
    "odd": np.asarray([1, 1, 1.5, 1.5], np.float32),
    "sizes": np.asarray([1, 8, 80, 80]),
    "from0": np.asarray([0]),
    "from1": np.asarray([1]),
    "to9": np.asarray([9]),
    "rows": np.asarray([2]),
    "by2": np.asarray([2]),
    "flat": np.asarray([1, 8, 1600]),
    "again": np.asarray([1, 8, 1600, 1]),
    "around": np.asarray([0, 0, 1, 1, 0, 0, 1, 1]),
    "half": np.float32(0.5),
    "mat": weights(40, 16),
    "halves": np.asarray([4, 4]),
}
UNKNOWN = "unknown whether DLA takes it: "

# Operator on the image x -> the piece of the finding; empty for none.
CASES: dict[str, str] = {
    "Conv <pads = [2,2,2,2]> (x, w)": "",
    "Conv <pads = [3,2,2,2]> (x, w)": "pads has 3 beside a window of 3",
    'Conv <auto_pad = "SAME_UPPER"> (x, w)': "",
    'Conv <auto_pad = "SAME_UPPER", dilations = [3,3]> (x, w)': "pads has 3 beside a window of 3",
    "Conv <pads = [31,31,31,31]> (x, w33)": "kernel_shape is 33, and DLA takes 1 to 32",
    "Conv <strides = [8,8]> (x, w)": "",
    "Conv <strides = [9,8]> (x, w)": "strides is 9, and DLA takes 1 to 8",
    "Conv <dilations = [2,19]> (x, w)": "",
    "Conv <group = 2> (x, grouped)": "",
    "Conv (x, many)": "has size 8,193 along axis 1",
    "ConvTranspose <strides = [2,2]> (x, w)": "",
    "ConvTranspose <pads = [1,1,1,1]> (x, w)": "pads is 1, and DLA takes 0 to 0",
    "ConvTranspose <group = 2> (x, grouped)": "group is 2, and DLA takes 1 to 1",
    "ConvTranspose <dilations = [2,2]> (x, w)": "dilations is 2",
    "ConvTranspose <strides = [1,64]> (x, wide)": "",
    "ConvTranspose <strides = [2,64]> (x, wide)": "strides is 2x64, and DLA takes 1 to 32, or 1 and one of",
    "ConvTranspose <strides = [33,1]> (x, one)": "strides is 33x1",
    "ConvTranspose (x, square)": "kernel_shape is 64x64",
    "ConvTranspose <strides = [2,2], output_padding = [1,1]> (x, w)": UNKNOWN + "no document",
    "MaxPool <kernel_shape = [8,8], strides = [16,16], pads = [7,7,7,7]> (x)": "",
    "MaxPool <kernel_shape = [9,8]> (x)": "kernel_shape is 9, and DLA takes 1 to 8",
    "MaxPool <kernel_shape = [8,8], strides = [17,1]> (x)": "strides is 17, and DLA takes 1 to 16",
    'MaxPool <kernel_shape = [8,8], auto_pad = "SAME_LOWER"> (x)': "",
    "MaxPool <kernel_shape = [2,2], ceil_mode = 1> (x)": UNKNOWN + "no document says whether DLA rounds",
    "AveragePool <kernel_shape = [8,8]> (x)": "",
    "AveragePool <kernel_shape = [3,3], pads = [1,1,1,1], count_include_pad = 1> (x)": "",
    "AveragePool <kernel_shape = [3,3], pads = [1,1,1,1]> (x)": UNKNOWN + "no document says whether DLA aver",
    "Concat <axis = 1> (x, x)": "",
    "Concat <axis = -3> (x, x)": "",
    "Concat <axis = 2> (x, x)": "axis is 2 of 4, and DLA joins channels only, axis 1",
    "Concat <axis = 1> (x)": "DLA joins two tensors and more",
    "LRN <size = 9> (x)": "",
    "LRN <size = 11> (x)": "size is 11, and DLA takes 3, 5, 7 and 9",
    "Softmax <axis = 1> (x)": "",
    "Softmax <axis = 0> (x)": "axis is 0 of 4",
    "PRelu (x, slope)": "",
    "PRelu (x, x)": "its slope 'x' is computed",
    "Resize (x, , twice)": "",
    'Resize <coordinate_transformation_mode = "asymmetric", nearest_mode = "floor"> (x, , twice)': "",
    'Resize <coordinate_transformation_mode = "asymmetric"> (x, , twice)': "by asymmetric and round",
    "Resize (x, , five)": "",
    'Resize <mode = "linear"> (x, , twice)': "",
    'Resize <mode = "linear"> (x, , five)': "scales are 1, 1, 5, 5, and DLA takes 1, 1 and whole",
    'Resize <mode = "linear", coordinate_transformation_mode = "align_corners"> (x, , twice)': "by align",
    'Resize <mode = "cubic"> (x, , twice)': "mode is cubic",
    "Resize (x, , odd)": "scales are 1, 1, 1.5, 1.5",
    "Resize (x, , , sizes)": "it resizes to given sizes",
    "Slice (x, from0, to9, rows)": "",
    "Slice (x, from0, to9, from0)": "",
    "Slice (x, from1, to9, from0)": "it goes along axis 0",
    "Slice (x, from0, to9, rows, by2)": "steps are [2], and DLA takes 1",
    "Transpose <perm = [0,1,3,2]> (x)": "",
    "Reshape (x, again)": "",
    "Reshape (x, flat)": UNKNOWN + "no document says it of tensors of 3 axes",
    "Pad (x, around)": UNKNOWN + "NvInfer.h takes a Slice that fills with zeros",
    "Pad (x, around, half)": "DLA fills with zeros",
    "MatMul (x, mat)": UNKNOWN + "TensorRT 8.6 made a 1x1 convolution of it",
    "MatMul (x, x)": "its second operand is computed",
    "Flatten <axis = 3> (x)": UNKNOWN + "the matrix lacks it",
    "GlobalMaxPool (x)": UNKNOWN + "the matrix has it in TensorRT 8.6.12",
    "GlobalAveragePool (x)": "DLA leaves it to the GPU: it has no GlobalAveragePool",
    "Cast <to = 10> (x)": UNKNOWN + "no document has a Cast",
    "Abs (x)": "",
    "LeakyRelu (x)": "",
    "Div (x, half)": "",
    "Erf (x)": "it has no Erf",
}


def told(proto: onnx.ModelProto) -> dict[str, str]:
    """Return the messages of the rule by node."""
    found = onnxfq.check(proto, "tensorrt", gpus=["dla"]).findings
    assert all(one.severity == "warning" for one in found if one.rule == "dla")
    return {one.node: one.message for one in found if one.rule == "dla"}


@pytest.mark.parametrize("op", CASES)
def test_forms(op: str) -> None:
    """An operator at a documented limit is taken, one beyond it is not, and others are unknown."""
    words = op.replace(",", " ").replace(")", " ").replace("(", " ").split()
    used = {name: array for name, array in CONSTANTS.items() if name in words}
    kind = "float16" if op.startswith("Cast") else "float"
    proto = build(f"g (float[{IMAGE}] x) => ({kind}[] y) {{ [op] y = {op} }}", used, opset=18)
    message, says = told(proto).get("op", ""), CASES[op]
    assert bool(message) == bool(says) and says in message
    assert not message or message.startswith(("unknown whether DLA takes it: ", "DLA leaves it to the GPU: "))


def test_operators_of_the_table_are_tried() -> None:
    """Each function of the table has a case here or in the tests below."""
    tried = {op.split()[0] for op in CASES} | {"Add", "Equal", "Split", "Clip"}
    assert {FORMS[op] for op in tried & FORMS.keys()} == set(FORMS.values())
    assert callable(find_limits)


@pytest.mark.parametrize(
    ("shape", "says"),
    [
        ("4096,4,8192,8", ""),
        ("64,64,4,8192,8", ""),
        ("4097,4,8,8", "has 4,097 samples, and DLA takes up to 4,096"),
        ("65,64,4,8,8", "has 4,160 samples"),
        ("1,4,8193,8", "has size 8,193 along axis 2, and DLA takes up to 8,192"),
        ("8193,4,8", "has size 8,193 along axis 0"),
    ],
)
def test_sizes(shape: str, says: str) -> None:
    """Up to 4096 samples, the product of all axes but the last three, and up to 8192 of any other size."""
    proto = build(f"g (float[{shape}] x) => (float[{shape}] y) {{ [act] y = Relu (x) }}")
    message = told(proto).get("act", "")
    assert bool(message) == bool(says) and says in message


def test_softmax_has_two_limits() -> None:
    """Up to 8192 along an axis where all others are 1, up to 1024 elsewhere (NvInfer.h, ISoftMaxLayer)."""
    shapes = {"1,8192,1,1": "", "1,1025,1,1": "", "1,1024,2,1": "", "1,1025,2,1": "DLA takes 1 to 1024"}
    for shape, says in shapes.items():
        proto = build(f"g (float[{shape}] x) => (float[{shape}] y) {{ [op] y = Softmax <axis = 1> (x) }}")
        message = told(proto).get("op", "")
        assert bool(message) == bool(says) and says in message, shape


@pytest.mark.parametrize(
    ("op", "says"),
    [
        ("MaxPool <kernel_shape = [2,2]> (d)", "its input has scale 0.02 and its output 0.03"),
        ("Add (d, e)", "its inputs have scales 0.02 and 0.03"),
        ("Relu (d)", ""),
    ],
)
def test_int8_operators_of_one_scale(op: str, says: str) -> None:
    """Pools and operators on two tensors have one scale in int8 (NvInfer.h), and equal ones pass."""
    for other in (0.03, 0.02):
        proto = build(
            f"""g (float[{IMAGE}] x) => (float[] y) {{ q = QuantizeLinear (x, s, z)
            d = DequantizeLinear (q, s, z) r = QuantizeLinear (x, t, z) e = DequantizeLinear (r, t, z)
            [op] o = {op} p = QuantizeLinear (o, t, z) y = DequantizeLinear (p, t, z) }}""",
            {"s": np.float32(0.02), "t": np.float32(other), "z": np.int8(0)},
            opset=21,
            ir=10,
        )
        message = told(proto).get("op", "")
        assert (says in message) if says and other == 0.03 else not message


def test_comparisons_splits_and_open_inputs() -> None:
    """A comparison needs a Cast behind it, a Split cuts no samples apart, and open dimensions are refused."""
    proto = build(
        f"""g (float[N,8,40,40] x, float[{IMAGE}] u) => (float16[] c, bool[] f, float[] a, float[] k) {{
        [good] e = Equal (x, u) [behind] c = Cast <to = 10> (e) [bad] f = Greater (x, u)
        [cut] a, b = Split <axis = 1> (u, halves) [clip] k = Clip (u) }}""",
        {"halves": CONSTANTS["halves"]},
        opset=17,
    )
    found = told(proto)
    assert set(found) == {"good", "bad"} and "only if a Cast reads it" in found["bad"]
    assert "input 'x' has open dimensions" in found["good"]


def test_weights_and_constants_are_no_operators() -> None:
    """Constants of the build are left out, and a network of operators that DLA takes gives no finding."""
    proto = build(
        f"""g (float[{IMAGE}] x) => (float[] y) {{ n = Shape (x) t = Neg (w)
        [c] a = Conv <pads = [1,1,1,1]> (x, t) [r] y = Relu (a) }}""",
        {"w": CONSTANTS["w"]},
    )
    assert not told(proto)
    off = onnxfq.AccuracyTarget(repair=None)
    written = onnxfq.quantize(proto, [feed_for(proto, seed) for seed in range(3)], accuracy=off).qdq
    assert not told(written)
    assert not [one for one in onnxfq.check(written, gpus=["orin"]).findings if one.rule == "dla"]
