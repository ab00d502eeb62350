"""`quantize`: the stages in a row, no more; what it writes, and that it leaves everything else alone."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import build, conv_relu, feed_for, linear, shared_weight, weights, with_override

import onnxfq
from onnxfq.choices import DEFAULT_RECIPE
from onnxfq.data import sample_digest
from onnxfq.data.replay import FEWEST_UNSEEN, MOST_UNSEEN
from onnxfq.errors import DataError, ModelError, OnnxfqError, OutputError, RecipeError, StatisticsError
from onnxfq.execution.sides import LEAST_FEEDS
from onnxfq.graph.external.tensor import is_external
from onnxfq.graph.io.load import load
from onnxfq.judging import work
from onnxfq.judging.accuracy_target import AccuracyTarget
from onnxfq.judging.candidate import Sources
from onnxfq.judging.samples import REPORTED
from onnxfq.quantizing.pipeline import quantize
from onnxfq.report.html import render_report
from onnxfq.report.text import quantize_summary
from onnxfq.stages.calibrate import calibrate
from onnxfq.stages.evaluate import evaluate
from onnxfq.stages.insert import insert_qdq
from onnxfq.stages.observe import collect_statistics
from onnxfq.stages.options import RunOptions, open_feeds
from onnxfq.stages.score import score_models
from onnxfq.targets.recipes import load_recipe

FEEDS = [feed_for(conv_relu(), seed, count=2) for seed in range(3)]
OFF = AccuracyTarget(repair=None)


@pytest.fixture
def workdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with model.onnx and data.npz, current."""
    monkeypatch.chdir(tmp_path)
    onnx.save(conv_relu(), "model.onnx")
    np.savez("data.npz", x=np.concatenate([feed["x"] for feed in FEEDS]))
    return tmp_path


def test_stages_in_a_row_give_the_same_bytes(workdir: Path) -> None:
    """`quantize` writes what the public stages give, byte for byte, where no remedy is tried."""
    quantize("model.onnx", "data.npz", "one.onnx", accuracy=OFF)
    model = onnxfq.load("model.onnx")
    plan = onnxfq.make_plan(model, onnxfq.load_recipe("tensorrt-int8"))
    statistics = onnxfq.collect_statistics(model, plan, onnxfq.open_feeds(model.proto, "data.npz"))
    encodings = onnxfq.calibrate(model, plan, statistics)
    onnxfq.save(onnxfq.insert_qdq(model, plan, encodings), "two.onnx")
    assert Path("one.onnx").read_bytes() == Path("two.onnx").read_bytes()


def test_nothing_is_written_without_an_output(workdir: Path) -> None:
    """Without `output` the result is returned only."""
    before = sorted(workdir.iterdir())
    result = quantize("model.onnx", "data.npz")
    assert sorted(workdir.iterdir()) == before
    assert [c.candidate for c in result.evaluation.candidates] == ["simulated"]
    assert (
        list(result.seconds)
        == "plan observe calibrate round insert cast evaluate remedies prove write".split()
    )


@pytest.mark.parametrize("count", [1, 128, 640])
def test_the_comparison_keeps_few_samples(count: int) -> None:
    """The scores come from a quarter of the samples, at most MOST_UNSEEN, of least digest.

    Beyond REPORTED they are as many as take a tenth of the work, in which no clock counts. They are of the
    model whose ranges lack them.
    """
    feeds = [feed_for(conv_relu(), seed, count=1) for seed in range(count)]
    options = RunOptions(batch=1, exact=True)
    result = quantize(conv_relu(), iter(feeds), options=options, accuracy=AccuracyTarget(repair=None))
    ordered = sorted(feeds, key=sample_digest)
    unseen = 0 if count == 1 else min(count // 4, MOST_UNSEEN)
    compared = result.evaluation.feeds
    assert compared == (unseen or 1) or REPORTED < compared < unseen
    least = ordered[:unseen][:compared] or ordered
    assert result.statistics.feeds == count
    # Without the unseen samples; all in any order give the ranges of the written model.
    other = quantize(conv_relu(), ordered, options=options, accuracy=AccuracyTarget(repair=None))
    assert other.encodings.encodings == result.encodings.encodings
    model, plan = load(conv_relu()), result.plan
    statistics = collect_statistics(model, plan, open_feeds(model.proto, ordered[unseen:]))
    judged = insert_qdq(model, plan, calibrate(model, plan, statistics))
    spread = evaluate(conv_relu(), judged, least, options=options)
    for found, expected in zip(
        result.evaluation.candidates[1].outputs, spread.candidates[0].outputs, strict=True
    ):
        assert found.sqnr_db == expected.sqnr_db
        assert found.largest_error == expected.largest_error


@pytest.mark.whole
def test_the_comparison_ends_when_its_interval_is_narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many samples as their cost allows if they are alike; all where few have all the noise."""
    x = feed_for(conv_relu(), 0, count=1)["x"]
    alike = [{"x": x * np.float32(1 + n / 4096)} for n in range(240)]
    assert FEWEST_UNSEEN < quantize(conv_relu(), alike).evaluation.feeds <= REPORTED
    assert quantize(conv_relu(), alike, options=RunOptions(exact=True)).evaluation.feeds == 60  # unseen ones
    monkeypatch.setattr(work, "PROVEN_SHARE", 0.0)
    assert quantize(conv_relu(), alike).evaluation.feeds == FEWEST_UNSEEN
    assert quantize(conv_relu(), [{"x": x}] * 40).evaluation.feeds == 1  # equal samples tell nothing more
    limits = {"low": np.float32(-1), "high": np.float32(1)}
    clip = build("g (float[N,3] x) => (float[N,3] y) { y = Clip (x, low, high) }", limits)
    same = build("g (float[N,3] x) => (float[N,3] y) { y = Identity (x) }")
    feeds = [{"x": np.float32([[1.7, 0, 0] if n % 13 == 0 else [1, 1, 1]])} for n in range(40)]
    assert score_models(same, {"clip": clip}, feeds, narrow_from=LEAST_FEEDS).feeds == 40


def test_progress_names_the_stages() -> None:
    """The callback hears of each feed of both passes, and of each weight."""
    seen: list[tuple[str, int, int | None]] = []
    options = RunOptions(batch=2, progress=lambda *told: seen.append(told))
    x = np.concatenate([feed["x"] for feed in FEEDS])
    plain = AccuracyTarget(repair=None)
    quantize(conv_relu(), x, options=options, accuracy=plain)
    observed = [("observe", done, 3) for done in (1, 2, 3)]
    compared = [("evaluate", done, 6) for done in range(1, 7)]  # one sample at a time
    named = ["read", "plan", "repair", "promised", "prove", "write"]
    assert [one for one in seen if one[0] not in named] == [*observed, ("calibrate", 1, 1), *compared]
    assert list(dict.fromkeys(stage for stage, *_ in seen)) == [
        *("read", "plan", "observe", "calibrate", "evaluate", "repair", "prove", "write")
    ]
    seen.clear()
    quantize(conv_relu(), iter(FEEDS), options=options, accuracy=plain)  # how many will come is not known
    counted = [one for one in seen if one[0] not in named]
    assert counted[2:5] == [("observe", 3, None), ("calibrate", 1, 1), ("evaluate", 1, 6)]


def test_provenance(workdir: Path) -> None:
    """The written model tells recipe, target and the hash of the float model; other metadata stays."""
    proto = conv_relu()
    proto.metadata_props.add(key="mine", value="kept")
    onnx.save(proto, "model.onnx")
    result = quantize("model.onnx", "data.npz", "out.onnx", accuracy=OFF)
    found = {p.key: p.value for p in onnx.load("out.onnx").metadata_props}
    assert len(found.pop("onnxfq.statistics_sha256")) == 64
    digests = [sample_digest({"x": sample[None]}) for feed in FEEDS for sample in feed["x"]]
    assert found.pop("onnxfq.data_sha256") == f"{sum(digests) % 2**256:064x}"
    assert found == {
        "mine": "kept",
        "onnxfq.version": onnxfq.__version__,
        "onnxfq.calibrator": "best_error",
        "onnxfq.recipe": "tensorrt-int8",
        "onnxfq.target": "tensorrt",
        "onnxfq.source_sha256": result.model.sha256,
    }


def test_quantization_is_good_enough() -> None:
    """8 bits on a small network stay above 30 dB; the twins score alike, and optimised within 0.1 dB."""
    made = quantize(conv_relu(), FEEDS, options=RunOptions(exact=True), accuracy=OFF).evaluation
    scores = [c.outputs[0].sqnr_db for c in made.candidates]
    assert min(scores) > 30
    assert scores[0] == scores[1]
    given = Sources(statistics=quantize(conv_relu(), FEEDS).statistics)  # without folds
    (quick,) = quantize(conv_relu(), FEEDS, sources=given, accuracy=OFF).evaluation.candidates
    assert quick.outputs[0].sqnr_db == pytest.approx(scores[0], abs=0.1)  # sums in another order


REFUSED = {
    "unknown recipe": (lambda: quantize("model.onnx", "data.npz", "o.onnx", recipe="tensort"), RecipeError),
    "unknown calibrator": (
        lambda: quantize(
            "model.onnx",
            "data.npz",
            "o.onnx",
            recipe=load_recipe(DEFAULT_RECIPE).override(activations={"calibrator": "x"}),
        ),
        RecipeError,
    ),
    "missing model": (lambda: quantize("none.onnx", "data.npz", "o.onnx"), ModelError),
    "missing data": (lambda: quantize("model.onnx", "none.npz", "o.onnx"), DataError),
    "no data": (lambda: quantize("model.onnx", [], "o.onnx"), DataError),
    "wrong name": (lambda: quantize("model.onnx", [{"y": FEEDS[0]["x"]}], "o.onnx"), DataError),
    "wrong shape": (lambda: quantize("model.onnx", [{"x": FEEDS[0]["x"][:, :2]}], "o.onnx"), DataError),
    "NaN": (lambda: quantize("model.onnx", [{"x": FEEDS[0]["x"] * np.nan}], "o.onnx"), DataError),
    "a file as folder": (lambda: quantize("model.onnx", "data.npz", "data.npz/o.onnx"), OutputError),
    "folder as output": (lambda: quantize("model.onnx", "data.npz", "."), OutputError),
    "model as output": (lambda: quantize("model.onnx", "data.npz", "model.onnx"), OutputError),
    "data as output": (lambda: quantize("model.onnx", "data.npz", "data.npz"), OutputError),
    "misspelled override": (
        lambda: quantize(
            "model.onnx", "data.npz", "o.onnx", recipe=with_override(nodes=["cov"], keep_float=True)
        ),
        RecipeError,
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals_write_nothing(workdir: Path, case: str) -> None:
    """Every refusal is one line of the right class, and the folder stays as it was."""
    call, kind = REFUSED[case]
    before = {path: path.read_bytes() for path in workdir.iterdir()}
    with pytest.raises(OnnxfqError) as caught:
        call()
    assert type(caught.value) is kind
    assert {path: path.read_bytes() for path in workdir.iterdir()} == before


def test_a_plan_of_weights_only_needs_no_data() -> None:
    """Without data nothing is compared, and a line says so; data without samples is an error."""
    proto = build("g (float[N,4] x) => (float[N,4] y) { y = MatMul (x, w) }", {"w": weights(4, 4)})
    recipe = "tensorrt-int8-weights"
    assert quantize(proto, [feed_for(proto)], recipe=recipe).evaluation.feeds == 4
    with pytest.raises(DataError, match="holds no samples"):
        quantize(proto, [], recipe=recipe)
    alone = quantize(proto, None, recipe=recipe)
    assert alone.evaluation.notes == ("no data to compare with was given",)
    assert not alone.evaluation.candidates
    for text in (quantize_summary(alone), render_report(alone)):
        assert "no data to compare with was given" in text and not re.search(r"\binf\b", text)
    with pytest.raises(DataError, match="recipe tensorrt-int8 needs data to observe 1 activations"):
        quantize(conv_relu(), None)


def test_statistics_gathered_before_are_used_and_checked() -> None:
    """The same model without inference; another model or other data is refused with the reason."""
    first = quantize(conv_relu(), FEEDS, accuracy=OFF)
    again = quantize(conv_relu(), FEEDS, sources=Sources(statistics=first.statistics), accuracy=OFF)
    assert again.qdq == first.qdq and again.evaluation.folds == 0 < first.evaluation.folds
    third = quantize(conv_relu(), FEEDS, sources=Sources(statistics=again.statistics), accuracy=OFF)
    assert third.evaluation == again.evaluation
    ran: list[str] = []
    alone = quantize(
        conv_relu(),
        None,
        sources=Sources(statistics=first.statistics),
        options=RunOptions(progress=lambda stage, done, total: ran.append(stage)),
    )
    assert alone.qdq == first.qdq and not alone.evaluation.candidates
    assert list(dict.fromkeys(ran)) == ["read", "plan", "calibrate", "repair", "prove", "write"]
    assert alone.evaluation.notes == ("no data to compare with was given",)
    other = [{"x": feed["x"] + np.float32(1e-3)} for feed in FEEDS]
    with pytest.raises(StatisticsError, match="gathered from other data: 6 samples with digest .*, these"):
        quantize(conv_relu(), other, sources=Sources(statistics=first.statistics))
    changed = conv_relu()
    changed.graph.initializer[0].raw_data = changed.graph.initializer[0].raw_data[::-1]
    with pytest.raises(StatisticsError, match="gathered from a model with SHA-256"):
        quantize(changed, FEEDS, sources=Sources(statistics=first.statistics))


def test_doubled_node_names() -> None:
    """A model whose nodes share a name, which ONNX Runtime refuses, is quantized and compared."""
    proto = shared_weight()
    for node in proto.graph.node:
        node.name = "same"
    result = quantize(proto, [feed_for(proto)])
    assert [str(row) for row in result.plan.coverage()] == ["MatMul 2/2"]


def test_models_of_the_result_are_read_when_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights come from the file of the model; a changed one is an error, never other numbers."""
    proto = linear(64, 64)
    feeds = [feed_for(proto, seed) for seed in range(4)]
    whole = quantize(proto, feeds)
    monkeypatch.setattr("onnxfq.stages.inputs.STAGED", 0)
    onnx.save(proto, tmp_path / "m.onnx")
    staged = quantize(tmp_path / "m.onnx", feeds)
    assert any(map(is_external, staged.staged.proto.graph.initializer))
    assert staged.simulation.graph == whole.simulation.graph and staged.qdq.graph == whole.qdq.graph
    late = quantize(tmp_path / "m.onnx", feeds)
    onnx.save(linear(64, 63), tmp_path / "m.onnx")
    with pytest.raises(ModelError, match="has changed since it was loaded"):
        _ = late.model
