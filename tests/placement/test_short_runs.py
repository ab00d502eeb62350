"""Runs of float8 convolutions stay in float, as a whole or in part, where their kernels cost more bytes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import pytest
from builders import add_large_product, build, planned, weights
from engines import build_all, unmeasured
from plan_networks import dense

from onnxfq.documents.recipe import Recipe
from onnxfq.placement import short_runs
from onnxfq.stages import plan as stages_plan
from onnxfq.targets.reading.context import read
from onnxfq.targets.recipes import load_recipe
from onnxfq.targets.tensorrt.builder.jobs import builder_installed
from onnxfq.targets.tensorrt.builder.layers import parse_layers
from onnxfq.targets.tensorrt.builder.without_pairs import without_pairs
from onnxfq.targets.tensorrt.rules.structure import EXTRA

FP8 = load_recipe("tensorrt-fp8")


def left_out(proto: onnx.ModelProto, recipe: Recipe = FP8) -> dict[str, str]:
    """Return why nodes stay in float, by name."""
    return {s.name: s.why for s in planned(proto, recipe).skipped if s.kind == "node"}


def test_runs_that_cost_more_than_they_save() -> None:
    """Small convolutions stay in float; if none pays, the part that costs least stays quantized."""
    why = left_out(dense(3))
    assert all("their kernels cost more than 8 bits save" in why[f"last{i}"] for i in range(2))
    assert len({*(f"last{i}" for i in range(3)), "body", "up"} - why.keys()) == 1
    assert all("set small_shapes: quantize" in text for text in why.values())
    asked = planned(dense(3), FP8.override(small_shapes="quantize"))
    assert not [s for s in asked.skipped if s.name.startswith("last")]


def test_a_single_convolution_stays() -> None:
    """A model of one product is quantized, however small."""
    proto = build(
        "g (float[N,32,9,9] x) => (float[] y) { [c] y = Conv (x, w) }", {"w": weights(32, 32, 3, 3)}
    )
    assert not left_out(proto)


def chain(weight: int, size: int) -> onnx.ModelProto:
    """Two convolutions of `weight` channels behind a depthwise one, on maps of `size` by `size`."""
    return build(
        f"""g (float[1,{weight},{size},{size}] x) => (float[] y) {{
        [deep] d = Conv <group = {weight}, pads = [1,1,1,1]> (x, w0) [one] a = Conv (d, w1)
        [two] y = Conv (a, w2) }}""",
        {
            "w0": weights(weight, 1, 3, 3),
            "w1": weights(32, weight, 1, 1),
            "w2": weights(weight, 32, 1, 1, seed=1),
        },
    )


@pytest.mark.parametrize(("channels", "size", "kept"), [(512, 1, False), (65536, 1, True), (4096, 32, False)])
def test_bytes_decide(channels: int, size: int, kept: bool) -> None:
    """Weights pay for the kernels of the entry and of both results, and for the numbers in between."""
    proto = chain(channels, size)
    add_large_product(proto)
    why = left_out(proto)
    assert ({"one", "two"} & why.keys() == set()) == kept
    if size == 1:  # the recipe says what a kernel counts as
        assert not {"one", "two"} & left_out(proto, FP8.override(entry_bytes=0)).keys()
        assert {"one", "two"} <= left_out(proto, FP8.override(entry_bytes=1 << 22)).keys()


def test_a_model_of_short_runs_alone_is_quantized() -> None:
    """If nothing would be left, a pair stays, and the plan says why it gains little."""
    plan = planned(chain(512, 1), FP8)
    assert len({use.node for p in plan.activations for use in p.uses}) == 1
    assert all("no better one" in p.why for p in plan.placements)


def test_a_weight_that_is_computed_is_a_weight() -> None:
    """One made of constants alone, too large to be folded, saves what a stored one does."""
    saved = []
    for weight in ("made", "w"):
        proto = build(
            f"""g (float[1,64] x) => (float[] y) {{ [made] made = Mul (w, two)
            [one] a = Gemm (x, {weight}) r = Relu (a) [two] y = Gemm (r, w) }}""",
            {"w": weights(64, 64), "two": np.float32(2)},
        )
        nodes = gs.import_onnx(onnx.shape_inference.infer_shapes(proto)).nodes
        ledger = short_runs._Ledger(nodes, 0)
        ledger.switch([node for node in nodes if node.op == "Gemm"])
        saved.append(ledger.saved)
    assert saved[0] == saved[1] > 2 * 64**2


def unrolled(count: int) -> onnx.ModelProto:
    """Residual blocks of two convolutions with shared weights, all in one run."""
    text = "".join(
        f"[a{i}] a{i} = Conv (x{i}, w) r{i} = Relu (a{i}) [b{i}] b{i} = Conv (r{i}, w) "
        f"x{i + 1} = Add (x{i}, b{i}) "
        for i in range(count // 2)
    )
    return build(
        f"g (float[1,32,8,8] x0) => (float[] y) {{ {text} y = Relu (x{count // 2}) }}",
        {"w": weights(32, 32, 1, 1)},
    )


def test_a_run_is_tried_in_as_many_steps_as_it_has_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """2,000 convolutions in one run take four times the steps of 500, not sixteen times."""
    steps: Counter[int] = Counter()
    for step in ("_price", "_find_origin"):
        plain = getattr(short_runs._Ledger, step)
        monkeypatch.setattr(
            short_runs._Ledger, step, lambda self, one, plain=plain: steps.update([count]) or plain(self, one)
        )
    for count in (500, 2000):
        assert left_out(unrolled(count))
    assert 0 < steps[2000] <= 4.1 * steps[500]


@pytest.mark.skipif(not builder_installed(), reason="TensorRT for RTX is not installed")
def test_engines_have_fewer_layers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without short runs the engine has at most two layers more than in half; with them twelve."""
    proto = dense(3)
    runs = unmeasured(proto, FP8, "fp16")
    monkeypatch.setattr(stages_plan, "leave_out_short_runs", lambda decisions, *_: decisions)
    models = {"runs": runs, "all": unmeasured(proto, FP8, "fp16"), "half": without_pairs(read(runs, EXTRA))}
    built = build_all(tmp_path, models)
    count = {name: len(parse_layers(reports.popitem()[1].layers)) for name, reports in built.items()}
    assert count["runs"] <= count["half"] + 2 and count["all"] >= count["half"] + 12, count


@pytest.mark.skipif(not builder_installed(), reason="TensorRT for RTX is not installed")
def test_each_convolution_has_a_kernel_more(tmp_path: Path) -> None:
    """It quantizes the result for the next convolution; if this fails, none counts."""
    layers = "".join(
        f"[c{i}] a{i} = Conv <pads = [1,1,1,1]> (r{i}, w) r{i + 1} = Relu (a{i}) " for i in range(4)
    )
    proto = build(
        f"g (float[1,32,16,16] x) => (float[] y) {{ r0 = Relu (x) {layers} y = Neg (r4) }}",
        {"w": weights(32, 32, 3, 3)},
    )
    low = unmeasured(proto, FP8.override(small_shapes="quantize"), "fp16")
    built = build_all(tmp_path, {"low": low, "half": without_pairs(read(low, EXTRA))})
    count = {name: len(parse_layers(reports.popitem()[1].layers)) for name, reports in built.items()}
    assert count["low"] >= count["half"] + 3, count
