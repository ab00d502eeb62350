"""Factors of channels: powers of two that lower the expected error of quantized products."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product as product_of
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from onnxfq.numerics.granularity import PER_TENSOR, Granularity
from onnxfq.numerics.layout import Layout
from onnxfq.numerics.metrics import ratio_db
from onnxfq.numerics.qtypes import QType

Exponents = NDArray[np.int64]
"""log2 of the factor of every variable; 0 for the variable with the factor 1."""

ALPHAS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
"""Shares of the difference between channels that weights take over from activations."""

_MOST_WORK, _LEAST_WORK = 1 << 22, 1 << 14
"""Elements of weights that the steps of a group's channels may read, a sixteenth of a second.

The second are those that take as long to read as a call takes to start."""


@dataclass(frozen=True)
class FactorFormat:
    """How a tensor is quantized, as far as the expected error depends on it.

    Attributes:
        qtype: number format; None for a tensor in float.
        granularity: elements that share a scale.
        octaves: most that scales of elements are apart; None without a limit.
    """

    qtype: QType | None
    granularity: Granularity = PER_TENSOR
    octaves: int | None = None

    def noise(self, magnitudes: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the expected squared error of tensors with these largest magnitudes by element.

        A uniform grid has the error step^2 / 12. A float of m bits after the point has one in proportion to
        its value, which factors do not change, and a uniform grid below its smallest normal number.
        """
        if self.qtype is None:
            return np.zeros_like(magnitudes)
        layout = Layout(self.granularity, magnitudes.shape)
        top = layout.reduce(np.maximum, magnitudes, 0.0)
        if self.octaves is not None:
            top = np.maximum(top, np.ldexp(top.max(initial=0.0), -self.octaves))
        steps = self.qtype.qmax
        if self.qtype.layout is not None:
            least = 1 - self.qtype.layout.bias - self.qtype.layout.mantissa_bits
            steps = self.qtype.qmax * 2.0**-least
        elif not self.qtype.signed:
            steps = self.qtype.qmax / 2.0  # a range of both signs takes both halves
        uniform = layout.expand(np.square(top / steps) / 12.0)
        if self.qtype.layout is None:
            return uniform
        return uniform + np.square(magnitudes * 2.0 ** -(self.qtype.layout.mantissa_bits + 1)) / 12.0


@dataclass(frozen=True)
class FactorTensor:
    """A quantized tensor with channels of a group.

    Attributes:
        ids: variable of each channel, [C].
        amax: largest magnitude of each channel, [C].
        square: mean square of each channel, [C].
        live: share of each channel's values that are not 0, [C].
        activation: its format.
    """

    ids: NDArray[np.int64]
    amax: NDArray[np.float64]
    square: NDArray[np.float64]
    live: NDArray[np.float64]
    activation: FactorFormat

    def input_noise(self, exponents: Exponents) -> NDArray[np.float64]:
        """Return the expected squared error of each channel, factors divided out, [C]."""
        up = exponents[self.ids]
        grid = np.ldexp(self.activation.noise(np.ldexp(self.amax, up)), -2 * up)
        return np.minimum(grid * self.live, self.square)


@dataclass(frozen=True)
class FactorProduct(FactorTensor):
    """A product that sums over channels of a group, and its input.

    Attributes:
        weight: the values.
        layout: channel of each element of `weight`, broadcastable to it.
        made: variable of each output channel of `weight`, likewise.
        constant: format of the weight.
        passes: whether a sum reads the quantized input too, so that its error reaches the group's products.
    """

    weight: NDArray[np.float64]
    layout: NDArray[np.int64]
    made: NDArray[np.int64]
    constant: FactorFormat
    passes: bool = False

    def columns(self, values: NDArray[np.float64], function: np.ufunc) -> NDArray[np.float64]:
        """Return `function` over the elements of `weight`-shaped `values` that meet each channel, [C]."""
        shared = tuple(axis for axis, size in enumerate(self.layout.shape) if size == 1)
        found = np.zeros(len(self.ids))
        function.at(found, self.layout.reshape(-1), function.reduce(values, shared).reshape(-1))
        return found

    @cached_property
    def magnitude(self) -> NDArray[np.float64]:
        """Magnitudes of `weight`."""
        return np.abs(self.weight)

    @cached_property
    def power(self) -> NDArray[np.float64]:
        """Sum of the squared weights that meet each channel, [C]."""
        return self.columns(np.square(self.weight), np.add)

    @cached_property
    def signal(self) -> float:
        """Expected square of the output, summed over its channels."""
        return float(self.square @ self.power)

    def noise(self, exponents: Exponents) -> float:
        """Return the expected squared error of the output over its expected square.

        Both errors are taken as independent of each other and of the values, and channels as uncorrelated. A
        value loses at most itself by rounding to nearest, and a 0 nothing.
        """
        if not self.signal > 0.0:
            return 0.0
        lost = float(self.input_noise(exponents) @ self.power)
        return (float(self.weight_noise(exponents).sum()) + lost) / self.signal

    def weight_noise(self, exponents: Exponents) -> NDArray[np.float64]:
        """Return the expected squared error that each weight adds to its output, factors divided out."""
        up, made = exponents[self.ids][self.layout], exponents[self.made]
        factors = np.ldexp(1.0, made) * np.ldexp(1.0, -up)  # small, unlike exponents of all elements
        noise = self.constant.noise(self.magnitude * factors)
        return np.asarray(noise * (np.ldexp(self.square[self.layout], 2 * up) * np.ldexp(1.0, -2 * made)))

    def importance(self, count: int) -> NDArray[np.float64]:
        """Return the share of the output's square that an error of 1 in each variable's channel makes."""
        found = np.zeros(count)
        if self.signal > 0.0:
            np.add.at(found, self.ids, self.power / self.signal)
        return found


@dataclass(frozen=True)
class Choice:
    """The factors of a group.

    Attributes:
        exponents: of every variable of the group, in its order.
        alpha: which share; None for none.
        before_db: expected ratio of signal to noise of the group's products without factors.
        after_db: the same with them.
    """

    exponents: Exponents
    alpha: float | None
    before_db: float
    after_db: float


class FactorStart(NamedTuple):
    """Factors that were tried, and the noise that they are expected to leave."""

    noise: float
    exponents: Exponents
    alpha: float | None


def choose_factors(
    classes: NDArray[np.int64],
    products: Sequence[FactorProduct],
    writers: Sequence[FactorProduct],
    made_by: NDArray[np.float64],
    most: int,
    alphas: Sequence[float] = ALPHAS,
    known: Exponents | None = None,
    steps: bool = False,
    carried: Sequence[FactorTensor] = (),
) -> Choice:
    """Return the factors of the least expected error among `alphas` and none at all.

    Channel j is divided by max|x_j|^alpha / max|w_j|^(1 - alpha), SmoothQuant's formula (G. Xiao et al.,
    2023), which is Cross-layer equalization (M. Nagel et al., 2019) for alpha 0.5. The factor is rounded down
    to a power of two, which changes no bit of a float's fraction.

    Args:
        classes: the variables, ascending.
        products: what reads the group's channels.
        writers: products that make the group's channels with weights whose error depends on the factors.
        made_by: largest magnitude of the weights that make each variable, which may stand for the range of
            the activations; zeros to go by activations alone.
        most: largest exponent, up or down from the middle.
        alphas: the grid.
        steps: lower the expected error further by steps of an octave in single channels.
        known: exponents of all variables that are chosen already; those of `classes` are replaced.
        carried: quantized tensors whose error reaches the products through sums.
    """
    ids = [ids for p in (*products, *writers) for ids in (p.ids, p.made)] + [one.ids for one in carried]
    count = 1 + max(int(one.max(initial=0)) for one in ids)
    base = np.zeros(max(count, int(classes.max(initial=0)) + 1), np.int64)
    if known is not None:
        base[: len(known)] = known[: len(base)]
    base[classes] = 0
    top_x, top_w = np.zeros(len(classes)), np.zeros(len(classes))
    for product in products:
        mine = np.isin(product.ids, classes)
        at = np.searchsorted(classes, product.ids[mine])
        amax = product.columns(product.magnitude, np.maximum)
        np.maximum.at(top_x, at, product.amax[mine])
        np.maximum.at(top_w, at, amax[mine] / max(float(amax.max(initial=0.0)), np.finfo(float).tiny))
    importance = sum((product.importance(len(base)) for product in products), np.zeros(len(base)))
    summed: list[tuple[FactorTensor, NDArray[np.float64]]] = [(one, importance) for one in carried]
    summed += [(p, importance - p.importance(len(base))) for p in products if p.passes]

    def expect(candidate: Exponents) -> float:
        exponents = base.copy()
        exponents[classes] = candidate
        made = sum(float((w.weight_noise(exponents) * importance[w.made]).sum()) for w in writers)
        passed = sum(float(p.input_noise(exponents) @ others[p.ids]) for p, others in summed)
        return sum(product.noise(exponents) for product in products) + made + passed

    before = expect(np.zeros(len(classes), np.int64))
    found = [FactorStart(before, np.zeros(len(classes), np.int64), None)]
    for tops, alpha in product_of((top_x, made_by) if made_by.any() else (top_x,), alphas):
        candidate = _exponents(tops, top_w, alpha, most)
        found.append(FactorStart(expect(candidate), candidate, alpha))
    found.sort(key=lambda trial: trial.noise)  # stable: none comes first, then small alphas
    best = found[0]
    if best.alpha is not None and steps:
        work = sum(max(product.weight.size, _LEAST_WORK) for product in (*products, *writers))
        best = _step_channels(found, expect, most, _MOST_WORK // work)
    share = len(products)
    return Choice(best.exponents, best.alpha, ratio_db(share, before), ratio_db(share, best.noise))


def _step_channels(
    starts: Sequence[FactorStart], expect: Callable[[Exponents], float], most: int, tries: int
) -> FactorStart:
    """Return the trial of least noise that steps of single channels reach from `starts`, the best one first.

    The channels furthest from the middle come first, since they make the scales.
    """
    best = starts[0]
    for start in starts:
        moved, found = start.alpha is not None, start
        while moved and tries > 0:
            moved = False
            order = np.argsort(-np.abs(found.exponents - np.median(found.exponents)), kind="stable")
            for channel, step in product_of(order[: (tries + 1) // 2], (1, -1)):
                tries -= 1
                moves = found.exponents.copy()
                moves[channel] += step
                noise = expect(moves) if abs(moves[channel]) <= most else np.inf
                if noise < found.noise:
                    found, moved = FactorStart(noise, moves, found.alpha), True
        best = min(best, found, key=lambda trial: trial.noise)
    return best


def _exponents(top_x: NDArray[np.float64], top_w: NDArray[np.float64], alpha: float, most: int) -> Exponents:
    live = (top_x > 0.0) & (top_w > 0.0) & np.isfinite(top_x)
    if not live.any():
        return np.zeros(len(top_x), np.int64)
    wanted = (1.0 - alpha) * np.log2(np.where(live, top_w, 1.0)) - alpha * np.log2(np.where(live, top_x, 1.0))
    middle = np.median(wanted[live])
    found = np.floor(wanted - wanted[live].max()) - np.floor(middle - wanted[live].max())
    # A channel that is always 0 may not widen the scales of weights: its own get the size of the others.
    still = (top_x == 0.0) & (top_w > 0.0)
    usual = np.median(np.log2(top_w[live]) - found[live])
    found[still] = np.maximum(np.rint(np.log2(top_w[still]) - usual), 0)
    return np.where(live | still, np.clip(found, -most, most), 0).astype(np.int64)
