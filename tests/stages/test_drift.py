"""Networks whose error grows along a stream: it is in the summary, ranks the layers, and ends a promise."""

from __future__ import annotations

import numpy as np
import pytest
from builders import build, plain_quantize, weights

import onnxfq
from onnxfq.data.replay import RUN, KeptFeeds
from onnxfq.report.text import quantize_summary
from onnxfq.runtime.session import Session
from onnxfq.stages.inputs import open_inputs
from onnxfq.stages.options import QuantizeOptions, open_feeds

STATES = 32
Feed = dict[str, np.ndarray]


def turning(decay: float = 0.998) -> np.ndarray:
    """A matrix whose states turn by pairs, each at its own speed, and shrink by `decay` in a step."""
    random = np.random.default_rng(0)
    turn = np.zeros((STATES, STATES))
    for at in range(0, STATES, 2):
        angle = random.uniform(0.02, 0.5)
        turn[at : at + 2, at : at + 2] = [[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]
    basis = np.linalg.qr(random.normal(size=(STATES, STATES)))[0]
    return (decay * basis @ turn @ basis.T).astype(np.float32)


STATE_SPACE = build(
    f"""g (float[1,8] x, float[1,{STATES}] h) => (float[1,4] y, float[1,{STATES}] hn) {{
        a = MatMul (x, w) b = MatMul (h, u) hn = Add (a, b) y = MatMul (hn, v) }}""",
    {"w": weights(8, STATES, seed=1) / 8, "u": turning(), "v": weights(STATES, 4, seed=2)},
)
"""It remembers some 500 feeds: an error of `u` adds up over them, one of `v` is gone in the next feed."""


def record(count: int, seed: int = 0) -> list[Feed]:
    """Feeds with the state that the float model leaves on the one before, from zeros on."""
    x = np.random.default_rng(seed).normal(size=(count, 1, 8)).astype(np.float32)
    session, state, feeds = Session(STATE_SPACE, 1), np.zeros((1, STATES), np.float32), []
    for row in x:
        feeds.append({"x": row, "h": state})
        state = session.run(feeds[-1])[1]
    return feeds


STREAM = record(600)
NEW = record(1000, seed=1)


def run_along(model, feeds: list[Feed]) -> np.ndarray:
    """Outputs `y` of a model that is given its own state after the first feed."""
    session, state, found = Session(model, 1, exact=True), feeds[0]["h"], []
    for feed in feeds:
        y, state = session.run({**feed, "h": state})
        found.append(y[0].astype(np.float64))
    return np.asarray(found)


def figure(model, part: slice) -> float:
    """SQNR in dB of `y` on a part of other feeds, 1,000 in a row."""
    want, have = run_along(STATE_SPACE, NEW)[part], run_along(model, NEW)[part]
    return float(10 * np.log10(np.square(want).sum() / np.square(want - have).sum()))


@pytest.fixture(scope="module")
def quantized() -> onnxfq.QuantizeResult:
    """The network in int8, without repair."""
    return plain_quantize(STATE_SPACE, STREAM)


@pytest.mark.sample
def test_the_number_holds_on_a_longer_stream(quantized) -> None:
    """It is not 3 dB above the figure of other feeds at steps 500 to 1,000; frames would be 10 dB above."""
    printed, later = quantized.evaluation.lowest_db, figure(quantized.qdq, slice(500, 1000))
    frames = onnxfq.evaluate(STATE_SPACE, quantized.simulation, STREAM[::-1]).lowest_db
    assert later - 3 < printed < later + 3 and frames > later + 10


def test_a_growing_error_is_told(quantized) -> None:
    """Summary, notes of `evaluate` and JSON have the slope, which is near a line through the blocks."""
    found = onnxfq.evaluate(STATE_SPACE, quantized.simulation, STREAM)
    (score,) = found.candidates[0].outputs[:1]
    assert score.drift is not None and score.drift.feeds == len(STREAM)
    error = np.square(run_along(STATE_SPACE, STREAM) - run_along(quantized.simulation, STREAM)).sum(1)
    signal = np.square(run_along(STATE_SPACE, STREAM)).sum(1)
    places = np.arange(10, 18)
    ratios = [signal[32 * at : 32 * at + 32].sum() / error[32 * at : 32 * at + 32].sum() for at in places]
    slope = np.polyfit(places * 32, 10 * np.log10(ratios), 1)[0]
    assert score.drift.loss_db == pytest.approx(-100 * slope, rel=0.2)
    told = f"'y' loses {score.drift.loss_db:.2g} dB a hundred feeds, still at feed 600"
    assert any(told in note for note in found.notes) and told in found.table()
    read = onnxfq.Evaluation.model_validate_json(found.model_dump_json())
    assert read.candidates[0].outputs[0].drift == score.drift
    assert "the error grows along the stream: 'y' loses" in quantize_summary(quantized)


def test_layers_are_ranked_by_the_end_of_the_stream() -> None:
    """The recurrent product alone makes nearly all of the error, which frames share between all layers."""
    ranked = onnxfq.sensitivity(STATE_SPACE, STREAM)
    worst, *others = ranked.groups
    assert "u" in worst.tensors and all(worst.noise > 10 * other.noise for other in others)
    frames = onnxfq.sensitivity(STATE_SPACE, STREAM[::-1])
    first = next(group for group in frames.groups if "u" in group.tensors)
    assert first.alone_db > worst.alone_db + 10


@pytest.mark.parametrize("wanted", [15.0, 25.0])
def test_a_promise_is_true_on_a_longer_stream(wanted: float) -> None:
    """The recurrent product stays in float, and 1,000 other feeds have what was promised."""
    target = onnxfq.AccuracyTarget(min_sqnr=wanted, repair=None)
    kept = onnxfq.quantize(STATE_SPACE, STREAM, accuracy=target)
    assert kept.trial("promised").is_kept and kept.evaluation.lowest_db >= wanted
    assert not any(placement.tensor == "u" for placement in kept.plan.placements)
    assert figure(kept.qdq, slice(0, 1000)) >= wanted - 1  # its ranges are from 600 feeds


def test_a_promise_that_would_not_last_is_refused() -> None:
    """The wider format leaves the weights that drift, and the error has the slope in one line."""
    target = onnxfq.AccuracyTarget(min_sqnr=25, fallback="int16", repair=None)
    with pytest.raises(onnxfq.OnnxfqError, match=r"'y' loses .* dB a hundred feeds, still at feed 600"):
        onnxfq.quantize(STATE_SPACE, STREAM, recipe="onnxruntime-int8", accuracy=target)


def unseen_of(recordings: list[list[Feed]]) -> set[bytes]:
    """The unseen samples of these recordings in a row."""
    session = open_inputs(
        STATE_SPACE,
        [f for one in recordings for f in one],
        onnxfq.load_recipe("tensorrt-int8"),
        QuantizeOptions(),
    )
    assert session.feeds is not None
    for _ in session.feeds.rest():
        pass
    return {feed["x"].tobytes() for feed in session.kept}


def test_recordings_are_unseen_in_any_order() -> None:
    """Whole recordings and the end of one are unseen; the order of the recordings does not matter."""
    recordings = [record(count, seed) for seed, count in enumerate([50, 90, 120, 70, 33, 200])]
    unseen = unseen_of(recordings)
    assert unseen == unseen_of(recordings[::-1]) and len(unseen) == 563 // 2
    shares = [[feed["x"].tobytes() in unseen for feed in one] for one in recordings]
    parts = [one for one in shares if any(one) and not all(one)]
    assert len(parts) <= 1 and all(one == sorted(one) for one in parts)


def test_a_recording_that_comes_twice_is_unseen_twice() -> None:
    """Nothing that gives ranges is compared."""
    one, other = record(40, 1), record(60, 2)
    kept = open_inputs(
        STATE_SPACE, [*one, *other, *one], onnxfq.load_recipe("tensorrt-int8"), QuantizeOptions()
    ).feeds
    assert kept is not None
    rest = {feed["x"].tobytes() for feed in kept.rest()}
    assert rest.isdisjoint(feed["x"].tobytes() for feed in kept.unseen)
    assert len(kept.held_out()) + sum(1 for _ in kept.rest()) == 140


def test_what_is_cut_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream that is too long to be kept has a note with what was kept."""
    kept = KeptFeeds(open_feeds(STATE_SPACE, STREAM))
    kept.find_starts = lambda samples: [not number for number in range(len(samples))]
    monkeypatch.setattr("onnxfq.data.replay.RUN", 100)
    monkeypatch.setattr("onnxfq.data.replay.STREAM_SAMPLES", 256)
    for _ in kept:
        pass
    assert len(kept.feeds) == 200 < RUN
    assert "200 of 600 feeds of the stream were kept" in kept.explain_cut()
