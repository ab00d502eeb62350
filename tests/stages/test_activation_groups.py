"""Activations by channels and blocks, from the recipe to the written model."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from agreement import twins, with_outputs
from body_models import staged as staged_bodies
from builders import BUILDERS, build, conv_relu, feed_for, linear, stage, two_branch, weights, without
from half_models import as_type, half_feed
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from observed_models import by_groups, feeds_of, file_bytes, narrow_channels

from onnxfq.calibration.calibrators import Calibrator, observing_names
from onnxfq.calibration.statistics import BIN_COUNT, GroupStatistics, Observed, Statistics, TensorStatistics
from onnxfq.calibration.statistics.grouped_histogram import GROUPED_HISTOGRAM
from onnxfq.documents.plan import Plan
from onnxfq.documents.recipe import Recipe
from onnxfq.errors import PlanError, RecipeError, StatisticsError
from onnxfq.graph.io.load import load
from onnxfq.graph.model import Model
from onnxfq.numerics.granularity import Granularity
from onnxfq.numerics.layout import Layout
from onnxfq.numerics.metrics import ErrorSums
from onnxfq.numerics.qparams import choose_qparams
from onnxfq.numerics.spec import QuantSpec
from onnxfq.quantizing.pipeline import quantize
from onnxfq.report.calibrator_table import calibrator_rows, calibrator_table
from onnxfq.report.tensor_rows import quantized_tensors
from onnxfq.runtime.observing_session import channel_block, open_observing_session
from onnxfq.runtime.session import Session
from onnxfq.stages.calibrate import calibrate
from onnxfq.stages.evaluate import evaluate
from onnxfq.stages.insert import insert_fake_quantize, insert_qdq
from onnxfq.stages.observe import collect_statistics
from onnxfq.stages.observers import ObserveOptions
from onnxfq.stages.plan import make_plan

NETWORKS = {name: make for name, make in BUILDERS.items() if name not in ("attention", "same_tensor_twice")}
"""Without those that sum over two axes of one tensor."""
PER_AXIS = {"granularity": "per_axis"}
BLOCKED = {"granularity": "blocked", "block_size": 3}


def parts_of(x: NDArray[np.float32], granularity: Granularity) -> list[NDArray[np.float32]]:
    """The elements of each group, said with NumPy's slices."""
    shape = Layout(granularity, x.shape).scale_shape
    if granularity.axis is not None:
        return [np.take(x, [i], axis=granularity.axis) for i in range(shape[0])]
    assert granularity.block_shape is not None
    sizes = [n if b == -1 else b for n, b in zip(x.shape, granularity.block_shape, strict=True)]
    return [
        x[tuple(slice(i * size, (i + 1) * size) for i, size in zip(at, sizes, strict=True))]
        for at in np.ndindex(*shape)
    ]


def assert_equal(found: TensorStatistics, want: TensorStatistics) -> None:
    """The same range, counts and histogram."""
    for name in ("rmin", "rmax", "elements", "nans", "infinities", "zeros"):
        assert getattr(found, name) == getattr(want, name), name
    np.testing.assert_array_equal(found.bins, want.bins)
    np.testing.assert_array_equal(found.counts, want.counts)


def activations(model: Model, plan: Plan, feeds: list[dict[str, Any]]) -> dict[str, NDArray[np.float32]]:
    """The observed tensors of all feeds, kept whole, joined along the batch."""
    names = [p.tensor for p in plan.activations]
    session = Session(with_outputs(model.proto, names), 1)
    runs = [session.run(feed, names) for feed in feeds]
    return {name: np.concatenate([run[i] for run in runs]) for i, name in enumerate(names)}


@pytest.mark.grid
@pytest.mark.parametrize("changes", [PER_AXIS, BLOCKED], ids=["per_axis", "blocked"])
@pytest.mark.parametrize("name", [*NETWORKS, "narrow_channels"])
def test_statistics_are_those_of_the_groups(name: str, changes: dict[str, Any]) -> None:
    """Every group's equal NumPy's over its elements of the full activations; all together the tensor's."""
    proto = BUILDERS[name]() if name in BUILDERS else narrow_channels()
    model = load(proto)
    plan = make_plan(model, by_groups("simulation", **changes))
    feeds = [feed_for(proto)] if name in BUILDERS else feeds_of(3, batch=2)
    found = collect_statistics(model, plan, feeds)
    values = activations(model, plan, feeds)
    grouped = [p for p in plan.activations if p.tensor in found.groups]
    assert grouped or not any(
        p.spec.granularity.axis is not None or p.spec.granularity.block_shape for p in plan.activations
    )
    for placement in grouped:
        groups = found.of_groups(placement.tensor, placement.spec.granularity)
        parts = parts_of(values[placement.tensor], placement.spec.granularity)
        for one, part in zip(groups.split(), parts, strict=True):
            assert_equal(one, TensorStatistics.from_array(part))
        assert_equal(found[placement.tensor], TensorStatistics.from_array(values[placement.tensor]))


def test_what_the_groups_of_an_operator_are() -> None:
    """For a convolution the input channels, for a product the index that is summed over."""
    conv, product = load(conv_relu()), load(linear(7, 5))
    assert [
        make_plan(model, by_groups("simulation", **changes)).activations[0].spec.granularity
        for model in (conv, product)
        for changes in (PER_AXIS, BLOCKED)
    ] == [
        Granularity(1),
        Granularity(block_shape=(-1, 3, -1, -1)),
        Granularity(1),
        Granularity(block_shape=(-1, 3)),
    ]
    asked = by_groups("simulation", granularity="block_shape", block_shape=[-1, 1, 2, 2])
    assert make_plan(conv, asked).activations[0].spec.granularity == Granularity(block_shape=(-1, 1, 2, 2))
    plan = make_plan(product, asked)
    assert Layout(plan.activations[0].spec.granularity, (4, 7)).scale_shape == ()
    assert plan.activations[0].why.endswith("per tensor: block_shape [-1, 1, 2, 2] is not for its 2 axes")


@pytest.mark.skipif(channel_block() == 1, reason="this processor has no blocked layout")
@pytest.mark.parametrize(("changes", "direct"), [(PER_AXIS, True), (BLOCKED, False)])
def test_channels_are_observed_in_the_blocked_layout(tmp_path: Path, changes: Any, direct: bool) -> None:
    """An observer of channels reads the runtime's own layout; of other groups the layout of the model."""
    from onnxfq.passes.observe.insert_observers import with_observers

    model = load(narrow_channels())
    plan = make_plan(model, by_groups("simulation", **changes))
    onnx.save(with_observers(model, plan).proto, tmp_path / "model.onnx")
    open_observing_session(tmp_path / "model.onnx", 1)
    written = onnx.load(tmp_path / "model.observed.onnx", load_external_data=False).graph
    turned = {name for node in written.node if node.op_type == "ReorderOutput" for name in node.output}
    observed = {node.input[0] for node in written.node if node.op_type == "Observe"}
    assert bool(turned & observed) != direct


@pytest.fixture
def observed() -> tuple[Model, Plan]:
    """Convolutions whose inputs are quantized per channel."""
    model = load(narrow_channels())
    return model, make_plan(model, by_groups("simulation", **PER_AXIS))


def test_a_tensor_of_more_groups_than_fit_is_told(observed, caplog) -> None:
    """Memory is kept to as far as one tensor does; where it does not, tensor, groups and size are named."""
    model, plan = observed
    collect_statistics(model, plan, feeds_of(1), ObserveOptions(memory=1 << 18))
    assert "has 40 groups, whose histograms take about 0 MB, above the limit of observing" in caplog.text


def results_of(ones: list[TensorStatistics]) -> list[NDArray[Any]]:
    """Return the results of an observer for channels of these statistics."""
    return [
        np.asarray([(one.rmin, one.rmax) for one in ones], np.float32),
        np.asarray([(o.elements, o.nans, o.infinities, o.zeros) for o in ones], np.int64),
        np.concatenate([g * BIN_COUNT + one.bins for g, one in enumerate(ones)]).astype(np.int32),
        np.concatenate([one.counts for one in ones]),
    ]


def test_memory_of_groups_is_bounded() -> None:
    """A channel takes a fraction of a whole tensor's histogram, however many feeds come."""
    observed = Observed("t", Granularity(1), (64,))
    usual = GROUPED_HISTOGRAM.memory(observed)
    assert usual < 64 * 8 * BIN_COUNT / 10
    made = GROUPED_HISTOGRAM.empty(observed)
    rng = np.random.default_rng(0)
    for number in range(100):
        ones = [TensorStatistics.from_array(x) for x in rng.standard_normal((64, 500)).astype(np.float32)]
        made.add(results_of(ones), number)
    assert made.result().totals[:, 0].tolist() == [50_000] * 64
    assert made.bytes <= usual


@pytest.mark.parametrize("case", ["per channel", "per channel, moving average"])
def test_ranges_are_those_of_torch(observed, case: str) -> None:
    """Torch's per-channel observers see the same ends, its averages are the same bits."""
    torch = pytest.importorskip("torch")
    observers = pytest.importorskip("torch.ao.quantization")
    model, plan = observed
    feeds = feeds_of(5, batch=2)
    found = collect_statistics(model, plan, feeds, ObserveOptions(feed_ranges=True))
    for placement in plan.activations:
        name = placement.tensor
        kinds = {"ch_axis": 1, "dtype": torch.qint8, "qscheme": torch.per_channel_affine}
        averages = case.endswith("average")
        make = (
            observers.MovingAveragePerChannelMinMaxObserver
            if averages
            else observers.PerChannelMinMaxObserver
        )
        theirs = make(**kinds, averaging_constant=0.1) if averages else make(**kinds)
        for feed in feeds:
            theirs(torch.from_numpy(activations(model, plan, [feed])[name]))
        method = Calibrator.parse("moving_average:0.1" if averages else "minmax")
        ours = np.asarray([method(one, placement.spec) for one in found.groups[name].split()], np.float32)
        np.testing.assert_array_equal(ours[:, 0], theirs.min_val.numpy())
        np.testing.assert_array_equal(ours[:, 1], theirs.max_val.numpy())


@pytest.mark.parametrize("method", observing_names())
def test_every_calibrator_gives_every_group_what_it_gives_a_tensor(method: str) -> None:
    """Scale and zero point of a channel are those that its values would have as a tensor."""
    model = load(two_branch())
    plan = make_plan(model, by_groups("simulation", **PER_AXIS))
    feeds = [feed_for(two_branch(), seed) for seed in (0, 1)]
    statistics = collect_statistics(model, plan, feeds, ObserveOptions(feed_ranges=True))
    encodings = calibrate(model, plan, statistics, method)
    values = activations(model, plan, feeds)
    for placement in plan.activations:
        spec, made = placement.spec, encodings[placement.tensor]
        x = values[placement.tensor]
        assert made.param_shape == (x.shape[1],)
        for channel in range(x.shape[1]):
            own = TensorStatistics.from_array(x[:, channel])
            by_feed = np.split(x[:, channel], len(feeds))
            ranges = [(one.min(), one.max()) for one in by_feed]
            own = replace(own, feed_ranges=np.asarray(ranges, np.float32))
            limits = Calibrator.parse(method)(own, spec)
            scale, zero_point = choose_qparams(*limits, spec.qtype, spec.symmetric)
            assert (made.scale[channel], made.zero_point[channel]) == (scale, zero_point)


@pytest.mark.grid
@pytest.mark.parametrize("changes", [PER_AXIS, BLOCKED], ids=["per_axis", "blocked"])
@pytest.mark.parametrize("name", NETWORKS)
def test_twins(name: str, changes: dict[str, Any]) -> None:
    """Fake-quant and Q/DQ model hold the same numbers, to the bit."""
    for tensor, simulated, deployed in zip(
        *twins(stage(BUILDERS[name](), by_groups(**changes))), strict=True
    ):
        np.testing.assert_array_equal(simulated, deployed, err_msg=tensor)


@pytest.mark.parametrize("changes", [PER_AXIS, BLOCKED], ids=["per_axis", "blocked"])
def test_twins_of_16_bit_floats(changes: dict[str, Any]) -> None:
    """Channels of float16 are observed as they are, their scales have the type of the tensor."""
    proto = as_type(two_branch(), "float16")
    model, feed = load(proto), half_feed(proto)
    plan = make_plan(model, by_groups(**changes))
    statistics = collect_statistics(model, plan, [feed])
    encodings = calibrate(model, plan, statistics)
    assert set(statistics.groups) == {p.tensor for p in plan.activations}
    qdq, simulation = (make(model, plan, encodings) for make in (insert_qdq, insert_fake_quantize))
    onnx.checker.check_model(qdq, full_check=True)
    for have, want in zip(
        *(Session(made, 1, exact=True).run(feed) for made in (qdq, simulation)), strict=True
    ):
        np.testing.assert_array_equal(have, want)


@pytest.mark.grid
@pytest.mark.parametrize("qtype", ["int8", "uint16", "int16"])
@pytest.mark.parametrize("changes", [PER_AXIS, BLOCKED], ids=["per_axis", "blocked"])
def test_written_models_run_fully_optimised(tmp_path: Path, changes: dict[str, Any], qtype: str) -> None:
    """Models for ONNX Runtime give their numbers at the session's defaults as well."""
    proto = build(
        """g (float[N,6,5,5] x) => (float[N,7] y) {
            c = Conv <kernel_shape = [3,3]> (x, w)
            d = Conv <kernel_shape = [3,3]> (c, v)
            f = Flatten (d)
            y = MatMul (f, m) }""",
        {"w": weights(8, 6, 3, 3), "v": weights(9, 8, 3, 3), "m": weights(9, 7)},
    )
    feed = feed_for(proto)
    result = quantize(proto, [feed], tmp_path / "q.onnx", recipe=by_groups(qtype=qtype, **changes))
    assert result.encodings["x"].scale.size == (6 if changes is PER_AXIS else 2)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(tmp_path / "q.onnx", options)
    exact = Session(onnx.load(tmp_path / "q.onnx"), 1, exact=True).run(feed)[0]
    # Sums are taken in another order, and a value may then fall to the next step of a grid.
    np.testing.assert_allclose(session.run(None, feed)[0], exact, atol=0.05 * np.abs(exact).max())
    assert evaluate(proto, result.simulation, feed).lowest_db > 30


@pytest.mark.parametrize(
    ("recipe", "proto", "text"),
    [
        (by_groups("tensorrt", symmetric=True, **PER_AXIS), conv_relu, "TensorRT takes one scale of an act"),
        (by_groups("tensorrt", symmetric=True, **BLOCKED), lambda: linear(6, 2), "one scale of an act"),
        (by_groups(qtype="uint8", **PER_AXIS), conv_relu, "kernels of Conv take one scale of a uint8 input"),
        (by_groups(qtype="uint8", **BLOCKED), lambda: linear(6, 2), "kernels of MatMul take one scale of a"),
        (by_groups(qtype="int5", **PER_AXIS), conv_relu, "int5 activations are clipped per tensor; use int8"),
    ],
)  # fmt: skip
def test_what_a_target_refuses(recipe: Recipe, proto: Callable[[], onnx.ModelProto], text: str) -> None:
    """Rule and remedy, before anything is observed."""
    with pytest.raises(RecipeError, match=text):
        make_plan(load(proto()), recipe)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"granularity": "per_row"}, "because every sample has other rows; or use per_axis"),
        ({"dynamic": True, "granularity": "per_axis"}, "needs dynamic: false"),
        ({"dynamic": True, "granularity": "block_shape", "block_shape": [1]}, "needs dynamic: false"),
        ({"granularity": "block_shape"}, "block_shape and block_shape go together"),
        ({"granularity": "blocked"}, "blocked and block_size go together"),
        (
            {"scale_type": "e8m0", "symmetric": True, **BLOCKED},
            "scale_type e8m0 of activations needs dynamic",
        ),
    ],
)
def test_schemes_that_contradict_themselves(changes: dict[str, Any], text: str) -> None:
    """A format that cannot be is refused where it is written."""
    with pytest.raises(ValueError, match=text):
        by_groups("simulation", **changes)


def test_a_tensor_summed_along_two_axes_is_refused() -> None:
    """It is rounded once, and per channel of one reader is not per channel of the other."""
    with pytest.raises(RecipeError, match="tensor 'x' is summed along another axis by 'q' than by 'mix'"):
        make_plan(load(BUILDERS["attention"]()), by_groups(**PER_AXIS))


def test_an_open_axis_leaves_a_node_in_float() -> None:
    """Groups whose number is not known have no statistics, and the plan says which axis it is."""
    proto = build("g (float[N,K] x) => (float[N,K] y) { [a] h = MatMul (x, w)  [b] y = MatMul (h, w) }",
                  {"w": weights(4, 4)})  # fmt: skip
    plan = make_plan(load(proto), by_groups(**PER_AXIS))
    assert [p.tensor for p in plan.activations] == ["h"]
    (why,) = [s.why for s in plan.skipped if s.name == "a"]
    assert why == "input 'x' is per-axis 1, and its axis 1 is open: every group needs its own statistics"


def edited(plan: Plan, **changes: Any) -> Plan:
    """A plan whose first activation a person has changed."""
    first, *rest = plan.placements
    spec = QuantSpec.model_validate(first.spec.model_dump() | changes)
    return plan.model_copy(update={"placements": (first.model_copy(update={"spec": spec}), *rest)})


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"axis": 0}, "per-axis 0, and its axis 0 is open"),
        ({"axis": 4}, "axis 4 is outside a tensor of rank 4"),
        ({"axis": 1, "block_size": 2}, "and its axis 0 is open"),
        ({"block_shape": (-1, 1)}, "must have one size for each dimension"),
    ],
)
def test_plans_that_cannot_be_observed(changes: dict[str, Any], text: str) -> None:
    """An edited plan is held to the same rule, in one line that names the tensor."""
    model = load(conv_relu())
    plan = edited(make_plan(model, by_groups()), **changes)
    with pytest.raises(PlanError, match=f"tensor 'x' is .*{text}"):
        collect_statistics(model, plan, [feed_for(conv_relu())])


def test_more_groups_than_an_observer_takes() -> None:
    """The limit and the number are named before anything runs."""
    proto = build("g (float[N,70000] x) => (float[N,2] y) { y = MatMul (x, w) }", {"w": weights(70000, 2)})
    model = load(proto)
    plan = make_plan(model, by_groups(**PER_AXIS))
    with pytest.raises(PlanError, match="70000 groups, 65536 are the most; give larger blocks"):
        collect_statistics(model, plan, [])


def test_statistics_of_other_groups_are_refused(observed) -> None:
    """A plan by channels is not calibrated with statistics of whole tensors, nor with other blocks."""
    model, plan = observed
    whole = collect_statistics(model, make_plan(model, by_groups("simulation")), feeds_of(1))
    with pytest.raises(StatisticsError, match=r"are per-tensor, and the plan wants them per-axis 1; observe"):
        calibrate(model, plan, whole)
    mine = collect_statistics(model, plan, feeds_of(1))
    with pytest.raises(StatisticsError, match="only one side has statistics of the groups of tensor"):
        mine.merge(whole)
    other = collect_statistics(model, make_plan(model, by_groups("simulation", **BLOCKED)), feeds_of(1))
    with pytest.raises(StatisticsError, match=r"statistics of per-axis 1, 3 groups, and blocks of \[-1, 3"):
        mine.merge(other)


def test_statistics_by_channels_serve_plans_per_tensor(observed, tmp_path) -> None:
    """Whole tensors are in the file too, as if they had been observed so; and old files still load."""
    model, plan = observed
    whole_plan = make_plan(model, by_groups("simulation"))
    by_channel, whole = (collect_statistics(model, p, feeds_of(2)) for p in (plan, whole_plan))
    assert calibrate(model, whole_plan, by_channel).encodings == calibrate(model, whole_plan, whole).encodings
    assert file_bytes(without(by_channel, "groups"), tmp_path) == file_bytes(whole, tmp_path)
    with np.load(tmp_path / "s.npz") as arrays:
        # The columns of the first version, which wrote no samples and least, and read files that have them.
        first = "format model_sha256 feeds complete data samples least tensors range totals sizes bins counts"
        assert sorted(arrays.files) == sorted([*first.split(), "feed_ranges"])


def test_damaged_groups_are_refused(observed, tmp_path) -> None:
    """Counts that do not add up, or a column that is missing, in one line."""
    model, plan = observed
    collect_statistics(model, plan, feeds_of(1)).save(tmp_path / "s.npz")
    with np.load(tmp_path / "s.npz") as file:
        arrays = dict(file)
    for change, text in (
        ({"group_counts": arrays["group_counts"] + 1}, "the counts of the groups of tensor"),
        ({"group_keys": None}, "it lacks 'group_keys'"),
        ({"group_blocks": arrays["group_tensors"]}, "is not a statistics file"),
    ):
        kept = {name: value for name, value in (arrays | change).items() if value is not None}
        np.savez(tmp_path / "t.npz", **kept)
        with pytest.raises(StatisticsError, match=text):
            Statistics.load(tmp_path / "t.npz")


def test_channels_without_values(caplog: pytest.LogCaptureFixture) -> None:
    """A channel that is always zero gets scale 1, and is listed."""
    proto = build("g (float[N,4] x) => (float[N,2] y) { y = MatMul (x, w) }", {"w": weights(4, 2)})
    x = np.asarray([[1, 0, -3, 0]], np.float32)
    model = load(proto)
    plan = make_plan(model, by_groups("simulation", calibrator="mse", **PER_AXIS))
    made = calibrate(model, plan, collect_statistics(model, plan, [{"x": x}]))["x"]
    assert [made.scale[i] for i in (1, 3)] == [1, 1]
    told = "2 of 4 channels and blocks of activations had no value but 0 (1, 3 of 'x'); their scale is 1"
    assert told in caplog.text


def test_nonfinite_values_stop_or_are_skipped(observed) -> None:
    """As for whole tensors: the tensor and the feed are named, or the finite values go on."""
    model, plan = observed
    feeds = feeds_of(2)
    feeds[1]["x"][0, 2, 0, 0] = np.nan
    with pytest.raises(StatisticsError, match="tensor 'x' has 1 NaN and 0 infinite values at feed 1"):
        collect_statistics(model, plan, feeds)
    found = collect_statistics(model, plan, feeds, ObserveOptions(nonfinite="skip"))
    np.testing.assert_array_equal(found.groups["x"].totals[:, 1], [0, 0, 1])


@pytest.mark.parametrize("name", ["loop", "scan", "nested", "own weights, else"])
def test_bodies(name: str) -> None:
    """Branches not taken add nothing, iterations are merged, group by group."""
    _, by_channel = staged_bodies(name, by_groups("simulation", **PER_AXIS))
    _, whole = staged_bodies(name, by_groups("simulation"))
    assert set(by_channel.statistics.groups) == {p.tensor for p in by_channel.plan.activations}
    for tensor, groups in by_channel.statistics.groups.items():
        assert_equal(groups.whole(), whole.statistics[tensor])
        # Every channel was seen as often.
        assert set(groups.totals[:, 0]) == {whole.statistics[tensor].elements // groups.count}


def test_a_state_too_large_for_a_loop_is_refused() -> None:
    """The state that a Loop would carry is named with its size."""
    proto = build(
        """g (float[2,300] x, int64 trips, bool go) => (float[2,300] y) {
            [turns] y = Loop (trips, go, x) <body = b (int64 i, bool c, float[2,300] a)
                => (bool c2, float[2,300] z) { c2 = Identity (c)  z = MatMul (a, w) }> }""",
        {"w": weights(300, 300)},
    )
    model = load(proto)
    plan = make_plan(model, by_groups("simulation", **PER_AXIS))
    with pytest.raises(PlanError, match="has 300 groups, and its Loop 'turns' would carry 75 MB"):
        collect_statistics(model, plan, [])


def test_the_table_has_a_row_for_all_groups() -> None:
    """One row a calibrator, with the widest ends; the noise covers all groups together."""
    model = load(conv_relu())
    plan = make_plan(model, by_groups("simulation", **PER_AXIS))
    feeds = [feed_for(conv_relu(), seed) for seed in (0, 1)]
    statistics = collect_statistics(model, plan, feeds)
    rows = calibrator_rows(plan, statistics)
    assert [row.calibrator for row in rows] == [
        n for n in sorted(observing_names()) if n not in ("best_error", "moving_average")
    ]
    (chosen,) = [row for row in rows if row.chosen]
    made = calibrate(model, plan, statistics)["x"]
    x = activations(model, plan, feeds)["x"]
    noise = float(((made.fake_quantize(x) - x).astype(np.float64) ** 2).sum())
    power = float((x.astype(np.float64) ** 2).sum())
    # Within bins values are taken as spread evenly.
    assert math.isclose(chosen.sqnr_db, 10 * math.log10(power / noise), abs_tol=0.3)
    assert (chosen.rmin, chosen.rmax) == (x.min(), x.max())
    assert "x (3 groups)" in calibrator_table(rows)
    chosen_rows = [row for row in calibrator_rows(plan, statistics, "best_error") if row.chosen]
    assert [row.calibrator for row in chosen_rows] == ["best_error"]
    assert chosen_rows[0].sqnr_db >= chosen.sqnr_db


def test_reports_know_the_noise_of_all_groups() -> None:
    """The SQNR of a tensor in a report comes from its values, each rounded with the scale of its channel."""
    model = load(two_branch())
    plan = make_plan(model, by_groups("simulation", **PER_AXIS))
    feeds = [feed_for(two_branch(), seed, 60) for seed in (0, 1)]
    statistics = collect_statistics(model, plan, feeds)
    encodings = calibrate(model, plan, statistics)
    values = activations(model, plan, feeds)
    rows = {row.tensor: row for row in quantized_tensors(model, plan, statistics, encodings)}
    for tensor, x in values.items():
        exact = ErrorSums.from_arrays(x, encodings[tensor].fake_quantize(x)).sqnr_db
        # Within bins values are taken as spread evenly.
        assert math.isclose(rows[tensor].sqnr_db, exact, abs_tol=0.3)


@st.composite
def statistics_of_groups(draw: st.DrawFn, groups: int = 3) -> GroupStatistics:
    """Statistics of some feeds of three channels, added up."""
    made = GROUPED_HISTOGRAM.empty(Observed("t", Granularity(1), (groups,), stop=False))
    for number in range(draw(st.integers(0, 3))):
        values = st.floats(width=32) | st.sampled_from([0.0, 1.0, -2.5])
        rows = draw(st.lists(st.lists(values, min_size=groups, max_size=groups), max_size=5))
        x = np.asarray(rows, np.float32).reshape(-1, groups)
        ones = [TensorStatistics.from_array(x[:, g]) for g in range(groups)]
        made.add(results_of(ones), number)
    return made.result()


@given(a=statistics_of_groups(), b=statistics_of_groups(), c=statistics_of_groups())
def test_merging_is_associative_and_commutative(
    a: GroupStatistics, b: GroupStatistics, c: GroupStatistics
) -> None:
    """And merging the groups' own statistics one by one gives the same, as does merging the wholes."""
    assert a.merge(b).merge(c).fingerprint() == c.merge(a.merge(b)).fingerprint()
    assert a.merge(b).fingerprint() == b.merge(a).fingerprint()
    for one, other, both in zip(a.split(), b.split(), a.merge(b).split(), strict=True):
        assert_equal(both, one.merge(other))
    assert_equal(a.merge(b).whole(), a.whole().merge(b.whole()))


def test_counts_beyond_32_bits() -> None:
    """If a count may need more, all of them get 64 bits and none is lost."""
    made = GROUPED_HISTOGRAM.empty(Observed("t", Granularity(0), (2,)))
    count = (1 << 31) + 7
    for feed in range(3):
        made.add(
            [
                np.asarray([[1, 1], [2, 2]], np.float32),
                np.asarray([[count, 0, 0, 0], [1, 0, 0, 0]], np.int64),
                np.asarray([8128, BIN_COUNT + 8192], np.int32),
                np.asarray([count, 1], np.int64),
            ],
            feed,
        )
    assert made.result().counts.tolist() == [3 * count, 3]
