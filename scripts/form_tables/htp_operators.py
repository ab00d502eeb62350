"""Operators that the HTP's emulation does not take between pairs of 8 or of 16 bits."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import numpy_helper, parser

from form_tables import Tried
from onnxfq.errors import ModelError
from onnxfq.runtime.optimized_graph import assign_nodes
from onnxfq.targets.qnn import build
from onnxfq.targets.reading.runtime_forms import REFUSES, RuntimeForm

WIDTHS = {8: np.uint8, 16: np.uint16}
SHAPES = {0: "float[1,8,8,8]", 5: "float[1,8,4,4,4]"}
"""Shape of the data by its axes; 0 stands for few."""

ONE = (
    "Abs Asin Atan Ceil Celu Cos Elu Erf Exp Flatten Floor Gelu GlobalAveragePool GlobalMaxPool HardSigmoid "
    "HardSwish Identity LeakyRelu Log LogSoftmax Mish Neg Reciprocal Relu Round Selu Sigmoid Sign Sin Sinh "
    "Softmax Softplus Softsign Sqrt Tan Tanh ThresholdedRelu Transpose"
)
REDUCING = ("ReduceL2", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum")
TEXTS = {
    **{op: f"{op} (a)" for op in ONE.split()},
    **{op: f"{op} (a, b)" for op in "Add Div Max Mean Min Mul PRelu Pow Sub".split()},
    **{op: f"{op} <kernel_shape = [2,2]> (a)" for op in ("AveragePool", "MaxPool")},
    **{op: f"{op} (a, three)" for op in REDUCING},
    "Concat": "Concat <axis = 1> (a, b)",
    "DepthToSpace": "DepthToSpace <blocksize = 2> (a)",
    "SpaceToDepth": "SpaceToDepth <blocksize = 2> (a)",
    "LRN": "LRN <size = 3> (a)",
    "LpNormalization": "LpNormalization <axis = 1> (a)",
    "Mod": "Mod <fmod = 1> (a, b)",
    "Gather": "Gather <axis = 1> (a, three)",
    "Squeeze": "Squeeze (a, zero)",
    "Unsqueeze": "Unsqueeze (a, zero)",
    "ScatterND": "ScatterND (a, place, b)",
}


def make_network(text: str, width: int, rank: int = 0) -> onnx.ModelProto:
    """Return the operator between pairs of `width` bits."""
    pairs = "".join(
        f"{name}q = QuantizeLinear ({given}, s, z) {name} = DequantizeLinear ({name}q, s, z) "
        for name, given in (("a", "x"), ("b", "x2"))
    )
    behind = "yq = QuantizeLinear (t, s, z) y = DequantizeLinear (yq, s, z)"
    model = parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : 21]> g ({SHAPES[rank]} x, {SHAPES[rank]} x2) => (float y) '
        f"{{ {pairs} [it] t = {text} {behind} }}"
    )
    model.graph.output[0].type.tensor_type.ClearField("shape")
    dtype = WIDTHS[width]
    middle = (np.iinfo(dtype).max + 1) // 2
    values = {
        "s": np.float32(0.05 if width == 8 else 0.05 / 256),
        "z": np.asarray(middle, dtype),
        "three": np.int64([3]),
        "zero": np.int64([0]),
        "place": np.zeros((1, 1), np.int64),
    }
    read = {name for node in model.graph.node for name in node.input}
    model.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(array), name) for name, array in values.items() if name in read
    )
    return onnx.shape_inference.infer_shapes(model)


def ask(text: str, width: int, rank: int = 0) -> str:
    """Return what is wrong with the operator; one that ONNX Runtime renames is the HTP's."""
    settings = build.register()
    try:
        found = assign_nodes(make_network(text, width, rank), build.PROVIDER, settings)
    except ModelError:
        return REFUSES
    return "" if found.get("it", build.PROVIDER) == build.PROVIDER else "runs on the CPU"


def ask_all(part: slice) -> list[Tried]:
    """Return what the emulation makes of `part` of the operators in both widths, and on more axes."""
    asked = [(op, text, width) for op, text in sorted(TEXTS.items()) for width in WIDTHS][part]
    found = [Tried(RuntimeForm(op, ask(text, width), bits=width)) for op, text, width in asked]
    taken = [one.form for one in found if not one.form.says and one.form.op in ONE.split()]
    return found + [
        Tried(form._replace(says=ask(TEXTS[form.op], form.bits, 5), rank=5))
        for form in taken
        if not form.op.startswith("Global")
    ]
