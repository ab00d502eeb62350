"""`diff`: equal models have no difference, and each kind of difference is named with its tensor."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import conv_relu, feed_for, stage, two_branch, with_override, with_weights
from onnx import numpy_helper

from onnxfq.cli.main import main
from onnxfq.documents.recipe import Recipe
from onnxfq.stages.insert import insert_fake_quantize, insert_qdq
from onnxfq.tools import diff
from onnxfq.tools.diff import diff_models


def qdq(recipe: str | Recipe = "tensorrt-int8") -> onnx.ModelProto:
    """Quantize the residual model."""
    one = stage(two_branch(), recipe)
    return insert_qdq(one.model, one.plan, one.encodings)


def found(second: onnx.ModelProto, tolerance: float = 0.0) -> set[tuple[str, str]]:
    """Return (tensor, what) of all differences from the plain Q/DQ model."""
    return {(d.tensor, d.what) for d in diff_models(qdq(), second, tolerance).found}


def test_equal_models() -> None:
    """A model does not differ from itself made again."""
    result = diff_models(qdq(), qdq())
    assert result.equal and result.table().startswith("no difference between")


def test_placement() -> None:
    """A tensor that only one quantizes is named, and the operators that count differently."""
    kept = found(qdq(with_override(nodes=["conv3"], keep_float=True)))
    assert {("w3", "placement"), ("r2", "placement"), ("", "DequantizeLinear")} <= kept
    assert not any(what in ("type", "scale") for _, what in kept)


def test_types_and_granularity() -> None:
    """Another type and other axes are differences of their tensor."""
    per_tensor = found(qdq(with_weights("tensorrt-int8", granularity="per_tensor")))
    assert ("w1", "granularity") in per_tensor and ("w1", "shape of scales") in per_tensor
    assert {("w1", "type"), ("h", "type")} <= found(qdq("tensorrt-fp8"))
    assert ("h", "type") in found(qdq("onnxruntime-int8"))


@pytest.mark.parametrize(
    ("part", "tolerance", "differs"), [(1.01, 0.0, True), (1.01, 0.02, False), (1.1, 0.02, True)]
)
def test_scales(part: float, tolerance: float, differs: bool) -> None:
    """A scale counts as another beyond the tolerance, a part of it."""
    changed = qdq()
    for tensor in changed.graph.initializer:
        if tensor.name == "h/scale":
            tensor.CopyFrom(
                numpy_helper.from_array(numpy_helper.to_array(tensor) * np.float32(part), tensor.name)
            )
    assert found(changed, tolerance) == ({("h", "scale")} if differs else set())


def with_constant(name: str, change: Callable[[np.ndarray], np.ndarray]) -> onnx.ModelProto:
    """Return the plain Q/DQ model with one constant changed."""
    changed = qdq()
    for tensor in changed.graph.initializer:
        if tensor.name == name:
            values = numpy_helper.to_array(tensor)
            tensor.CopyFrom(numpy_helper.from_array(change(values).astype(values.dtype), name))
    return changed


def first_changed(values: np.ndarray, by: float) -> np.ndarray:
    """Return a copy whose first value is another."""
    values = values.copy()
    values.flat[0] += by
    return values


def test_constants() -> None:
    """Weights and biases are compared value by value; with a tolerance one step of a weight is free."""
    step = with_constant("w1/q", lambda values: np.where(values == values.max(), values - 1, values))
    (only,) = diff_models(qdq(), step).found
    assert (only.tensor, only.what.split("(")[0]) == ("w1/q", "values ") and found(step, 0.01) == set()
    far = with_constant("w1/q", lambda values: -values)
    assert {tensor for tensor, _ in found(far, 0.01)} == {"w1/q"}
    float_bias = next(t.name for t in qdq().graph.initializer if list(t.dims) == [4] and "/" not in t.name)
    assert found(with_constant(float_bias, lambda values: first_changed(values, 0.5)), 0.01) == {
        (float_bias, "values (1 of 4, the first)")
    }
    shape = with_constant(float_bias, lambda values: values.reshape(4, 1))
    assert found(shape) == {(float_bias, "constant")}


def test_nodes() -> None:
    """Attributes and inputs of nodes with the same outputs are compared, and the IR version."""
    changed = qdq()
    changed.ir_version += 1
    node = next(node for node in changed.graph.node if node.op_type == "Conv")
    next(a for a in node.attribute if a.name == "pads").ints[:] = [1, 1, 2, 0]
    rows = {(d.tensor, d.what): (d.first, d.second) for d in diff_models(qdq(), changed).found}
    assert set(rows) == {("", "IR version"), (node.output[0], "pads")}
    assert rows[node.output[0], "pads"] == ("[1, 1, 1, 1]", "[1, 1, 2, 0]")


def test_a_pair_is_one_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers of a tensor with a new pair read the same tensor; the pair is named, once."""
    differences = diff_models(two_branch(), qdq())
    assert {d.what for d in differences.found if d.tensor} == {"placement"}
    placed = [d.tensor for d in differences.found if d.what == "placement"]
    assert len(placed) == len(set(placed)) > 4
    monkeypatch.setattr(diff, "_FEW", 2)
    assert any(line.startswith("3 tensors, as h ") for line in differences.table().splitlines())


def test_command(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Exit code 0 for equal, 3 for different models; text or JSON."""
    one = stage(conv_relu())
    parts = (one.model, one.plan, one.encodings)
    onnx.save(insert_qdq(*parts), tmp_path / "a.onnx")
    onnx.save(insert_fake_quantize(*parts), tmp_path / "b.onnx")
    a, b = str(tmp_path / "a.onnx"), str(tmp_path / "b.onnx")
    assert main(["inspect", a, a]) == 0
    assert "no difference" in capfd.readouterr().out
    assert main(["inspect", a, b]) == 3
    assert "placement" in capfd.readouterr().out
    assert main(["inspect", a, b, "--json"]) == 3
    assert json.loads(capfd.readouterr().out)["found"]
    assert main(["inspect", a, str(tmp_path / "none.onnx")]) == 1


def test_provenance_tells_what_it_was_made_from(tmp_path: Path) -> None:
    """Version, recipe, calibrator and hashes stand in the file; other data give another fingerprint."""
    onnx.save(conv_relu(), tmp_path / "m.onnx")
    digests, contents = [], []
    for seed in (0, 0, 1):
        np.savez(tmp_path / "d.npz", **feed_for(conv_relu(), seed=seed))
        assert (
            main(f"quantize {tmp_path}/m.onnx --data {tmp_path}/d.npz -o {tmp_path}/q.onnx -q".split()) == 0
        )
        contents.append((tmp_path / "q.onnx").read_bytes())
        metadata = {p.key: p.value for p in onnx.load(tmp_path / "q.onnx").metadata_props}
        digests.append(metadata["onnxfq.statistics_sha256"])
        assert metadata["onnxfq.recipe"] == "tensorrt-int8" and metadata["onnxfq.calibrator"] == "best_error"
        assert {"onnxfq.version", "onnxfq.source_sha256"} <= set(metadata)
    assert contents[0] == contents[1] and digests[0] == digests[1] != digests[2]


def test_the_written_file_is_tried_before_it_takes_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A file that does not read back is an error, and nothing is written."""
    onnx.save(conv_relu(), tmp_path / "m.onnx")
    np.savez(tmp_path / "d.npz", **feed_for(conv_relu(), count=40))
    write = Path.write_bytes
    monkeypatch.setattr(Path, "write_bytes", lambda self, data: write(self, data[: len(data) // 2]))
    code = main(f"quantize {tmp_path}/m.onnx --data {tmp_path}/d.npz -o {tmp_path}/q.onnx -q".split())
    assert code == 1 and capfd.readouterr().err.count("\n") == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == ["d.npz", "m.onnx"]
