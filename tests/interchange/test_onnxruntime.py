"""onnxruntime's overrides and ranges: the scales that its own quantizer makes of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from builders import build, constants, feed_for, weights
from given_files import by_tensor, file, fitted
from onnxruntime.quantization import (
    CalibrationDataReader,
    CalibrationMethod,
    QuantFormat,
    QuantType,
    create_calibrator,
    quantize_static,
    write_calibration_table,
)
from onnxruntime.quantization.calibrate import save_tensors_data

import onnxfq
from onnxfq.errors import PlanError
from onnxfq.interchange import read_given
from onnxfq.targets.recipes import load_recipe


def network() -> onnx.ModelProto:
    """A Conv and a Gemm."""
    return build(
        """g (float[1,3,6,6] x) => (float[1,5] y) {
            [conv] c = Conv <pads = [1,1,1,1]> (x, w1)
            [pool] p = GlobalAveragePool (c)
            [flat] f = Flatten (p)
            [fc] y = Gemm <transB = 1> (f, w2) }""",
        {"w1": weights(4, 3, 3, 3), "w2": weights(5, 4)},
    )


class Reader(CalibrationDataReader):
    """Eight feeds."""

    def __init__(self) -> None:
        self.feeds = iter([{"x": x[None]} for x in feed_for(network(), count=8)["x"]])

    def get_next(self) -> dict[str, Any] | None:
        """Return the next feed."""
        return next(self.feeds, None)


def entry(kind: QuantType | None = None, zero_point: Any = None, **fields: Any) -> dict[str, Any]:
    """Return one override; floats become float32, as onnxruntime wants them."""
    made = {key: np.array(one, np.float32) if isinstance(one, float) else one for key, one in fields.items()}
    made |= {} if kind is None else {"quant_type": kind}
    return made if zero_point is None else made | {"zero_point": np.asarray(zero_point)}


INT8, UINT8 = QuantType.QInt8, QuantType.QUInt8
OVERRIDES: dict[str, dict[str, Any]] = {
    "scale and zero point": {"x": [entry(None, np.uint8(120), scale=0.03)]},
    "16 bits": {"x": [entry(QuantType.QUInt16, np.uint16(30000), scale=0.001)]},
    "range": {"x": [entry(rmin=-1.25, rmax=3.0)]},
    "symmetric uint8": {"x": [entry(UINT8, rmin=-1.2, rmax=3.1, symmetric=True)]},
    "symmetric int8": {"x": [entry(INT8, rmin=-1.0, rmax=3.0, symmetric=True)]},
    "channels": {"w1": [entry(INT8, np.int8(0), axis=0, scale=s) for s in (0.01, 0.02, 0.03, 0.04)]},
    "ranges of channels": {
        "w1": [entry(INT8, axis=0, rmin=-e, rmax=e / 2, symmetric=True) for e in (1.0, 2.0, 3.0, 4.0)]
    },
    "reduced": {"w1": [entry(INT8, rmin=-1.5, rmax=1.0, reduce_range=True, symmetric=False)]},
}


def by_onnxruntime(overrides: dict[str, Any], folder: Path) -> dict[str, tuple[Any, ...]]:
    """Return scale and zero point that `quantize_static` gives the overridden tensors."""
    onnx.save(network(), folder / "float.onnx")
    quantize_static(
        folder / "float.onnx",
        folder / "qdq.onnx",
        Reader(),
        quant_format=QuantFormat.QDQ,
        activation_type=UINT8,
        weight_type=INT8,
        extra_options={"TensorQuantOverrides": overrides, "UseQDQContribOps": True},
    )
    proto = onnx.load(folder / "qdq.onnx")
    arrays, found = constants(proto), {}
    for node in proto.graph.node:
        read = node.input[0]
        if node.op_type == "QuantizeLinear" or read.endswith("_quantized"):
            found[read.removesuffix("_quantized")] = tuple(arrays[name] for name in node.input[1:3])
    return {tensor: found[tensor] for tensor in overrides}


@pytest.mark.filterwarnings("ignore")  # onnxruntime's own
@pytest.mark.parametrize("name", OVERRIDES)
def test_overrides_give_onnxruntimes_scales(name: str, tmp_path: Path) -> None:
    """A dictionary of overrides is taken as it is: scales and zero points equal `quantize_static`."""
    recipe = load_recipe("onnxruntime-int8")
    _, found = fitted(network(), OVERRIDES[name], recipe)
    mine = by_tensor(found)
    for tensor, (scale, zero) in by_onnxruntime(OVERRIDES[name], tmp_path).items():
        np.testing.assert_array_equal(mine[tensor].scale, scale)
        moved = mine[tensor].zero_point - mine[tensor].spec.qtype.qmin
        lowest = mine[tensor].spec.qtype.qmin if "reduced" in name else np.iinfo(zero.dtype).min
        np.testing.assert_array_equal(moved, zero.astype(np.int64) - lowest)


def test_overrides_in_a_file(tmp_path: Path) -> None:
    """JSON has names of types in place of onnxruntime's enumeration."""
    content = {"x": [{"quant_type": "QUInt16", "scale": 0.001, "zero_point": 30000}], "f": [{}]}
    _, found = fitted(network(), file(tmp_path, content), "onnxruntime-int8")
    (x,) = found.encodings
    assert (x.tensor, x.scale, x.zero_point) == ("x", (float(np.float32(0.001)),), (30000,))


def test_a_format_alone_is_calibrated(tmp_path: Path) -> None:
    """Overrides without numbers say the format; the numbers come from data."""
    data = feed_for(network(), count=8)
    given = {"x": [{"quant_type": QuantType.QInt16, "symmetric": True}]}
    with pytest.raises(PlanError, match="has no scale for 2 activation"):
        onnxfq.quantize(network(), None, recipe="onnxruntime-int8", sources=onnxfq.Sources(encodings=given))
    recipe = load_recipe("onnxruntime-int8").override(activations={"calibrator": "minmax"})
    result = onnxfq.quantize(network(), data, recipe=recipe, sources=onnxfq.Sources(encodings=given))
    x = result.encodings["x"]
    assert (x.spec.qtype.name, x.spec.symmetric) == ("int16", True)
    ends = data["x"].min().astype(np.float64), data["x"].max().astype(np.float64)
    assert x.scale == np.float32(max(ends[0] / -32768, ends[1] / 32767))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("which", ["table", "cache"])
@pytest.mark.parametrize("recipe", ["tensorrt-int8", "onnxruntime-int8"])
def test_ranges_give_what_the_same_data_give(which: str, recipe: str, tmp_path: Path) -> None:
    """Ranges that onnxruntime observed make the scales that our own min-max makes of the same data."""
    onnx.save(network(), tmp_path / "float.onnx")
    made = {"augmented_model_path": str(tmp_path / "a.onnx"), "calibrate_method": CalibrationMethod.MinMax}
    calibrator = create_calibrator(tmp_path / "float.onnx", **made)
    calibrator.collect_data(Reader())
    ranges = calibrator.compute_data()
    write_calibration_table(ranges.data, str(tmp_path))
    save_tensors_data(ranges, tmp_path / "cache.json")
    path = tmp_path / ("calibration.json" if which == "table" else "cache.json")
    given = onnxfq.quantize(network(), None, recipe=recipe, sources=onnxfq.Sources(encodings=path))
    data = {"x": feed_for(network(), count=8)["x"]}
    options = onnxfq.RunOptions(batch=1)
    plain = load_recipe(recipe).override(
        activations={"equalize": "none", "calibrator": "minmax"}, weights={"rounding": "nearest"}
    )
    own = onnxfq.quantize(network(), data, recipe=plain, options=options)
    for mine, theirs in zip(own.encodings.encodings, given.encodings.encodings, strict=True):
        if mine.tensor == "x" or mine.tensor.startswith("w"):
            np.testing.assert_array_equal(theirs.scale, mine.scale)
            np.testing.assert_array_equal(theirs.zero_point, mine.zero_point)
        else:  # onnxruntime sums a convolution in another order once it is asked for its output
            np.testing.assert_allclose(theirs.scale, mine.scale, rtol=1e-5)
    assert given.encodings.source.startswith("onnxruntime calibration")
    with pytest.raises(PlanError, match="give calibration.json"):
        read_given(tmp_path / "calibration.flatbuffers")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"x": [{"scale": 1.0}]}, "x: has one of scale and zero_point; give both or neither"),
        ({"x": [{"rmin": 1.0}]}, "x: has one of rmin and rmax"),
        ({"x": [{"scael": 1.0}]}, "x.0.scael: no such field; nearest: scale"),
        ({"x": [{"quant_type": "QInt9x"}]}, "x.quant_type: unknown qtype 'int9x'"),
        ({"x": [{"quant_type": "QInt8", "scale": 1.0, "zero_point": 200}]}, "zero point 200 is not in int8"),
        ({"x": [{"convert": {"quant_type": "QInt8"}}]}, "x.convert: is a second type for some readers"),
        ({"w1": [{"scale": 1.0, "zero_point": 0}] * 4}, "w1: has 4 channels and no axis"),
        (
            {"w1": [{"axis": 0, "quant_type": "QInt8"}, {"axis": 0, "quant_type": "QUInt8"}]},
            "w1.1.quant_type: differs from channel 0",
        ),
        ({"w1": [{"axis": 0, "scale": 1.0, "zero_point": 0}] * 3}, "needs scales of shape [4]"),
        ({"w1": [{"axis": 1, "scale": 1.0, "zero_point": 0}] * 3}, "along axis 1 in the file"),
        ({"CLS": "TensorsData", "data": {"x": {"lowest": 1}}}, "x: has no lowest and highest"),
        ({"CLS": "TensorsData", "data": {"x": {"lowest": "a", "highest": 1}}}, "x.lowest: must be a number"),
        ({"CLS": "TensorsData", "data": 3}, "data: must map tensors to ranges"),
        ({"CLS": "TensorsData", "data": {}, "smooth_quant": True}, "smooth_quant: is true"),
        (
            {"CLS": "TensorsData", "data": {"x": {"lowest": [1, 2], "highest": [3, 4]}}},
            "x: has the ranges of 2 channels; calibrate per tensor",
        ),
        ({"CLS": "TensorsData", "data": {"x": {"lowest": 3, "highest": 1}}}, "has the invalid range [3, 1]"),
    ],
)
def test_damaged_files(content: Any, message: str, tmp_path: Path) -> None:
    """A fault in a file is one line that names tensor and field."""
    with pytest.raises(PlanError) as caught:
        plan, found = fitted(network(), file(tmp_path, content))
        found.refuse_missing("give data")
    assert message in str(caught.value)
