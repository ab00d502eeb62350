"""The share of the error that values beyond the ranges make, compared with NumPy on the unseen values."""

from __future__ import annotations

import re

import numpy as np
import pytest
from builders import build, plain_quantize, planned, weights

from onnxfq.calibration.calibrators.best_error import HEADROOM, best_error
from onnxfq.calibration.statistics import TensorStatistics
from onnxfq.graph.io.load import load
from onnxfq.numerics.qtypes import qtype_by_name
from onnxfq.numerics.spec import QuantSpec
from onnxfq.remedies.beyond_ranges import describe_beyond
from onnxfq.stages.calibrate import calibrate
from onnxfq.stages.observe import collect_statistics
from onnxfq.stages.options import open_feeds
from onnxfq.stages.statistics_source import GatheredStatistics

RANDOM = np.random.default_rng(1)
SEEN, UNSEEN = (RANDOM.normal(size=(count, 16)).astype(np.float32) for count in (4096, 1024))


def network():
    """Return a layer, whose input is observed."""
    return build("g (float[N,16] x) => (float[N,8] y) { y = MatMul (x, w) }", {"w": weights(16, 8)})


@pytest.mark.grid
@pytest.mark.parametrize("recipe", ["tensorrt-int8", "onnxruntime-int8", "tensorrt-fp8"])
@pytest.mark.parametrize("factor", [0.5, 1.0, 1.5, 4.0])
def test_the_share_is_the_one_of_numpy(factor: float, recipe: str) -> None:
    """Values of unseen samples at another size, rounded on the grid of the seen ones."""
    model, plan = load(network()), planned(network(), recipe)
    unseen = (UNSEEN * np.float32(factor)).astype(np.float32)
    first, more = (
        collect_statistics(model, plan, open_feeds(model.proto, {"x": rows})) for rows in (SEEN, unseen)
    )
    encodings = calibrate(model, plan, first)
    note = describe_beyond(GatheredStatistics(first, first.join(more)), encodings)
    (one,) = (one for one in encodings.encodings if one.tensor == "x")
    scale, zero, qtype = float(one.scale), float(one.zero_point), one.spec.qtype
    low, high = ((limit - zero) * scale for limit in (qtype.qmin, qtype.qmax))
    values = unseen.astype(np.float64)
    inside = np.clip(values, low, high)
    if qtype.is_float:
        rounded = (inside / scale).astype(np.float32).astype(qtype.dtype).astype(np.float64) * scale
    else:
        rounded = np.rint(inside / scale) * scale
    share = np.square(values - inside).sum() / np.square(values - rounded).sum()
    told = re.fullmatch(
        r"values beyond the ranges make (\d+)% of the error of activations on 1024 unseen samples(.*)", note
    )
    assert told is not None and int(told[1]) == pytest.approx(100 * share, abs=2)
    assert told[2] == (", most of it at 'x'" if share > 0 else "")


@pytest.mark.sample
def test_the_summary_has_the_share() -> None:
    """Unseen samples have a share; a single sample gives all ranges, and there is no note."""
    for rows, count in ((SEEN[:64], 1), (SEEN[:1], 0)):
        notes = plain_quantize(network(), {"x": rows}).staged.notes
        assert sum("values beyond the ranges make" in note for note in notes) == count


@pytest.mark.parametrize("largest", [1.0, 1e38, float(np.finfo(np.float32).max)])
def test_ranges_of_16_bits_leave_room_as_far_as_float32_goes(largest: float) -> None:
    """Values four times as large are within them; the range ends where float32 does."""
    statistics = TensorStatistics.from_array((np.linspace(-1, 1, 999) * largest).astype(np.float32))
    rmin, rmax = best_error(statistics, QuantSpec(qtype=qtype_by_name("int16"), symmetric=True))
    wanted = min(HEADROOM * largest, float(np.finfo(np.float32).max))
    assert HEADROOM == 4 and -rmin == pytest.approx(wanted) and rmax == pytest.approx(wanted)
    assert np.isfinite(np.float32([rmin, rmax])).all()
