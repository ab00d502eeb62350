"""One range for several tensors, and when it is refused."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from onnxfq.calibration.calibrators.groups import MOST_NOISE, Member, Range, choose_common_ranges
from onnxfq.calibration.statistics import TensorStatistics
from onnxfq.numerics.qparams import choose_qparams
from onnxfq.numerics.spec import QuantSpec

INT8, FP8 = QuantSpec(qtype="int8"), QuantSpec(qtype="float8e4m3fn")


def values(size: float, count: int = 4000, seed: int = 0) -> NDArray[np.float32]:
    """Normal numbers of standard deviation `size`."""
    return np.float32(size) * np.random.default_rng(seed).standard_normal(count, np.float32)


def member(array: NDArray[np.float32], spec: QuantSpec = INT8) -> Member:
    """Return a tensor of these values with the range of its largest one."""
    return Member(TensorStatistics.from_array(array), (float(array.min()), float(array.max())), spec)


def noise(array: NDArray[np.float32], limits: Range, spec: QuantSpec = INT8) -> float:
    """Return the noise on the grid of a range, relative to the power: by rounding, with no histogram."""
    scale, _ = choose_qparams(np.asarray(limits[0]), np.asarray(limits[1]), spec.qtype, spec.symmetric)
    grid = np.float64(scale) * np.clip(np.rint(array / np.float64(scale)), -128, 127)
    return float(((grid - array) ** 2).sum() / (array**2.0).sum())


@pytest.mark.parametrize("ratio", [1.0, 2.0, 4.0, 30.0])
def test_accepted_by_the_noise(ratio: float) -> None:
    """The better range of the two is accepted if the sum of relative noise grows by MOST_NOISE at most."""
    arrays = {"a": values(1.0), "b": values(ratio, seed=1)}
    members = {name: member(array) for name, array in arrays.items()}
    own = {name: one.limits for name, one in members.items()}
    total = {key: sum(noise(a, own[key]) for a in arrays.values()) for key in own}
    alone = sum(noise(a, own[name]) for name, a in arrays.items())
    best = min(total, key=total.__getitem__)
    ranges, refused = choose_common_ranges({"join": ("a", "b")}, members, {"a", "b"})
    accepted = total[best] <= MOST_NOISE * alone
    assert accepted == (ratio < 2.5), "both cases are tried"
    assert (ranges, refused) == (({"a": own[best], "b": own[best]}, ()) if accepted else (own, ("join",)))


def test_float8_does_not_mind() -> None:
    """A float grid has equal relative steps everywhere: values of other sizes lose nothing."""
    members = {"a": member(values(1.0), FP8), "b": member(values(30.0), FP8)}
    assert choose_common_ranges({"join": ("a", "b")}, members, {"a", "b"})[1] == ()


def test_required_groups_are_never_refused() -> None:
    """A required group has one range whatever the noise; the range of a fixed tensor is that of its group."""
    arrays = {"a": values(1.0), "b": values(30.0, seed=1)}
    members = {name: member(array) for name, array in arrays.items()}
    assert choose_common_ranges({"move": ("a", "b")}, members, {"a", "b"})[1] == ("move",)
    ranges, refused = choose_common_ranges({"move": ("a", "b")}, members, {"a", "b"}, {"move"})
    assert not refused and ranges["a"] == ranges["b"]
    statistics = TensorStatistics.from_array(arrays["a"])
    members["a"] = Member(statistics, (0.0, 1.0), INT8, fixed=True)
    ranges, refused = choose_common_ranges({"move": ("a", "b")}, members, {"a", "b"}, {"move"})
    assert not refused and ranges == {"a": (0.0, 1.0), "b": (0.0, 1.0)}


def test_groups_with_a_common_tensor_are_one() -> None:
    """Tensors are joined through each other; a refused group leaves the accepted ones as they are."""
    sizes = {"a": 1.0, "b": 1.1, "c": 1.2, "d": 50.0}
    members = {name: member(values(size)) for name, size in sizes.items()}
    wanted = {"first": ("a", "b"), "second": ("c", "d"), "third": ("b", "c")}
    ranges, refused = choose_common_ranges(wanted, members, set("abcd"))
    assert refused == ("second",)
    assert ranges["a"] == ranges["b"] == ranges["c"] and ranges["d"] == members["d"].limits


def test_only_counted_tensors_choose() -> None:
    """An input that nothing else reads is rounded on the grid of its Concat anyway: it has no say."""
    small, large = values(0.01), values(1.0)
    both = np.concatenate([small, large])
    members = {"small": member(small), "both": member(both)}
    ranges, refused = choose_common_ranges({"join": ("small", "both")}, members, {"both"})
    assert refused == () and ranges["small"] == ranges["both"] == members["both"].limits
    assert choose_common_ranges({"join": ("small", "both")}, members, {"both", "small"})[1] == ("join",)


def test_dead_tensors() -> None:
    """Tensors of nothing but 0 have no noise, and share any range."""
    members = {"a": member(np.zeros(10, np.float32)), "b": member(values(1.0))}
    ranges, refused = choose_common_ranges({"join": ("a", "b")}, members, {"a", "b"})
    assert refused == () and ranges["a"] == ranges["b"] == members["b"].limits
