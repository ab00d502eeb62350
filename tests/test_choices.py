"""Behind a selection models are compared with the choices of the float model, by every command alike."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import Arrays, build, build_used, scalars
from numpy.testing import assert_array_equal
from selecting_networks import NETWORKS, normal, run, sqnr_where_equal

import onnxfq
from onnxfq.choices import FloatName
from onnxfq.cli.main import main
from onnxfq.errors import ModelError
from onnxfq.execution.given_choices import add_choices
from onnxfq.graph.io.load import load
from onnxfq.graph.patterns.logits import judge_given, judge_outputs
from onnxfq.judging.samples import split_samples
from onnxfq.passes.give_choices import with_given_choices
from onnxfq.stages.score import score_models

CONSTANTS: Arrays = {
    **scalars(
        np.int64,
        three=[3],
        zero=0,
        one=1,
        axis=[0],
        axis1=[1],
        sixteen=[16],
        boxes=[1, -1, 4],
        rows=[1, 1, -1],
        most=[5],
        depth=16,
        first_two=[0, 2],
    ),
    **scalars(np.float32, overlap=[0.9], least=[-9], pair=[0, 1], many=50, half=0.5, high=2),
    "wa": normal(16, 16, seed=1, scale=0.3),
    "wb": normal(16, 16, seed=3, scale=0.3),
    "one_column": normal(16, 1, seed=4, scale=0.3),
    "book": normal(16, 16, seed=5),
    "table": normal(7, 16, seed=6),
}
LENGTH = """p = ReduceMean <axes = [0, 1], keepdims = 0> (s) q = Mul (p, many) d = Abs (q) e = Add (d, half)
    n = Cast <to = 7> (e) m = Add (n, one)"""

# Nodes between the data `a`, the scores `s` and `b`, which the last product reads; the choices.
KINDS: dict[str, tuple[str, set[str]]] = {
    "TopK": (
        "m = ReduceMax <axes = [1], keepdims = 0> (s) v, i = TopK (m, three) b = Gather <axis = 0> (a, i)",
        {"i"},
    ),
    "TopK's values": (
        "v, i = TopK <axis = 0> (s, three) g = GatherElements <axis = 0> (a, i) b = Add (g, g)",
        {"i"},
    ),
    "values and indices of TopK": (
        """m = ReduceMax <axes = [1], keepdims = 0> (a) v, i = TopK (m, three)
        o = ReduceMean <keepdims = 0> (v) u, j = TopK <axis = 0> (s, three)
        g = GatherElements <axis = 0> (a, j) b = Mul (g, o)""",
        {"j"},
    ),
    "ArgMax of a book": ("i = ArgMax <axis = 1, keepdims = 0> (s) b = Gather <axis = 0> (book, i)", {"i"}),
    "ArgMin and OneHot": (
        """i = ArgMin <axis = 1, keepdims = 0> (s) o = OneHot (i, depth, pair) b = MatMul (o, book)""",
        {"i"},
    ),
    "NonZero": (
        """m = ReduceMax <axes = [1], keepdims = 0> (s) k = Greater (m, high) z = NonZero (k)
        t = Transpose <perm = [1, 0]> (z) b = GatherND (a, t)""",
        {"z"},
    ),
    "ScatterND": (
        """m = ReduceMax <axes = [1], keepdims = 0> (s) k = Greater (m, high) z = NonZero (k)
        t = Transpose <perm = [1, 0]> (z) g = GatherND (a, t) h = Neg (g) b = ScatterND (a, t, h)""",
        {"z"},
    ),
    "Compress": (
        """m = ReduceMax <axes = [1], keepdims = 0> (s) k = Greater (m, high) c = Compress <axis = 0> (a, k)
        d = Compress <axis = 0> (a, k) b = Sub (c, d) b1 = Add (b, c)""",
        {"k"},
    ),
    "NonMaxSuppression": (
        """f = Reshape (s, boxes) x0 = ReduceMax <axes = [2], keepdims = 0> (f) c = Reshape (x0, rows)
        kept = NonMaxSuppression (f, c, most, overlap, least) i = Gather <axis = 1> (kept, two_)
        r = Reshape (a, boxes) r0 = Squeeze (r, axis) g = Gather <axis = 0> (r0, i)
        b = Concat <axis = 1> (g, g, g, g)""",
        {"kept"},
    ),
    "Unique": (
        """i = ArgMax <axis = 1, keepdims = 0> (s) u, f, w, c = Unique (i) g = Gather <axis = 0> (book, u)
        b = Identity (g)""",
        {"i"},
    ),
    "Unique floats": (
        """m = ReduceMax <axes = [1], keepdims = 0> (s) r = Round (m) u, f = Unique (r)
        g = Gather <axis = 0> (a, f) b = Identity (g)""",
        {"f"},
    ),
    "length of a Range": (
        f"{LENGTH} r = Range (zero, m, one) t = Mod (r, limit) b = Gather <axis = 0> (table, t)",
        {"n"},
    ),
    "end of a Slice": (f"{LENGTH} u = Unsqueeze (m, axis) b = Slice (a, axis, u, axis)", {"n"}),
    "size of an Expand": (
        f"""{LENGTH} u = Unsqueeze (m, axis) z = Concat <axis = 0> (u, sixteen)
        h = ReduceMean <axes = [0]> (a) b = Expand (h, z)""",
        {"n"},
    ),
    "repeats of a Tile": (
        f"{LENGTH} u = Unsqueeze (m, axis) z = Concat <axis = 0> (u, one_) b = Tile (a, z)",
        {"n"},
    ),
    "rounded durations": (
        """m = ReduceMean <axes = [1], keepdims = 0> (s) d = Mul (m, many_) e = Abs (d) r = Ceil (e)
        c = CumSum (r, zero) t = ReduceMax <keepdims = 0> (c) n = Cast <to = 7> (t) f = Range (zero, n, one)
        o = Mod (f, limit) b = Gather <axis = 0> (table, o)""",
        {"r", "n"},
    ),
    "If": (
        """m = ReduceMean <keepdims = 0> (s) k = Greater (m, half_) b = If (k) <
            then_branch = p () => (float[N,16] b1) { b1 = MatMul (a, book) },
            else_branch = q () => (float[N,16] b2) { b2 = Neg (a) }>""",
        {"k"},
    ),
    "turns of a Loop": (
        f"""{LENGTH} t = Constant <value = bool {{1}}> () b = Loop (n, t, a) <
            body = l (int64 i, bool k, float[N,16] h) => (bool k1, float[N,16] h1) {{
                k1 = Identity (k) h2 = MatMul (h, book) h1 = Tanh (h2) }}>""",
        {"n"},
    ),
    "read in a body": (
        """i = ArgMax <axis = 1, keepdims = 0> (s) t = Constant <value = bool {1}> () b = If (t) <
            then_branch = p () => (float[N,16] b1) { b1 = Gather <axis = 0> (book, i) },
            else_branch = q () => (float[N,16] b2) { b2 = Neg (a) }>""",
        {"i"},
    ),
    "two in a row": (
        """i = ArgMax <axis = 1, keepdims = 0> (s) g = Gather <axis = 0> (book, i) h = MatMul (g, ws)
        j = ArgMax <axis = 1, keepdims = 0> (h) b = Gather <axis = 0> (book, j)""",
        {"i", "j"},
    ),
}
MORE: Arrays = {**scalars(np.int64, two_=2, limit=7, one_=[1]), **scalars(np.float32, half_=0.02, many_=5)}


def network(kind: str, seed: int = 2) -> onnx.ModelProto:
    """Return scores `s` that choose from `a`, and a product behind the choice; `seed` is of the scores."""
    nodes = KINDS[kind][0]
    last = "b1" if kind == "Compress" else "b"
    text = f"""g (float[N,16] x) => (float[M,16] y) {{
        a = MatMul (x, wa) s = MatMul (x, ws) {nodes} y = MatMul ({last}, wb) }}"""
    constants = {**CONSTANTS, **MORE, "ws": normal(16, 16, seed=seed, scale=0.3)}
    return load(build_used(text, constants)).proto


X = normal(24, 16, seed=0)


@pytest.mark.parametrize("kind", KINDS)
def test_the_choices_of_an_operator(kind: str) -> None:
    """All that depends on choices decides, and with its own choices as inputs a model is what it was."""
    proto = network(kind)
    judged = judge_outputs(proto)
    assert judged.choices.keys() == KINDS[kind][1] and not judged.unjudged
    assert "y" in judged.deciding and not judged.moved
    assert judged.sources or kind == "turns of a Loop"
    feed = {"x": X}
    chosen = dict(zip(judged.choices, run(proto, feed, [*judged.choices]), strict=True))
    given = with_given_choices(proto, judged.choices)
    onnx.checker.check_model(given, full_check=True)
    (want,) = run(proto, feed, ["y"])
    (have,) = run(given, {n: a for n, a in add_choices(feed, chosen).items() if "seed" not in n}, ["y"])
    assert_array_equal(have, want)


@pytest.mark.parametrize("kind", KINDS)
def test_other_choices_change_no_figure(kind: str) -> None:
    """A model with other choices than the float model alone is equal behind them, and its shares tell."""
    if kind == "two in a row":
        pytest.skip("the scores of the second choice lie behind the first")
    reference, candidate = network(kind), network(kind, seed=12)
    judged = judge_outputs(reference)
    feeds = [{"x": normal(24, 16, seed=seed)} for seed in range(3)]
    (found,) = score_models(reference, {"c": candidate}, feeds, judged=judged).candidates
    by_name = {one.output: one for one in found.outputs}
    assert by_name["y"].sqnr_db > 110 and by_name["y"].decides
    told = {name for name, choice in judged.choices.items() if not choice.follows}
    assert {share.output for share in found.shares} == told
    assert min(share.equal for share in found.shares) < 0.9
    assert found.lowest_db < 10  # the scores in front decide too


@pytest.mark.share(2)
@pytest.mark.parametrize("name", NETWORKS)
def test_the_number_behind_is_true(name: str, tmp_path: Path) -> None:
    """A promise is true for samples of which both models choose the same, by ONNX Runtime alone."""
    network = NETWORKS[name]()
    assert set(judge_outputs(load(network.proto).proto).choices) >= {network.choices[0]}
    feeds = [{"x": x[None]} for x in network.data(64, 1)["x"]]
    promise = onnxfq.AccuracyTarget(min_sqnr=30.0)
    result = onnxfq.quantize(network.proto, feeds, tmp_path / "q.onnx", accuracy=promise)
    (score, *_) = result.evaluation.candidates
    assert {share.output for share in score.shares} >= {network.choices[0]} and score.lowest_db >= 30
    real_db, count = sqnr_where_equal(network, onnx.load(tmp_path / "q.onnx"), network.data(48, 7))
    assert real_db > 27 and count > 8


@pytest.mark.parametrize("name", ["detector", "codec", "experts"])
def test_every_command_measures_the_same(name: str, tmp_path: Path) -> None:
    """Layers behind a choice have noise; `diagnose` and `evaluate` agree about one file."""
    network = NETWORKS[name]()
    feeds = [{"x": x[None]} for x in network.data(32, 1)["x"]]
    onnxfq.quantize(network.proto, feeds, tmp_path / "q.onnx", accuracy=onnxfq.AccuracyTarget(repair=None))
    for group in onnxfq.sensitivity(network.proto, feeds).groups:
        assert group.alone_db < 90, group.nodes
    told = onnxfq.diagnose(tmp_path / "q.onnx", reference=network.proto, data=feeds)
    proving = list(split_samples(feeds).proving)
    found = onnxfq.evaluate(network.proto, tmp_path / "q.onnx", proving).candidates[0]
    outputs = [one.sqnr_db for one in found.outputs if one.decides]
    assert told.before == pytest.approx(min(outputs), abs=0.5)


def recipe_with(rounding: str) -> onnxfq.Recipe:
    """Return the recipe that rounds weights so."""
    recipe = onnxfq.load_recipe("tensorrt-int8")
    return recipe.override(weights=recipe.weights.model_copy(update={"rounding": rounding}))


@pytest.mark.share(2)
@pytest.mark.parametrize("name", ["detector", "codec", "experts", "voice"])
def test_rounding_is_not_worse_than_nearest(name: str, tmp_path: Path) -> None:
    """Sequential rounding pairs rows that belong together: behind a choice it is as good as nearest."""
    network = NETWORKS[name]()
    feeds = [{"x": x[None]} for x in network.data(64, 1)["x"]]
    found = []
    for rounding in ("nearest", "qronos"):
        onnxfq.quantize(
            network.proto,
            feeds,
            tmp_path / f"{rounding}.onnx",
            recipe=recipe_with(rounding),
            accuracy=onnxfq.AccuracyTarget(repair=None),
        )
        file = onnx.load(tmp_path / f"{rounding}.onnx")
        found.append(sqnr_where_equal(network, file, network.data(48, 7))[0])
    assert found[1] > found[0] - 1


LEFT = {
    "Loop": (
        """t = Constant <value = bool {1}> () y = Loop (turns, t, a) <
            body = l (int64 i, bool k, float[N,16] h) => (bool k1, float[N,16] h1) {
                k1 = Identity (k) h2 = MatMul (h, wb) j = ArgMax <axis = 1, keepdims = 0> (h2)
                h1 = Gather <axis = 0> (book, j) }>""",
        "chooses in its body",
    ),
    "Multinomial": (
        """c = Multinomial <dtype = 7> (s) i = Squeeze (c, axis1) b = Gather <axis = 0> (book, i)
        y = MatMul (b, wb)""",
        "draws by chance",
    ),
    "Unique": (
        """u = Unique (s) w = Reshape (u, column) y = MatMul (w, row)""",
        "values without their indices",
    ),
}


@pytest.mark.parametrize("kind", LEFT)
def test_what_is_not_judged(kind: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Choices that cannot be given are named; a promised SQNR is refused in one line; nothing else fails."""
    nodes, why = LEFT[kind]
    text = f"g (float[N,16] x) => (float[M,16] y) {{ a = MatMul (x, wa) s = MatMul (a, ws) {nodes} }}"
    more: Arrays = {
        **scalars(np.int64, turns=3, column=[-1, 1]),
        "ws": normal(16, 16, seed=2, scale=0.3),
        "row": normal(1, 16, seed=4),
    }
    model = build(text, {**CONSTANTS, **more})
    files = [str(tmp_path / name) for name in ("m.onnx", "d.npz", "q.onnx")]
    onnx.save(model, files[0])
    np.savez(files[1], x=X)
    command = ["quantize", files[0], "--data", files[1], "-o", files[2]]
    assert main([*command, "--rounding", "qronos"]) == 0
    shown = capfd.readouterr().out
    assert f"is not judged: it {why}" in shown or f"is not judged: it returns {why}" in shown
    assert main([*command, "--min-sqnr", "20"]) == 1
    (line,) = [one for one in capfd.readouterr().err.splitlines() if "error" in one]
    assert "cannot be promised" in line and why in line


@pytest.mark.sample
def test_a_candidate_without_the_choice() -> None:
    """Another model cannot be given what it does not compute: a note says what is not judged."""
    reference = network("TopK")
    other = onnx.ModelProto()
    other.CopyFrom(reference)
    for node in other.graph.node:
        node.input[:] = ["j" if name == "i" else name for name in node.input]
        node.output[:] = ["j" if name == "i" else name for name in node.output]
    found = onnxfq.evaluate(reference, other, {"x": X})
    assert found.candidates[0].lowest_db == math.inf and not found.candidates[0].judging[0].moved
    assert any("not judged: another model lacks 'i'" in note for note in found.notes)
    assert judge_given(reference, frozenset()).moved == {"y"}


def test_a_promise_names_the_node() -> None:
    """The error of a library call has the node and the remedy."""
    model = build(
        "g (float[N,16] x) => (float[N,16] y) { s = MatMul (x, wa) c = Multinomial <dtype = 7> (s) "
        "i = Squeeze (c, axis1) b = Gather <axis = 0> (book, i) y = MatMul (b, wb) }",
        CONSTANTS,
    )
    with pytest.raises(
        ModelError, match=r"^20 dB cannot be promised: .* node 'c' .*draws by chance; promise max_drop"
    ):
        onnxfq.sensitivity(model, {"x": X}, accuracy=onnxfq.AccuracyTarget(min_sqnr=20.0))


def test_labels_count_with_own_choices(tmp_path: Path) -> None:
    """Accuracy is of the model as its user runs it: a model of other choices has other classes."""
    reference, candidate = network("ArgMax of a book"), network("ArgMax of a book", seed=12)
    (want,), (have,) = (run(one, {"x": X}, ["y"]) for one in (reference, candidate))
    labels = want.argmax(1)
    found = onnxfq.evaluate(reference, candidate, {"x": X}, labels=labels)
    assert found.accuracy == 1
    assert found.candidates[0].accuracy == np.mean(have.argmax(1) == labels) < 0.9


def test_a_task_runs_with_own_choices() -> None:
    """The runs of a metric are the model's own, and noise is not."""
    network = NETWORKS["codec"]()
    kept: list[float] = []

    def mean_of(outputs: object, truth: object) -> float:
        kept.append(float(np.mean([one["y"] for one in outputs])))  # type: ignore[attr-defined]
        return kept[-1]

    candidate = other_book(network.proto)
    feeds = [{"x": x[None]} for x in network.data(4, 1)["x"]]
    onnxfq.evaluate(network.proto, candidate, feeds, metric=mean_of)
    wanted = [
        float(np.mean([run(one, feed, ["y"])[0] for feed in feeds])) for one in (network.proto, candidate)
    ]
    assert kept == pytest.approx(wanted, rel=1e-4) and kept[0] != pytest.approx(kept[1], rel=1e-2)


def other_book(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy whose distances are to other vectors."""
    made = onnx.ModelProto()
    made.CopyFrom(proto)
    (turned,) = (tensor for tensor in made.graph.initializer if tensor.name == "turned")
    turned.CopyFrom(onnx.numpy_helper.from_array(normal(8, 32, seed=99), "turned"))
    return made


@pytest.mark.grid
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("floats", ["fp16", "bf16"])
def test_half_types_take_choices(name: str, floats: FloatName, tmp_path: Path) -> None:
    """A cast model takes the choices in its own types."""
    network = NETWORKS[name]()
    feeds = [{"x": x[None]} for x in network.data(16, 1)["x"]]
    result = onnxfq.cast(network.proto, feeds, tmp_path / "h.onnx", floats=onnxfq.FloatOptions(floats))
    assert result.evaluation is not None
    (score, *_) = result.evaluation.candidates
    assert 25 < score.lowest_db < 100 and score.shares


def test_the_state_of_a_stream_beside_choices() -> None:
    """A network that chooses and feeds its state back takes its own state and the float model's choices."""
    text = """g (float[1,16] x, float[1,16] h) => (float[1,16] y, float[1,16] hN) {
        c = Concat <axis = 1> (x, h) s = MatMul (c, ws) i = ArgMax <axis = 1, keepdims = 0> (s)
        b = Gather <axis = 0> (book, i) y = MatMul (b, wb) q = MatMul (h, wa)
        p = Add (q, y) hN = Tanh (p) }"""
    arrays: Arrays = {**CONSTANTS, "ws": normal(32, 16, seed=2, scale=0.3)}
    model = build(text, {name: arrays[name] for name in ("ws", "book", "wb", "wa")})
    state, feeds = np.zeros((1, 16), np.float32), []
    for at in range(40):
        feeds.append({"x": normal(1, 16, seed=at), "h": state})
        state = run(model, feeds[-1], ["hN"])[0].astype(np.float32)
    result = onnxfq.quantize(model, feeds)
    (score, *_) = result.evaluation.candidates
    assert "sequences of up to" in " ".join(result.evaluation.notes)
    assert {share.output for share in score.shares} == {"i"} and 20 < score.lowest_db < 70


@pytest.mark.share(2)
@pytest.mark.parametrize("name", NETWORKS)
def test_openvino_takes_choices(name: str, tmp_path: Path) -> None:
    """A promise is proven in OpenVINO with the float model's choices, of any number of axes."""
    pytest.importorskip("openvino")
    network = NETWORKS[name]()
    feeds = [{"x": x[None]} for x in network.data(32, 1)["x"]]
    promise = onnxfq.AccuracyTarget(min_sqnr=25.0)
    onnxfq.quantize(network.proto, feeds, tmp_path / "q.onnx", recipe="openvino-int8", accuracy=promise)
    files = network.proto, tmp_path / "q.onnx", feeds[:16]
    simulated, opened = (onnxfq.evaluate(*files, runtime=one) for one in ("onnxruntime", "openvino"))
    assert opened.lowest_db > 25 and opened.lowest_db == pytest.approx(simulated.lowest_db, abs=1.5)


def test_samples_of_other_shapes_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    """Rounding leaves out samples whose number of rows still depends on the quantized values."""
    text = """g (float[N,16] x) => (float[M,16] y) {
        a = MatMul (x, wa) s = MatMul (a, ws) r = Round (s) u = Unique (r) w = Reshape (u, column)
        q = MatMul (w, row) p = Relu (q) y = MatMul (p, wb) }"""
    arrays: Arrays = {
        "wa": CONSTANTS["wa"],
        "wb": CONSTANTS["wb"],
        "ws": normal(16, 16, seed=2, scale=0.6),
        "column": np.int64([-1, 1]),
        "row": normal(1, 16, seed=4),
    }
    onnxfq.quantize(
        build(text, arrays),
        {"x": normal(40, 16, seed=0)},
        recipe=recipe_with("qronos"),
        accuracy=onnxfq.AccuracyTarget(repair=None),
    )
    assert any("rounding leaves out" in one and "'w'" in one for one in caplog.messages)
