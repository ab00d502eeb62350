"""Models that draw random numbers: equal draws at every run and in every form; files draw as before."""

from __future__ import annotations

import hashlib
import logging
import math
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import build, plain_quantize, weights
from numpy.typing import NDArray

from onnxfq.choices import DEFAULT_RECIPE
from onnxfq.graph.io.load import load
from onnxfq.graph.model import list_nodes
from onnxfq.judging.accuracy_target import AccuracyTarget
from onnxfq.quantizing.pipeline import quantize
from onnxfq.remedies.sensitivity import sensitivity
from onnxfq.runtime import segmented_session
from onnxfq.runtime.random_numbers import SEED_INPUT, fix_draws, seed_of
from onnxfq.runtime.segmented_session import open_in_segments
from onnxfq.runtime.session import Session
from onnxfq.stages.evaluate import evaluate
from onnxfq.stages.observe import collect_statistics
from onnxfq.stages.observers import ObserveOptions
from onnxfq.stages.options import RunOptions, open_feeds
from onnxfq.stages.plan import make_plan
from onnxfq.targets.recipes import load_recipe

WEIGHTS = {"w": weights(16, 16) * np.float32(0.2), "v": weights(16, 16, seed=1) * np.float32(0.2)}
FEED = {"x": np.random.default_rng(0).normal(size=(32, 16)).astype(np.float32)}
TRAINS = "r = Constant <value = float {0.5}> () t = Constant <value = bool {1}> ()"
DRAWS = {
    "RandomNormal": "z0 = RandomNormal <shape = [1, 16]> () z = Add (a, z0)",
    "RandomUniform": "z0 = RandomUniform <shape = [16], low = -2.0> () z = Add (a, z0)",
    "RandomNormalLike": "z0 = RandomNormalLike (a) z = Add (a, z0)",
    "RandomUniformLike": "z0 = RandomUniformLike <high = 3.0> (a) z = Mul (a, z0)",
    "seeded": "z0 = RandomNormalLike <seed = 3.0> (a) z = Add (a, z0)",
    "Multinomial": """p = Softmax <axis = -1> (x) i = Multinomial <sample_size = 16> (p)
        f = Cast <to = 1> (i) z = Add (a, f)""",
    "Bernoulli": "p = Sigmoid (x) m = Bernoulli (p) z = Mul (a, m)",
    "Dropout": f"{TRAINS} z = Dropout (a, r, t)",
    "mask of Dropout": f"{TRAINS} d, m = Dropout (a, r, t) f = Cast <to = 1> (m) z = Add (d, f)",
    "If": f"""{TRAINS} z = If (t) <
        then_branch = one () => (float[A,B] q) {{ s = RandomNormalLike (a) q = Add (a, s) }},
        else_branch = two () => (float[A,B] q) {{ s = RandomUniformLike (a) q = Add (a, s) }}>""",
    "Loop": f"""{TRAINS} n = Constant <value_int = 3> () z = Loop (n, t, a) <
        body = b (int64 i, bool c, float[A,B] e) => (bool d, float[A,B] q) {{
            d = Identity (c) s = RandomNormalLike (e) q = Add (e, s) }}>""",
    "Scan": """z = Scan <num_scan_inputs = 1, body = b (float[B] e) => (float[B] q) {
        s = RandomNormalLike (e) q = Add (e, s) }> (a)""",
}


def network(draw: str, opset: int = 17) -> onnx.ModelProto:
    """Two products with random numbers in between."""
    text = f"g (float[N,16] x) => (float[N,16] y) {{ a = MatMul (x, w) {DRAWS[draw]} y = MatMul (z, v) }}"
    return build(text, WEIGHTS, opset=opset)


def in_function() -> onnx.ModelProto:
    """A local function that draws, called twice."""
    model = build(
        """g (float[N,16] x) => (float[N,16] y) {
            a = MatMul (x, w) b = here.Noise (a) z = here.Noise (b) y = MatMul (z, v) }""",
        WEIGHTS,
        here=1,
    )
    head = '<domain: "here", opset_import: ["" : 17]>'
    body = "Noise (a) => (z) { s = RandomNormalLike (a) z = Add (a, s) }"
    model.functions.append(onnx.parser.parse_function(f"{head} {body}"))
    return model


NEAREST = load_recipe(DEFAULT_RECIPE).override(weights={"rounding": "nearest"})
"""A recipe without a remedy for weights."""

NETWORKS = {draw: (lambda draw=draw: network(draw)) for draw in DRAWS} | {"local function": in_function}


def digest(proto: onnx.ModelProto) -> str:
    """Hash of a model."""
    return hashlib.sha256(proto.SerializeToString(deterministic=True)).hexdigest()


def drawn(text: str, x: NDArray[np.float32], opset: int = 17) -> NDArray[np.generic]:
    """Result `y` of nodes on `x`."""
    model = build(f"g (float[N,C] x) => (y) {{ {text} }}", opset=opset)
    (found,) = Session(model, 1).run({"x": x})
    return found


@pytest.mark.parametrize("opset", [11, 13, 17, 22])
def test_distributions(opset: int) -> None:
    """Means, deviations and quantiles are those that ONNX defines, within five standard errors."""
    x = np.zeros((100, 1000), np.float32)
    count = x.size
    normal = drawn("y = RandomNormalLike <mean = 2.0, scale = 3.0> (x)", x, opset)
    assert normal.dtype == np.float32 and normal.shape == x.shape
    assert abs(normal.mean() - 2) < 5 * 3 / math.sqrt(count)
    assert abs(normal.std() - 3) < 5 * 3 / math.sqrt(2 * count)
    for sigmas, share in ((1, 0.6827), (2, 0.9545), (3, 0.9973)):
        inside = np.mean(np.abs(normal - 2) < 3 * sigmas)
        assert abs(inside - share) < 5 * math.sqrt(share * (1 - share) / count) + 1e-4
    uniform = drawn("y = RandomUniformLike <low = -1.0, high = 3.0> (x)", x, opset)
    assert -1 <= uniform.min() and uniform.max() < 3 and uniform.max() > 2.999
    bins = np.histogram(uniform, 64, (-1, 3))[0]
    expected = count / 64
    assert np.square(bins - expected).sum() / expected < 63 + 5 * math.sqrt(2 * 63)  # chi squared
    for values in (normal, uniform):
        flat = values.ravel() - values.mean()
        for lag in (1, 2, 1000):
            assert abs(np.corrcoef(flat[lag:], flat[:-lag])[0, 1]) < 5 / math.sqrt(count)


@pytest.mark.sample
def test_choices() -> None:
    """Classes are drawn by their probability, a Bernoulli by its chance, and a Dropout keeps the mean."""
    shares = np.float32([0.1, 0.2, 0.0, 0.3, 0.4])
    with np.errstate(divide="ignore"):
        logits = np.log(np.tile(shares, (50, 1)))
    found = drawn("y = Multinomial <sample_size = 1000> (x)", logits)
    assert found.shape == (50, 1000) and found.dtype == np.int32
    measured = np.bincount(found.ravel(), minlength=5) / found.size
    np.testing.assert_allclose(measured, shares, atol=5 * math.sqrt(0.25 / found.size))
    assert measured[2] == 0 and drawn("y = Multinomial <dtype = 7> (x)", logits).dtype == np.int64
    chance = np.linspace(0, 1, 100_000, dtype=np.float32).reshape(100, 1000)
    hit = drawn("y = Bernoulli <dtype = 9> (x)", chance, 15)
    assert hit.dtype == bool and abs(hit.mean() - 0.5) < 5 * math.sqrt(0.25 / hit.size)
    assert not drawn("y = Bernoulli (x)", np.zeros_like(chance), 15).any()
    assert drawn("y = Bernoulli (x)", np.ones_like(chance), 15).all()
    ones = np.ones((100, 1000), np.float32)
    kept = drawn(
        "r = Constant <value = float {0.25}> () t = Constant <value = bool {1}> () y = Dropout (x, r, t)",
        ones,
    )
    assert set(np.unique(kept)) == {np.float32(0), np.float32(1) / np.float32(0.75)}
    assert abs((kept == 0).mean() - 0.25) < 5 * math.sqrt(0.1875 / kept.size)


@pytest.mark.grid
@pytest.mark.parametrize("to", [1, 10, 11, 16], ids=["float", "half", "double", "bfloat16"])
@pytest.mark.parametrize("opset", [13, 17])
def test_types(to: int, opset: int) -> None:
    """A draw has the type of its attribute, else of the tensor it is like; the numbers equal float's."""
    x = np.zeros((4, 8), np.float32)
    plain = drawn("y = RandomNormalLike (x)", x, opset)
    for text in (
        f"y0 = RandomNormalLike <dtype = {to}> (x) y = Cast <to = 1> (y0)",
        f"h = Cast <to = {to}> (x) y0 = RandomNormalLike (h) y = Cast <to = 1> (y0)",
    ):
        found = drawn(text, x, opset)
        assert not np.array_equal(found, plain), "another name, other numbers"
        again = drawn(
            text.replace("y0", "y1").replace(" y =", " y0 =").replace("y1", "y").replace("y0 = C", "z = C"),
            x,
            opset,
        )
        assert again.shape == plain.shape
        np.testing.assert_allclose(np.asarray(again, np.float64), plain, rtol=2**-8)


@pytest.mark.parametrize("name", NETWORKS)
def test_equal_runs_end_in_equal_files(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """With one thread and with two, the same bits; a note names the node; the file keeps it as it was."""
    proto = NETWORKS[name]()
    made = [
        plain_quantize(proto, FEED, tmp_path / f"{n}.onnx", options=RunOptions(batch=4, threads=1 + n))
        for n in range(2)
    ]
    assert (
        len({digest(one.qdq) for one in made}) == len({one.evaluation.model_dump_json() for one in made}) == 1
    )
    notes = {r.getMessage() for r in caplog.records if r.levelno == logging.WARNING}
    (note,) = {text for text in notes if text.startswith("random numbers of ")}
    drawing = [
        n
        for n in list_nodes(made[0].model.proto.graph)
        if n.op_type.startswith(("Random", "Multi", "Bern", "Drop"))
    ]
    assert all(f"{node.op_type} {node.name!r}" in note for node in drawing) or name == "local function"
    written = list_nodes(onnx.load(tmp_path / "0.onnx").graph)
    kept = {
        n.output[0]: [*n.attribute]
        for n in written
        if n.op_type.startswith(("Random", "Multi", "Bern", "Drop"))
    }
    assert kept == {node.output[0]: [*node.attribute] for node in drawing}
    assert SEED_INPUT not in str(made[0].qdq)


@pytest.mark.share(2)
@pytest.mark.parametrize("name", NETWORKS)
def test_figures_hold_no_noise_of_draws(name: str, tmp_path: Path) -> None:
    """The SQNR shows quantization alone: the model equals itself, and evaluate finds what quantize did."""
    proto = NETWORKS[name]()
    exact = RunOptions(exact=True)
    feed = {key: values[:7] for key, values in FEED.items()}  # so few that none is unseen
    result = plain_quantize(proto, feed, tmp_path / "q.onnx", recipe=NEAREST, options=exact)
    (score,) = {c.outputs[0].sqnr_db for c in result.evaluation.candidates}
    assert 25 < score < 60
    same = evaluate(proto, {"itself": proto, "q": tmp_path / "q.onnx"}, feed, options=exact)
    # The reference runs with graph optimisation, which sums in another order.
    assert same.candidates[0].outputs[0].sqnr_db > 130
    # Feeds are added up in another order.
    assert same.candidates[1].outputs[0].sqnr_db == pytest.approx(score, rel=1e-12)


@pytest.mark.parametrize("name", NETWORKS)
def test_statistics_are_equal_to_the_bit(name: str) -> None:
    """Observed once or twice, with one thread or more, in any order of the feeds, statistics are the same."""
    model = load(NETWORKS[name]())
    plan = make_plan(model, load_recipe("tensorrt-int8"))
    feeds = [{"x": FEED["x"][at : at + 4]} for at in range(0, 32, 4)]
    found = [
        collect_statistics(model, plan, given, ObserveOptions(threads=threads))
        for given in (feeds, feeds[::-1])
        for threads in (1, 2)
    ]
    for key, first in found[0].values.items():
        assert all(str(one.values[key]) == str(first) for one in found), key


def test_feeds_draw_other_numbers() -> None:
    """Samples must not all meet the same draws: calibration would see one of them only."""
    model = build("g (float[N,4] x) => (float[N,4] y) { y = RandomNormalLike (x) }")
    session = Session(model, 1)
    found = [session.run({"x": np.full((1, 4), value, np.float32)})[0] for value in range(200)]
    assert len(np.unique(np.concatenate(found))) > 780
    again = [session.run({"x": np.full((1, 4), value, np.float32)})[0] for value in reversed(range(200))]
    np.testing.assert_array_equal(found, again[::-1])


def test_nodes_and_iterations_draw_other_numbers() -> None:
    """Two nodes differ unless they have one seed; so do the iterations of a Loop and of a Scan."""
    x = np.zeros((3, 500), np.float32)
    pair = "a = RandomNormalLike {0} (x) b = RandomNormalLike {0} (x) y = Sub (a, b)"
    assert drawn(pair.format(""), x).std() == pytest.approx(math.sqrt(2), rel=0.1)
    assert not drawn(pair.format("<seed = 1.0>"), x).any()
    scan = """y = Scan <num_scan_inputs = 1, body = b (float[C] e) => (float[C] q) {
        q = RandomUniformLike (e) }> (x)"""
    loop = """n = Constant <value_int = 3> () t = Constant <value = bool {1}> () y = Loop (n, t) <
        body = b (int64 i, bool c) => (bool d, float[A,B] q) {
            d = Identity (c) q = RandomUniformLike (x) }>"""
    for text in (scan, loop):
        found = drawn(text, x).reshape(3, -1)
        assert abs(np.corrcoef(found)[np.triu_indices(3, 1)]).max() < 0.2


def test_strings_are_part_of_a_feed() -> None:
    """A feed is known by all its arrays, their names and shapes; inputs of onnxfq do not count."""
    words = {"w": np.asarray(["a", "b"], object)}
    assert seed_of(words) != seed_of({"w": np.asarray(["a", "c"], object)})
    assert seed_of(words) == seed_of({**words, "onnxfq/enabled": np.asarray(True)})
    assert seed_of({"x": np.zeros((2, 3))}) != seed_of({"x": np.zeros((3, 2))})


@pytest.mark.parametrize("name", ["RandomNormalLike", "Dropout", "Loop", "local function"])
def test_segments_draw_as_the_whole(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that runs in segments draws what it draws in one piece."""
    proto = load(NETWORKS[name]()).proto
    (whole,) = Session(proto, 1, exact=True).run(FEED)
    monkeypatch.setattr(segmented_session, "MOST_NODES", 2)
    session = open_in_segments(proto, lambda part: Session(part, 1, exact=True), ["y"])
    assert not isinstance(session, Session)
    np.testing.assert_array_equal(session.run(FEED)[0], whole)


def test_sensitivity_and_promises_repeat() -> None:
    """Measuring many states of the switches gives the same record for equal runs and any threads."""
    proto = NETWORKS["Scan"]()
    found = {
        sensitivity(proto, FEED, options=RunOptions(batch=4, threads=n + 1)).model_dump_json()
        for n in range(2)
    }
    assert len(found) == 1
    before = (
        plain_quantize(proto, FEED, recipe=NEAREST, options=RunOptions(batch=4))
        .evaluation.candidates[0]
        .outputs[0]
    )
    made = [
        quantize(
            proto,
            FEED,
            accuracy=AccuracyTarget(min_sqnr=before.sqnr_db - 12),
            options=RunOptions(batch=4, threads=n),
        )
        for n in (1, 2)
    ]
    assert len({digest(one.qdq) for one in made}) == 1


def test_inference_draws_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """A Dropout that does not train is not a random node: no note, and the model runs as it is."""
    for text in ("y = Dropout (x)", "t = Constant <value = bool {0}> () y = Dropout (x, , t)"):
        proto = build(f"g (float[N,4] x) => (float[N,4] y) {{ {text} }}")
        assert fix_draws(proto) is proto
        list(open_feeds(proto, {"x": np.ones((2, 4), np.float32)}))
    assert not any("random" in record.getMessage() for record in caplog.records)


def test_training_as_an_input() -> None:
    """If an input decides whether a Dropout trains, it trains only when the input is true."""
    proto = build(
        """g (float[N,64] x, bool t) => (float[N,64] y, bool[N,64] m) {
            r = Constant <value = float {0.5}> () y, m = Dropout (x, r, t) }"""
    )
    x = np.ones((4, 64), np.float32)
    session = Session(proto, 1)
    y, mask = session.run({"x": x, "t": np.asarray(False)})
    np.testing.assert_array_equal(y, x)
    assert mask.all()
    y, mask = session.run({"x": x, "t": np.asarray(True)})
    np.testing.assert_array_equal(y, np.where(mask, x * 2, 0))
    assert Counter(mask.ravel())[True] in range(96, 161)
