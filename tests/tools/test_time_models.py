"""Times of models in the runtimes of their targets; what takes how long is no matter of these tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from builders import conv_relu, feed_for, two_branch

from onnxfq.data import Feed
from onnxfq.documents.timing import Timing
from onnxfq.errors import DataError, ModelError
from onnxfq.judging.accuracy_target import AccuracyTarget
from onnxfq.quantizing.pipeline import quantize
from onnxfq.runtime.plain_session import open_plain_session, profile_plain_session
from onnxfq.targets import target as targets
from onnxfq.targets.target import AnyModel, Values
from onnxfq.tools.time_models import time_models

FEED = feed_for(two_branch())
FLOAT_MS, QUANTIZED_MS = 10, 25


def quantized(recipe: str) -> onnx.ModelProto:
    """Return a quantized network."""
    return quantize(two_branch(), [FEED], recipe=recipe, accuracy=AccuracyTarget(repair=None)).qdq


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], float]]:
    """A clock that stands still but for runs of models in a runtime of these tests."""
    now = [0.0]

    def open_model(model: AnyModel, threads: int) -> Callable[[Feed], Values]:
        run = open_plain_session(model, threads)
        has_pairs = isinstance(model, onnx.ModelProto) and "DequantizeLinear" in {
            node.op_type for node in model.graph.node
        }

        def act(feed: Feed) -> Values:
            now[0] += (QUANTIZED_MS if has_pairs else FLOAT_MS) / 1000
            return run(feed)

        return act

    own = replace(targets.TARGETS["onnxruntime"], open=open_model)
    monkeypatch.setitem(targets.TARGETS, "onnxruntime", own)
    yield lambda: now[0]


def test_a_plain_session_is_onnxruntimes_own() -> None:
    """An InferenceSession without options has the same outputs, to the bit."""
    for proto in (two_branch(), quantized("onnxruntime-int8")):
        session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
        (wanted,) = session.run(None, FEED)
        assert np.array_equal(open_plain_session(proto, 0)(FEED)["y"], wanted)


def test_a_path_with_weights_in_a_file(tmp_path: Path) -> None:
    """A model by path gives what its proto gives, with external data too."""
    path = tmp_path / "m.onnx"
    onnx.save(two_branch(), path, save_as_external_data=True, size_threshold=0)
    assert np.array_equal(
        open_plain_session(path, 1)(FEED)["y"], open_plain_session(two_branch(), 1)(FEED)["y"]
    )


def test_the_profile_names_what_runs(tmp_path: Path) -> None:
    """The profile has the nodes of the model as onnxruntime wrote it after its own optimization."""
    proto, options = quantized("onnxruntime-int8"), onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    wanted = {(node.op_type, node.name) for node in onnx.load(tmp_path / "optimized.onnx").graph.node}
    seconds = profile_plain_session(proto, 1, FEED)
    assert set(seconds) == wanted
    assert all(one >= 0 for one in seconds.values())


def test_a_model_that_the_runtime_refuses() -> None:
    """The error is one line and says that it was the session of users."""
    proto = conv_relu()
    proto.graph.node[0].op_type = "Convolve"
    with pytest.raises(ModelError, match=r"with its default optimizations: .*Convolve"):
        open_plain_session(proto, 1)
    with pytest.raises(DataError, match="cannot run on x"):
        open_plain_session(conv_relu(), 1)({"x": np.zeros((1, 2, 6, 6), np.float32)})


def test_a_slow_model_is_called_slow(clock: Callable[[], float]) -> None:
    """The figures are those of the clock, and the operators of onnxruntime's profile are named."""
    timing = time_models(two_branch(), {"q": quantized("onnxruntime-int8")}, FEED, 1, clock=clock)
    reference, slow = timing.models
    assert (reference.least_ms, reference.median_ms, reference.ratio) == (
        pytest.approx(10),
        pytest.approx(10),
        None,
    )
    assert (slow.ratio, slow.low, slow.high) == pytest.approx((2.5, 2.5, 2.5))
    assert sum(cost.share for cost in slow.costs) == pytest.approx(1)
    assert [cost.share for cost in slow.costs] == sorted((cost.share for cost in slow.costs), reverse=True)
    text = "\n".join(timing.lines())
    assert "2.50 (2.50 to 2.50)" in text and "1 thread(s)" in text
    assert (
        f"q is slower than the float model in onnxruntime; of its time there, most is in {slow.costs[0]}"
        in text
    )
    assert Timing.model_validate_json(timing.model_dump_json()) == timing


def test_noise_gives_no_ratio(clock: Callable[[], float]) -> None:
    """A ratio that its noise does not bear is neither printed nor judged."""
    times, steps = count(), np.random.default_rng(0).lognormal(size=100_000).cumsum()
    timing = time_models(
        two_branch(), {"q": quantized("onnxruntime-int8")}, FEED, 1, clock=lambda: float(steps[next(times)])
    )
    _, slow = timing.models
    assert slow.ratio is None and slow.low is not None and not slow.is_slower and not slow.costs
    text = "\n".join(timing.lines())
    assert "too noisy (" in text and "is not given" in text and "slower" not in text


def test_no_target_is_timed_in_the_runtime_of_another(clock: Callable[[], float]) -> None:
    """A file for TensorRT has a line instead of times; a file of another tool runs in ONNX Runtime."""
    foreign = quantized("onnxruntime-int8")
    del foreign.metadata_props[:]
    timing = time_models(
        two_branch(), {"rt": quantized("tensorrt-int8"), "other": foreign}, FEED, 1, clock=clock
    )
    assert [one.model for one in timing.models] == ["float", "other"]
    (note,) = timing.notes
    assert note.startswith("rt was not timed: TensorRT is timed on the machine with the GPU")
    timing = time_models(two_branch(), {"sim": quantized("mxfp8")}, FEED, 1, clock=clock)
    assert not timing.models and "target simulation has no runtime" in timing.notes[0]


def test_what_the_runtime_refuses_is_a_note(clock: Callable[[], float]) -> None:
    """A model that cannot be opened leaves the others alone; without the reference nothing is compared."""
    broken = quantized("onnxruntime-int8")
    broken.graph.node[0].op_type = "Convolve"
    unknown = quantized("onnxruntime-int8")
    next(one for one in unknown.metadata_props if one.key == "onnxfq.target").value = "nowhere"
    candidates = {"bad": broken, "good": quantized("onnxruntime-int8"), "far": unknown}
    timing = time_models(two_branch(), candidates, FEED, 1, clock=clock)
    assert [one.model for one in timing.models] == ["float", "good"]
    assert [note.split(":")[0] for note in timing.notes] == ["bad was not timed", "far was not timed"]
    timing = time_models(broken, {"good": quantized("onnxruntime-int8")}, FEED, 1, clock=clock)
    assert not timing.models and len(timing.notes) == 1
