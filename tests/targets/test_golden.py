"""Engines of TensorRT for RTX for whole networks: counts of layers, kept in files with the builder's version.

ONNXFQ_GOLDEN=all builds every recipe with fixed and open batch, and the remainder in float32 and float16, for
minutes; ONNXFQ_WRITE_GOLDEN=1 does so and rewrites the files. ONNXFQ_MODELS names a folder of more models;
of those with a golden file every sixth is built as well, and all of them with ONNXFQ_GOLDEN=all.
"""

from __future__ import annotations

import importlib
import json
import os
from pathlib import Path

import onnx
import pytest
from engines import build_all, counts, needs_builder, unmeasured

import onnxfq
from onnxfq.documents.recipe import Recipe
from onnxfq.numerics.float_types import FloatName
from onnxfq.targets.recipes import load_recipe
from onnxfq.tools.check import check

pytestmark = needs_builder

GOLDEN = Path(__file__).parent / "golden"
ROOT = Path(__file__).parents[2]
WRITE = os.environ.get("ONNXFQ_WRITE_GOLDEN") == "1"
INT8, FP8 = "tensorrt-int8", "tensorrt-fp8"
WEIGHTS = ("tensorrt-int4", "tensorrt-int8-weights")
MISSES = [("float", "low"), ("mixed", "low"), ("weight-only", "low"), ("float", "weight-only")]
NETWORKS = {"bert": (FP8, WEIGHTS[0]), "unet": (INT8,), "detector": (INT8,)}
MORE = {
    **dict.fromkeys(("resnet18", "mobilenetv2", "resnet50"), (INT8, FP8)),
    **dict.fromkeys(("unet", "detector"), (FP8,)),
    "bert": (INT8, *WEIGHTS[1:]),
    "vit_b16": (INT8, FP8, *WEIGHTS),
}
"""Recipes of networks that are built with ONNXFQ_GOLDEN=all only."""

Variant = tuple[int | str, FloatName]
USUAL: tuple[Variant, ...] = (("N", "fp16"),)
VARIANTS: tuple[Variant, ...] = ((1, "fp32"), (1, "fp16"), ("N", "fp32"), ("N", "fp16"))
"""Batch, fixed or open, and the type of what is not quantized."""

LOST = [f"{op} {found} as {wanted}" for op in ("Conv", "Gemm", "MatMul") for found, wanted in MISSES]
"""Rows of a count that break a promise."""

ALL = WRITE or os.environ.get("ONNXFQ_GOLDEN") == "all"
TRAINED = ["depthwise_cnn", "residual_cnn", "transformer"][: 3 if ALL else 1]
FOLDER = os.environ.get("ONNXFQ_MODELS", "")
FILES = sorted(Path(FOLDER).rglob("*.onnx")) if FOLDER else []
BUILT = [*NETWORKS] + ([name for name in MORE if name not in NETWORKS] if ALL else [])
KEPT = FILES if WRITE else [path for path in FILES if (GOLDEN / f"{path.stem}.json").is_file()]


def _whole(recipe: str) -> Recipe:
    """Return a recipe without its rule about kernels."""
    return load_recipe(recipe).override(small_shapes="quantize")


def built(folder: Path, protos: dict[str, onnx.ModelProto]) -> dict[str, dict[str, object]]:
    """Build each of `protos`; return {name: what was built, and its layers}, with the builder's version."""
    return {
        name: {
            "builder": f"TensorRT for RTX {next(iter(reports.values())).version}",
            "built": {capability: report.built for capability, report in reports.items()},
            "nodes": counts(protos[name], reports),
        }
        for name, reports in build_all(folder, protos).items()
    }


def compare(file: str, found: dict[str, dict[str, object]]) -> None:
    """Compare with the golden file, by name, or write it."""
    path = GOLDEN / f"{file}.json"
    if WRITE:
        path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    golden = json.loads(path.read_text(encoding="utf-8"))
    for name, one in found.items():
        # A patch release may make the same engine: the version is printed, not compared.
        told = f"{name}: made by {golden[name]['builder']}, now {one['builder']}"
        assert {**one, "builder": ""} == {**golden[name], "builder": ""}, told


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.sample if name == "unet" else ()) for name in BUILT]
)
def test_networks(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Well-known networks keep every node in low precision that is planned so, and `check` finds nothing."""
    monkeypatch.syspath_prepend(ROOT / "models")
    network = importlib.import_module("networks").NETWORKS[name]
    recipes = NETWORKS.get(name, ()) + (MORE.get(name, ()) if ALL else ())
    found = {}
    for recipe in recipes:
        for batch, floats in VARIANTS if ALL else USUAL:
            case = f"{recipe} {batch} {floats}"
            proto = unmeasured(network(batch), _whole(recipe), floats)
            found |= built(tmp_path, {case: proto})
            assert not check(proto).findings, case
    compare(name, found)
    for case, one in found.items():
        lost = [row for rows in one["nodes"].values() for row in rows if row in LOST]
        assert not lost, f"{case}: {lost}"


@pytest.mark.parametrize("name", TRAINED)
def test_torch_models(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The torch models of models/, exported without training, keep theirs."""
    pytest.importorskip("torch.nn")
    monkeypatch.syspath_prepend(ROOT / "models")
    images = importlib.import_module("torch").zeros(2, 1, 28, 28)
    path = tmp_path / f"{name}.onnx"
    onnxfq.export_torch(importlib.import_module(name).build().eval(), (images,), path)
    compare(name, built(tmp_path, {recipe: unmeasured(path, _whole(recipe)) for recipe in (INT8, FP8)}))


@pytest.mark.skipif(not FILES, reason="ONNXFQ_MODELS names no folder of models")
@pytest.mark.parametrize("path", KEPT[:: 1 if ALL else 6], ids=lambda path: path.stem)
def test_more_models(path: Path, tmp_path: Path) -> None:
    """Real models keep theirs."""
    try:
        protos = {INT8: unmeasured(path, INT8)}
    except onnxfq.OnnxfqError as fault:
        pytest.skip(f"it cannot be quantized: {fault}")
    compare(path.stem, built(tmp_path, protos))
