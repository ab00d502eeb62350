"""AIMET's document: analyzers, which turn data into the range of a quantizer.

They give the ranges of aimet-torch 2.42, bit for bit. An own analyzer derives from `EncodingAnalyzer`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from onnxfq.errors import SpecError, StatisticsError
from onnxfq.torch.arguments import checked_methods
from onnxfq.torch.compat.aimet.statistics import BinsObserver, BinsSeen, EndsObserver, EndsSeen

Ends = tuple[Tensor, Tensor]
Bins = list[BinsSeen]


def smallest_scale(steps: float) -> float:
    """Return AIMET's least scale: 2^-23, or less where a grid of so many steps spans more than 0.01."""
    return min(2.0**-23, 0.01 / steps)


class StatisticsNotFoundError(StatisticsError):
    """An analyzer has seen no data."""


@checked_methods("update_stats", "compute_encodings", "compute_dynamic_encodings")
class EncodingAnalyzer(ABC):
    """Base of analyzers; a quantizer calls these methods of a subclass.

    Attributes:
        observer: gathers the statistics; it has `collect_stats`, `merge_stats`, `reset_stats`, `get_stats`
            and the `shape` of the range.
    """

    def __init__(self, observer: Any) -> None:
        """Take the observer."""
        self.observer = observer

    def update_stats(self, input_tensor: Tensor) -> Any:
        """Add a tensor to the statistics, and return its own."""
        stats = self.observer.collect_stats(input_tensor)
        self.observer.merge_stats(stats)
        return stats

    def reset_stats(self) -> None:
        """Forget all data."""
        self.observer.reset_stats()

    def compute_encodings(self, num_steps: float, is_symmetric: bool) -> Ends:
        """Return (min, max) of all data.

        Args:
            num_steps: steps of the grid, qmax - qmin.
            is_symmetric: whether the offset is fixed.

        Raises StatisticsNotFoundError before the first data, SpecError for a grid without a step.
        """
        return self.compute_encodings_from_stats(self.observer.get_stats(), num_steps, is_symmetric)

    def compute_dynamic_encodings(self, input_tensor: Tensor, num_steps: float, is_symmetric: bool) -> Ends:
        """Return (min, max) of one tensor, which is not added to the statistics."""
        stats = self.observer.collect_stats(input_tensor)
        return self.compute_encodings_from_stats(stats, num_steps, is_symmetric)

    @abstractmethod
    def compute_encodings_from_stats(self, stats: Any, num_steps: float, is_symmetric: bool) -> Ends:
        """Return (min, max) of statistics."""


def _stack(stats: Bins) -> tuple[Tensor, Tensor]:
    """Return the counts and the edges of histograms, one in a row."""
    return torch.stack([one.histogram for one in stats]), torch.stack([one.bin_edges for one in stats])


def _check(known: object, num_steps: float) -> None:
    if not num_steps > 0:
        raise SpecError(f"a grid needs a positive number of steps, found {num_steps}; give another one")
    if known is None:
        raise StatisticsNotFoundError("the analyzer saw no data; run some inside compute_encodings")


def _symmetric_ends(low: Tensor, high: Tensor, steps: float, extra: int = 0) -> Ends:
    """Return the ends of the least grid around 0 that holds both; `extra` steps are counted above 0."""
    positive, negative = steps // 2, steps - steps // 2
    delta = torch.maximum(high / (positive + extra), -low / negative)
    return -negative * delta, positive * delta


def _widen(low: Tensor, high: Tensor, steps: float, is_symmetric: bool, early: bool = False) -> Ends:
    """Return ends at least the smallest scale times the steps apart; low <= 0 <= high.

    AIMET rounds the scale to float32 before the product, or with `early` the product: one bit may differ.
    """
    least = smallest_scale(steps)
    short = (high - low) / steps < least

    def more(count: float) -> Tensor:
        return count * least * short if early else count * (least * short)

    if is_symmetric:
        return low - more(steps - steps // 2), high + more(steps // 2)
    return low, high + more(steps)


@checked_methods("__init__")
class MinMaxEncodingAnalyzer(EncodingAnalyzer):
    """Smallest and largest value, and 0."""

    def __init__(self, shape: int | Sequence[int], block_size: Sequence[int] | None = None) -> None:
        """Make an analyzer for ranges of `shape`, with the quantizer's block_size."""
        super().__init__(EndsObserver(shape, block_size))

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def compute_encodings_from_stats(self, stats: EndsSeen, num_steps: float, is_symmetric: bool) -> Ends:
        """Return (min, max), of the data's type; infinities become its largest number."""
        _check(stats.min, num_steps)
        low, high = _widen(stats.min.clamp(max=0), stats.max.clamp(min=0), num_steps, is_symmetric)
        if is_symmetric:  # two bits have one step above 0, which alone would widen the range twice
            low, high = _symmetric_ends(low, high, num_steps, extra=int(num_steps == 3))
        dtype = stats.min.dtype
        finite = torch.finfo(dtype)
        return low.clamp(min=finite.min).to(dtype), high.clamp(max=finite.max).to(dtype)


@checked_methods("update_stats")
class _BinsAnalyzer(EncodingAnalyzer):
    """Analyzer of histograms."""

    def update_stats(self, input_tensor: Tensor) -> Bins:
        """Add a tensor to the histograms, and return its own."""
        stats: Bins = self.observer.collect_stats(input_tensor)
        self.observer.merge_stats(stats, input_tensor)
        return stats

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def compute_encodings_from_stats(self, stats: Bins, num_steps: float, is_symmetric: bool) -> Ends:
        """Return (min, max) of histograms."""
        _check(stats[0].histogram, num_steps)
        low, high = self._search(stats, num_steps, is_symmetric)
        dtype, shape = stats[0].min.dtype, self.observer.shape
        return low.to(dtype).reshape(shape), high.to(dtype).reshape(shape)

    @abstractmethod
    def _search(self, stats: Bins, num_steps: float, is_symmetric: bool) -> Ends:
        """Return the range of each histogram, in a row."""


@checked_methods("__init__", "set_percentile")
class PercentileEncodingAnalyzer(_BinsAnalyzer):
    """Range without the largest and the smallest 100 - percentile % of the values.

    Attributes:
        percentile: from 50 to 100.
    """

    def __init__(
        self,
        shape: int | Sequence[int],
        num_bins: int = 2048,
        percentile: float = 100,
        block_size: Sequence[int] | None = None,
    ) -> None:
        """Make an analyzer. Raises SpecError for less than one bin, or a percentile outside 50 to 100."""
        super().__init__(BinsObserver(shape, num_bins, block_size=block_size))
        self.set_percentile(percentile)

    def set_percentile(self, percentile: float) -> None:
        """Set the percentile. Raises SpecError outside 50 to 100."""
        if not 50 <= percentile <= 100:
            raise SpecError(f"percentile must be from 50 to 100, found {percentile}; give another one")
        self.percentile = percentile

    def _search(self, stats: Bins, num_steps: float, is_symmetric: bool) -> Ends:
        """Return edges of bins, with 0 between them."""
        counts, edges = _stack(stats)
        low, high = edges[:, :1], edges[:, -1:]
        if self.percentile != 100:
            below = counts.cumsum(1)
            ends = below[:, -1:] * (1 - self.percentile / 100), below[:, -1:] * (self.percentile / 100)
            low, high = (edges.gather(1, torch.searchsorted(below, end)) for end in ends)
        finite = torch.finfo(low.dtype)
        low, high = _widen(low.clamp(finite.min, 0), high.clamp(0, finite.max), num_steps, is_symmetric, True)
        return _symmetric_ends(low, high, num_steps) if is_symmetric else (low, high)


@checked_methods("__init__")
class SqnrEncodingAnalyzer(_BinsAnalyzer):
    """Range of least squared error among candidates, with the error of clipped values times gamma.

    Attributes:
        asym_delta_candidates: scales that are tried for an asymmetric range.
        sym_delta_candidates: scales that are tried for a symmetric one.
        num_offset_candidates: offsets that are tried with each scale.
        max_parallelism: histograms that are searched together; more need more memory.
        gamma: factor of the error of clipped values.
    """

    def __init__(
        self,
        shape: int | Sequence[int],
        num_bins: int = 2048,
        *,
        asymmetric_delta_candidates: int = 17,
        symmetric_delta_candidates: int = 101,
        offset_candidates: int = 21,
        max_parallelism: int = 64,
        gamma: float = 3.0,
        histogram_growth_limit: float | None = None,
        block_size: Sequence[int] | None = None,
    ) -> None:
        """Make an analyzer. Raises SpecError for less than one bin, or a growth limit below 1."""
        super().__init__(BinsObserver(shape, num_bins, histogram_growth_limit, block_size))
        self.asym_delta_candidates = asymmetric_delta_candidates
        self.sym_delta_candidates = symmetric_delta_candidates
        self.num_offset_candidates, self.max_parallelism = offset_candidates, max_parallelism
        self.gamma = gamma

    def _search(self, stats: Bins, num_steps: float, is_symmetric: bool) -> Ends:
        """Return multiples of one scale."""
        found = []
        for first in range(0, len(stats), self.max_parallelism):
            part = stats[first : first + self.max_parallelism]
            low = torch.stack([one.min for one in part]).clamp(max=0)
            high = torch.stack([one.max for one in part]).clamp(min=0)
            high = torch.maximum(high, low + smallest_scale(num_steps) * num_steps)
            candidates = self._symmetric if is_symmetric else self._asymmetric
            found.append(self._best(*candidates(low, high, num_steps), part, num_steps))
        delta, offset = (torch.cat(column) for column in zip(*found, strict=True))
        return offset * delta, offset * delta + num_steps * delta

    def _symmetric(self, low: Tensor, high: Tensor, steps: float) -> Ends:
        """Return scales and offsets of shape [histograms, scales, offsets]."""
        widest = 2 * torch.maximum(high, -low).float() / steps
        deltas = self._fractions(widest, self.sym_delta_candidates).clamp(min=smallest_scale(steps))
        return deltas[:, :, None], torch.full((len(low), 1, 1), float(-steps // 2), device=low.device)

    def _asymmetric(self, low: Tensor, high: Tensor, steps: float) -> Ends:
        widest = (high - low).float() / steps
        own = torch.round(low / widest)
        lowest = widest * own
        highest = lowest + widest * steps
        deltas = self._fractions(widest, self.asym_delta_candidates)
        apart = steps / (min(steps + 2, self.num_offset_candidates) - 2)
        offsets = torch.round(torch.arange(-steps, apart, apart, dtype=torch.float32, device=low.device))
        offsets = torch.cat([offsets.expand(len(low), -1), own[:, None]], dim=1)
        starts = deltas[:, :, None] * offsets[:, None, :]
        ends = torch.minimum(highest[:, None, None], starts + deltas[:, :, None] * steps)
        starts = torch.maximum(lowest[:, None, None], starts)
        deltas = ((ends - starts) / steps).clamp(min=smallest_scale(steps))
        return deltas, torch.round(starts / deltas)

    @staticmethod
    def _fractions(widest: Tensor, count: int) -> Tensor:
        """Return `count` multiples of the widest scale / (count - 1), the last one above it."""
        parts = torch.arange(1, 1 + count, dtype=torch.float32, device=widest.device)
        return widest[:, None] * parts[None, :] / (count - 1)

    def _best(self, deltas: Tensor, offsets: Tensor, stats: Bins, steps: float) -> Ends:
        """Return the scale and offset of least error for each histogram; values lie in the middle of bins."""
        deltas, offsets = torch.broadcast_tensors(deltas, offsets)
        counts, edges = _stack(stats)
        width = (edges[:, 1] - edges[:, 0])[:, None]
        numbers = torch.arange(counts.shape[1], dtype=deltas.dtype, device=deltas.device)
        middle = ((edges[:, :1] + width / 2) + width * numbers)[:, None, None, :]
        delta, offset = deltas[..., None], offsets[..., None]
        level = middle.div(delta).sub(offset).round()
        clipped = (level < 0) | (level > steps)
        error = level.clamp_(0, steps).add_(offset).mul_(delta).sub_(middle)
        error = error.abs_().pow_(2.0).mul_(counts[:, None, None, :])
        noise = torch.where(clipped, error * self.gamma, error).sum(-1)
        least = noise.flatten(1).min(dim=1).indices[:, None]
        return deltas.flatten(1).gather(1, least), offsets.flatten(1).gather(1, least)


@checked_methods("__init__")
class TfEnhancedEncodingAnalyzer(SqnrEncodingAnalyzer):
    """The `tf_enhanced` scheme: least error over 512 bins, which grow by at most three widths."""

    def __init__(self, shape: int | Sequence[int], block_size: Sequence[int] | None = None) -> None:
        """Make an analyzer for ranges of `shape`."""
        super().__init__(shape, 512, histogram_growth_limit=3.0, block_size=block_size)
