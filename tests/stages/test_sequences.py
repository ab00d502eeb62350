"""Networks that feed their state back: sequences are run where the data is a stream, frames elsewhere."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
import pytest
from builders import build, plain_quantize, weights

import onnxfq
from onnxfq.data.replay import FEWEST_UNSEEN, RUN, STREAM_SAMPLES, STREAM_UNSEEN
from onnxfq.data.stream import StreamSamples
from onnxfq.execution.sequences import FedBack, is_continued
from onnxfq.graph.external.sizes import ONE_PIECE
from onnxfq.judging.candidate import Sources, build_candidate
from onnxfq.judging.judge import Judge
from onnxfq.judging.samples import split_samples
from onnxfq.layers.quantizer_toggles import first_feeds
from onnxfq.report.text import quantize_summary
from onnxfq.runtime.session import Session
from onnxfq.stages.inputs import open_inputs
from onnxfq.stages.options import QuantizeOptions

STATES, FEEDS = 8, 240
TURN = np.linalg.qr(weights(STATES, STATES, seed=5))[0].astype(np.float32)
SLOW = build(
    f"""g (float[N,4] x, float[N,{STATES}] h) => (float[N,4] y, float[N,{STATES}] hn) {{
        a = MatMul (x, w) b = MatMul (h, u) s = Add (a, b) hn = Tanh (s) y = MatMul (hn, v) }}""",
    {"w": weights(4, STATES, seed=1) / 64, "u": TURN * np.float32(0.99), "v": weights(STATES, 4, seed=2)},
)
"""A network that remembers some 100 feeds: its state turns, and hardly shrinks."""

Feed = dict[str, np.ndarray]


def run(model: onnx.ModelProto, feed: Feed) -> list[np.ndarray]:
    """Outputs of one feed."""
    return SESSIONS.setdefault(id(model), Session(model, 1, exact=True)).run(feed)


SESSIONS: dict[int, Session] = {}


def record(count: int = FEEDS, seed: int = 0) -> list[Feed]:
    """Feeds with the state that the float model leaves on the one before, from zeros on."""
    x = np.random.default_rng(seed).normal(size=(count, 1, 4)).astype(np.float32)
    feeds, state = [], np.zeros((1, STATES), np.float32)
    for row in x:
        feeds.append({"x": row, "h": state})
        state = run(SLOW, feeds[-1])[1]
    return feeds


STREAM = record()


def powers_of(model: onnx.ModelProto, feeds: list[Feed], starts: set[int]) -> np.ndarray:
    """Signal and noise of `y` [feeds, 2], of a model that takes its own state but at `starts`."""
    found = []
    state: np.ndarray | None = None
    for number, feed in enumerate(feeds):
        want = run(SLOW, feed)[0].astype(np.float64)
        got, state = run(model, feed if number in starts or state is None else {**feed, "h": state})
        found.append((np.square(want).sum(), np.square(want - got).sum()))
    return np.asarray(found)


def by_hand(
    model: onnx.ModelProto, feeds: list[Feed], starts: set[int], windows: list[slice] | None = None
) -> float:
    """SQNR in dB of the worst window of `powers_of`: its noise to the signal of all windows, by feed."""
    powers = powers_of(model, feeds, starts)
    parts = [powers[window] for window in windows or [slice(None)]]
    worst = max(part[:, 1].mean() for part in parts)
    return 10 * np.log10(np.concatenate(parts)[:, 0].mean() / worst)


WHOLE = [slice(64, 128), slice(128, FEEDS)]
"""Windows of STREAM: 64 feeds after the first 64, and what is left, with less than a window at the end."""


def places_of(kept: list[Feed], feeds: list[Feed]) -> list[int]:
    """Places of kept feeds in the data."""
    places = {feed["x"].tobytes(): number for number, feed in enumerate(feeds)}
    return [places[feed["x"].tobytes()] for feed in kept]


@pytest.fixture(scope="module")
def simulation() -> onnx.ModelProto:
    """The network in int8."""
    return plain_quantize(SLOW, STREAM).simulation


@pytest.fixture(scope="module")
def figures(simulation: onnx.ModelProto) -> tuple[float, float]:
    """SQNR by hand of the stream as a sequence, and of its frames."""
    return by_hand(simulation, STREAM, {0}, WHOLE), by_hand(simulation, STREAM, set(range(FEEDS)))


@pytest.mark.parametrize(
    ("batch", "threads", "piece"),
    [(1, 1, ONE_PIECE), (8, 2, ONE_PIECE), (0, 2, ONE_PIECE), (1, 1, 0)],
    ids=["samples", "batches", "as given", "one model at a time"],
)
def test_a_stream_is_run_as_sequences(
    simulation: onnx.ModelProto,
    figures: tuple[float, float],
    batch: int,
    threads: int,
    piece: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The SQNR is that of a loop that feeds the state back, and much lower than that of frames."""
    monkeypatch.setattr("onnxfq.execution.sides.ONE_PIECE", piece)
    options = onnxfq.RunOptions(batch=batch, threads=threads, exact=True)
    found = onnxfq.evaluate(SLOW, simulation, STREAM, options=options)
    stream, frames = figures
    # The reference runs optimised, with sums in another order.
    assert found.lowest_db == pytest.approx(stream, abs=1e-3) and stream < frames - 6
    assert any(f"sequences of up to {FEEDS} feeds were run, state fed back" in note for note in found.notes)


@pytest.mark.sample
def test_sequences_end_where_the_data_begins_anew(simulation: onnx.ModelProto) -> None:
    """Two recordings in a row: the second begins with the state of the data."""
    feeds = STREAM[:60] + record(40, seed=1)
    found = onnxfq.evaluate(SLOW, simulation, feeds, options=onnxfq.RunOptions(exact=True))
    assert found.lowest_db == pytest.approx(by_hand(simulation, feeds, {0, 60}), abs=1e-3)
    assert any("sequences of up to 60 feeds" in note for note in found.notes)


def test_frames_are_compared_without_a_stream(simulation: onnx.ModelProto) -> None:
    """Feeds in the wrong order have the figure of single runs, and a note says so."""
    feeds = STREAM[::-1]
    found = onnxfq.evaluate(SLOW, simulation, feeds, options=onnxfq.RunOptions(exact=True))
    assert found.lowest_db == pytest.approx(by_hand(simulation, feeds, set(range(FEEDS))), abs=1e-3)
    assert any("frames were compared" in note for note in found.notes)
    session = open_inputs(SLOW, feeds, onnxfq.load_recipe("tensorrt-int8"), QuantizeOptions())
    assert session.feeds is not None and not session.feeds.is_stream


def test_the_summary_has_the_figure_of_sequences() -> None:
    """The compared samples are the unseen end of the stream, behind a loop from the beginning."""
    off, options = onnxfq.AccuracyTarget(repair=None), QuantizeOptions(exact=True)
    recipe = onnxfq.load_recipe("tensorrt-int8").override(weights={"rounding": "nearest"})
    result = onnxfq.quantize(SLOW, STREAM, recipe=recipe, accuracy=off, options=options)
    session = open_inputs(SLOW, STREAM, recipe, options)
    simulation = build_candidate(session, recipe, Sources(), options).simulate()
    kept = session.kept
    seen = places_of(kept, STREAM)
    assert result.evaluation.feeds == len(kept) == FEEDS // 2
    assert seen == [*range(FEEDS - len(kept), FEEDS)]
    wanted = by_hand(simulation, STREAM, {0}, [slice(seen[0], FEEDS)])
    assert result.evaluation.lowest_db == pytest.approx(wanted, abs=1e-3)
    assert f"sequences of up to {FEEDS} feeds were run, state fed back" in quantize_summary(result)


@pytest.mark.parametrize("count", [8, 20, 100, 240, 1200])
def test_runs_of_a_stream_are_unseen(count: int) -> None:
    """Whatever the batch, the same runs are kept back; the others are passed on, each feed once."""
    feeds = record(count)
    known = None
    for batch, once in ((1, False), (8, True), (0, False)):
        options = QuantizeOptions(batch=batch)
        recipe = onnxfq.load_recipe("tensorrt-int8")
        session = open_inputs(SLOW, iter(feeds) if once else feeds, recipe, options)
        assert session.feeds is not None and session.feeds.is_stream
        rest = list(rows(session.feeds.rest()))
        unseen = places_of(session.kept, feeds)
        assert sorted(places_of(rest, feeds) + unseen) == list(range(count))
        kept = len(session.feeds.feeds)
        assert kept > min(count, STREAM_SAMPLES) - RUN
        assert len(unseen) == min(max(count // 2, FEWEST_UNSEEN), STREAM_UNSEEN, kept // 2)
        assert unseen == [*range(unseen[0], unseen[0] + len(unseen))]
        known = known or unseen
        assert unseen == known
        if not once:
            assert places_of(list(rows(session.feeds.again())), feeds) == sorted(places_of(rest, feeds))


def rows(feeds: object) -> Iterator[Feed]:
    """Yield the samples of feeds."""
    for feed in feeds:  # type: ignore[attr-defined]
        for at in range(len(feed["x"])):
            yield {name: array[at : at + 1] for name, array in feed.items()}


def test_layers_are_switched_in_sequences() -> None:
    """The noise with everything quantized is that of the judge, and thus that of the summary."""
    options, recipe = QuantizeOptions(exact=True), onnxfq.load_recipe("tensorrt-int8")
    session = open_inputs(SLOW, STREAM, recipe, options)
    candidate = build_candidate(session, recipe, Sources(), options)
    judge, board = Judge(candidate, options, Sources()), candidate.open_toggles(options)
    for feeds in split_samples(judge.kept)[:2]:
        nothing, noise = board.noise(feeds, [board.nothing, board.everything])
        assert nothing < 1e-10  # its own state, which the data has from another session
        assert -10 * np.log10(noise) == pytest.approx(judge.score([candidate], feeds)[0], abs=1e-3)
    assert places_of([*first_feeds(judge.kept, 2)], STREAM) == [*range(FEEDS - len(judge.kept), FEEDS)]


def test_a_promise_is_kept_in_sequences() -> None:
    """The promised SQNR is that of sequences; the result has as much on the samples that prove it."""
    recipe = onnxfq.load_recipe("tensorrt-int8").override(weights={"rounding": "nearest"})
    off = plain_quantize(SLOW, STREAM, recipe=recipe)
    wanted = off.evaluation.lowest_db + 3
    kept = onnxfq.quantize(
        SLOW, STREAM, recipe=recipe, accuracy=onnxfq.AccuracyTarget(min_sqnr=wanted, repair=None)
    )
    assert kept.trial("promised").is_kept and kept.evaluation.lowest_db >= wanted
    assert any("state fed back" in note for note in kept.evaluation.notes)


def test_the_same_trials_for_every_batch() -> None:
    """Remedies are tried and kept alike, sample by sample and as the data comes, to the last bit."""
    accuracy = onnxfq.AccuracyTarget(repair="thorough")
    found = []
    for batch in (1, 0):
        options = onnxfq.RunOptions(batch=batch, exact=True)
        made = onnxfq.quantize(SLOW, STREAM, recipe="onnxruntime-int8", accuracy=accuracy, options=options)
        found.append([one.model_copy(update={"seconds": 0.0, "evidence": None}) for one in made.trials])
    assert found[0] == found[1]
    assert any(trial.before is not None for trial in found[0])


def test_thirds_of_a_stream_judge() -> None:
    """A third chooses, a third proves, the last is for the report; both of these prove a promise."""
    split = split_samples(StreamSamples(STREAM[:90]))
    assert [list(part) for part in split] == [STREAM[:30], STREAM[30:60], STREAM[60:90]]
    assert split.promised == STREAM[30:90]


def test_rounding_continues_a_state_and_another_state_does_not() -> None:
    """A state of another runtime differs in its last digits, that of another feed in the first."""
    state = np.random.default_rng(0).normal(size=(1, STATES)).astype(np.float32)
    assert is_continued(state, state) and is_continued(state, state * np.float32(1 + 1e-5))
    assert not is_continued(state, state * np.float32(1.01)) and not is_continued(state, state[:, :4])
    assert not is_continued([state], state)
    half = state.astype(np.float16)
    assert is_continued(half, half * np.float16(1.002)) and not is_continued(half, half * np.float16(1.2))


def test_each_state_is_fed_back_for_itself() -> None:
    """An output that only looks like a state keeps what the data has."""
    fed_back = FedBack({"a": "s", "b": "t"}, ["y", "a", "b"])
    one, two = np.ones(3, np.float32), np.full(3, 2, np.float32)
    for number, feed in enumerate([{"s": one, "t": one}, {"s": two, "t": one}]):
        assert fed_back.give(0, number, feed) is feed
        fed_back.take(0, [one, two, two])
        given = fed_back.give(1, number, feed)
        fed_back.take(1, [one, 3 * one, 4 * one])
    assert given["s"][0] == 3 and given["t"][0] == 1
    assert fed_back.lengths("s") == [2] and fed_back.lengths("t") == [1, 1] and fed_back.is_stream
