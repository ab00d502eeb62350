"""Random graphs through every stage: nothing crashes, nothing changes but what is quantized.

python -m pytest tests/test_random_graphs.py --random-graphs 5000
"""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from builders import whole_recipe
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_graphs import NodeByNode, random_feed, random_models

from onnxfq.errors import ModelError
from onnxfq.graph.io.load import load
from onnxfq.runtime.session import Session
from onnxfq.stages.calibrate import Calibrated, calibrate
from onnxfq.stages.insert import insert_fake_quantize, insert_qdq
from onnxfq.stages.observe import collect_statistics
from onnxfq.stages.observers import ObserveOptions
from onnxfq.stages.plan import make_plan
from onnxfq.targets.target import prepare_model

RECIPES = ("tensorrt-int8", "onnxruntime-int8", "tensorrt-fp8", "tensorrt-int8-weights")


def plain(model: onnx.ModelProto, feed: dict[str, np.ndarray]) -> list[np.ndarray]:
    """Run a model as it is, with doubled node names, which ONNX allows and ONNX Runtime does not, removed."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for node in copy.graph.node:
        node.name = ""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.add_session_config_entry("session.disable_prepacking", "1")
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(
        copy.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return session.run(None, feed)


def check(model: onnx.ModelProto, recipe: str, cond: bool) -> bool:
    """Check one model; tell whether something of it was quantized."""
    feed = random_feed(model, 1, cond)
    loaded = load(model)
    onnx.checker.check_model(loaded.proto, full_check=True)
    want = plain(model, feed)
    got = Session(loaded.proto, 1, exact=True).run(feed)
    for one, other in zip(want, got, strict=True):
        # ONNX's converter writes a Softmax of before opset 13 as other operators, which round otherwise.
        np.testing.assert_allclose(one, other, rtol=0 if model.opset_import[0].version >= 13 else 1e-5)
    try:
        plan = make_plan(loaded, whole_recipe(recipe))
    except ModelError as refusal:
        assert "nothing to quantize" in str(refusal)
        return False
    statistics = collect_statistics(loaded, plan, [feed], ObserveOptions(threads=1))
    encodings = calibrate(loaded, plan, statistics)
    plan = Calibrated.of(plan, encodings).plan
    expected = NodeByNode(prepare_model(loaded, plan.target).proto, plan, encodings).run(feed)
    for made in (insert_fake_quantize(loaded, plan, encodings), insert_qdq(loaded, plan, encodings)):
        onnx.checker.check_model(made, full_check=not any(o.domain == "onnxfq" for o in made.opset_import))
        for one, other in zip(expected, Session(made, 1, exact=True).run(feed), strict=True):
            np.testing.assert_array_equal(one, other)
    return True


def test_random_graphs(request: pytest.FixtureRequest) -> None:
    """Float outputs stay; quantized ones equal, to the bit, rounding by hand node by node."""
    count = request.config.getoption("--random-graphs")
    quantized = []

    @settings(
        max_examples=count,
        derandomize=count == 60,  # CI is the same every time; longer runs are always new
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(random_models(), st.sampled_from(RECIPES), st.booleans())
    def every(model: onnx.ModelProto, recipe: str, cond: bool) -> None:
        quantized.append(check(model, recipe, cond))

    every()
    print(f"{len(quantized)} graphs, {sum(quantized)} of them quantized")
    assert sum(quantized) > 0.6 * len(quantized), "most graphs must have something to quantize"
