"""A calibrator from outside the package, through the public registry."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from builders import conv_relu, feed_for, weights

import onnxfq
from onnxfq.calibration.calibrators import CALIBRATORS, CalibrationMethod, Calibrator, register_calibrator
from onnxfq.calibration.statistics import TensorStatistics
from onnxfq.choices import DEFAULT_RECIPE
from onnxfq.errors import RecipeError, SpecError
from onnxfq.numerics.spec import QuantSpec
from onnxfq.report.calibrator_table import calibrator_rows

RECIPE = """
base: tensorrt-int8
activations: {calibrator: share}
weights: {calibrator: "share:0.25"}
"""


def share(statistics, spec, part=0.5):
    """Return a share of the observed range."""
    return part * statistics.rmin, part * statistics.rmax


def check_share(parameters):
    """Return what the share must be; empty when it is that."""
    fits = len(parameters) == 1 and isinstance(parameters[0], float) and 0 < parameters[0] <= 1
    return "" if fits else "the share must be above 0 and at most 1, as in share:0.5"


@pytest.fixture
def registered(monkeypatch):
    """The registry with `share`; without it again afterwards."""
    monkeypatch.setattr("onnxfq.calibration.calibrators.CALIBRATORS", dict(CALIBRATORS))
    register_calibrator("share", CalibrationMethod(share, check_share, "share:0.5"))


@pytest.fixture
def recipe(tmp_path: Path, registered: None) -> Path:
    """A recipe file that names it."""
    path = tmp_path / "own.yaml"
    path.write_text(RECIPE, encoding="utf-8")
    return path


def test_it_gives_what_numpy_gives(recipe: Path, tmp_path: Path) -> None:
    """In a recipe, with and without its parameter, in `calibrate`, in `quantize` and in the table."""
    feeds = [feed_for(conv_relu(), seed) for seed in range(2)]
    given = np.concatenate([feed["x"] for feed in feeds]).astype(np.float64)
    x = max(given.max() / 127, -given.min() / 128)
    constant = weights(4, 3, 3, 3).astype(np.float64).reshape(4, -1)
    w = np.maximum(constant.max(axis=1) / 127, -constant.min(axis=1) / 128)
    model = onnxfq.load(conv_relu())
    plan = onnxfq.make_plan(model, onnxfq.load_recipe(recipe))
    statistics = onnxfq.collect_statistics(model, plan, feeds)
    made = onnxfq.calibrate(model, plan, statistics)
    np.testing.assert_array_equal(made["x"].scale, np.float32(x * 0.5))
    np.testing.assert_array_equal(made["w"].scale, (w * 0.25).astype(np.float32))
    assert (made["x"].calibrator, made["w"].calibrator) == ("share", "share:0.25")
    made.save(tmp_path / "e.json")
    assert onnxfq.Encodings.load(tmp_path / "e.json") == made
    plan.save(tmp_path / "p.json")
    assert onnxfq.Plan.load(tmp_path / "p.json") == plan
    other = onnxfq.calibrate(model, plan, statistics, "share:0.75")
    np.testing.assert_array_equal(other["x"].scale, np.float32(x * 0.75))
    whole = onnxfq.quantize(
        conv_relu(), feeds, recipe=onnxfq.load_recipe(recipe).override(weights={"rounding": "nearest"})
    )
    assert whole.encodings["x"] == made["x"] and whole.encodings["w"] == made["w"]
    assert [row.rmax for row in calibrator_rows(plan, statistics) if row.chosen] == [
        0.5 * statistics["x"].rmax
    ]


def test_its_parameters_are_checked(recipe: Path) -> None:
    """Wherever it is named, with the words of its own check."""
    recipe.write_text(RECIPE.replace("0.25", "2"), encoding="utf-8")
    with pytest.raises(RecipeError, match="weights.calibrator: calibrator 'share:2': the share must be"):
        onnxfq.load_recipe(recipe)
    with pytest.raises(RecipeError, match="unknown calibrator 'shar'; nearest: share"):
        onnxfq.load_recipe("tensorrt-int8").override(activations={"calibrator": "shar"})


def test_files_that_name_it_are_read_without_it(recipe: Path, tmp_path: Path, monkeypatch) -> None:
    """On another machine encodings serve as they are; only calibrating needs the function."""
    feeds = [feed_for(conv_relu(), 0)]
    made = onnxfq.quantize(
        conv_relu(), feeds, recipe=onnxfq.load_recipe(recipe).override(weights={"rounding": "nearest"})
    )
    made.plan.save(tmp_path / "p.json")
    made.encodings.save(tmp_path / "e.json")
    monkeypatch.undo()
    plan, encodings = onnxfq.Plan.load(tmp_path / "p.json"), onnxfq.Encodings.load(tmp_path / "e.json")
    assert onnxfq.insert_qdq(made.model, plan, encodings) == made.qdq
    with pytest.raises(SpecError, match="unknown calibrator 'share'"):
        onnxfq.calibrate(made.model, plan, made.statistics)


@pytest.mark.parametrize("name", ["minmax", "range", "external", "a:b", ""])
def test_names_that_cannot_be_registered(name: str) -> None:
    """Names of the package, and names that a recipe could not spell."""
    with pytest.raises(SpecError, match=f"calibrator '{name}': (the name is taken|a name must be)"):
        register_calibrator(name, CalibrationMethod(share))


def test_it_cannot_change_the_statistics(registered: None) -> None:
    """An array that one function writes into would be wrong for all later ones."""
    statistics = TensorStatistics.from_array(np.arange(9, dtype=np.float32))
    before = statistics.counts.copy()

    def scribble(statistics, spec):
        statistics.counts[:] = 0
        return -1.0, 1.0

    register_calibrator("scribble", CalibrationMethod(scribble))
    with pytest.raises(SpecError, match="read-only"):
        Calibrator.parse("scribble")(statistics, QuantSpec(qtype="int8"))
    assert np.array_equal(statistics.counts, before) and statistics.counts.flags.writeable


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (lambda statistics, spec: 1 / 0, "failed (ZeroDivisionError: division by zero) in line "),
        (lambda statistics, spec: exit(0), "failed (SystemExit: 0) in line "),
        (lambda statistics, spec: None, "failed (TypeError: "),
        (lambda statistics, spec: (1.0, -1.0), "returned 1.0, -1.0; return finite ends in order"),
        (lambda statistics, spec: (float("nan"), 1.0), "returned nan, 1.0; return finite ends in order"),
    ],
    ids=["raises", "exits", "nothing", "reversed", "nan"],
)
def test_a_calibrator_that_fails(registered, function, says):
    """An exception of any kind, and a result that is not a range, is one line that names the calibrator."""
    register_calibrator("odd", CalibrationMethod(function))
    with pytest.raises(SpecError) as caught:
        onnxfq.quantize(
            conv_relu(),
            [feed_for(conv_relu())],
            recipe=onnxfq.load_recipe(DEFAULT_RECIPE).override(activations={"calibrator": "odd"}),
        )
    assert f"calibrator 'odd' {says}" in str(caught.value)
