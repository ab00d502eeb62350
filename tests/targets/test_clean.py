"""What onnxfq writes for TensorRT breaks no rule, and TensorRT for RTX keeps all that it promises."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import BUILDERS, linear, qdq_of, stage
from engines import build_all, verdicts

import onnxfq
from onnxfq.stages.check import check
from onnxfq.targets.tensorrt.builder.build import Report, builder_installed
from onnxfq.targets.tensorrt.rules.context import read
from onnxfq.targets.tensorrt.rules.structure import EXTRA

RECIPES = ("tensorrt-int8", "tensorrt-fp8", "tensorrt-int4")
NAMES = [f"{name} {recipe}" for recipe in RECIPES[:2] for name in (*BUILDERS, "digits")]
NAMES += [f"linear {RECIPES[2]}"]


@pytest.fixture(scope="module")
def models(digits_model: Path, digit_images: np.ndarray) -> dict[str, onnx.ModelProto]:
    """Q/DQ models by `name recipe`."""
    made = {}
    for name in NAMES:
        source, recipe = name.split()
        if source == "digits":
            feeds = [{"image": digit_images[:8]}]
            made[name] = onnxfq.quantize(digits_model, feeds, recipe=recipe).qdq
        else:
            proto = linear(256, 64) if source == "linear" else BUILDERS[source]()
            made[name] = qdq_of(stage(proto, recipe))
    return made


@pytest.mark.parametrize("name", NAMES)
def test_rules_find_nothing(name: str, models: dict[str, onnx.ModelProto]) -> None:
    """No finding, but for ConvTranspose, which is a matter of the TensorRT at hand; all promises are kept."""
    result = check(models[name])
    assert result.passed
    assert {(f.severity, f.rule) for f in result.findings} <= {("warning", "conv-transpose")}, result.table()
    assert result.coverage and all(row.kept == row.promised for row in result.coverage)


@pytest.fixture(scope="module")
def reports(
    models: dict[str, onnx.ModelProto], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, dict[str, Report]]:
    """What the builder makes of them, by name and architecture."""
    return build_all(tmp_path_factory.mktemp("clean"), models)


@pytest.mark.skipif(not builder_installed(), reason="TensorRT for RTX is not installed")
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
