"""Observing: the same bits whatever the order, threads and memory, at the layout the runtime likes."""

from __future__ import annotations

import logging
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from apart import run_apart
from builders import build, conv_relu, feed_for, planned, two_branch
from observed_models import feeds_of, file_bytes, narrow_channels

from onnxfq.calibration.statistics import HISTOGRAM, Statistics, TensorStatistics
from onnxfq.cli.main import main
from onnxfq.data import DataDigest, Feed, digest_feed
from onnxfq.data.model_inputs import input_specs
from onnxfq.documents.plan import Plan
from onnxfq.errors import DataError, RuntimeLibraryError, StatisticsError
from onnxfq.graph.io.load import load
from onnxfq.graph.model import Model
from onnxfq.judging.candidate import Sources
from onnxfq.passes.observe.insert_observers import OBSERVE_OUTPUTS, observe_output, with_observers
from onnxfq.quantizing.pipeline import quantize
from onnxfq.runtime.observing_session import channel_block, open_observing_session
from onnxfq.runtime.session import Session
from onnxfq.stages.calibrate import calibrate
from onnxfq.stages.observe import ObservationInterrupted, collect_statistics
from onnxfq.stages.observers import ObserveOptions, StatisticsObserver
from onnxfq.stages.options import QuantizeOptions
from onnxfq.stages.plan import make_plan, observation_plan
from onnxfq.targets.recipes import RECIPES


@pytest.fixture
def observed() -> tuple[Model, Plan]:
    """A model with narrow channels and its plan."""
    model = load(narrow_channels())
    return model, make_plan(model, RECIPES["tensorrt-int8"])


def by_the_runtime(model: Model, plan: Plan, feeds: list[Feed]) -> Statistics:
    """The same with observers where onnxruntime puts them, in the model's own layout."""
    names = [placement.tensor for placement in plan.activations]
    session = Session(with_observers(model, plan).proto, 1)
    total = {name: TensorStatistics() for name in names}
    for feed in feeds:
        found = session.run(feed, [observe_output(name, out) for name in names for out in OBSERVE_OUTPUTS])
        for i, name in enumerate(names):
            total[name] = total[name].merge(TensorStatistics.from_results(*found[4 * i : 4 * i + 4]))
    inputs = input_specs(model.proto)
    digest = sum((digest_feed(feed, inputs) for feed in feeds), DataDigest())
    return Statistics(model.sha256, len(feeds), HISTOGRAM.to_keys(total), data=digest)


def test_blocked_layouts_give_the_statistics_of_the_plain_ones(observed, tmp_path) -> None:
    """Padding of the channels is left out, to the bit."""
    model, plan = observed
    feeds = feeds_of(3, batch=2)
    assert file_bytes(collect_statistics(model, plan, feeds), tmp_path) == file_bytes(
        by_the_runtime(model, plan, feeds), tmp_path
    )


@pytest.mark.skipif(channel_block() == 1, reason="this processor has no blocked layout")
def test_observers_read_the_blocked_tensors_right_behind_their_makers(observed, tmp_path) -> None:
    """No tensor is turned back for an observer, and none waits for the end of the run."""
    model, plan = observed
    onnx.save(with_observers(model, plan).proto, tmp_path / "model.onnx")
    open_observing_session(tmp_path / "model.onnx", 1)
    written = onnx.load(tmp_path / "model.observed.onnx", load_external_data=False).graph
    made_by = {name: i for i, node in enumerate(written.node) for name in node.output}
    observers = [(i, node) for i, node in enumerate(written.node) if node.op_type == "Observe"]
    assert len(observers) == len(plan.activations)
    for i, node in observers:
        assert i == made_by.get(node.input[0], -1) + 1
    turned = {name for node in written.node if node.op_type == "ReorderOutput" for name in node.output}
    assert not turned & {node.input[0] for _, node in observers}
    assert {a.name for _, node in observers for a in node.attribute} >= {"channels", "channel_block"}


def test_a_layout_that_is_not_there_is_refused() -> None:
    """Channels and channel_block must fit each other and x."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((1, 32, 2, 2)).astype(np.float32)
    for attributes, text in (
        ({"channels": 24}, "channels and channel_block go together"),
        ({"channels": 24, "channel_block": 100}, "channel_block at most 64"),
        ({"channels": 50, "channel_block": 16}, "x has 32 channels, 50 in blocks of 16 are 64"),
    ):
        given = ", ".join(f"{name} = {value}" for name, value in attributes.items())
        nodes = f"y, n, b, c = onnxfq.Observe <{given}> (x)"
        proto = build(f"g (float[1,32,2,2] x) => (float[2] y) {{ {nodes} }}", onnxfq=1)
        with pytest.raises(Exception, match=text):
            Session(proto, 1).run({"x": x})


def test_less_memory_means_more_passes_and_the_same_result(observed, tmp_path, caplog) -> None:
    """A line names the tensors that take another pass."""
    model, plan = observed
    feeds = feeds_of(4)
    whole = file_bytes(collect_statistics(model, plan, feeds), tmp_path)
    with caplog.at_level(logging.WARNING, "onnxfq"):
        parts = collect_statistics(model, plan, feeds, ObserveOptions(memory=1 << 15))
    assert file_bytes(parts, tmp_path) == whole
    assert "2 of 5 tensors are observed in one more pass over the data, to keep to 0.03125 MB" in caplog.text


def test_passes_over_data_that_is_gone_after_one_are_refused(observed) -> None:
    """A generator is empty the second time."""
    model, plan = observed
    with pytest.raises(StatisticsError, match="pass 2 over the data has 0 feeds, the first had 4"):
        collect_statistics(model, plan, iter(feeds_of(4)), ObserveOptions(memory=1 << 15))


def test_an_interrupted_run_goes_on_where_it_stopped(observed, tmp_path) -> None:
    """The part before Ctrl-C and the rest give the bytes of a run in one go; no feed is run twice."""
    model, plan = observed
    feeds = feeds_of(9)
    whole = file_bytes(collect_statistics(model, plan, feeds, ObserveOptions(feed_ranges=True)), tmp_path)

    usual = signal.getsignal(signal.SIGINT)

    def stop(done: int) -> None:
        if done == 4:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(ObservationInterrupted) as stopped:
        collect_statistics(model, plan, feeds, ObserveOptions(feed_ranges=True, progress=stop))
    so_far = stopped.value.statistics
    assert (so_far.complete, so_far.feeds) == (False, 4)
    so_far.save(tmp_path / "part.npz")
    seen: list[int] = []
    options = ObserveOptions(feed_ranges=True, progress=seen.append)
    rest = collect_statistics(model, plan, feeds, options, Statistics.load(tmp_path / "part.npz"))
    assert seen == [5, 6, 7, 8, 9]
    assert file_bytes(rest, tmp_path) == whole
    assert signal.getsignal(signal.SIGINT) is usual


def test_only_the_same_data_is_gone_on_with(observed) -> None:
    """The first feeds must be those that the file was made from."""
    model, plan = observed
    part = replace(collect_statistics(model, plan, feeds_of(3)), complete=False)
    with pytest.raises(StatisticsError, match="gathered from other data: 3 samples with digest"):
        collect_statistics(model, plan, feeds_of(5, seed=1), start=part)
    assert collect_statistics(model, plan, feeds_of(5), start=part).feeds == 5


def test_ranges_of_feeds_are_kept_in_order_when_asked_for() -> None:
    """They are what torch's moving average is made of."""
    model, plan = load(conv_relu()), planned(conv_relu())
    feeds = [{"x": np.full((1, 3, 6, 6), value, np.float32)} for value in (1, 5, -2)]
    kept = collect_statistics(model, plan, feeds, ObserveOptions(feed_ranges=True, threads=3))
    np.testing.assert_array_equal(kept["x"].feed_ranges, [[1, 1], [5, 5], [-2, -2]])
    assert collect_statistics(model, plan, feeds)["x"].feed_ranges.shape == (0, 2)


@pytest.mark.whole
def test_one_statistics_file_serves_every_recipe(digits_model) -> None:
    """Observed once without a plan, calibrated for all built-in recipes but those of QNN."""
    model = load(digits_model)
    rng = np.random.default_rng(0)
    feeds = [{"image": rng.random((4, 1, 28, 28), np.float32)}]
    statistics = collect_statistics(model, observation_plan(model), feeds)
    served = 0
    for recipe in RECIPES.values():
        if recipe.activations is None or recipe.target == "genai":  # the network has no product for it
            continue
        plan = make_plan(model, recipe.override(small_shapes="quantize"))
        # QNN has pairs on every result, whose statistics would cost every other recipe.
        if recipe.target == "qnn":
            with pytest.raises(StatisticsError, match="no statistics for tensor .*: observe again with this"):
                calibrate(model, plan, statistics)
            continue
        assert calibrate(model, plan, statistics).encodings
        served += 1
    assert served >= 3


def test_a_model_that_onnxruntime_cannot_write_is_observed_as_it_is(observed, tmp_path, caplog) -> None:
    """Slower, with a note, and with the same result."""
    model, plan = observed
    onnx.save(with_observers(model, plan).proto, tmp_path / "model.onnx")
    (tmp_path / "model.optimised.onnx").mkdir()
    session = open_observing_session(tmp_path / "model.onnx", 1)
    assert "observers run in the model's own layout" in caplog.text
    name = plan.activations[0].tensor
    limits, *_ = session.run(feeds_of(1)[0], [observe_output(name, "range")])
    expected = collect_statistics(model, plan, feeds_of(1))[name]
    assert (float(limits[0]), float(limits[1])) == (expected.rmin, expected.rmax)


def test_observers_are_used_again(observed, tmp_path) -> None:
    """Sessions are made once: two runs of one observer give what two observers give."""
    model, plan = observed
    feeds = feeds_of(6)
    with StatisticsObserver(model, plan, ObserveOptions()) as observer:
        twice = observer.run(feeds[:2]).merge(observer.run(feeds[2:], first=2))
    assert file_bytes(twice, tmp_path) == file_bytes(collect_statistics(model, plan, feeds), tmp_path)


def test_feeds_may_come_in_the_same_memory(observed) -> None:
    """A feed in flight is not the array that the maker of feeds fills again."""
    model, plan = observed
    feeds = feeds_of(11)

    def refilled() -> Iterator[Feed]:
        memory = np.empty_like(feeds[0]["x"])
        for feed in feeds:
            memory[:] = feed["x"]
            yield {"x": memory}

    found = collect_statistics(model, plan, refilled(), ObserveOptions(threads=2))
    assert found.sha256 == collect_statistics(model, plan, feeds, ObserveOptions(threads=1)).sha256


def test_temporary_files_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the optimised model is left behind."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    model, plan = load(two_branch()), planned(two_branch())
    collect_statistics(model, plan, [feed_for(two_branch())])
    assert not list(tmp_path.glob("onnxfq-*"))


KILLED = """
import os, signal, sys
import numpy as np, ray
from onnxfq.graph.io.load import load
from onnxfq.stages.observe import collect_statistics
from onnxfq.stages.observers import ObserveOptions
from onnxfq.stages.plan import observation_plan

model = load(sys.argv[1])
plan = observation_plan(model)
rng = np.random.default_rng(0)
feeds = [{"x": rng.standard_normal((1, 3, 12, 12)).astype(np.float32)} for _ in range(80)]
ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR",
         object_store_memory=100 << 20)
killed = []

def kill_a_worker(done):
    if killed:
        return
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                title = open(f"/proc/{entry}/cmdline").read()
            except OSError:
                continue
            if title.startswith(("ray::_run", "ray::IDLE")):
                os.kill(int(entry), signal.SIGKILL)
                killed.append(int(entry))
                return

def refilled():
    memory = np.empty_like(feeds[0]["x"])
    for feed in feeds:
        memory[:] = feed["x"]
        yield {"x": memory}

spread = collect_statistics(model, plan, refilled(), ObserveOptions(progress=kill_a_worker), ray="local")
ray.shutdown()
spread.save(sys.argv[2])
collect_statistics(model, plan, feeds).save(sys.argv[3])
print(len(killed))
"""


@pytest.mark.whole
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="finds the worker in /proc")
def test_a_killed_worker_of_a_cluster_loses_nothing(tmp_path) -> None:
    """The bytes of one process, though a worker died on the way and every feed came in the same memory."""
    pytest.importorskip("ray", reason="extra ray is not installed")
    onnx.save(narrow_channels(), tmp_path / "m.onnx")
    files = [str(tmp_path / name) for name in ("m.onnx", "ray.npz", "one.npz")]
    assert run_apart("-c", KILLED, *files).split()[-1] == "1", "no worker was killed"
    assert Path(files[1]).read_bytes() == Path(files[2]).read_bytes()


def test_a_cluster_needs_ray(monkeypatch, observed) -> None:
    """Without the extra one line tells what to install."""
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(Exception, match=r"pip install 'onnxfq\[ray\]'"):
        collect_statistics(*observed, feeds_of(1), ray="local")


def test_a_cluster_that_does_not_answer_is_told_at_once(observed) -> None:
    """Ray alone would go on for minutes."""
    pytest.importorskip("ray", reason="extra ray is not installed")
    for address in ("127.0.0.1:1", "ray://127.0.0.1:1"):
        with pytest.raises(RuntimeLibraryError, match=f"no Ray cluster at '{address}'.*start one"):
            collect_statistics(*observed, feeds_of(1), ray=address)


def test_a_cluster_without_work_is_refused(tmp_path) -> None:
    """Statistics are given and weights are rounded to nearest: nothing is left to share."""
    onnx.save(narrow_channels(), tmp_path / "m.onnx")
    feeds = feeds_of(3)
    model, plan = load(tmp_path / "m.onnx"), planned(narrow_channels())
    statistics = collect_statistics(model, plan, feeds)
    with pytest.raises(DataError, match="Ray cluster 'local' has nothing to share"):
        quantize(
            tmp_path / "m.onnx",
            feeds,
            None,
            sources=Sources(statistics=statistics),
            options=QuantizeOptions(ray="local"),
        )


def test_statistics_of_one_batch_size_serve_another(tmp_path) -> None:
    """`observe --batch 8`, then `quantize --statistics` at the default batch, through the command line."""
    onnx.save(narrow_channels(), tmp_path / "m.onnx")
    feeds = feeds_of(11)
    np.savez(tmp_path / "d.npz", **{name: np.concatenate([f[name][:1] for f in feeds]) for name in feeds[0]})
    data = [str(tmp_path / "m.onnx"), "--data", str(tmp_path / "d.npz"), "-q", "-o"]
    assert main(["observe", *data, str(tmp_path / "s.npz"), "--batch", "8"]) == 0
    assert main(["quantize", *data, str(tmp_path / "q.onnx"), "--statistics", str(tmp_path / "s.npz")]) == 0
