"""Promises for a target that opens models: they are proven in its runtime, not in a simulation."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import numpy as np
import onnx
import pytest
from builders import build, plain_quantize, weights

import onnxfq
from onnxfq.data import Feed
from onnxfq.errors import RecipeError
from onnxfq.remedies import runtime_cure, runtime_proof
from onnxfq.runtime.session import Session
from onnxfq.targets.openvino.runtime import open_model
from onnxfq.targets.target import AnyModel

needs_openvino = pytest.mark.skipif(not find_spec("openvino"), reason="OpenVINO is not installed")
SAMPLES = {"x": np.random.default_rng(3).normal(size=(6, 32)).astype(np.float32)}


def chain() -> onnx.ModelProto:
    """Two products with a Relu between them."""
    return build(
        "g (float[N,32] x) => (float[N,32] y) { [m0] a = MatMul (x, w) r = Relu (a) [m1] y = MatMul (r, v) }",
        {"w": weights(32, 32, seed=1), "v": weights(32, 32, seed=2)},
    )


class Recorder:
    """A metric that keeps the outputs of each of its calls, and is always content."""

    __name__ = "recorder"

    def __init__(self) -> None:
        self.calls: list[list[np.ndarray]] = []

    def __call__(self, outputs: Iterable[dict[str, np.ndarray]], samples: Iterable[Feed]) -> float:
        """Keep copies."""
        self.calls.append([made["y"].copy() for made in outputs])
        return 1.0


def promise(metric: Any) -> onnxfq.QuantizeResult:
    """Quantize for OpenVINO with a metric that must not drop."""
    target = onnxfq.AccuracyTarget(max_drop=0.0, metric=metric)
    return onnxfq.quantize(chain(), SAMPLES, recipe="openvino-int8", accuracy=target)


@needs_openvino
def test_a_metric_is_given_the_outputs_of_openvino() -> None:
    """Of the quantized model to the bit; the float model runs in ONNX Runtime."""
    metric = Recorder()
    made = promise(metric)
    trial = next(one for one in made.trials if one.remedy == "promised")
    assert "metric recorder against float in openvino" in trial.why
    seen = {row.tobytes() for call in metric.calls for row in call}
    float_run, runs = Session(chain(), 1), open_model(made.qdq, 1)
    rows = [{"x": SAMPLES["x"][at : at + 1]} for at in range(6)]
    quantized = {runs(row)["y"].tobytes() for row in rows}
    simulated = {Session(made.simulation, 1, exact=True).run(row)[0].tobytes() for row in rows}
    assert quantized <= seen and not simulated <= seen
    assert {float_run.run(row)[0].tobytes() for row in rows} <= seen


@needs_openvino
@pytest.mark.wide_sums
def test_a_promised_sqnr_holds_in_openvino_too() -> None:
    """The summary and the runtime both have what is promised."""
    data = {"x": np.random.default_rng(4).normal(size=(64, 32)).astype(np.float32)}
    plain = plain_quantize(chain(), data, recipe="openvino-int8")
    wanted = plain.evaluation.lowest_db - 15  # ranges of 16 of the samples leave so much of it
    made = onnxfq.quantize(
        chain(), data, recipe="openvino-int8", accuracy=onnxfq.AccuracyTarget(min_sqnr=wanted)
    )
    trial = next(one for one in made.trials if one.remedy == "promised")
    assert "dB in openvino" in trial.why and made.evaluation.lowest_db >= wanted


def test_what_the_runtime_computes_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    """A runtime with other numbers breaks the promise, whatever the simulation has."""

    def open_wrong(model: AnyModel, threads: int = 0) -> Any:
        names = [output.name for output in model.graph.output]
        return lambda feed: {name: np.zeros((1, 32), np.float32) for name in names}

    known = runtime_cure.target_by_name

    def with_wrong_values(name: str) -> Any:
        return replace(known(name), values=open_wrong)

    for module in (runtime_proof, runtime_cure):
        monkeypatch.setattr(module, "target_by_name", with_wrong_values)

    def size(outputs: Iterable[dict[str, np.ndarray]], samples: Iterable[Feed]) -> float:
        return float(sum(np.abs(made["y"]).sum() for made in outputs))

    with pytest.raises(RecipeError, match="cannot keep .* metric size against float in openvino"):
        promise(size)
    monkeypatch.undo()
    target = onnxfq.AccuracyTarget(min_sqnr=10)
    for module in (runtime_proof, runtime_cure):
        monkeypatch.setattr(module, "target_by_name", with_wrong_values)
    with pytest.raises(RecipeError, match="cannot keep 10 dB in openvino"):
        onnxfq.quantize(chain(), SAMPLES, recipe="openvino-int8", accuracy=target)


def test_without_the_runtime_a_line_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The promise is then measured in ONNX Runtime, and the line has the remedy."""
    monkeypatch.setitem(sys.modules, "openvino", None)
    with caplog.at_level(logging.WARNING):
        made = promise(Recorder())
    assert "the promise is measured in ONNX Runtime: package openvino is not installed" in caplog.text
    assert "in openvino" not in "".join(trial.why for trial in made.trials)
