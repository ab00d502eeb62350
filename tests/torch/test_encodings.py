"""Encodings between torch and ONNX: the same scales on both sides, whichever side found them."""

from __future__ import annotations

import pytest

nn = pytest.importorskip("torch.nn")
pytest.importorskip("onnxscript")

import torch  # noqa: E402  only once it is known to be there
from quantized_modules import normal, prepared

import onnxfq
from onnxfq.errors import PlanError
from onnxfq.torch import (
    encodings_from_onnx,
    encodings_to_onnx,
    export_torch,
    get_encodings,
    learn_grids,
    onnx_names,
    quantize_module,
    quantizers,
    set_encodings,
)


def network() -> nn.Module:
    """Return two layers with a ReLU; no BatchNorm, so that weights keep their names in ONNX."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 5)).eval()


DATA = normal(4, 2, 6, 6)


def calibrated() -> nn.Module:
    """Return the network, quantized and calibrated."""
    model = network()
    prepared(model, DATA, "tensorrt-int8")
    return model


@pytest.mark.sample
def test_round_trip_through_a_file(tmp_path):
    """One module takes the encodings of another, learned scales included; then both compute the same bits."""
    one, other = calibrated(), network()
    learn_grids(one)
    get_encodings(one).save(tmp_path / "model.encodings.json")
    quantize_module(other)
    set_encodings(other, onnxfq.Encodings.load(tmp_path / "model.encodings.json"))
    assert torch.equal(one(DATA), other(DATA))


@pytest.mark.whole
def test_onnx_calibration_into_torch(tmp_path):
    """Scales that ONNX Runtime's calibration found are set in the module, and equal torch's own calibration.

    The first input is the same tensor; what comes later is summed in another order: within 1e-5 of itself.
    """
    path = tmp_path / "model.onnx"
    export_torch(network(), (DATA,), path)
    loaded = onnxfq.load(path)
    plan = onnxfq.make_plan(loaded, onnxfq.load_recipe("tensorrt-int8"))
    statistics = onnxfq.collect_statistics(loaded, plan, [{"input": DATA.numpy()}])
    encodings = onnxfq.calibrate(loaded, plan, statistics)
    model, ours = calibrated(), calibrated()
    for quantizer in quantizers(model).values():
        quantizer.set_qparams(torch.full_like(quantizer.scale, 7.0))
    before = {name: q.learned for name, q in quantizers(model).items()}
    encodings_from_onnx(model, (DATA,), encodings)
    assert {name: q.learned for name, q in quantizers(model).items()} == before
    for name, quantizer in quantizers(model).items():
        torch.testing.assert_close(quantizer.scale, quantizers(ours)[name].scale, rtol=1e-5, atol=0)
    assert torch.equal(model[0].input_quantizer.scale, ours[0].input_quantizer.scale)


@pytest.mark.whole
def test_torch_encodings_into_onnx(tmp_path):
    """The encodings under ONNX's names are what the plan of the float model asks for."""
    model = calibrated()
    encodings = encodings_to_onnx(model, (DATA,))
    names = onnx_names(model, (DATA,))
    assert names["0.input"] == "input" and names["0.weight"] == "0.weight"
    plain = onnxfq.load(export_torch(network(), (DATA,)))
    plan = onnxfq.make_plan(plain, onnxfq.load_recipe("tensorrt-int8"))
    assert {e.tensor for e in encodings.encodings} == {p.tensor for p in plan.placements}
    ours = encodings.model_copy(update={"model_sha256": plain.sha256})
    for placement in plan.placements:
        found = ours[placement.tensor]
        assert (found.spec, found.calibrator) == (placement.spec, placement.calibrator)


def test_mistakes():
    """Unknown tensors and other formats are errors of one line, and nothing is set."""
    model, encodings = calibrated(), get_encodings(calibrated())
    wrong = encodings.encodings[0].model_copy(update={"tensor": "0.inputs"})
    with pytest.raises(PlanError, match=r"'0.inputs', which the module lacks; nearest: 0.input"):
        set_encodings(model, encodings.model_copy(update={"encodings": (wrong,)}))
    four = network()
    quantize_module(four, "onnxruntime-int8")
    with pytest.raises(PlanError, match="quantized as uint8 asymmetric .* encoded as int8 symmetric"):
        set_encodings(four, encodings)
    assert not quantizers(four)["0.input_quantizer"].is_initialized
