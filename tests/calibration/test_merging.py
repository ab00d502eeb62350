"""Statistics merged by the model itself: the bytes of those that are merged outside of it, on the CPU here.

The same on a GPU: `tests/custom_ops/test_cuda.py`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from apart import run_apart
from builders import build, conv_relu, feed_for, graph_text, planned, shared_weight, weights
from observed_models import CASES, by_axis, case, file_bytes, known_channels

from onnxfq.calibration.statistics import TensorStatistics
from onnxfq.errors import DataError, DeviceMemoryError, ModelError, PlanError, StatisticsError
from onnxfq.graph.io.load import load
from onnxfq.passes.observe.insert_merging import with_merging
from onnxfq.runtime.devices import Gpu
from onnxfq.stages import observe as observation
from onnxfq.stages.observe import collect_statistics
from onnxfq.stages.observers import MergingObserver, ObserveOptions, StatisticsObserver


@pytest.mark.grid
@pytest.mark.parametrize("feed_ranges", [False, True], ids=["", "ranges of feeds"])
@pytest.mark.parametrize(
    ("name", "groups"),
    [*((name, False) for name in CASES), *((name, True) for name in ("conv_relu", "gemm", "if", "nested"))],
)
def test_the_bytes_are_the_same(
    name: str, groups: bool, feed_ranges: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the main graph and in bodies, of groups too, in one run and in two that are merged: one file."""
    # Small vocabularies make equal samples in both parts.
    monkeypatch.setattr("onnxfq.calibration.statistics.statistics.check_apart", lambda *_: None)
    model, plan, feeds = case(name)
    plan = by_axis(plan, known_channels(model, plan)) if groups else plan
    options = ObserveOptions(threads=1, feed_ranges=feed_ranges, device="cpu")
    statistics = collect_statistics(model, plan, feeds, options)
    assert bool(statistics.groups) == groups
    expected = file_bytes(statistics, tmp_path)
    with MergingObserver(model, plan, options, "cpu") as observer:
        assert file_bytes(observer.run(feeds), tmp_path) == expected
        parts = observer.run(feeds[:1]).merge(observer.run(feeds[1:], first=1))
    assert file_bytes(parts, tmp_path) == expected


def test_golden_graph() -> None:
    """A state is an input and an output, and grows by what its tensor is."""
    merging = with_merging(load(shared_weight()), planned(shared_weight()), feed_ranges=True)
    proto = merging.proto
    onnx.checker.check_model(proto, full_check=True)

    def nodes(tensor: str) -> list[str]:
        of = f"{tensor}/statistics"
        return [
            f"[{of}/of_feed] {of}/of_feed = MergeStatistics ({tensor}, onnxfq/statistics/empty)",
            f"[{of}/merged] {of}/merged = MergeStatistics ({tensor}, {of}/given)",
        ]

    assert graph_text(proto) == [*nodes("x"), "[first] h = MatMul (x, w)", "[relu] r = Relu (h)", *nodes("r")]
    assert [v.name for v in proto.graph.input] == ["x", "x/statistics/given", "r/statistics/given"]
    shapes = [[d.dim_value for d in v.type.tensor_type.shape.dim] for v in proto.graph.output]
    assert shapes == [[8 + 32768], [8]] * 2


def test_names_that_the_model_has_already(tmp_path: Path) -> None:
    """Tensors named as states are renamed; an input that is one is refused."""
    proto = _named("r/statistics/merged")
    model, plan, feeds = load(proto), planned(proto), [feed_for(proto)]
    options = ObserveOptions(device="cpu")
    with MergingObserver(model, plan, options, "cpu") as observer:
        found = file_bytes(observer.run(feeds), tmp_path)
    assert found == file_bytes(collect_statistics(model, plan, feeds, options), tmp_path)
    odd = _named("h", given="r/statistics/given")
    with pytest.raises(
        PlanError, match="'r/statistics/given' has the name of a result of observing tensor 'r'"
    ):
        with_merging(load(odd), planned(odd))


def _named(inner: str, given: str = "x") -> onnx.ModelProto:
    """Two MatMuls with a Relu between, whose input and first result are named so."""
    proto = build(
        "g (float[N,4] x) => (float[N,4] y) { h = MatMul (x, w) r = Relu (h) y = MatMul (r, w) }",
        {"w": weights(4, 4)},
    )
    for node in proto.graph.node:
        for names in (node.input, node.output):
            names[:] = [{"h": inner, "x": given}.get(name, name) for name in names]
    proto.graph.input[0].name = given
    return proto


def test_nan_stops_with_tensor_feed_and_counts() -> None:
    """The first feed that has one is named; skipped, they are counted."""
    model, plan = load(conv_relu()), planned(conv_relu())
    feeds = [{"x": np.ones((1, 3, 6, 6), np.float32)} for _ in range(4)]
    feeds[2]["x"].flat[:3] = [np.nan, np.inf, -np.inf]
    with MergingObserver(model, plan, ObserveOptions(), "cpu") as observer:
        with pytest.raises(StatisticsError, match="'x' has 1 NaN and 2 infinite values at feed 12;"):
            observer.run(feeds, first=10)
    with MergingObserver(model, plan, ObserveOptions(nonfinite="skip"), "cpu") as observer:
        found = observer.run(feeds)["x"]
    expected = TensorStatistics.from_array(np.stack([feed["x"] for feed in feeds]))
    assert (found.nans, found.infinities, found.elements) == (1, 2, expected.elements)
    np.testing.assert_array_equal(found.counts, expected.counts)


def test_stopped_after_a_feed(tmp_path: Path) -> None:
    """The statistics cover the reported feeds and no others; progress counts them."""
    model, plan, feeds = case("conv_relu", 6)
    seen: list[int] = []
    with MergingObserver(model, plan, ObserveOptions(), "cpu") as observer:
        found = observer.run(feeds, stopped=lambda: len(seen) == 3, progress=seen.append)
    assert (found.complete, found.feeds, seen) == (False, 3, [1, 2, 3])
    with StatisticsObserver(model, plan, ObserveOptions()) as observer:
        expected = observer.run(feeds[:3])
    assert found.sha256 == expected.sha256 and found.data == expected.data


@pytest.mark.whole
def test_a_cluster_without_a_gpu() -> None:
    """Asked for GPUs that the cluster lacks, no task waits without end."""
    pytest.importorskip("ray", reason="extra ray is not installed")
    code = """
from builders import conv_relu, feed_for, planned
from onnxfq.stages.observe import collect_statistics
from onnxfq.errors import RuntimeLibraryError
from onnxfq.graph.io.load import load
from onnxfq.stages.observers import ObserveOptions
try:
    model, plan, feeds = load(conv_relu()), planned(conv_relu()), [feed_for(conv_relu())]
    collect_statistics(model, plan, feeds, ObserveOptions(threads=1, device="cuda"), ray="local")
except RuntimeLibraryError as error:
    print(error)
"""
    told = run_apart("-c", code, CUDA_VISIBLE_DEVICES="", PYTHONPATH=os.pathsep.join(sys.path))
    assert told == "the Ray cluster at 'local' has no GPU; use device cpu\n"


@pytest.mark.parametrize("name", ["conv_relu", "nothing"])
def test_a_gpu_with_room(name, monkeypatch, caplog, tmp_path) -> None:
    """The feed that any tries first counts once; one-shot feeds are enough."""
    model, plan, feeds = case("conv_relu", 4)
    if name == "nothing":
        plan = plan.model_copy(update={"placements": ()})
    expected = file_bytes(collect_statistics(model, plan, feeds, ObserveOptions(device="cpu")), tmp_path)
    on_gpu(monkeypatch)
    seen: list[int] = []
    options = ObserveOptions(progress=seen.append)
    assert file_bytes(collect_statistics(model, plan, iter(feeds), options), tmp_path) == expected
    assert seen == [1, 2, 3, 4] and not caplog.records
    assert collect_statistics(model, plan, iter([]), options).feeds == 0


FAULTS = [
    DeviceMemoryError("the GPU has no room; give a smaller batch, or run on the CPU"),
    DataError("the model cannot run on x [4]: no such kernel"),
    ModelError("onnxruntime cannot load the model: no such kernel"),
]


@pytest.mark.grid
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: type(fault).__name__)
@pytest.mark.parametrize("device", ["any", "cuda"])
def test_a_gpu_that_fails(device, fault, monkeypatch, caplog, tmp_path) -> None:
    """Auto observes on the CPU, every feed once, and says so; a GPU that was asked for is an error."""

    class Failing(MergingObserver):
        def _open_gathering(self):
            raise fault

    model, plan, feeds = case("conv_relu", 4)
    expected = file_bytes(collect_statistics(model, plan, feeds, ObserveOptions(device="cpu")), tmp_path)
    on_gpu(monkeypatch)
    monkeypatch.setattr(
        observation,
        "observer_on",
        lambda device, *given: (
            StatisticsObserver(*given) if device == "cpu" else Failing(*given[:3], "cpu", *given[3:])
        ),
    )
    options = ObserveOptions(device=device)
    if device == "cuda":
        with pytest.raises(type(fault)):
            collect_statistics(model, plan, iter(feeds), options)
        return
    assert file_bytes(collect_statistics(model, plan, iter(feeds), options), tmp_path) == expected
    assert [r.message for r in caplog.records if "CPU" in r.message] == [f"running on the CPU: {fault}"]


def test_groups_on_a_small_gpu(monkeypatch, caplog, tmp_path) -> None:
    """Statistics beyond a quarter of its memory are gathered in several passes."""
    model, plan, feeds = case("shared_weight")
    plan = by_axis(plan, known_channels(model, plan))
    expected = file_bytes(collect_statistics(model, plan, feeds, ObserveOptions(device="cpu")), tmp_path)
    on_gpu(monkeypatch)
    options = ObserveOptions(device="cuda")
    assert file_bytes(collect_statistics(model, plan, feeds, options), tmp_path) == expected
    assert not caplog.records
    on_gpu(monkeypatch, memory=2 << 20)
    assert file_bytes(collect_statistics(model, plan, feeds, options), tmp_path) == expected
    told = [r.message for r in caplog.records]
    assert "2 tensors are observed in 2 passes over the data, to keep to 1 MB of the GPU" in told


def on_gpu(monkeypatch, memory: int = 80 << 30) -> None:
    """Observe as on a GPU, in the memory of the CPU."""
    gpu = Gpu(0, "none", 90, memory, 13000, 13000)
    monkeypatch.setattr(observation, "gpus", lambda: (gpu,))
    monkeypatch.setattr(observation, "choose_device", lambda wanted: "cuda")
    monkeypatch.setattr(
        observation, "observer_on", lambda device, *given: MergingObserver(*given[:3], "cpu", *given[3:])
    )
