"""Activations without their means: the function stays, blocks lose less, and biases that exist take it up."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from builders import build, weights

import onnxfq
from onnxfq.graph.io.load import load
from onnxfq.passes.center import CENTERED, center_tensors
from onnxfq.remedies.center import choose_tensors
from onnxfq.runtime.session import Session
from onnxfq.stages.plan import make_plan
from onnxfq.targets.recipes import RECIPES
from onnxfq.targets.target import prepare_model

RNG = np.random.default_rng(3)
ROWS = (RNG.normal(size=(48, 4, 64)) + 4 * RNG.normal(size=64)).astype(np.float32)
FEEDS = [{"x": one[None]} for one in ROWS]
NVFP4 = RECIPES["tensorrt-nvfp4"].override(weights={"rounding": "nearest"})
HEAD = "g (float[N,4,64] x) => (float[N,4,6] y, float[N,4,6] z) {"
CONSTANTS = {
    "w": weights(64, 6),
    "v": weights(64, 6, seed=1),
    "b": weights(6),
    "c": weights(64),
    "s": weights(64, seed=2),
}
MODELS = {
    "new nodes": ("[m] h = Mul (x, s) [one] y = MatMul (h, w) [two] z = MatMul (h, v)", 3),
    "one bias": (
        "[m] h = Mul (x, s) [one] p = MatMul (h, w) [add] y = Add (p, b) [two] z = MatMul (h, v)",
        2,
    ),
    "an Add in front": (
        "[m] h = Add (x, c) [one] p = MatMul (h, w) [add] y = Add (b, p) [two] q = MatMul (h, v) "
        "[more] z = Add (q, b)",
        0,
    ),
    "a normalization": (
        "[m] h = LayerNormalization (x, s, c) [one] p = MatMul (h, w) [add] y = Add (p, b) "
        "[two] q = MatMul (h, v) [more] z = Add (q, b)",
        0,
    ),
    "a normalization without bias": (
        "[m] h = LayerNormalization (x, s) [one] y = MatMul (h, w) [two] z = MatMul (h, v)",
        2,
    ),
    "another reader": (
        "[m] h = LayerNormalization (x, s, c) [one] y = MatMul (h, w) [two] p = MatMul (h, v) "
        "[r] r = ReduceMean <axes = [-1]> (h) [more] z = Add (p, r)",
        3,
    ),
}
"""A graph, and how many nodes its tensor without the mean adds."""


def proto_of(name: str) -> onnx.ModelProto:
    """Return a model of MODELS."""
    return build(f"{HEAD} {MODELS[name][0]} }}", CONSTANTS)


@pytest.mark.parametrize("name", MODELS)
def test_the_function_stays(name: str) -> None:
    """ONNX Runtime computes the same but for rounding; constants that are added already take the mean up."""
    model = prepare_model(load(proto_of(name)), NVFP4.target)
    plan = make_plan(model, NVFP4)
    tensors = choose_tensors(model, plan, FEEDS, 1)
    assert [tensor.name for tensor in tensors] == ["h"] and len(tensors[0].products) == 2
    centered = center_tensors(model, plan, tensors)
    onnx.checker.check_model(centered.proto, full_check=True)
    assert len(centered.proto.graph.node) == len(model.proto.graph.node) + MODELS[name][1]
    for feed in FEEDS[:4]:
        want, got = (Session(one.proto, 1, exact=True).run(feed) for one in (model, centered))
        for one, other in zip(want, got, strict=True):
            np.testing.assert_allclose(other, one, rtol=0, atol=3e-6 * np.abs(one).max())  # sums of 64


def test_small_means_stay() -> None:
    """Without a mean nothing would be gained."""
    model = prepare_model(load(proto_of("new nodes")), NVFP4.target)
    feeds = [{"x": feed["x"] - ROWS.mean(axis=(0, 1))} for feed in FEEDS]
    assert choose_tensors(model, make_plan(model, NVFP4), feeds, 1) == []


def test_low_outputs_lose_their_means() -> None:
    """Means of four times the rest cost a block of NVFP4 8 dB and more, which come back."""
    proto = proto_of("new nodes")
    done = {
        repair: onnxfq.quantize(proto, FEEDS, recipe=NVFP4, accuracy=onnxfq.AccuracyTarget(repair=repair))
        for repair in (None, "auto")
    }
    assert done["auto"].trial("center").is_kept
    plain, centered = (
        min(one.sqnr_db for one in result.evaluation.candidates[0].outputs) for result in done.values()
    )
    assert centered > plain + 6
    assert any(name.endswith(CENTERED) for node in done["auto"].qdq.graph.node for name in node.output)
