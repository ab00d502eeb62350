"""The table of calibrators: what each would give, and which one is taken."""

from __future__ import annotations

import csv
import io
import math

import pytest
from builders import Staged, attention, conv_relu, stage

from onnxfq.calibration.calibrators import Calibrator, observing_names
from onnxfq.calibration.calibrators.best_error import HEADROOM
from onnxfq.calibration.calibrators.grid_error import range_sqnr_db
from onnxfq.numerics.qparams import choose_qparams
from onnxfq.report.calibrator_table import calibrator_csv, calibrator_rows, calibrator_table
from onnxfq.stages.calibrate import calibrate


def staged() -> Staged:
    """Return an attention block for float8, with a Softmax of known range."""
    return stage(attention(), "tensorrt-fp8")


@pytest.mark.parametrize("calibrator", [None, "entropy", "percentile:99", "best_error", "range:-1,1"])
def test_rows_are_what_calibrate_would_give(calibrator: str | None) -> None:
    """Each row is its method's range and expected noise; the one marked has the scale of the encoding."""
    made = staged()
    encodings = calibrate(made.model, made.plan, made.statistics, calibrator)
    rows = calibrator_rows(made.plan, made.statistics, calibrator)
    for placement in made.plan.activations:
        mine = [row for row in rows if row.tensor == placement.tensor]
        spec = encodings[placement.tensor].spec
        assert {row.calibrator for row in mine} >= set(observing_names()) - {"best_error", "moving_average"}
        for row in mine:
            wanted = Calibrator.parse(row.calibrator)(made.statistics[row.tensor], spec)
            assert (row.rmin, row.rmax) == wanted
            assert row.sqnr_db == range_sqnr_db(made.statistics[row.tensor], wanted, spec)
        (chosen,) = [row for row in mine if row.chosen]
        scale, _ = choose_qparams(chosen.rmin, chosen.rmax, spec.qtype, spec.symmetric)
        assert scale == encodings[placement.tensor].scale
    assert [row.calibrator for row in rows if row.chosen and row.tensor == "p"] == ["known:Softmax"]


def test_the_chosen_row_of_16_bits_has_its_headroom() -> None:
    """The marked range is the one of the encoding, half a bit wider than its method's."""
    made = stage(conv_relu(), "qnn-a16w8")
    encodings = calibrate(made.model, made.plan, made.statistics, "best_error")
    for row in calibrator_rows(made.plan, made.statistics, "best_error"):
        if row.chosen:
            spec = encodings[row.tensor].spec
            scale, _ = choose_qparams(row.rmin, row.rmax, spec.qtype, spec.symmetric)
            method = Calibrator.parse(row.calibrator)(made.statistics[row.tensor], spec)
            assert (row.rmin, row.rmax) == (HEADROOM * method[0], HEADROOM * method[1])
            assert scale == encodings[row.tensor].scale


def test_text_names_a_tensor_once_and_marks_the_chosen() -> None:
    """One line a row, the tensor on its first, a star on what was taken."""
    made = stage(conv_relu())
    lines = calibrator_table(calibrator_rows(made.plan, made.statistics, "entropy")).splitlines()
    assert lines[0].split() == ["tensor", "calibrator", "from", "to", "SQNR", "dB"]
    assert sum(line.startswith("x ") for line in lines) == 1
    (starred,) = [line for line in lines if line.endswith("*")]
    assert starred.split()[-5] == "entropy"


def test_csv_keeps_every_digit() -> None:
    """The file has the numbers of the rows."""
    made = stage(conv_relu())
    rows = calibrator_rows(made.plan, made.statistics)
    for row, read in zip(rows, csv.DictReader(io.StringIO(calibrator_csv(rows))), strict=True):
        assert (read["tensor"], read["calibrator"]) == (row.tensor, row.calibrator)
        assert (float(read["rmin"]), float(read["rmax"])) == (row.rmin, row.rmax)
        assert math.isclose(float(read["sqnr_db"]), row.sqnr_db, rel_tol=0) and read["chosen"] == str(
            row.chosen
        )
