"""Shared by the tests of reports: a planted chain as it is quantized, protected and not, and a tab."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from browser import Tab, open_tab
from planted_chain import WIDTH, chain, unequalized, with_modules

from onnxfq.judging.accuracy_target import AccuracyTarget
from onnxfq.quantizing.pipeline import QuantizeResult, quantize


@pytest.fixture(scope="module")
def tab() -> Iterator[Tab]:
    """One tab of a headless browser."""
    with open_tab() as opened:
        yield opened


@pytest.fixture(scope="session")
def rows() -> list[dict[str, np.ndarray]]:
    """Samples of the chain."""
    rng = np.random.default_rng(1)
    return [{"x": rng.normal(size=(1, WIDTH)).astype(np.float32)} for _ in range(16)]


@pytest.fixture(scope="session")
def planted(rows: list[dict[str, np.ndarray]]) -> dict[str, QuantizeResult]:
    """The chain, two layers of which lose all, with repair, which leaves the first in float, and without."""
    proto = with_modules(chain((3, 6)))
    return {
        name: quantize(proto, rows, recipe=unequalized(), accuracy=AccuracyTarget(repair=least))
        for name, least in {"protected": 20.0, "plain": None}.items()
    }
