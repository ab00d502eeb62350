"""Forms of operators that TensorRT refuses: what `check` makes of the table, and of what it does not have."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from builders import build
from engines import needs_builder

import onnxfq
from onnxfq.errors import DataError
from onnxfq.targets.target import BuildOptions


def test_quantized_uint8_is_no_form() -> None:
    """An operator may move quantized uint8 numbers; another rule says that TensorRT takes them for int8."""
    proto = build(
        """g (float[2,64] x) => (float[32,2] y) {
        q = QuantizeLinear (x, s, z) t = Transpose (q) d = DequantizeLinear (t, s, z) y = MatMul (w, d) }""",
        {"s": np.float32(0.1), "z": np.uint8(0), "w": np.ones((32, 64), np.float32)},
    )
    assert "operator-form" not in {found.rule for found in onnxfq.check(proto).findings}


def runtime(inputs: str, text: str, *shape: int) -> onnx.ModelProto:
    """A network with a pair, with a node that reads integers of an input."""
    return build(
        f"""g (float[1,8,6,6] x, {inputs}) => (float[{",".join("N" * len(shape))}] y) {{
        q = QuantizeLinear (x, s, z) d = DequantizeLinear (q, s, z) k = DequantizeLinear <axis = 0> (w, ws)
        c = Conv <pads = [1,1,1,1]> (d, k) {text} }}""",
        {
            "s": np.float32(0.1),
            "z": np.int8(0),
            "w": np.ones((8, 8, 3, 3), np.int8),
            "ws": np.full(8, 0.1, np.float32),
        },
    )


@needs_builder
@pytest.mark.parametrize(
    ("proto", "values"),
    [
        (runtime("int64[8] n", "y = Pad (c, n)", 1, 8, 6, 6), {}),
        (runtime("int64[1] n", "o = Squeeze (n) y = CumSum (c, o)", 1, 8, 6, 6), {}),
        (runtime("int64[2] n", "y = Reshape (c, n)", 8, 36), {"n": [8, 36]}),
    ],
    ids=["Pad", "CumSum", "Reshape"],
)
def test_shape_inputs_are_set(proto: onnx.ModelProto, values: dict[str, list[int]]) -> None:
    """Amounts and axes get a guess, shapes what is given; without these a Reshape is not built."""
    assert onnxfq.check(proto, build=BuildOptions(values=values)).passed
    if values:
        assert not onnxfq.check(proto, build=BuildOptions()).passed
        with pytest.raises(DataError, match="takes 2 values, not 1"):
            onnxfq.check(proto, build=BuildOptions(values={"n": [1]}))
        with pytest.raises(DataError, match="values are given for 'm', but integer inputs of fixed length"):
            onnxfq.check(proto, build=BuildOptions(values={"m": [1]}))


def test_both_columns_are_named() -> None:
    """The finding says which TensorRT has the operator."""
    proto = build(
        "g (float[1,8,6,6] x, float[2,4] r, int64[2] i) => (float[2,8,3,3] y) {"
        "q = QuantizeLinear (x, s, z) d = DequantizeLinear (q, s, z)"
        "[roi] y = RoiAlign <output_height = 3, output_width = 3> (d, r, i) }",
        {"s": np.float32(0.1), "z": np.int8(0)},
    )
    (found,) = [one for one in onnxfq.check(proto).findings if one.node == "roi"]
    assert found.severity == "refused" and "classic TensorRT 10 and 11 have it" in found.message
