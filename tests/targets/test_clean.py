"""A model written for TensorRT breaks no rule, and TensorRT for RTX keeps all that it promises."""

from __future__ import annotations

import onnx
import pytest
from builders import BUILDERS, build, linear, qdq_of, stage, weights
from engines import build_all, needs_builder, unmeasured, verdicts

from onnxfq.targets.reading.context import read
from onnxfq.targets.target import BuildOptions
from onnxfq.targets.tensorrt.builder.jobs import Report
from onnxfq.targets.tensorrt.rules.structure import EXTRA
from onnxfq.tools.check import check

RECIPES = ("tensorrt-int8", "tensorrt-fp8", "tensorrt-int4")
NAMES = [f"{name} {recipe}" for recipe in RECIPES[:2] for name in BUILDERS] + [f"linear {RECIPES[2]}"]


@pytest.fixture(scope="module")
def models() -> dict[str, onnx.ModelProto]:
    """Q/DQ models by `name recipe`."""
    protos = {name: make() for name, make in BUILDERS.items()} | {"linear": linear(256, 64)}
    return {name: qdq_of(stage(protos[name.split()[0]], name.split()[1])) for name in NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_rules_find_nothing(name: str, models: dict[str, onnx.ModelProto]) -> None:
    """No finding, except for ConvTranspose, which depends on the TensorRT at hand; all promises are kept."""
    result = check(models[name])
    assert result.passed
    assert {(f.severity, f.rule) for f in result.findings} <= {("warning", "conv-transpose")}, result.table()
    assert result.coverage and all(row.kept == row.promised for row in result.coverage)


@pytest.fixture(scope="module")
def reports(
    models: dict[str, onnx.ModelProto], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, dict[str, Report]]:
    """Results of the builder, by name and architecture."""
    return build_all(tmp_path_factory.mktemp("clean"), models)


@needs_builder
@pytest.mark.parametrize("name", NAMES)
def test_engine_keeps_promises(
    name: str, models: dict[str, onnx.ModelProto], reports: dict[str, dict[str, Report]]
) -> None:
    """Every promised node runs as promised everywhere; ConvTranspose in float, as its rule says."""
    reading = read(models[name], EXTRA)
    for report in reports[name].values():
        assert report.built, (report.faults, report.errors, report.ended)
        for row in verdicts(reading, report).values():
            op, seen, _, promised = row.split()
            assert seen == (promised if op != "ConvTranspose" else "float"), row


CONV = "Conv <pads = [1,1,1,1]> (x, w)"
SHARED = {
    "both branches": "[choose] y = If (cond) < "
    f"then_branch = yes () => (float[1,8,6,6] t) {{ [a] t = {CONV} }},"
    f" else_branch = no () => (float[1,8,6,6] e) {{ [b] c = {CONV} e = Relu (c) }}>",
    "branch and main graph": f"[a] m = {CONV} [choose] i = If (cond) < "
    f"then_branch = yes () => (float[1,8,6,6] t) {{ [b] t = {CONV} }},"
    " else_branch = no () => (float[1,8,6,6] e) { e = Relu (x) }> y = Add (m, i)",
}


@needs_builder
@pytest.mark.parametrize("case", SHARED)
def test_weights_of_several_graphs(case: str) -> None:
    """A weight that several graphs read is stored for each, because TensorRT builds no shared one."""
    text = f"g (float[1,8,6,6] x, bool cond) => (float[1,8,6,6] y) {{ {SHARED[case]} }}"
    made = unmeasured(build(text, {"w": weights(8, 8, 3, 3)}), "tensorrt-int8")
    result = check(made, build=BuildOptions())
    assert result.passed and str(result.coverage[0]) == "Conv 2/2 low", result.table()
    stored = [t.name for t in made.graph.initializer if list(t.dims) == [8, 8, 3, 3]]
    assert stored == ["w/q", "w/q_2"]


@pytest.mark.sample
@needs_builder
def test_upper_case_labels() -> None:
    """An Einsum whose equation has upper-case letters is written in lower case and runs in int8."""
    proto = build(
        "g (float[2,4,16,64] x) => (float[2,4,16,32] y) {"
        '[mm] y = Einsum <equation = "BHtD,HDE->BHtE"> (x, w) }',
        {"w": weights(4, 64, 32)},
    )
    result = check(unmeasured(proto, "tensorrt-int8"), build=BuildOptions())
    assert result.passed and [str(row) for row in result.coverage] == ["Einsum 1/1 low"], result.table()
