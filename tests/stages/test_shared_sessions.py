"""Sessions and graphs of `quantize` by stage, counted without a clock."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import pytest
from builders import build, plain_quantize, weights

import onnxfq
from onnxfq.runtime.ort import onnxruntime
from onnxfq.support.clock import Clock

NETWORK = build(
    """g (float[N,3,8,8] x) => (float[N,10] y) {
        a = Conv <pads = [1, 1, 1, 1]> (x, w) b = Relu (a) c = Conv <pads = [1, 1, 1, 1]> (b, v)
        p = GlobalAveragePool (c) f = Flatten (p) y = Gemm (f, u) }""",
    {"w": weights(8, 3, 3, 3), "v": weights(8, 8, 3, 3), "u": weights(8, 10)},
)


class Opened(Counter[str]):
    """Counts of sessions and imported graphs by stage, as the clock of `quantize` names it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Count from now on."""
        super().__init__()
        self.now: Counter[str] = Counter()
        opening, lap, import_onnx = onnxruntime.InferenceSession.__init__, Clock.lap, gs.import_onnx

        def open_session(session: Any, *given: Any, **settings: Any) -> None:
            self.now["sessions"] += 1
            opening(session, *given, **settings)

        def end_stage(clock: Clock, stage: str) -> None:
            self.update({f"{stage}: {what}": count for what, count in self.now.items()})
            self.now.clear()
            lap(clock, stage)

        def import_graph(*given: Any, **settings: Any) -> gs.Graph:
            self.now["graphs"] += 1
            return import_onnx(*given, **settings)

        monkeypatch.setattr(onnxruntime.InferenceSession, "__init__", open_session)
        monkeypatch.setattr(Clock, "lap", end_stage)
        monkeypatch.setattr(gs, "import_onnx", import_graph)


def quantize(samples: int, recipe: str) -> onnxfq.QuantizeResult:
    """Quantize without repair, on one thread."""
    x = np.random.default_rng(0).normal(size=(samples, 3, 8, 8)).astype(np.float32)
    options = onnxfq.QuantizeOptions(threads=1)
    return plain_quantize(NETWORK, {"x": x}, recipe=recipe, options=options)


# observe: the optimised graph is written, the observed one runs all passes, and rows of a batch are compared.
# insert: the float model, for the parts of its outputs; it runs on in evaluate. evaluate: the simulation, and
# with more than 16 samples the float model for the sizes of its tensors. The folds of few samples share a
# session to observe, and run in one each.
# Graphs: insert reads one to simulate and one to write, plan one to prepare the model and one to plan.
COMMON = {"plan: graphs": 2, "observe: graphs": 1, "observe: sessions": 3, "evaluate: sessions": 1}
OPENED = {
    3: COMMON | {"insert: graphs": 2, "insert: sessions": 1, "remedies: graphs": 4, "remedies: sessions": 5},
    12: COMMON | {"insert: graphs": 2, "insert: sessions": 1},
    80: COMMON | {"insert: graphs": 2, "insert: sessions": 1, "evaluate: sessions": 2},
}


@pytest.mark.parametrize("samples", OPENED)
def test_sessions_and_graphs_by_stage(samples: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A session is opened once for what runs twice, and a graph is read once for a form."""
    quantize(samples, "tensorrt-int8")  # a process asks once for the layout of blocks
    opened = Opened(monkeypatch)
    quantize(samples, "tensorrt-int8")
    assert dict(opened) == OPENED[samples]


def test_the_simulation_is_built_when_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without repair only what is written is built; both forms have the scales of all samples."""
    result = quantize(12, "tensorrt-int8")
    opened = Opened(monkeypatch)
    assert result.simulation is result.simulation
    assert dict(opened) == {"insert: graphs": 1}
    constants = {one.name: onnx.numpy_helper.to_array(one) for one in result.qdq.graph.initializer}
    scales = {
        one.name.removesuffix("/scale"): onnx.numpy_helper.to_array(one)
        for one in result.simulation.graph.initializer
        if one.name.endswith("/scale")
    }
    pairs = {
        node.input[0]: node.input[1] for node in result.qdq.graph.node if node.op_type == "QuantizeLinear"
    }
    assert scales and {name: constants[pairs[name]] for name in scales} == scales
