"""Fixed ranges: as given, and as mathematics gives them."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from onnx.reference import ReferenceEvaluator

from onnxfq.calibration.calibrators import Calibrator
from onnxfq.calibration.statistics import TensorStatistics
from onnxfq.graph.bounds import KNOWN_RANGES
from onnxfq.numerics.spec import QuantSpec

SPEC = QuantSpec(qtype="int8")
STATS = TensorStatistics.from_array(np.asarray([-9.0, 5.0], np.float32))


def test_a_range_is_taken_as_given():
    """Whatever was observed."""
    assert Calibrator.parse("range:-1.5,2e3")(STATS, SPEC) == (-1.5, 2000.0)
    assert Calibrator.parse("known:Tanh")(STATS, SPEC) == (-1.0, 1.0)


@given(
    hnp.arrays(np.float32, (2, 5), elements=st.floats(-80, 80, width=32)), st.sampled_from(list(KNOWN_RANGES))
)
def test_no_output_leaves_its_known_range(x, op_type):
    """ONNX's own definition of the operator, on any values."""
    node = onnx.helper.make_node(op_type, ["x"], ["y"])
    value = [onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [2, 5]) for n in "xy"]
    model = onnx.helper.make_model(onnx.helper.make_graph([node], "g", value[:1], value[1:]))
    (y,) = ReferenceEvaluator(model).run(None, {"x": x})
    low, high = KNOWN_RANGES[op_type]
    # Softmax adds up to 1 to the last bit of float32.
    assert low <= y.min() and y.max() <= high * (1 + 2.0**-22)


@pytest.mark.parametrize("name", ["range:0,1", "known:Softmax"])
def test_fixed_names(name):
    """They differ from calibrators that look at the data."""
    assert Calibrator.parse(name).is_fixed
    assert not (Calibrator.parse("minmax").is_fixed or Calibrator.parse("percentile:99.9").is_fixed)
