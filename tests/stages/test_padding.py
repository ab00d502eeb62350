"""Padding that a mask hides is cut off where ONNX Runtime gives the same outputs without it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import onnxfq
from onnxfq.data import Feed
from onnxfq.stages.inputs import open_inputs

SIZE, LENGTHS = 12, (12, 5, 8, 3, 9, 4)
RANDOM = np.random.default_rng(5)
TABLES = {
    name: RANDOM.normal(0, 1, shape).astype(np.float32)
    for name, shape in {"e": (50, 8), "q": (8, 8), "k": (8, 8), "v": (8, 8)}.items()
}
HEAD = """<ir_version: 8, opset_import: ["" : 17]>
    g (int64[N, S] ids, int64[N, S] mask, int64[N, S] types) => (float[N, T, 8] y)
    <float lowest = {-1e4}, int64[1] one = {1}, float unit = {1}> {
    f = Cast <to = 1> (mask) off = Sub (unit, f) hidden = Mul (off, lowest) m = Unsqueeze (hidden, one)
    x = Gather (e, ids) t = Cast <to = 1> (types) t1 = Unsqueeze (t, two)
    q1 = MatMul (x, q) k1 = MatMul (x, k) v0 = MatMul (x, v) v1 = Add (v0, t1)
    kt = Transpose <perm = [0, 2, 1]> (k1) s = MatMul (q1, kt) s1 = Add (s, m) p = Softmax (s1)
    h = MatMul (p, v1) """
TOKENS = "y = Identity (h) }"
POOLED = """w = Unsqueeze (f, two) hw = Mul (h, w) sum = ReduceSum (hw, one)
    n = ReduceSum (w, one) y = Div (sum, n) }"""
MEAN = "y = ReduceMean <axes = [1]> (h) }"


def make_model(end: str) -> onnx.ModelProto:
    """Return an attention with the outputs of `end`."""
    proto = onnx.parser.parse_model(HEAD + end)
    constants = {**TABLES, "two": np.array([2])}
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(a, name) for name, a in constants.items())
    return proto


def fix_size(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model, whose inputs have SIZE positions now."""
    for value in model.graph.input:
        value.type.tensor_type.shape.dim[1].dim_value = SIZE
    return model


def make_samples(from_left: bool = False) -> tuple[list[Feed], list[Feed]]:
    """Return padded samples, whose padding is far larger than their tokens, and the same without padding."""
    random, padded, bare = np.random.default_rng(7), [], []
    for length in LENGTHS:
        own = {
            "ids": random.integers(0, 50, (1, length)),
            "mask": np.ones((1, length), np.int64),
            "types": np.repeat([[0, 1]], [1, length - 1], axis=1),
        }
        around = (0, 0), ((SIZE - length, 0) if from_left else (0, SIZE - length))
        fills = {"ids": 49, "mask": 0, "types": 100}
        padded.append({name: np.pad(a, around, constant_values=fills[name]) for name, a in own.items()})
        bare.append(own)
    return padded, bare


def read(model: onnx.ModelProto, data: list[Feed], batch: int = 1, **options: str) -> list[Feed]:
    """Return the feeds that a stage reads."""
    return list(onnxfq.open_feeds(model, data, batch, onnxfq.DataOptions(survey=False, **options)))  # type: ignore[arg-type]


def assert_equal(found: list[Feed], wanted: list[Feed]) -> None:
    """Assert that two lists have the same arrays."""
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        for name in other:
            np.testing.assert_array_equal(one[name], other[name])


@pytest.mark.parametrize("from_left", [False, True])
@pytest.mark.parametrize("end", [TOKENS, POOLED])
def test_a_sample_is_cut_to_its_tokens(end: str, from_left: bool, caplog: pytest.LogCaptureFixture) -> None:
    """ONNX Runtime gives the tokens the same values without padding, and they are all that is read."""
    model, (padded, bare) = make_model(end), make_samples(from_left)
    session = ort.InferenceSession(model.SerializeToString())
    for one, other in zip(padded, bare, strict=True):
        (whole,), (own,) = session.run(None, one), session.run(None, other)
        if end == TOKENS:
            whole = whole[:, one["mask"][0] == 1]
        np.testing.assert_allclose(whole, own, rtol=1e-4, atol=1e-5)  # sums of other lengths
    assert_equal(read(model, padded), bare)
    share = 1 - sum(LENGTHS) / (SIZE * len(LENGTHS))
    assert f"{share:.0%} of the positions are padding by 'mask'" in caplog.text
    together = [{name: np.concatenate([one[name] for one in padded]) for name in padded[0]}]
    assert_equal(read(model, together, batch=4), bare)
    assert_equal(read(model, together, batch=0), together)
    short = [{name: a[1:] for name, a in together[0].items()}]
    longest = max(LENGTHS[1:])
    kept = slice(SIZE - longest, SIZE) if from_left else slice(0, longest)
    assert_equal(read(model, short, batch=0), [{name: a[:, kept] for name, a in short[0].items()}])


@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize("from_left", [False, True])
@pytest.mark.parametrize("end", [TOKENS, POOLED])
def test_a_sample_of_fixed_size_is_filled(end: str, from_left: bool, is_open: bool) -> None:
    """Its tokens, repeated, take the place of padding, and ONNX Runtime gives them the same values."""
    model, (padded, bare) = make_model(end), make_samples(from_left)
    model = model if is_open else fix_size(model)
    session = ort.InferenceSession(model.SerializeToString())
    found = read(model, padded, padding="fill" if is_open else "cut")
    for one, own, filled in zip(padded, bare, found, strict=True):
        tokens = one["mask"][0] == 1
        assert {name: set(a.ravel()) for name, a in filled.items() if name != "mask"} == {
            name: set(a.ravel()) for name, a in own.items() if name != "mask"
        }
        np.testing.assert_array_equal(filled["ids"][:, tokens], own["ids"])
        np.testing.assert_array_equal(filled["mask"], one["mask"])
        whole, same = (session.run(None, feed)[0] for feed in (one, filled))
        if end == TOKENS:
            whole, same = whole[:, tokens], same[:, tokens]
        np.testing.assert_array_equal(whole, same)


@pytest.mark.parametrize(("recipe", "sizes"), [("qnn-int8", {SIZE}), ("onnxruntime-int8", {*LENGTHS})])
def test_a_target_of_fixed_sizes_has_one(recipe: str, sizes: set[int]) -> None:
    """QNN opens a session for each size of the samples, so that padding is filled for it, not cut."""
    model, (padded, _) = make_model(POOLED), make_samples()
    feeds = open_inputs(model, padded, onnxfq.load_recipe(recipe), onnxfq.RunOptions(batch=1)).feeds
    assert feeds is not None and {feed["ids"].shape[1] for feed in feeds} == sizes


@pytest.mark.parametrize("end", [MEAN, POOLED])
def test_padding_that_counts_stays(end: str) -> None:
    """A mean over all positions reads the padding; with `keep` all of it stays."""
    model, (padded, _) = make_model(end), make_samples()
    assert_equal(read(model, padded, padding="cut" if end == MEAN else "keep"), padded)


def test_no_sample_is_shorter_than_a_proven_one() -> None:
    """A short sample behind the first feeds is cut to the length that runs have proven."""
    model, (padded, bare) = make_model(POOLED), make_samples()
    later = {name: a[:, :1] for name, a in bare[1].items()}
    last = {name: np.pad(a, ((0, 0), (0, SIZE - 1))) for name, a in later.items()}
    found = read(model, [*padded[:3] * 11, last])
    assert found[-1]["ids"].shape == (1, 5)
    assert {feed["ids"].shape[1] for feed in found} == {12, 5, 8}


def test_types_of_tokens_are_no_mask() -> None:
    """Rows of zeros and ones that the outputs depend on cut nothing."""
    model, (_, bare) = make_model(POOLED), make_samples()
    assert_equal(read(model, bare), bare)


def test_ranges_are_those_of_tokens(tmp_path: Path) -> None:
    """Data with and without padding give the same file to the bit, in any batches."""
    model, (padded, bare) = make_model(TOKENS), make_samples()
    accuracy = onnxfq.AccuracyTarget(repair=None)

    def write(data: list[Feed], **options: str) -> bytes:
        given = onnxfq.RunOptions(data=onnxfq.DataOptions(**options))  # type: ignore[arg-type]
        return onnxfq.quantize(model, data, accuracy=accuracy, options=given).qdq.SerializeToString()

    wanted = write(bare)
    assert write(padded) == wanted
    together = [{name: np.concatenate([one[name] for one in padded]) for name in padded[0]}]
    assert write(together) == wanted
    assert write(padded, padding="keep") != wanted


@pytest.mark.parametrize("fixes", ["reference", "file"])
def test_a_model_of_fixed_size_beside_an_open_one(fixes: str) -> None:
    """Both models run on the same feeds: a fixed size of one of them keeps the padding of both."""
    models = {"reference": make_model(TOKENS), "file": make_model(TOKENS)}
    padded, _ = make_samples()
    fix_size(models[fixes])
    made = onnxfq.quantize(models["file"], padded, accuracy=onnxfq.AccuracyTarget(repair=None)).qdq
    scores = onnxfq.evaluate(models["reference"], made, padded).candidates
    assert scores[0].lowest_db > 20
    assert onnxfq.diagnose(made, data=padded, reference=models["reference"]).samples == len(padded)


@pytest.mark.parametrize("end", [TOKENS, POOLED])
def test_a_metric_sees_the_outputs_of_the_data(end: str) -> None:
    """Outputs that a metric reads have the shapes of the data; pooled ones lose nothing."""
    model, (padded, _) = make_model(end), make_samples()
    seen: list[tuple[int, ...]] = []

    def metric(outputs: list[dict[str, np.ndarray]], samples: list[Feed]) -> float:
        arrays = [one["y"] for one in outputs]
        seen.extend(array.shape for array in arrays)
        return float(arrays[0].mean())

    onnxfq.evaluate(model, {"same": model}, padded, metric=metric)
    made = onnxfq.quantize(model, padded, accuracy=onnxfq.AccuracyTarget(repair=None)).qdq
    onnxfq.diagnose(made, data=padded, reference=model, metric=metric)
    assert set(seen) == ({(1, SIZE, 8)} if end == TOKENS else {(1, 1, 8)})


def keep_in_cast(model: onnx.ModelProto, padded: list[Feed], folder: Path) -> None:
    """Padding beyond float16 stays in float32: infinity times a probability of 0 would be NaN."""
    huge = [{**one, "types": np.where(one["mask"] == 0, 10**6, one["types"])} for one in padded]
    assert "v1" in {one.name for one in onnxfq.cast(model, data=huge).floats.nodes}


def keep_in_handoff(model: onnx.ModelProto, padded: list[Feed], folder: Path) -> None:
    """Profiles have the sizes of the data."""
    made = onnxfq.quantize(model, padded, accuracy=onnxfq.AccuracyTarget(repair=None)).qdq
    shapes = onnxfq.handoff(made, folder / "handoff", data=padded).profiles["ids"]
    assert {shape[1] for shape in shapes} == {SIZE}


@pytest.mark.parametrize("use", [keep_in_cast, keep_in_handoff])
def test_what_runs_on_padding_reads_it(
    use: Callable[[onnx.ModelProto, list[Feed], Path], None], tmp_path: Path
) -> None:
    """A cast and the shapes of an engine are for the padded inputs that a model gets."""
    logging.getLogger("onnxfq").setLevel(logging.ERROR)
    use(make_model(TOKENS), make_samples()[0], tmp_path)
