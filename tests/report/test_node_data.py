"""Overlays: node data of Model Explorer, and notes on the nodes of the written model."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from engines import build_all, counts
from planted_chain import WIDTH, chain, with_modules

from onnxfq.cli.main import main
from onnxfq.report.record import ResultRecord


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the planted chain, quantized with overlays and without."""
    made = tmp_path_factory.mktemp("overlays")
    onnx.save(with_modules(chain((3, 6))), made / "m.onnx")
    np.savez(made / "d.npz", x=np.random.default_rng(1).normal(size=(16, WIDTH)).astype(np.float32))
    line = ["quantize", str(made / "m.onnx"), "--data", str(made / "d.npz"), "-q"]
    noted = ["-o", str(made / "noted.onnx"), "--node-data", str(made / "nodes.json")]
    assert main([*line, *noted, "--artifacts", str(made / "kept")]) == 0
    assert main([*line, "-o", str(made / "plain.onnx")]) == 0
    return made


def test_node_data(folder: Path) -> None:
    """Each file has a value for each known layer by its output tensor, and the stops of a gradient.

    The fields are `GraphNodeData` and `NodeDataResult` of Model Explorer's node_data_builder.py.
    """
    record = ResultRecord.model_validate_json((folder / "kept/m.result.json").read_text(encoding="utf-8"))
    rows = {row.output: row for row in record.table.layers}
    outputs = {name for node in onnx.load(folder / "noted.onnx").graph.node for name in node.output}
    for name, figure in (("nodes", "output_db"), ("nodes.sensitivity", "alone_db")):
        content = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
        assert content.keys() == {"results", "gradient"} and content["results"].keys() <= outputs
        assert [stop["stop"] for stop in content["gradient"]] == [0, 0.5, 1]
        wanted = {one: {"value": round(getattr(row, figure), 2)} for one, row in rows.items()}
        assert content["results"] == wanted
    bits = json.loads((folder / "nodes.bits.json").read_text(encoding="utf-8"))["results"]
    assert {one["value"] for one in bits.values()} == {8, 32}
    assert bits["a3"] == {"value": 32} and not rows["a3"].quantized


def test_notes_are_all_that_differs(folder: Path) -> None:
    """Nodes carry the same figures; without them the model is the one that is written by default."""
    noted, plain = (onnx.load(folder / f"{name}.onnx") for name in ("noted", "plain"))
    found = {node.name: {e.key: e.value for e in node.metadata_props} for node in noted.graph.node}
    content = json.loads((folder / "nodes.json").read_text(encoding="utf-8"))["results"]
    assert float(found["m0"]["onnxfq.sqnr_db"]) == pytest.approx(content["a0"]["value"], abs=0.01)
    assert (found["m0"]["onnxfq.bits"], found["m3"]["onnxfq.bits"]) == ("8", "32")
    for node in noted.graph.node:
        for entry in [entry for entry in node.metadata_props if entry.key.startswith("onnxfq.")]:
            node.metadata_props.remove(entry)
    assert noted == plain


def test_the_builder_takes_notes(folder: Path) -> None:
    """TensorRT builds the model with notes as the one without, layer by layer."""
    pytest.importorskip("tensorrt_rtx")
    models = {name: onnx.load(folder / f"{name}.onnx") for name in ("noted", "plain")}
    built = build_all(folder, models)
    noted, plain = (counts(models[name], built[name]) for name in models)
    assert noted == plain and noted


def test_overlays_replace_nothing(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The files next to the named one are outputs too: none of them may be an input."""
    (folder / "x.bits.npz").write_bytes((folder / "d.npz").read_bytes())
    line = ["quantize", str(folder / "m.onnx"), "--data", str(folder / "x.bits.npz"), "-q"]
    assert main([*line, "-o", str(folder / "o.onnx"), "--node-data", str(folder / "x.npz")]) == 1
    assert "another file of this command" in capfd.readouterr().err
