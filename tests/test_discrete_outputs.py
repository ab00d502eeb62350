"""Outputs that are not plain floats: compared by what they are, in every report, and never judged in dB."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import build, build_used, feed_for, plain_quantize, scalars, weights
from numpy.typing import NDArray

from onnxfq.cli.main import main
from onnxfq.data.labels import read_labels
from onnxfq.documents.scores import CandidateScore, EqualShare
from onnxfq.errors import DataError, ModelError
from onnxfq.graph.io.load import load
from onnxfq.graph.patterns.logits import judge_outputs
from onnxfq.judging.accuracy_target import AccuracyTarget
from onnxfq.metrics.classes import predict_classes
from onnxfq.metrics.outputs import EqualCounts, FlatOutput
from onnxfq.quantizing.pipeline import quantize
from onnxfq.remedies.sensitivity import sensitivity
from onnxfq.report.text import quantize_summary
from onnxfq.stages.evaluate import evaluate
from onnxfq.stages.options import RunOptions
from onnxfq.stages.score import score_models

CONSTANTS = {
    **scalars(np.int64, five=[5], rows=[0, 4, 4], limit=[3]),
    **scalars(np.float32, half=0.5, overlap=[0.5], least=[0.1]),
    "w": weights(16, 16) * np.float32(0.3),
    "v": weights(16, 16, seed=2) * np.float32(0.3),
    "c": weights(16, 3, seed=3) * np.float32(0.3),
    "table": weights(16, 16, seed=5),
}
X = np.random.default_rng(0).normal(size=(32, 16)).astype(np.float32)

# Outputs, nodes, tensors that judge, outputs that are selected by values.
KINDS: dict[str, tuple[str, str, tuple[str, ...], set[str]]] = {
    "class": ("int64[N] y", "s = Softmax (a) y = ArgMax <axis = 1, keepdims = 0> (s)", ("a",), set()),
    "class as float": (
        "float[N] y",
        "i = ArgMax <axis = 1, keepdims = 0> (a) y = Cast <to = 1> (i)",
        ("a",),
        {"y"},
    ),
    "name": (
        "string[N] y",
        """i = ArgMax <axis = 1, keepdims = 0> (a) y = ai.onnx.ml.LabelEncoder <keys_int64s = [0, 1],
            values_strings = ["a", "b"], default_string = "z"> (i)""",
        ("a",),
        set(),
    ),
    "best": ("float[N,5] y, int64[N,5] i", "s = Sigmoid (a) y, i = TopK (s, five)", ("a",), {"y"}),
    "places": ("int64[2,K] y", "g = Greater (a, half) y = NonZero (g)", ("a",), set()),
    "kept rows": (
        "float[K,16] y, float[N,16] a",
        "m = ReduceMax <axes = [1], keepdims = 0> (a) g = Greater (m, half) y = Compress <axis = 0> (a, g)",
        ("a", "m"),
        {"y"},
    ),
    "selected boxes": (
        "float[N,5] y",
        "b = MatMul (a, v) s = Sigmoid (a) q, i = TopK (s, five) y = GatherElements <axis = 1> (b, i)",
        ("b", "a"),
        {"y"},
    ),
    "boxes": (
        "int64[M,3] y, float[N,16] a",
        """r = Reshape (a, rows) s = ReduceMax <axes = [2]> (r) p = Sigmoid (s)
            t = Transpose <perm = [0, 2, 1]> (p) y = NonMaxSuppression (r, t, limit, overlap, least)""",
        ("a", "r", "s"),
        set(),
    ),
    "mask": (
        "float[N,16] y",
        "g = Greater (a, half) f = Cast <to = 1> (g) m = Mul (a, f) n = Where (g, m, a) y = MatMul (n, v)",
        ("y",),
        set(),
    ),
    "booleans": ("bool[N,16] y", "y = Greater (a, half)", ("a",), set()),
    "pixels": ("uint8[N,16] y", "y = Cast <to = 2> (a)", ("a",), set()),
    "words of a loop": (
        "float[I,N,16] y",
        """n = Constant <value_int = 2> () t = Constant <value = bool {1}> () y = Loop (n, t) <
            body = b (int64 i, bool c) => (bool d, float[N,16] q) {
                d = Identity (c) j = ArgMax <axis = 1, keepdims = 0> (a)
                q = Gather <axis = 0> (table, j) }>""",
        ("a",),
        {"y"},
    ),
    "row by a name that no product changes": (
        "float[N,16] y",
        """i = ArgMax <axis = 1, keepdims = 0> (x) n = ai.onnx.ml.LabelEncoder <keys_int64s = [0, 1],
            values_int64s = [1, 2], default_int64 = 3> (i) e = Gather (table, n) y = Add (a, e)""",
        ("y",),
        set(),
    ),
    "sizes": (
        "float[N,16] y",
        """h = Shape (a) f = Cast <to = 1> (h) e = Mul (f, half) l = Add (e, e) z = Cast <to = 7> (l)
            y = Reshape (a, z)""",
        ("y",),
        set(),
    ),
    "map": (
        "seq(map(int64,float)) y",
        "o = MatMul (a, c) s = Softmax (o) y = ai.onnx.ml.ZipMap <classlabels_int64s = [4, 7, 9]> (s)",
        ("y",),
        set(),
    ),
    "sequence": ("seq(float[N,16]) y", "b = Relu (a) y = SequenceConstruct (a, b)", ("y",), set()),
    "sequence of classes": (
        "seq(int64[N]) y",
        "i = ArgMax <axis = 1, keepdims = 0> (a) y = SequenceConstruct (i, i)",
        ("a",),
        set(),
    ),
    "classifier": (
        "int64[N] y, float[N,2] s",
        f"""y, s = ai.onnx.ml.LinearClassifier <classlabels_ints = [3, 5], intercepts = [0.0, 0.0],
            coefficients = [{", ".join(str(float(i % 5) - 2) for i in range(32))}]> (a)""",
        ("s",),
        set(),
    ),
}


def network(kind: str) -> onnx.ModelProto:
    """A product whose result `a` is turned into outputs of one kind."""
    outputs, nodes, _, _ = KINDS[kind]
    text = f"g (float[N,16] x) => ({outputs}) {{ a = MatMul (x, w) {nodes} }}"
    return build_used(text, CONSTANTS, **{"ai.onnx.ml": 2})


@pytest.mark.parametrize("kind", KINDS)
def test_what_judges(kind: str) -> None:
    """Decisions read float outputs that stay in place, and what selected or discrete outputs come from."""
    _, _, deciding, moved = KINDS[kind]
    found = judge_outputs(load(network(kind)).proto)
    assert (found.deciding, found.moved) == (deciding, moved)


def discrete(model: onnx.ModelProto) -> set[str]:
    """Outputs of no floats."""
    found = set()
    for value in model.graph.output:
        sequence = value.type.sequence_type.elem_type.tensor_type.elem_type
        if (sequence or value.type.tensor_type.elem_type) not in (onnx.TensorProto.FLOAT, 0):
            found.add(value.name)
    return found


@pytest.mark.share(3)
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_compared(kind: str, tmp_path: Path) -> None:
    """Each output is in the table, discrete ones with a share; the verdict is the SQNR of a float."""
    model = network(kind)
    result = plain_quantize(model, {"x": X}, tmp_path / "q.onnx")
    (candidate,) = result.evaluation.candidates
    assert {share.output for share in candidate.shares} == discrete(model)
    assert {v.name for v in model.graph.output} <= {
        one.output for one in (*candidate.outputs, *candidate.shares)
    }
    assert candidate.worst is not None and 20 < candidate.worst.sqnr_db < 60
    first = quantize_summary(result).splitlines()[0]
    assert re.match(r"SQNR .* dB \(.* to .*\) at ", first) and " inf " not in quantize_summary(result)
    assert all(f"{share.output!r}" not in first.partition(", which gives")[0] for share in candidate.shares)
    found = evaluate(model, {"itself": model, "q": tmp_path / "q.onnx"}, {"x": X})
    same, other = found.candidates
    assert all(share.equal == 1 for share in same.shares)
    assert all(0.8 < share.equal <= 1 for share in other.shares)
    assert sensitivity(model, {"x": X}).outputs == judge_outputs(load(model).proto).deciding
    kept = quantize(model, {"x": X}, accuracy=AccuracyTarget(min_sqnr=15.0))
    assert kept.evaluation.candidates[0].worst is not None


@pytest.mark.sample
def test_shares_by_hand() -> None:
    """Integers and texts are equal by place; collections of rows of unlike size by the rows in both."""
    first = FlatOutput.of(np.int64([[1, 2], [3, 4]]))
    assert first.count_equal(FlatOutput.of(np.int64([[1, 2], [3, 5]]))) == EqualCounts(3, 4, 0)
    assert first.count_equal(FlatOutput.of(np.int64([[3, 4], [7, 7], [1, 2]]))) == EqualCounts(4, 6, 1)
    assert first.count_equal(FlatOutput.of(np.int64([[1], [3]]))) == EqualCounts(2, 4, 1)
    assert first.count_equal(FlatOutput.of(np.zeros((0, 2), np.int64))) == EqualCounts(0, 4, 2)
    assert first.count_equal(FlatOutput.of(np.zeros((3, 3), np.int64))) == EqualCounts(0, 9, 0)
    texts = FlatOutput.of(np.asarray(["a", "b"], object))
    assert texts.is_discrete and texts.count_equal(
        FlatOutput.of(np.asarray(["a", "c"], object))
    ) == EqualCounts(1, 2, 0)
    assert str(EqualShare(output="y", equal=0.9999)) == "99.9% equal"
    assert str(EqualShare(output="y", equal=0.5, rows_apart=2)) == "50.0% equal, 2 rows more or less"
    share = EqualShare(output="y", equal=0.5, rows_apart=2)
    assert CandidateScore.cells([share])[0][:2] == ("y, 2 rows more or less", "50.0% equal")


def test_flattening() -> None:
    """Maps are rows of their values by sorted key, in any order of the keys; sequences join in order."""
    flat = FlatOutput.of([{7: 0.25, 4: 0.75}, {4: 1.0, 7: 0.0}])
    np.testing.assert_array_equal(flat.array, [[0.75, 0.25], [1.0, 0.0]])
    assert flat.keys == (4, 7) and not flat.is_discrete
    assert flat.form != FlatOutput.of([{7: 0.25, 5: 0.75}, {5: 1.0, 7: 0.0}]).form
    joined = FlatOutput.of([np.float32([[1, 2]]), np.float32([3])])
    np.testing.assert_array_equal(joined.array, [1, 2, 3])
    assert joined.form != FlatOutput.of([np.float32([1, 2]), np.float32([3])]).form
    assert FlatOutput.of(None).form != FlatOutput.of(np.float32([])).form
    assert FlatOutput.of([]).array.size == 0


def test_maps_have_the_noise_of_their_array() -> None:
    """A ZipMap changes no figure of the array that it names."""
    text = "g (float[N,3] x) => ({0}) {{ s = Softmax (x) z = Mul (s, k) {1} }}"
    zipped = "y = ai.onnx.ml.ZipMap <classlabels_strings = ['b', 'a', 'c']> (z)".replace("'", '"')
    scores = []
    for outputs, last in (("seq(map(string,float)) y", zipped), ("float[N,3] y", "y = Identity (z)")):
        models = [
            build(text.format(outputs, last), {"k": np.float32(k)}, **{"ai.onnx.ml": 2}) for k in (1, 0.9)
        ]
        (candidate,) = score_models(models[0], {"c": models[1]}, [{"x": X[:, :3]}]).candidates
        scores.append(candidate.outputs[0])
    assert scores[0].sqnr_db == pytest.approx(scores[1].sqnr_db) == pytest.approx(20, abs=1e-4)
    assert scores[0].top1_agreement == scores[1].top1_agreement == 1


def test_rows_that_differ_in_number() -> None:
    """If the model leaves their number open, unlike numbers of indices are a share, and no error."""
    text = "g (float[N,3] x) => (int64[2,K] y) {{ z = Sub (x, k) g = Greater (z, zero) y = NonZero (g) }}"
    models = [build(text.format(), {"k": np.float32(k), "zero": np.float32(0)}) for k in (0, 0.5)]
    x = np.float32([[1, 0.25, -1], [2, 1, 0.25]])
    (candidate,) = score_models(models[0], {"c": models[1]}, [{"x": x}, {"x": x}]).candidates
    assert candidate.outputs == () and candidate.shares == (EqualShare(output="y", equal=0.6, rows_apart=4),)


def test_inner_tensors_of_other_names() -> None:
    """A candidate that names the scores otherwise is compared by its classes, and a note says so."""
    text = (
        "g (float[N,4] x) => (int64[N] y) {{ {0} = MatMul (x, w) y = ArgMax <axis = 1, keepdims = 0> ({0}) }}"
    )
    models = [build(text.format(name), {"w": weights(4, 4)}) for name in ("s", "q")]
    found = evaluate(models[0], models[1], [feed_for(models[0])])
    assert [(one.output, one.equal) for one in found.candidates[0].shares] == [("y", 1.0)]
    assert found.notes == ("not every candidate has 's': no SQNR judges the outputs that come from it",)


def test_indices_repair_nothing() -> None:
    """However the indices of boxes differ, no smoothing and no layer is chosen by them."""
    model = network("boxes")
    for seed in range(3):
        x = np.random.default_rng(seed).normal(size=(32, 16)).astype(np.float32)
        result = quantize(model, {"x": x})
        assert not any(result.trial(name).is_needed for name in ("smooth", "protected"))
        assert not result.recipe.overrides


def test_no_float_at_all() -> None:
    """If no output comes from floats that are quantized, a promise is refused in one line."""
    model = build(
        """g (float[N,16] x) => (int64[2] y) {
            a = MatMul (x, w) r = Relu (a) b = MatMul (r, w) y = Shape (b) }""",
        {"w": CONSTANTS["w"]},
    )
    result = quantize(model, {"x": X})
    assert quantize_summary(result).startswith("SQNR       of no output")
    assert result.evaluation.candidates[0].shares == (EqualShare(output="y", equal=1.0),)
    with pytest.raises(
        ModelError, match=r"^no output of the model \(y\) holds floats .*no noise to measure$"
    ):
        quantize(model, {"x": X}, accuracy=AccuracyTarget(min_sqnr=20.0))


LABELLED: Mapping[str, tuple[str, NDArray[np.generic]]] = {
    "class": ("class", np.arange(16)),
    "map": ("map", np.asarray([4, 7, 9])),
    "name": ("name", np.asarray(["a", "b", "z"])),
    "scores": ("mask", np.arange(16)),
    "classifier": ("classifier", np.asarray([3, 5])),
}


@pytest.mark.parametrize("name", LABELLED)
def test_labels(name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The model's own classes as labels are all right, in evaluate and for a promise; others are not."""
    kind, classes = LABELLED[name]
    model = network(kind)
    plain_quantize(model, {"x": X}, tmp_path / "q.onnx")
    from onnxfq.runtime.session import Session

    value = Session(model, 1).run({"x": X})[0]
    labels = predict_classes(value, "y")
    assert set(labels.tolist()) <= set(classes.tolist()) and labels.shape == (32,)
    if name == "map":
        assert labels.tolist() == [max(one, key=one.get) for one in value]
    found = evaluate(model, tmp_path / "q.onnx", {"x": X}, labels=labels)
    assert found.accuracy == 1 and (found.candidates[0].accuracy or 0) > 0.9
    others = np.where(np.arange(32) < 8, np.roll(classes, 1)[np.searchsorted(classes, labels)], labels)
    (tmp_path / "l.txt").write_text("\n".join(map(str, others)) + "\n")
    files = [str(tmp_path / name) for name in ("m.onnx", "q.onnx", "d.npz", "l.txt")]
    onnx.save(model, files[0])
    np.savez(files[2], x=X)
    assert main(["evaluate", *files[:2], "--data", files[2], "--labels", files[3], "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["accuracy"] == 0.75
    promise = AccuracyTarget(max_drop=50.0, labels=labels)
    kept = quantize(model, {"x": X}, accuracy=promise, options=RunOptions(batch=4))
    assert kept.evaluation.candidates


def test_labels_that_fit_no_output() -> None:
    """Texts against numbers, and outputs without classes, are refused in a line that says what was found."""
    names, numbers = np.asarray(["a"] * 32), np.zeros(32, np.int64)
    for kind, labels, words in (
        ("name", numbers, r"gives classes such as '[abz]'.*the labels are such as 0"),
        ("class", names, r"the labels are such as 'a'"),
        ("sequence", numbers, r"the first output, 'y', has a sequence"),
        ("class as float", numbers, r"the first output, 'y', has shape \[.*\]"),
        ("best", numbers[:7], r"7 labels for"),
    ):
        model = network(kind)
        with pytest.raises(DataError, match=words):
            evaluate(model, model, {"x": X}, labels=labels)


def test_forms_of_labels(tmp_path: Path) -> None:
    """A list, an array and files of texts are labels as numbers are."""
    assert read_labels([1, 2]).tolist() == [1, 2] and read_labels(["a", "b"]).tolist() == ["a", "b"]
    np.save(tmp_path / "l.npy", np.asarray(["a", "b"]))
    (tmp_path / "l.txt").write_text("a b # a name of two words\n\nc\n")
    assert read_labels(tmp_path / "l.npy").tolist() == ["a", "b"]
    assert read_labels(tmp_path / "l.txt").tolist() == ["a b", "c"]
    with pytest.raises(DataError, match="whole numbers"):
        read_labels([0.5, 1.0])


ROUGH = ["--calibrator", "range:-0.3,0.3", "--repair", "off"]
"""Options that make noise."""


def test_reports(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The page, the JSON and the table of a result hold the shares."""
    files = [str(tmp_path / name) for name in ("m.onnx", "d.npz", "q.onnx", "r.html")]
    onnx.save(network("best"), files[0])
    np.savez(files[1], x=X)
    assert main(["quantize", files[0], "--data", files[1], "-o", files[2], "--report", files[3], *ROUGH]) == 0
    text = capfd.readouterr().out
    line = next(line for line in text.splitlines() if line.startswith("same "))
    assert "% equal" in line and "'i'" in line
    share = line.partition(": ")[2]
    assert share in (tmp_path / "r.html").read_text()
    assert main(["evaluate", files[0], files[2], "--data", files[1], "--json"]) == 0
    (candidate,) = json.loads(capfd.readouterr().out)["candidates"]
    assert 0.1 < candidate["shares"][0]["equal"] < 1 and [one["moved"] for one in candidate["outputs"]] == [
        True,
        False,
    ]


def test_sources_among_inner_tensors(tmp_path: Path) -> None:
    """A tensor that stands for an output is scored once, with the outputs."""
    model = build(
        """g (float[N,16] x) => (int64[N] y) {
            a = MatMul (x, w) r = Relu (a) i = ArgMax <axis = 1, keepdims = 0> (r) b = MatMul (r, v)
            j = ArgMax <axis = 1, keepdims = 0> (b) y = Add (i, j) }""",
        {name: CONSTANTS[name] for name in "wv"},
    )
    plain_quantize(model, {"x": X}, tmp_path / "q.onnx")
    (found,) = evaluate(model, tmp_path / "q.onnx", {"x": X}, per_tensor=True).candidates
    assert {score.output for score in found.outputs} == {"r", "b"} and not found.tensors


def test_equal_outputs_are_called_equal() -> None:
    """No table and no verdict prints an infinite SQNR."""
    model = network("class")
    found = evaluate(model, model, {"x": X})
    assert "inf" not in found.table() and "equal" in found.table()
    assert all(one.sqnr_db == math.inf for one in found.candidates[0].outputs)
