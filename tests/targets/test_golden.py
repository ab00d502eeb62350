"""What TensorRT for RTX makes of whole networks: counts of layers, kept in files with the builder's version.

ONNXFQ_WRITE_GOLDEN=1 writes the files anew. ONNXFQ_MODELS names a folder of more models; those with a golden
file are built as well.
"""

from __future__ import annotations

import importlib
import json
import os
from pathlib import Path

import onnx
import pytest
from engines import build_all, counts, unmeasured

import onnxfq
from onnxfq.targets.building import builder_installed

pytestmark = pytest.mark.skipif(not builder_installed(), reason="TensorRT for RTX is not installed")

GOLDEN = Path(__file__).parent / "golden"
ROOT = Path(__file__).parents[2]
WRITE = os.environ.get("ONNXFQ_WRITE_GOLDEN") == "1"
NETWORKS = {
    "resnet50": ("tensorrt-int8", "tensorrt-fp8"),
    "mobilenetv2": ("tensorrt-int8", "tensorrt-fp8", "tensorrt-int4"),
    "vit_b16": ("tensorrt-int8",),
}
TRAINED = ["depthwise_cnn", "residual_cnn", "transformer"]
FOLDER = os.environ.get("ONNXFQ_MODELS", "")
FILES = sorted(Path(FOLDER).rglob("*.onnx")) if FOLDER else []


def compare(name: str, recipes: tuple[str, ...], model: Path | onnx.ModelProto, folder: Path) -> None:
    """Build `model` by each recipe and compare with its golden files, or write them."""
    protos = {recipe: unmeasured(model, recipe) for recipe in recipes}
    for recipe, reports in build_all(folder, protos).items():
        found = {
            "builder": f"TensorRT for RTX {next(iter(reports.values())).version}",
            "built": {capability: report.built for capability, report in reports.items()},
            "nodes": counts(protos[recipe], reports),
        }
        path = GOLDEN / f"{name}.{recipe}.json"
        if WRITE:
            path.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
        golden = json.loads(path.read_text(encoding="utf-8"))
        # A patch release may make the same engine: the version is told, not compared.
        told = f"{recipe}: made by {golden['builder']}, now {found['builder']}"
        assert {**found, "builder": ""} == {**golden, "builder": ""}, told


@pytest.mark.parametrize("name", NETWORKS)
def test_networks(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The networks of the benchmarks keep every node in low precision that is planned so."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    network = importlib.import_module("networks").NETWORKS[name](1)
    compare(name, NETWORKS[name], network, tmp_path)


@pytest.mark.parametrize("name", TRAINED)
def test_torch_models(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The torch models of models/, exported without training, keep theirs."""
    pytest.importorskip("torch.nn")
    monkeypatch.syspath_prepend(ROOT / "models")
    images = importlib.import_module("torch").zeros(2, 1, 28, 28)
    path = tmp_path / f"{name}.onnx"
    onnxfq.export_torch(importlib.import_module(name).build().eval(), (images,), path)
    compare(name, ("tensorrt-int8", "tensorrt-fp8"), path, tmp_path)


@pytest.mark.skipif(not FILES, reason="ONNXFQ_MODELS names no folder of models")
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_more_models(path: Path, tmp_path: Path) -> None:
    """Real models keep theirs."""
    try:
        compare(path.stem, ("tensorrt-int8",), path, tmp_path)
    except (onnxfq.OnnxfqError, FileNotFoundError) as fault:
        pytest.skip(f"it cannot be quantized, or has no golden file: {fault}")
