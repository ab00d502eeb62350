"""Overlays: node data of Model Explorer, and notes on the nodes of the written model."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from planted_chain import WIDTH, chain, with_modules

from onnxfq.cli.main import main
from onnxfq.report.record import ResultRecord


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the planted chain, quantized with overlays and without."""
    made = tmp_path_factory.mktemp("overlays")
    onnx.save(with_modules(chain((3, 6))), made / "m.onnx")
    np.savez(made / "d.npz", x=np.random.default_rng(1).normal(size=(16, WIDTH)).astype(np.float32))
    line = ["quantize", str(made / "m.onnx"), "--data", str(made / "d.npz"), "-q", "--equalize", "none"]
    assert main([*line, "-o", str(made / "noted.onnx"), "--artifacts", str(made / "kept")]) == 0
    result = str(made / "kept/m.result.json")
    assert main(["report", result, "-o", str(made / "r.html"), "--node-data", str(made / "nodes.json")]) == 0
    return made


@pytest.mark.whole
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
        known = {one: getattr(row, figure) for one, row in rows.items()}
        wanted = {one: {"value": round(value, 2)} for one, value in known.items() if value is not None}
        assert content["results"] == wanted
    bits = json.loads((folder / "nodes.bits.json").read_text(encoding="utf-8"))["results"]
    assert {one["value"] for one in bits.values()} == {8, 32}
    assert bits["a3"] == {"value": 32} and not rows["a3"].quantized


def test_overlays_replace_nothing(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The files next to the named one are outputs too: none of them may be an input."""
    for name in ("x.json", "x.bits.json"):
        (folder / name).write_bytes((folder / "kept/m.result.json").read_bytes())
    line = ["report", str(folder / "x.bits.json"), "-o", str(folder / "o.html")]
    assert main([*line, "--node-data", str(folder / "x.json")]) == 1
    assert "another file of this command" in capfd.readouterr().err


def test_one_result_has_node_data(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Layers of two results, or of what has none, are wrong usage."""
    result = str(folder / "kept/m.result.json")
    for results in ([result, result], [str(folder / "kept/m.evaluation.json")]):
        line = ["report", *results, "-o", str(folder / "o.html"), "--node-data", str(folder / "y.json")]
        assert main(line) == 2
        assert "--node-data is for one result of quantize" in capfd.readouterr().err
    assert not (folder / "y.json").exists()
