"""Plans of networks as engines of TensorRT for RTX, beside the plans without the rules about engines.

ONNXFQ_GOLDEN=all builds every network with every recipe; otherwise a few cases are built.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import onnx
import plan_networks
import pytest
from engines import SECONDS, build_all, needs_builder, unmeasured, verdicts
from plan_networks import NETWORKS, ROOT, open_encoder

from onnxfq.errors import ModelError
from onnxfq.placement.costly_parts import MOST
from onnxfq.stages import plan as stages_plan
from onnxfq.targets.profiles import profiles
from onnxfq.targets.reading.context import read
from onnxfq.targets.recipes import load_recipe
from onnxfq.targets.tensorrt.builder.figures import count_layers
from onnxfq.targets.tensorrt.builder.jobs import Job, run_jobs
from onnxfq.targets.tensorrt.builder.layers import parse_layers
from onnxfq.targets.tensorrt.builder.without_pairs import without_pairs
from onnxfq.targets.tensorrt.rules.structure import EXTRA

pytestmark = needs_builder

RECIPES = ("tensorrt-int8", "tensorrt-fp8", "tensorrt-nvfp4")
ALL = os.environ.get("ONNXFQ_GOLDEN") == "all"
FEW = [("gated", "tensorrt-fp8"), ("structure: mixer", "tensorrt-nvfp4")]
CASES = [(name, recipe) for name in NETWORKS for recipe in RECIPES] if ALL else FEW
BESIDE_HALF = json.loads(Path(plan_networks.__file__).with_name("kernels_beside_half.json").read_text())
"""Kernels of the plans and of half by `benchmarks/kernels_beside_half.py`: no plan may have more."""

TOTALS: dict[str, Counter[str]] = {recipe: Counter() for recipe in RECIPES}
"""Kernels of all networks, by recipe and plan."""


def plan_before(proto: onnx.ModelProto, recipe: str, monkeypatch: pytest.MonkeyPatch) -> onnx.ModelProto:
    """Return the Q/DQ model of the plan without the rules about short runs, attention and light weights."""
    without = load_recipe(recipe).override(unfused_attention="quantize")
    with monkeypatch.context() as patch:
        patch.setattr(stages_plan, "leave_out_costly", lambda decisions, *_: decisions)
        return unmeasured(proto, without, "fp16")


@pytest.fixture(scope="module", autouse=True)
def totals() -> Iterator[None]:
    """Print the sums over all networks that ran, by recipe."""
    yield
    for recipe, counts in TOTALS.items():
        print(f"\n{recipe}: " + ", ".join(f"{name} {count:,}" for name, count in counts.items()), end="")
    print()


@pytest.mark.parametrize(("name", "recipe"), CASES)
@pytest.mark.filterwarnings("ignore")  # the exporter is not under test
def test_plans(name: str, recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines build, what is promised runs low, and kernels are not above counted ones, or 1.05 of before."""
    proto = NETWORKS[name](tmp_path)
    try:
        plan = unmeasured(proto, recipe, "fp16")
    except ModelError as error:  # a network of convolutions alone, in NVFP4
        assert "nothing to quantize" in str(error)
        return
    reading = read(plan, EXTRA)
    if not reading.promises:  # nothing pays
        assert recipe in BESIDE_HALF and name not in BESIDE_HALF[recipe]
        return
    models = {"plan": plan, "before": plan_before(proto, recipe, monkeypatch), "half": without_pairs(reading)}
    if models["before"].SerializeToString() == plan.SerializeToString():
        del models["before"]
    built = build_all(tmp_path, models)
    kernels = dict.fromkeys(models, 0)
    for model, reports in built.items():
        capability, report = list(reports.items())[-1]
        assert report.built, (model, capability, report.ended, report.faults, report.errors)
        kernels[model] = count_layers(parse_layers(report.layers), {}).kernels
    kernels.setdefault("before", kernels["plan"])
    counted = BESIDE_HALF.get(recipe, {}).get(name, [0])[0]
    allowed = max(counted, kernels["half"]) if recipe in BESIDE_HALF else kernels["plan"]
    TOTALS[recipe] += Counter(kernels) + Counter(networks=1)
    lost = {
        f"{capability} {node}: {row}"
        for capability, report in built["plan"].items()
        for node, row in verdicts(reading, report).items()
        if row.split()[1] != "low"
    }
    assert not lost and kernels["plan"] <= min(MOST * kernels["before"], allowed), (lost, kernels, allowed)


@pytest.mark.parametrize("recipe", BESIDE_HALF)
def test_kernels_of_half(recipe: str) -> None:
    """No engine has more than 1.05 times the kernels of half, and transformers have low ones nevertheless.

    A product with dynamic scales of AlexNet saves 18 MB for each of its three kernels.
    """
    counted = BESIDE_HALF[recipe]
    above = [name for name, (ours, half) in counted.items() if ours > MOST * half]
    assert above == (["light_bvlc_alexnet"] if recipe == "tensorrt-nvfp4" else [])
    low = {"vit_b16"} if recipe == "tensorrt-nvfp4" else {"vit_b16", "bert", "vision", "boxes"}
    text = (ROOT / "docs" / "tensorrt.md").read_text(encoding="utf-8")
    assert counted.keys() >= low and f"{'one' if above else 'none'} of {len(counted)} " in text


def test_open_tokens_beside_half(tmp_path: Path) -> None:
    """An encoder for 1 to 256 tokens has no layer more in float8 than in half."""
    reading, jobs = read(unmeasured(open_encoder(2), "tensorrt-fp8", "fp16"), EXTRA), []
    for name, proto in (("low", reading.proto), ("half", without_pairs(reading))):
        onnx.save(proto, tmp_path / f"{name}.onnx")
        shapes = profiles(proto, {"x": [(1, 1), (1, 256), (384, 384)]})
        jobs.append(Job(tmp_path / f"{name}.onnx", "SM89", shapes))
    low, half = (len(parse_layers(report.layers)) for report in run_jobs(jobs, SECONDS))
    assert 0 < low <= half
