"""Ranks that only a run can tell: taken from the first feed, none of which is lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
import yaml
from builders import build, weights

from onnxfq.cli.main import main
from onnxfq.documents.plan import Plan
from onnxfq.documents.recipe import Recipe
from onnxfq.graph.io.load import load
from onnxfq.quantizing.pipeline import quantize
from onnxfq.runtime.type_inference import lacks_ranks, with_run_ranks
from onnxfq.stages.options import RunOptions
from onnxfq.stages.plan import make_plan


def reshaped() -> onnx.ModelProto:
    """A MatMul and a sum behind a Reshape to a shape that is an input: ONNX finds no rank."""
    return build(
        """g (float[N,4] x, int64[R] s) => (float y) {
            h = Reshape (x, s) m = MatMul (h, w) r = Relu (h) y = Add (m, r) }""",
        {"w": weights(4, 4)},
    )


def by_axis() -> Recipe:
    """A recipe whose activations have a scale for each block of a row."""
    scheme = {"qtype": "float8e4m3fn", "scale_type": "e8m0", "granularity": "blocked", "block_size": 4}
    fields = {"activations": scheme | {"dynamic": True}, "weights": scheme}
    return Recipe.model_validate({"name": "rows", "target": "simulation", **fields})


def feeds(count: int = 3) -> Iterator[dict[str, np.ndarray]]:
    """Feeds that can be gone through once."""
    for seed in range(count):
        yield {"x": weights(6, 4, seed=seed), "s": np.asarray([2, 3, 4])}


def test_ranks_of_a_run() -> None:
    """A run gives the ranks that ONNX cannot infer; sizes stay open: the next feed may differ."""
    model = load(reshaped())
    assert lacks_ranks(model) == ("h", "m", "r")
    found = with_run_ranks(model, next(feeds()))
    values = {v.name: v.type.tensor_type for v in (*found.proto.graph.value_info, *found.proto.graph.output)}
    for name in ("h", "m", "r"):
        assert len(values[name].shape.dim) == 3 and values[name].elem_type == onnx.TensorProto.FLOAT
    assert not any(d.HasField("dim_value") for d in values["h"].shape.dim)
    assert not lacks_ranks(found) and found.sha256 == model.sha256


def test_unknown_ranks_are_no_error() -> None:
    """A quantizer that goes by axis finds its axis; a one-shot iterator still gives every feed."""
    recipe = by_axis()
    model = load(reshaped())
    with pytest.raises(Exception, match="has no known rank"):
        make_plan(model, recipe)
    plan = make_plan(with_run_ranks(model, next(feeds())), recipe)
    assert [(p.tensor, p.spec.granularity.axis) for p in plan.placements if p.role == "activation"] == [
        ("h", 2)
    ]
    result = quantize(reshaped(), feeds(3))
    assert result.statistics.feeds == 3
    assert [str(row) for row in result.plan.coverage()][0] == "MatMul 1/1"


def test_the_plan_tells_what_a_run_would(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Without data a note names tensor and remedy; with data the plan equals the one of `quantize`."""
    path = tmp_path / "m.onnx"
    onnx.save(reshaped(), path)
    (tmp_path / "feeds").mkdir()
    for number, feed in enumerate(feeds()):
        np.savez(tmp_path / "feeds" / f"{number}.npz", **feed)
    assert main(["plan", str(path), "-o", str(tmp_path / "blind.json")]) == 0
    assert "no rank is known of 'h' and 2 more" in (said := capfd.readouterr().out) and "--data" in said
    data = ["--data", str(tmp_path / "feeds"), "--batch", "0"]
    assert main(["plan", str(path), "-o", str(tmp_path / "seen.json"), *data]) == 0
    assert "no rank" not in capfd.readouterr().out
    seen = Plan.load(tmp_path / "seen.json")
    assert seen == quantize(path, tmp_path / "feeds", options=RunOptions(batch=0)).plan
    (tmp_path / "rows.yaml").write_text(yaml.safe_dump(by_axis().model_dump(exclude_defaults=True)))
    rows = ["plan", str(path), "--recipe", str(tmp_path / "rows.yaml"), "-o", str(tmp_path / "rows.json")]
    assert main(rows) == 1 and not (tmp_path / "rows.json").exists()
    assert "'h' has no known rank" in (said := capfd.readouterr().err) and "plan with data" in said
    assert main([*rows, *data]) == 0
    placed = {p.tensor: p.spec.granularity.axis for p in Plan.load(tmp_path / "rows.json").placements}
    assert placed["h"] == 2
