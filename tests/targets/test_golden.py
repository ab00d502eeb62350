"""What TensorRT for RTX makes of whole networks: counts of layers, kept in files with the builder's version.

ONNXFQ_WRITE_GOLDEN=1 writes the files anew. ONNXFQ_MODELS names a folder of more models; those with a golden
file are built as well.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from engines import build_all, counts, unmeasured

from onnxfq.targets.building import builder_installed

pytestmark = pytest.mark.skipif(not builder_installed(), reason="TensorRT for RTX is not installed")

GOLDEN = Path(__file__).parent / "golden"
ROOT = Path(__file__).parents[2]
WRITE = os.environ.get("ONNXFQ_WRITE_GOLDEN") == "1"
NETWORKS = [
    ("resnet50", "tensorrt-int8"),
    ("resnet50", "tensorrt-fp8"),
    ("mobilenetv2", "tensorrt-int8"),
    ("mobilenetv2", "tensorrt-fp8"),
    ("mobilenetv2", "tensorrt-int4"),
    ("vit_b16", "tensorrt-int8"),
]
TRAINED = ["depthwise_cnn", "residual_cnn", "transformer"]
FOLDER = os.environ.get("ONNXFQ_MODELS", "")
FILES = sorted(Path(FOLDER).rglob("*.onnx")) if FOLDER else []


def compare(name: str, recipe: str, model: Path | onnx.ModelProto, folder: Path) -> None:
    """Build `model` by `recipe` and compare with its golden file, or write that."""
    proto = unmeasured(model, recipe)
    reports = build_all(folder, {name: proto})[name]
    found = {
        "builder": f"TensorRT for RTX {next(iter(reports.values())).version}",
        "built": {capability: report.built for capability, report in reports.items()},
        "nodes": counts(proto, reports),
    }
    path = GOLDEN / f"{name}.{recipe}.json"
    if WRITE:
        path.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    golden = json.loads(path.read_text(encoding="utf-8"))
    # A patch release may make the same engine: the version is told, not compared.
    told = f"made by {golden['builder']}, now {found['builder']}"
    assert {**found, "builder": ""} == {**golden, "builder": ""}, told


@pytest.mark.parametrize(("name", "recipe"), NETWORKS)
def test_networks(name: str, recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The networks of the benchmarks keep every node in low precision that is planned so."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    networks = __import__("networks")
    compare(name, recipe, networks.NETWORKS[name](1), tmp_path)


@pytest.mark.parametrize("recipe", ["tensorrt-int8", "tensorrt-fp8"])
@pytest.mark.parametrize("name", TRAINED)
def test_torch_models(name: str, recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The torch models of models/, exported without training, keep theirs."""
    pytest.importorskip("torch.nn")
    monkeypatch.syspath_prepend(ROOT / "models")
    module = __import__(name)
    from onnxfq import export_torch

    images = np.zeros((2, 1, 28, 28), np.float32)
    path = tmp_path / f"{name}.onnx"
    export_torch(module.build(), (sys.modules["torch"].from_numpy(images),), path)
    compare(name, recipe, path, tmp_path)


@pytest.mark.skipif(not FILES, reason="ONNXFQ_MODELS names no folder of models")
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_more_models(path: Path, tmp_path: Path) -> None:
    """Real models keep theirs."""
    if not WRITE and not (GOLDEN / f"{path.stem}.tensorrt-int8.json").is_file():
        pytest.skip("it has no golden file")
    compare(path.stem, "tensorrt-int8", path, tmp_path)
