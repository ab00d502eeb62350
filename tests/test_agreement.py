"""Fake-quant model and Q/DQ model are twins; statistics depend on the data only."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from agreement import twins
from builders import BUILDERS, Staged, feed_for, inner_output, planned, stage

from onnxfq.calibration.statistics import Statistics
from onnxfq.graph.io.load import load
from onnxfq.stages.calibrate import calibrate
from onnxfq.stages.observe import collect_statistics
from onnxfq.stages.observers import ObserveOptions
from onnxfq.stages.plan import make_plan
from onnxfq.targets.recipes import load_recipe

RECIPES = ["tensorrt-int8", "onnxruntime-int8"]


@pytest.mark.parametrize("switchable", [False, True], ids=["fixed", "switchable"])
@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("name", BUILDERS)
def test_twins_of_small_models(name: str, recipe: str, switchable: bool) -> None:
    """Each quantized tensor holds the same grid values, each output the same numbers, to the bit."""
    for tensor, simulated, deployed in zip(*twins(stage(BUILDERS[name](), recipe), switchable), strict=True):
        np.testing.assert_array_equal(simulated, deployed, err_msg=tensor)


@pytest.fixture(scope="module", params=RECIPES)
def digits(request: pytest.FixtureRequest, digits_model: Path, digit_images: np.ndarray) -> Staged:
    """The shipped network, calibrated on 16 digits, with 32 others to run."""
    model = load(digits_model)
    plan = make_plan(model, load_recipe(request.param))
    statistics = collect_statistics(
        model, plan, [{"image": digit_images[8000:8016]}], ObserveOptions(threads=1)
    )
    return Staged(
        model, plan, statistics, calibrate(model, plan, statistics), {"image": digit_images[8500:8532]}
    )


def test_twins_of_the_digit_network(digits: Staged) -> None:
    """All 25 operators deep, every quantized tensor and the output are the same to the bit."""
    for tensor, one, other in zip(*twins(digits), strict=True):
        np.testing.assert_array_equal(one, other, err_msg=tensor)


def test_values_lie_on_the_grid(digits: Staged) -> None:
    """Every value of a quantized activation is an integer of the type times the scale."""
    names, simulated, _ = twins(digits)
    values = dict(zip(names, simulated, strict=True))
    for placement in digits.plan.activations:
        encoding = digits.encodings[placement.tensor]
        scale, zero_point = encoding.scale_array, encoding.zero_point_array
        if encoding.spec.granularity.axis is not None:
            scale, zero_point = (array.reshape(-1, 1, 1) for array in (scale, zero_point))
        integers = np.rint(values[placement.tensor] / scale) + zero_point
        qtype = encoding.spec.qtype
        assert qtype.qmin <= integers.min() and integers.max() <= qtype.qmax
        grid = (integers - zero_point).astype(np.float32) * scale
        np.testing.assert_array_equal(values[placement.tensor], grid)


def same(one: Statistics, other: Statistics) -> None:
    """Both hold the same bits for every tensor."""
    assert set(one.tensors) == set(other.tensors)
    for name, a in one.tensors.items():
        b = other.tensors[name]
        assert (a.rmin, a.rmax, a.elements, a.nans, a.infinities, a.zeros) == (
            b.rmin, b.rmax, b.elements, b.nans, b.infinities, b.zeros)  # fmt: skip
        np.testing.assert_array_equal(a.bins, b.bins)
        np.testing.assert_array_equal(a.counts, b.counts)


SPLITS = {
    "one": [slice(0, 12)],
    "singles": [slice(i, i + 1) for i in range(12)],
    "reversed": [slice(i, i + 1) for i in reversed(range(12))],
    "uneven": [slice(0, 5), slice(5, 6), slice(6, 12)],
}


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("threads", [1, 2])
def test_statistics_do_not_depend_on_batches(split: str, threads: int) -> None:
    """Batch size, order and threads leave no trace in what is gathered from the same values."""
    # Inputs and what Relu makes of them: values that no kernel computes in another order for another batch.
    proto = inner_output()
    model, plan = load(proto), planned(proto)
    data = feed_for(proto, count=12)["x"]
    whole = collect_statistics(model, plan, [{"x": data}], ObserveOptions(threads=1))
    same(
        collect_statistics(
            model, plan, [{"x": data[part]} for part in SPLITS[split]], ObserveOptions(threads=threads)
        ),
        whole,
    )


def test_statistics_merge_as_if_seen_at_once(digit_images: np.ndarray, digits_model: Path) -> None:
    """Two halves merged equal the whole, for every activation of the digit network at one batch size."""
    model = load(digits_model)
    plan = make_plan(model, load_recipe("tensorrt-int8"))
    feeds = [{"image": digit_images[i : i + 4]} for i in range(0, 16, 4)]
    halves = [
        collect_statistics(model, plan, part, ObserveOptions(threads=1)) for part in (feeds[2:], feeds[:2])
    ]
    same(halves[0].merge(halves[1]), collect_statistics(model, plan, feeds, ObserveOptions(threads=1)))
