"""Operators of ONNX Runtime on integers: those that OpenVINO refuses are refused, and no others."""

from __future__ import annotations

from pathlib import Path

import pytest
from diagnosed_networks import network
from onnxruntime.quantization import QuantFormat, QuantType
from ort_quantizer import by_ort

import onnxfq

openvino = pytest.importorskip("openvino")


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("name", ["conv", "detector"])
def test_integer_operators(name: str, per_channel: bool, tmp_path: Path) -> None:
    """A finding stands where the frontend of OpenVINO ends in an error, for one scale and for several."""
    net = network(name)
    kinds = {"activation_type": QuantType.QUInt8, "weight_type": QuantType.QUInt8}
    options = {"quant_format": QuantFormat.QOperator, "per_channel": per_channel}
    made = by_ort(net.float_model, net.feeds(8, seed=1), tmp_path, **kinds, **options)
    found = [one for one in onnxfq.check(made, "openvino").findings if one.severity == "refused"]
    try:
        openvino.Core().compile_model(str(tmp_path / "static.onnx"), "CPU")
    except RuntimeError:
        assert found
    else:
        assert not found
