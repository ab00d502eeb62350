"""Networks of many structures: what a recipe promises in low precision runs so, by its runtime's word."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

import onnx
import pytest
from builders import feed_for
from plan_networks import NETWORKS

import onnxfq
from onnxfq.errors import DataError
from onnxfq.targets.target import BuildOptions, prepare_model

pytest.importorskip("torch")

PACKAGES = {"onnxruntime": "onnxruntime", "openvino": "openvino", "qnn": "onnxruntime_qnn"}
SMALL = ("bert", "unet", "detector", "windows", "decoder", "mixer", "residual", "wide depthwise", "sound")
SMALL += ("grouped", "dense")
"""Networks that are exported and run in a second or two; the others are for all cases alone."""

MODELS = sorted(Path(os.environ.get("ONNXFQ_MODELS", "missing")).glob("*/*.onnx"))
"""Trained networks, each in its own folder; those above 3 MB are for all cases alone."""

KEPT = 0.99
"""Least share of the promised operators of a network that run low."""


def assert_kept(proto: onnx.ModelProto, target: str) -> None:
    """Quantize by the recipe of 8 bits, and count what runs low; no operator may have none."""
    if target == "openvino" and find_spec("openvino") is None:
        pytest.skip("OpenVINO is not installed")
    model, recipe = prepare_model(onnxfq.load(proto), target), onnxfq.load_recipe(f"{target}-int8")
    plan = onnxfq.make_plan(model, recipe)
    statistics = onnxfq.collect_statistics(model, plan, [feed_for(model.proto, 0, 1)])
    qdq = onnxfq.insert_qdq(model, plan, onnxfq.calibrate(model, plan, statistics))
    # Without its package the HTP has a table, which the rules read.
    build = None if find_spec(PACKAGES[target]) is None else BuildOptions()
    result = onnxfq.check(qdq, target, build=build)
    kept, promised = (sum(getattr(row, name) for row in result.coverage) for name in ("kept", "promised"))
    assert kept >= KEPT * promised > 0 and all(row.kept for row in result.coverage), result.table()


@pytest.mark.grid
@pytest.mark.filterwarnings("ignore")  # the exporter is not under test, and one sample is few
@pytest.mark.parametrize("target", PACKAGES)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.sample) if name == "mixer" else name for name in NETWORKS]
)
def test_promises_are_kept(name: str, target: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Every network runs at least 99% of what is promised so, and some of every operator."""
    if name not in SMALL and not request.config.getoption("--all-cases"):
        pytest.skip("large, for --all-cases")
    assert_kept(NETWORKS[name](tmp_path), target)


@pytest.mark.grid
@pytest.mark.filterwarnings("ignore")  # numbers that are made up, one sample
@pytest.mark.parametrize("target", PACKAGES)
@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
def test_promises_of_trained_networks_are_kept(
    path: Path, target: str, request: pytest.FixtureRequest
) -> None:
    """The same of the networks that ONNXFQ_MODELS names."""
    if path.stat().st_size > 3 << 20 and not request.config.getoption("--all-cases"):
        pytest.skip("large, for --all-cases")
    proto = onnx.load(path)
    try:
        assert_kept(proto, target)
    except DataError as error:
        pytest.skip(f"numbers that are made up do not run: {error}")
