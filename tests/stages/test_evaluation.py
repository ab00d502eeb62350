"""`evaluate`: scores against figures computed by hand, labels, per-tensor scores, mismatches."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import build, shared_weight, stage, two_branch, weights

from onnxfq.cli.main import main
from onnxfq.data.labels import read_labels
from onnxfq.documents.scores import Evaluation
from onnxfq.errors import DataError, DeviceMemoryError, ModelError
from onnxfq.execution import sides
from onnxfq.quantizing.pipeline import quantize
from onnxfq.runtime.session import PlacedFeed, Session
from onnxfq.stages.evaluate import evaluate
from onnxfq.stages.insert import insert_fake_quantize, insert_qdq
from onnxfq.stages.options import MOST_THREADS, RunOptions
from onnxfq.stages.score import score_models

REFERENCE = build("g (float[N,3] x) => (float[N,3] y) { y = Identity (x) }")
DOUBLED = build("g (float[N,3] x) => (float[N,3] y) { y = Add (x, x) }")
NEGATED = build("g (float[N,3] x) => (float[N,3] y) { y = Neg (x) }")
X = np.float32([[1, 2, 2], [0, 4, 3]])
LABELS = np.int64([1, 2])


def test_scores_by_hand() -> None:
    """SQNR, cosine, largest error and agreement of known models are the known figures."""
    candidates = {"same": REFERENCE, "twice": DOUBLED, "minus": NEGATED}
    result = score_models(REFERENCE, candidates, [{"x": X[:1]}, {"x": X[1:]}], labels=LABELS)
    same, twice, minus = (c.outputs[0] for c in result.candidates)
    assert (same.sqnr_db, same.cosine, same.largest_error, same.top1_agreement) == (math.inf, 1, 0, 1)
    assert (twice.sqnr_db, twice.largest_error, twice.top1_agreement) == (0, 4, 1)
    assert twice.cosine == pytest.approx(1, abs=1e-15)  # square roots round
    assert (minus.largest_error, minus.top1_agreement) == (8, 0)
    assert minus.sqnr_db == pytest.approx(-20 * math.log10(2), abs=1e-12)  # logarithms round
    assert result.feeds == 2


def test_accuracy_counts_labels() -> None:
    """Accuracy is the share of labels met by the argmax of the first output."""
    result = score_models(REFERENCE, {"minus": NEGATED}, [{"x": X}], labels=LABELS)
    assert result.accuracy == 0.5
    assert result.candidates[0].accuracy == 0.0


def test_too_few_labels_are_found_early() -> None:
    """The first feed beyond the labels ends the run; a few more may have been read."""
    read = []

    def feeds():
        for number in range(100):
            read.append(number)
            yield {"x": X}

    with pytest.raises(DataError, match="1 labels"):
        score_models(REFERENCE, {"minus": NEGATED}, feeds(), labels=LABELS[:1], threads=2)
    assert len(read) < 10


def test_equalized_channels_are_compared_as_they_were() -> None:
    """The pair of an equalized tensor holds other numbers; its score comes from the simulation."""
    proto = build(
        """g (float[N,4,6,6] x) => (float[N,4,6,6] y) { a = Mul (x, k) h = Relu (a)
            y = Conv <group = 4, pads = [1,1,1,1]> (h, w) }""",
        {"w": weights(4, 1, 3, 3), "k": np.asarray([1, 8, 64, 0.5], np.float32).reshape(4, 1, 1)},
    )
    staged = stage(proto)
    made = (staged.model, staged.plan, staged.encodings)
    written = insert_qdq(*made)
    assert "h/equalized/dq" in {name for node in written.graph.node for name in node.output}
    candidates = {"qdq": written, "fakequant": insert_fake_quantize(*made)}
    for given in (candidates, {"qdq": written}):
        result = evaluate(proto, given, [staged.feed], per_tensor=True)
        (inner,) = {one.tensors for one in result.candidates}
        assert [score.output for score in inner] == ["h"] and 20 < inner[0].sqnr_db < 80


def test_sequences_are_compared_by_position(tmp_path: Path) -> None:
    """Sequences of floats are compared by position."""
    proto = build(
        "g (float[N,4] x) => (seq(float[N,3]) y) { a = MatMul (x, w) y = SequenceConstruct (a, a) }",
        {"w": weights(4, 3)},
    )
    plain = build("g (float[N,4] x) => (float[N,3] a) { a = MatMul (x, w) }", {"w": weights(4, 3)})
    feeds, exact = [{"x": weights(2, 4)}], RunOptions(exact=True)
    scores = set()
    for model in (proto, plain):
        result = quantize(model, feeds, tmp_path / "q.onnx", options=exact)
        assert onnx.load(tmp_path / "q.onnx") == result.qdq
        found = evaluate(model, tmp_path / "q.onnx", feeds, options=exact)
        scores |= {one.outputs[0].sqnr_db for one in (*result.evaluation.candidates, *found.candidates)}
    assert len(scores) == 1 and 30 < scores.pop() < 60


@pytest.mark.parametrize("given", [{"threads": -1}, {"threads": MOST_THREADS + 1}, {"batch": -1}], ids=str)
def test_numbers_that_cannot_be_meant(given: dict[str, int]) -> None:
    """From Python as on the command line, a million threads are refused before the first is made."""
    with pytest.raises(DataError, match=f"{next(iter(given))} -?[0-9]+ is .*; give "):
        RunOptions(**given)


@pytest.mark.parametrize("insert", [insert_qdq, insert_fake_quantize], ids=["qdq", "fakequant"])
def test_inner_tensors(insert) -> None:
    """With per_tensor each computed activation has a score; model inputs have none to compare."""
    staged = stage(two_branch())
    candidate = insert(staged.model, staged.plan, staged.encodings)
    result = evaluate(staged.model.proto, candidate, [staged.feed], per_tensor=True)
    assert [t.output for t in result.candidates[0].tensors] == ["h", "r1", "r2"]
    assert all(20 < t.sqnr_db < 80 and t.top1_agreement is None for t in result.candidates[0].tensors)


def test_inner_tensors_stand_in_the_order_of_computation() -> None:
    """Whatever their names: the first with a low score is where the noise comes in."""
    proto = build(
        "g (float[N,4] x) => (float[N,4] y) { z = Relu (x) [a] m = MatMul (z, w) b = Relu (m) "
        "[c] y = MatMul (b, w) }",
        {"w": weights(4, 4)},
    )
    staged = stage(proto)
    candidate = insert_qdq(staged.model, staged.plan, staged.encodings)
    result = evaluate(proto, candidate, [staged.feed], per_tensor=True)
    assert [score.output for score in result.candidates[0].tensors] == ["z", "b"]
    lines = result.table().splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["candidate", "z", "b"] and max(map(len, lines)) < 80


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("(float[N,3] z) { z = Neg (x) }", "other has outputs z, the reference y"),
        ("(float[M,N] y) { y = Transpose (x) }", r"other: 'y' has shape \[3, 2\], the reference \[2, 3\]"),
    ],
)
def test_other_outputs_and_shapes_are_refused(text: str, words: str) -> None:
    """A candidate with other outputs, or of another shape, is refused with both."""
    with pytest.raises(ModelError, match=words):
        score_models(REFERENCE, {"other": build(f"g (float[N,3] x) => {text}")}, [{"x": X}])


def test_inputs_that_no_node_reads() -> None:
    """A candidate may lack an input that no node reads, or have one more; what reads another is refused."""
    text = "g (float[N,3] x{}) => (float[N,3] y) {{ y = Relu ({}) }}"
    plain, more, other = (
        build(text.format(*of)) for of in (("", "x"), (", float[N] k", "x"), (", float[N,3] k", "k"))
    )
    for models in ((plain, more), (more, plain)):
        feed = {"x": X, "k": X[:, 0]} if models[0] is more else {"x": X}
        assert evaluate(*models, [feed]).candidates[0].lowest_db == math.inf
    with pytest.raises(ModelError, match="candidate reads input 'k', and the other model has x"):
        evaluate(plain, other, [{"x": X}])


def test_sizes_that_follow_from_values() -> None:
    """If values decide the number of rows, unlike feeds are left out with a note, others compared."""
    text = """g (float[N,3] x) => (float[K,3] kept, float[N,3] y) {{
        z = Mul (x, two) m = ReduceMax <axes = [1], keepdims = 0> ({0}) c = Greater (m, zero)
        kept = Compress <axis = 0> (x, c) y = Identity ({0}) }}"""
    constants = {"two": np.float32(-1), "zero": np.float32(0)}
    float_model, other = (build(text.format(name), constants) for name in ("x", "z"))
    unlike = np.float32([[1, 2, 3], [4, 5, 6]])
    alike = np.float32([[1, -2, 3], [-4, 5, 6]])
    (both,) = score_models(float_model, {"other": other}, [{"x": unlike}, {"x": alike}]).candidates
    assert [(s.output, s.sqnr_db > 100) for s in both.outputs] == [("kept", True), ("y", False)]
    found = score_models(float_model, {"other": other}, [{"x": unlike}])
    assert [s.output for s in found.candidates[0].outputs] == ["y"]
    assert found.notes == (
        "other: 'kept' not compared on 1 of 1 feeds, because its size depends on the values: first it has "
        "shape [0, 3], the reference [2, 3]",
    )
    assert found.notes[0] in found.table()


LENGTH = """g (float[1,16] x) => (float[1,M] voice, float[1,16] y) {
    a = MatMul (x, w) y = MatMul (a, w) s = ReduceSum <keepdims = 0> (a, axes) b = Abs (s) f = Floor (b)
    c = Cast <to = 7> (f) n = Unsqueeze (c, zero) k = Concat <axis = 0> (one, n) voice = Tile (x, k) }"""


def test_outputs_of_another_length_come_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where rounding changes a length, both commands say so in their first line, and end with 3."""
    monkeypatch.chdir(tmp_path)
    sizes = {"axes": np.array([0, 1]), "one": np.array([1]), "zero": np.array([0])}
    onnx.save(build(LENGTH, {"w": weights(16, 16), **sizes}), "m.onnx")
    np.savez("d.npz", x=10 * weights(24, 16, seed=3))
    words = ["m.onnx", "--data", "d.npz", "--recipe", "tensorrt-int8", "--repair", "off", "-o", "q.onnx"]
    said = "differs    {}: 'voice' has shape [1, "
    assert main(["quantize", *words]) == 3
    assert capsys.readouterr().out.startswith(said.format("simulated"))
    assert main(["quantize", *words, "--json"]) == 3
    assert (
        "'voice' has shape" in json.loads(capsys.readouterr().out)["evaluation"]["candidates"][0]["unlike"][0]
    )
    assert main(["evaluate", "m.onnx", "q.onnx", "--data", "d.npz"]) == 3
    assert capsys.readouterr().out.startswith(said.format("q.onnx"))


def test_table_and_file(tmp_path: Path) -> None:
    """The table has a line a candidate; the file is JSON and reads back."""
    result = score_models(REFERENCE, {"same": REFERENCE, "minus": NEGATED}, [{"x": X}], labels=LABELS)
    lines = result.table().splitlines()
    assert [line.split()[0] for line in lines] == ["candidate", "float", "same", "minus"]
    result.save(tmp_path / "e.json")
    read = Evaluation.model_validate(json.loads((tmp_path / "e.json").read_text()))
    assert read.model_dump() == result.model_dump()


FORMS = {
    "labels.npy": lambda p: np.save(p, LABELS),
    "labels.npz": lambda p: np.savez(p, labels=LABELS, other=X),
    "single.npz": lambda p: np.savez(p, anything=LABELS),
    "labels.txt": lambda p: p.write_text("1\n2\n"),
    "windows.txt": lambda p: p.write_text("1\r\n2\r\n", "utf-8-sig"),
    "column.npy": lambda p: np.save(p, LABELS.reshape(2, 1)),
    "float.npy": lambda p: np.save(p, LABELS.astype(np.float32)),
}


@pytest.mark.parametrize("name", FORMS)
def test_forms_of_labels(tmp_path: Path, name: str) -> None:
    """Labels are read from .npy, .npz and text, as whole numbers of any type."""
    FORMS[name](tmp_path / name)
    np.testing.assert_array_equal(read_labels(tmp_path / name), LABELS)


BAD = {
    "missing.npy": (lambda p: None, "no such file"),
    "fractions.npy": (lambda p: np.save(p, [0.5, 1.0]), "whole numbers"),
    "empty.npy": (lambda p: np.save(p, []), "whole numbers"),
    "several.npz": (lambda p: np.savez(p, a=LABELS, b=LABELS), "name the labels `labels`"),
    "text.npy": (lambda p: p.write_text("1\n"), "does not hold labels"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_labels(tmp_path: Path, name: str) -> None:
    """Labels that cannot be labels are refused in one line that names the file."""
    write, message = BAD[name]
    write(tmp_path / name)
    with pytest.raises(DataError, match=message) as caught:
        read_labels(tmp_path / name)
    assert name in str(caught.value)


def test_doubled_node_names_are_run() -> None:
    """ONNX Runtime refuses two nodes of one name, which ONNX allows: such a reference still runs."""
    proto = shared_weight()
    for node in proto.graph.node:
        node.name = "same"
    result = evaluate(
        proto, shared_weight(), [{"x": np.ones((2, 4), np.float32)}], options=RunOptions(batch=0)
    )
    assert result.candidates[0].outputs[0].sqnr_db == math.inf


def test_texts_and_sequences() -> None:
    """Strings are equal or not, and sequences have an error by position."""
    proto = build(
        """g (float[N,3] x) => (string[2] s, seq(float[N,3]) q, float[N,3] y) {
            y = Relu (x) s = Identity (words) q = SequenceConstruct (x, y) }""",
        {"words": np.asarray(["a", "b"], object)},
    )
    result = score_models(proto, {"same": proto}, [{"x": X}])
    (same,) = result.candidates
    assert [(score.output, score.sqnr_db) for score in same.outputs] == [("q", math.inf), ("y", math.inf)]
    assert [(share.output, share.equal) for share in same.shares] == [("s", 1.0)]


class Narrow(Session):
    """A session that has no room in the GPU for the second model, and says so when it runs."""

    made = 0

    def __init__(self, *given, device="cpu", **named):
        """Make it on the CPU."""
        super().__init__(*given, **named)
        Narrow.made += 1
        self.full = device == "cuda" and Narrow.made == 2

    def run(self, *given):
        """Fail as sessions on a full GPU do."""
        if self.full:
            raise DeviceMemoryError("the GPU has no room; give a smaller batch, or run on the CPU")
        return super().run(*given)


@pytest.mark.parametrize("device", ["any", "cuda"])
def test_a_gpu_without_room(device, monkeypatch, caplog) -> None:
    """Auto compares on the CPU, every feed once, and says so; a GPU that was asked for is an error."""
    staged = stage(two_branch())
    candidates = {"q": insert_qdq(staged.model, staged.plan, staged.encodings)}
    feeds = [staged.feed] * 3
    expected = score_models(two_branch(), candidates, feeds, device="cpu")
    Narrow.made = 0
    monkeypatch.setattr(sides, "choose_device", lambda wanted: "cuda")
    monkeypatch.setattr(sides, "Session", Narrow)
    of = PlacedFeed.from_feed
    monkeypatch.setattr(PlacedFeed, "from_feed", staticmethod(lambda feed, device: of(feed, "cpu")))
    if device == "cuda":
        with pytest.raises(DeviceMemoryError):
            score_models(two_branch(), candidates, iter(feeds), device=device)
        return
    assert score_models(two_branch(), candidates, iter(feeds), device=device) == expected
    assert Narrow.made == 4
    assert [record.message for record in caplog.records] == [
        "running on the CPU: the GPU has no room; give a smaller batch, or run on the CPU"
    ]


def test_limit_takes_the_first_labels(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """`--limit` reads fewer samples, and `-q` still prints the figures."""
    x = np.random.default_rng(0).standard_normal((6, 3)).astype(np.float32)
    onnx.save(REFERENCE, tmp_path / "m.onnx")
    np.savez(tmp_path / "d.npz", **{REFERENCE.graph.input[0].name: x})
    np.save(tmp_path / "l.npy", np.zeros(6, np.int64))
    line = (
        f"evaluate {tmp_path}/m.onnx {tmp_path}/m.onnx --data {tmp_path}/d.npz --labels {tmp_path}/l.npy -q"
    )
    for limit in ([], ["--limit", "4"]):
        assert main([*line.split(), *limit]) == 0
        assert "SQNR" in capfd.readouterr().out
