"""Fake-quant model and Q/DQ model are twins."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from agreement import twins
from builders import BUILDERS, Staged, stage

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
        scale, zero_point = encoding.scale, encoding.zero_point
        if encoding.spec.granularity.axis is not None:
            scale, zero_point = (array.reshape(-1, 1, 1) for array in (scale, zero_point))
        integers = np.rint(values[placement.tensor] / scale) + zero_point
        qtype = encoding.spec.qtype
        assert qtype.qmin <= integers.min() and integers.max() <= qtype.qmax
        grid = (integers - zero_point).astype(np.float32) * scale
        np.testing.assert_array_equal(values[placement.tensor], grid)
