"""Planted faults are named and repaired, and sound files are not accused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import with_constants
from diagnosed_networks import Network, network
from diagnosis_score import Score, score, sqnr_db
from planted_cases import CASES, SOUND, Case
from quantized_files import make
from unseen_cases import sound_cases

from onnxfq import diagnose

EVERY = 10
"""One file in so many is diagnosed, unless all cases are asked for."""


def chosen(request: pytest.FixtureRequest, names: list[str]) -> list[str]:
    """Return all names with --all-cases, else a sample."""
    return names if request.config.getoption("--all-cases") else names[::EVERY]


@pytest.mark.sample
def test_the_cases_are_those_promised() -> None:
    """60 files have planted faults, 20 of them weak ones or two; 20 are sound."""
    assert (len(CASES), len(SOUND), sum(case.weak for case in CASES.values())) == (60, 20, 20)


def test_planted_faults_are_named_and_repaired(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """With the float model 54 of 60 causes are first, 59 in the first three, and 50 files are restored."""
    rows = [score(name, CASES[name], tmp_path) for name in chosen(request, list(CASES))]
    assert (
        _share(rows, "is_first", 54) and _share(rows, "is_named", 59) and _share(rows, "is_restored", 50)
    ), rows


def test_planted_faults_are_named_without_the_float_model(request: pytest.FixtureRequest) -> None:
    """Without the float model 45 of 60 planted causes are first."""
    rows = [score(name, CASES[name], with_float=False) for name in chosen(request, list(CASES))]
    assert _share(rows, "is_first", 45), rows


def test_sound_files_are_not_accused(request: pytest.FixtureRequest) -> None:
    """At most one of 20 sound files is accused, with the float model and without."""
    for with_float in (True, False):
        rows = [score(name, SOUND[name], with_float=with_float) for name in chosen(request, list(SOUND))]
        assert sum(bool(row.causes) for row in rows) <= 1, rows


@pytest.mark.parametrize("name", ["decoder-qoperator", "gated-qdq-signed", "mixer-own-cpu", "dilated-own"])
def test_what_other_networks_have_is_no_fault(name: str) -> None:
    """Neither Relus of float layers alone, nor ranges that a Relu cuts, nor sums behind other operators."""
    assert score(name, sound_cases()[name]).causes == ()


def test_data_that_is_no_picture_has_no_preprocessing() -> None:
    """One quiet sample gives too narrow ranges; a unit that the data cannot have does not explain them."""
    (cause,) = score("few", Case("dilated", "qoperator", samples=1)).causes
    assert cause.startswith("few_samples")


def test_channels_are_evened_out(tmp_path: Path) -> None:
    """A channel 60 times as large ruins its tensor; the repair gains 8 dB or more on samples of no choice."""
    net = network("transformer")

    def change(name: str, array: np.ndarray) -> np.ndarray:
        values = array.copy()
        if name in ("g2", "up_w"):
            values[3] *= 60 if name == "g2" else 1 / 60
        return values

    proto = with_constants(net.proto, change)
    made, output = make("transformer", "qdq", net=Network(proto, net.draw)), tmp_path / "repaired.onnx"
    result = diagnose(made, reference=proto, data=net.feeds(24, seed=2), output=output)
    assert [(cause.kind, cause.tensor) for cause in result.causes] == [("channel_spread", "h2")]
    unseen = net.feeds(24, seed=3)
    assert sqnr_db(proto, onnx.load(output), unseen) > sqnr_db(proto, made, unseen) + 8
    assert all(len(line) <= 80 for line in result.table().splitlines())


def _share(rows: list[Score], mark: str, of_sixty: int) -> bool:
    """Tell whether as many rows have a mark as `of_sixty` of 60, where a sample may have one less."""
    return sum(getattr(row, mark) for row in rows) >= int(len(rows) * of_sixty / 60)
