"""Models without their weights: the same structure, the same shapes, the same values from the file."""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import onnx
import pytest
from builders import build, if_body, linear, weights
from onnx import numpy_helper, shape_inference

from onnxfq.errors import ModelError
from onnxfq.graph.checker import check_model
from onnxfq.graph.external.weightless import split_weights, strip_weights
from onnxfq.graph.io.load import load
from onnxfq.graph.normalize.shapes import add_shapes
from onnxfq.runtime.session import Session


def test_weights_in_a_file_give_the_same_model(tmp_path) -> None:
    """The light copy, saved next to the file, computes what the whole model computes."""
    proto = linear(64, 32)
    proto.metadata_props.add(key="kept", value="yes")
    light = split_weights(proto, tmp_path / "weights")
    onnx.save(light, tmp_path / "light.onnx")
    assert light.ByteSize() < 1000 < proto.ByteSize()
    x = np.random.default_rng(0).standard_normal((3, 64)).astype(np.float32)
    whole, split = (Session(model, 1).run({"x": x}) for model in (proto, tmp_path / "light.onnx"))
    np.testing.assert_array_equal(whole[0], split[0])
    assert {p.key: p.value for p in light.metadata_props} == {"kept": "yes"}
    assert (
        onnx.load(tmp_path / "light.onnx").graph.initializer[0].raw_data
        == proto.graph.initializer[0].raw_data
    )


@pytest.mark.parametrize("proto", [linear(64, 32), if_body()], ids=["linear", "if"])
def test_shapes_are_those_of_the_whole_model(proto) -> None:
    """ONNX infers from the light copy what it infers from the whole one; weights stay as they are."""
    expected = shape_inference.infer_shapes(proto, data_prop=True)
    got = deepcopy(proto)
    add_shapes(got)
    assert got == expected


def test_values_that_shapes_hang_on_stay() -> None:
    """The target of a Reshape is small: inference sees it in the light copy too."""
    proto = build(
        "g (float[2,6] x) => (float[a,b] y) { y = Reshape (x, s) }", {"s": np.asarray([3, 4], np.int64)}
    )
    inferred = shape_inference.infer_shapes(strip_weights(proto), data_prop=True)
    dims = inferred.graph.output[0].type.tensor_type.shape.dim
    assert [d.dim_value for d in dims] == [3, 4]


def test_a_model_is_checked_without_its_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """ONNX's checker is given no weight together with the rest, and accepts the model."""
    proto, sizes, check = linear(64, 64), [], onnx.checker.check_model
    monkeypatch.setattr(onnx.checker, "check_model", lambda one: (sizes.append(one.ByteSize()), check(one)))
    check_model(proto)
    assert len(sizes) == 1 and sizes[0] < 1000 < proto.ByteSize()


def test_a_weight_of_the_wrong_size_is_still_refused() -> None:
    """Weights are checked one at a time."""
    proto = linear(64, 32)
    broken = numpy_helper.from_array(weights(64, 32), proto.graph.initializer[0].name)
    broken.raw_data = broken.raw_data[:-4]
    proto.graph.initializer[0].CopyFrom(broken)
    with pytest.raises(ModelError, match="is damaged: .* has 8188 bytes, and its shape .* needs 8192"):
        load(proto)
