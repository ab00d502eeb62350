"""Networks of well-known shapes: every pair of a recipe for a CPU is one that its runtime computes with."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path

import onnx
import pytest
from builders import feed_for

import onnxfq
from onnxfq.targets.target import BuildOptions

MODELS = Path(__file__).parents[2] / "models"
NETWORKS = ("resnet18", "mobilenetv2", "unet", "detector")


@pytest.fixture(params=[*NETWORKS, pytest.param("bert", marks=pytest.mark.sample)])
def network(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> onnx.ModelProto:
    """Return one network with random weights, for one sample."""
    monkeypatch.syspath_prepend(str(MODELS))
    proto: onnx.ModelProto = importlib.import_module("networks").NETWORKS[request.param](1)
    return proto


@pytest.mark.grid
@pytest.mark.parametrize("target", ["onnxruntime", "openvino"])
def test_all_that_is_promised_runs_low(network: onnx.ModelProto, target: str) -> None:
    """The runtime itself finds nothing of the recipe in float."""
    if target == "openvino" and importlib.util.find_spec("openvino") is None:
        pytest.skip("OpenVINO is not installed")
    model, recipe = onnxfq.load(network), onnxfq.load_recipe(f"{target}-int8")
    plan = onnxfq.make_plan(model, recipe)
    statistics = onnxfq.collect_statistics(model, plan, [feed_for(network, 0, 1)])
    qdq = onnxfq.insert_qdq(model, plan, onnxfq.calibrate(model, plan, statistics))
    result = onnxfq.check(qdq, target, build=BuildOptions())
    assert result.passed, result.table()
    assert len(result.engine) >= 15 and all(node.verdict == "low" for node in result.engine)
