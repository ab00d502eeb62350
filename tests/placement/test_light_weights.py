"""Products of dynamic formats with a small weight stay in float, next to larger ones."""

from __future__ import annotations

from pathlib import Path

import onnx
from builders import build, planned, weights
from engines import build_all, unmeasured

from onnxfq.documents.plan import Plan
from onnxfq.targets.recipes import load_recipe
from onnxfq.targets.tensorrt.builder.figures import count_layers
from onnxfq.targets.tensorrt.builder.jobs import builder_installed
from onnxfq.targets.tensorrt.builder.layers import parse_layers

NVFP4 = load_recipe("tensorrt-nvfp4")


def two(columns: int) -> onnx.ModelProto:
    """A product with a weight of 1 MB in half, and one with 2 kB for each of its columns."""
    return build(
        f"""g (float[N,1024] x) => (float[N,{columns}] y) {{
        [large] a = MatMul (x, w) [little] y = MatMul (a, v) }}""",
        {"w": weights(1024, 512), "v": weights(512, columns)},
        opset=18,
    )


def left_out(plan: Plan) -> dict[str, str]:
    """Return why nodes stay in float, by name."""
    return {s.name: s.why for s in plan.skipped if s.kind == "node"}


def test_small_next_to_large() -> None:
    """A weight below the threshold stays in float with its size; one of the threshold does not."""
    why = left_out(planned(two(1008), NVFP4))
    assert why.keys() == {"little"}
    assert "1,032,192 bytes in a half type, below 1,048,576" in why["little"]
    assert not left_out(planned(two(1024), NVFP4))


def test_products_without_a_weight(tmp_path: Path) -> None:
    """One of two computed tensors stays in float; in low precision it has at least two kernels more."""
    proto = build(
        """g (float[2,64,512] x) => (float[2,64,1024] y, float[2,64,64] z) {
        [large] y = MatMul (x, w) a = Relu (x) b = Transpose <perm = [0,2,1]> (x)
        [both] z = MatMul (a, b) }""",
        {"w": weights(512, 1024)},
        opset=18,
    )
    why = left_out(planned(proto, NVFP4))
    assert why.keys() == {"both"} and "both of its inputs are computed" in why["both"]
    asked = NVFP4.override(least_weight_bytes=0)
    assert not left_out(planned(proto, asked))
    if builder_installed():
        models = {"plan": unmeasured(proto, NVFP4, "fp16"), "asked": unmeasured(proto, asked, "fp16")}
        kernels = {
            name: count_layers(parse_layers(reports.popitem()[1].layers), {}).kernels
            for name, reports in build_all(tmp_path, models).items()
        }
        assert kernels["plan"] + 2 <= kernels["asked"], kernels


def test_the_threshold_is_set_by_the_recipe() -> None:
    """0 quantizes every product; other formats have no threshold."""
    assert not left_out(planned(two(64), NVFP4.override(least_weight_bytes=0)))
    assert not left_out(planned(two(64), "tensorrt-mxfp8"))
    assert left_out(planned(two(64), load_recipe("tensorrt-mxfp8").override(least_weight_bytes=1 << 20)))


def test_a_small_model_is_quantized_as_asked() -> None:
    """If every product is small, all stay quantized, and the plan says so."""
    plan = planned(two(64), NVFP4.override(least_weight_bytes=1 << 30))
    assert not left_out(plan)
    assert all("so are all of the model's" in p.why for p in plan.placements)
