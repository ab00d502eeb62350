"""Activations without their means: the function stays, blocks lose less, and biases that exist take it up."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import build, plain_quantize, weights
from engines import build_all, verdicts

import onnxfq
from onnxfq.graph.io.load import load
from onnxfq.passes.center import CENTERED, center_tensors
from onnxfq.remedies.center import choose_tensors
from onnxfq.runtime.session import Session
from onnxfq.stages.plan import make_plan
from onnxfq.targets.reading.context import read
from onnxfq.targets.recipes import RECIPES
from onnxfq.targets.target import prepare_model
from onnxfq.targets.tensorrt.builder.jobs import builder_installed
from onnxfq.targets.tensorrt.builder.layers import parse_layers
from onnxfq.targets.tensorrt.rules.structure import EXTRA

BUILDER = pytest.mark.skipif(not builder_installed(), reason="TensorRT for RTX is not installed")

RNG = np.random.default_rng(3)
ROWS = (RNG.normal(size=(48, 4, 64)) + 4 * RNG.normal(size=64)).astype(np.float32)
FEEDS = [{"x": one[None]} for one in ROWS]
NVFP4 = RECIPES["tensorrt-nvfp4"].override(weights={"rounding": "nearest"}, small_shapes="quantize")
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


def count_kernels(folder: Path, made: dict[str, onnx.ModelProto]) -> dict[str, int]:
    """Return the kernels of the engines of models, in which every layer runs in few bits."""
    kernels = {}
    for name, reports in build_all(folder, made).items():
        report = list(reports.values())[-1]
        assert report.built, (report.faults, report.errors)
        assert {row.split()[1] for row in verdicts(read(made[name], EXTRA), report).values()} == {"low"}
        kernels[name] = sum(layer.is_kernel for layer in parse_layers(report.layers))
    return kernels


@BUILDER
def test_the_engine_has_no_more_kernels(tmp_path: Path) -> None:
    """TensorRT fuses the new Sub and Add: an RMSNorm, two products, a gate and a product behind it."""
    proto = build(
        """g (float[N,32,64] x) => (float[N,32,64] y) {
            [s] s = Mul (x, x) [mean] m = ReduceMean <axes = [-1]> (s) [e] e = Add (m, small) [r] r = Sqrt (e)
            [d] d = Div (x, r) [n] h = Mul (d, c) [one] a = MatMul (h, w) [two] b = MatMul (h, v)
            [act] g = Sigmoid (a) [gate] k = Mul (g, b) [down] o = MatMul (k, u) [add] y = Add (x, o) }""",
        {
            "small": np.full(1, 1e-5, np.float32),
            "c": weights(64),
            **{name: weights(64, 64, seed=seed) for seed, name in enumerate("wvu")},
        },
    )
    feeds = [{"x": one[None].repeat(8, axis=1)} for one in ROWS]
    model = prepare_model(load(proto), NVFP4.target)
    plan = make_plan(model, NVFP4)
    centered = center_tensors(model, plan, choose_tensors(model, plan, feeds, 1))
    assert len(centered.proto.graph.node) >= len(model.proto.graph.node) + 3
    made = {
        name: plain_quantize(
            one, feeds[:4], recipe=NVFP4, options=onnxfq.QuantizeOptions(floats=onnxfq.FloatOptions("fp16"))
        ).qdq
        for name, one in (("plain", proto), ("centered", centered.proto))
    }
    kernels = count_kernels(tmp_path, made)
    assert kernels["centered"] == kernels["plain"]


@BUILDER
def test_a_shift_is_fused_with_an_activation(tmp_path: Path) -> None:
    """TensorRT joins a Sub, and the Pad of a padded convolution, with the SiLU in front of the pair.

    The recipes do without it; a failure changes what docs/tensorrt.md says about it.
    """
    head = "g (float[1,32,16,16] x) => (float[1,32,16,16] y) { [c0] c = Conv <pads = [1,1,1,1]> (x, w) "
    tail = " [c2] d = Conv (k, u) y = Relu (d) }"
    act = "s = Sigmoid (c) a = Mul (c, s) "
    constants = {
        "w": weights(32, 32, 3, 3),
        "v": weights(32, 32, 3, 3, seed=1),
        "u": weights(32, 32, 1, 1, seed=2),
        "half": np.float32(1.5),
        "around": np.asarray([0, 0, 1, 1, 0, 0, 1, 1]),
    }
    bodies = {
        "plain": "[c1] k = Conv <pads = [1,1,1,1]> (a, v)",
        "shifted": "p = Pad (a, around) m = Sub (p, half) [c1] k = Conv (m, v)",
    }
    feeds = {"x": weights(4, 1, 32, 16, 16, seed=3)}
    made = {
        name: plain_quantize(build(f"{head}{act}{body}{tail}", constants), feeds).qdq
        for name, body in bodies.items()
    }
    kernels = count_kernels(tmp_path, made)
    assert kernels["shifted"] == kernels["plain"]
