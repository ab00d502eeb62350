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
from engines import SECONDS, build_all, unmeasured, verdicts
from plan_networks import NETWORKS, ROOT, dense, open_encoder

from onnxfq.errors import ModelError
from onnxfq.stages import plan as stages_plan
from onnxfq.targets.profiles import profiles
from onnxfq.targets.reading.context import CheckContext, read
from onnxfq.targets.recipes import load_recipe
from onnxfq.targets.tensorrt.builder.figures import count_layers
from onnxfq.targets.tensorrt.builder.jobs import Job, builder_installed, run_jobs
from onnxfq.targets.tensorrt.builder.layers import parse_layers
from onnxfq.targets.tensorrt.builder.without_pairs import without_pairs
from onnxfq.targets.tensorrt.rules.structure import EXTRA

pytestmark = pytest.mark.skipif(not builder_installed(), reason="TensorRT for RTX is not installed")

RECIPES = ("tensorrt-int8", "tensorrt-fp8", "tensorrt-nvfp4")
ALL = os.environ.get("ONNXFQ_GOLDEN") == "all"
CASES = [(name, recipe) for name in NETWORKS for recipe in RECIPES][:: 1 if ALL else 40]
MOST = 1.05
"""Times the kernels of the plan before, and of half, that a plan may have."""

BESIDE_HALF = json.loads(Path(plan_networks.__file__).with_name("kernels_beside_half.json").read_text())
"""Kernels of the plans and of half by `benchmarks/kernels_beside_half.py`: no plan may have more.

The third word says what pays for them in a network above MOST times half's.
"""

UNPAID = {
    "tensorrt-fp8": {"encoder-decoder", "boxes", "structure: einsum attention"},
    "tensorrt-nvfp4": set[str](),
}
"""Networks above MOST times half's kernels whose bytes do not pay, though parts of them do by the prices.

In float8 an attention over other tokens has two kernels more, of its queries, and of its keys and values. In
front of an attention in half, products without a bias have one more each: half moves nothing there.
"""

TOTALS: dict[str, Counter[str]] = {recipe: Counter() for recipe in RECIPES}
"""Kernels of all networks, by recipe and plan."""


def plan_before(proto: onnx.ModelProto, recipe: str, monkeypatch: pytest.MonkeyPatch) -> onnx.ModelProto:
    """Return the Q/DQ model of the plan without the rules about short runs, attention and light weights."""
    without = load_recipe(recipe).override(unfused_attention="quantize")
    with monkeypatch.context() as patch:
        for rule in ("leave_out_short_runs", "leave_out_light"):
            patch.setattr(stages_plan, rule, lambda decisions, *_: decisions)
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
    """Engines build, what is promised runs low, and no plan has more kernels than the one before, or 5%."""
    proto = NETWORKS[name](tmp_path)
    try:
        plan = unmeasured(proto, recipe, "fp16")
    except ModelError as error:  # a network of convolutions alone, in NVFP4
        assert "nothing to quantize" in str(error)
        return
    reading = read(plan, EXTRA)
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
    counted, *_ = BESIDE_HALF.get(recipe, {}).get(name, [0])
    allowed = max(counted, MOST * kernels["half"]) if recipe in BESIDE_HALF else kernels["plan"]
    TOTALS[recipe] += Counter(kernels) + Counter(networks=1)
    lost = {
        f"{capability} {node}: {row}"
        for capability, report in built["plan"].items()
        for node, row in verdicts(reading, report).items()
        if row.split()[1] != "low"
    }
    assert not lost and kernels["plan"] <= min(MOST * kernels["before"], allowed), (lost, kernels, allowed)


@pytest.mark.parametrize("recipe", BESIDE_HALF)
def test_what_is_above_half_pays(recipe: str) -> None:
    """Each kernel more saves the bytes of a launch, or nothing in the network pays and its plan says so."""
    above = {name: why for name, (ours, half, why) in BESIDE_HALF[recipe].items() if ours > MOST * half}
    assert len(BESIDE_HALF[recipe]) > 25 and all(above.values())
    assert {name for name, why in above.items() if why == "does not pay"} == UNPAID[recipe]
    if recipe == "tensorrt-fp8":
        counts = Counter(above.values())
        found = (
            f"In float8 {len(above)} of {len(BESIDE_HALF[recipe])} have\nmore than {MOST} times the kernels"
        )
        text = (ROOT / "docs" / "tensorrt.md").read_text(encoding="utf-8")
        assert found in text and f"In {counts['bytes pay']} of these each kernel more" in text
        assert f"In {counts['nothing pays']} others nothing pays" in text


def count_kernels(reading: CheckContext, shapes: dict[str, list[tuple[int, int]]], folder: Path) -> list[int]:
    """Return the layers of the engines with and without pairs, for a profile of `shapes`."""
    jobs = []
    for name, proto in (("low", reading.proto), ("half", without_pairs(reading))):
        onnx.save(proto, folder / f"{name}.onnx")
        jobs.append(Job(folder / f"{name}.onnx", "SM89", profiles(proto, shapes)))
    return [len(parse_layers(report.layers)) for report in run_jobs(jobs, SECONDS)]


@pytest.mark.parametrize(
    ("name", "more"), [("open encoder", 0), pytest.param("dense", 2, marks=pytest.mark.sample)]
)
def test_float8_beside_half(name: str, more: int, tmp_path: Path) -> None:
    """An encoder for 1 to 256 tokens has no layer more in float8 than in half, and dense blocks have two."""
    proto = open_encoder() if name == "open encoder" else dense(3)
    shapes = {"x": [(1, 1), (1, 256), (384, 384)]} if name == "open encoder" else {}
    low, half = count_kernels(read(unmeasured(proto, "tensorrt-fp8", "fp16"), EXTRA), shapes, tmp_path)
    assert 0 < low <= half + more
