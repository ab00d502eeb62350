"""AIMET's document: statistics of the data that a quantizer sees, which its analyzer turns into a range."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from onnxfq.errors import DataError, SpecError
from onnxfq.torch.compat.aimet.functions import Blocks, split_blocks

Shape = int | Sequence[int]


@dataclass
class EndsSeen:
    """Smallest and largest values, in the analyzer's shape; None before the first data.

    Attributes:
        min: smallest values.
        max: largest values.
    """

    min: Any = None
    max: Any = None


@dataclass
class BinsSeen:
    """Histogram of the values that share a scale; None before the first data.

    Attributes:
        histogram: count of each bin; values beyond the edges are in the outer bins.
        bin_edges: lower edges of the bins, and the upper edge of the last one.
        min: smallest finite value, or the edge to which the histogram has grown.
        max: largest finite value, likewise.
    """

    histogram: Any = None
    bin_edges: Any = None
    min: Any = None
    max: Any = None


class _Observer:
    """Statistics of all data.

    Attributes:
        shape: one value for each scale.
        block_size: as in the quantizer.
        stats: what was seen since the last reset; histograms in the order of the flattened shape.
    """

    stats: Any

    def __init__(self, shape: Shape, block_size: Blocks = None) -> None:
        """Start without data."""
        self.shape, self.block_size = as_shape(shape), block_size
        self.reset_stats()

    def reset_stats(self) -> None:
        """Forget all data."""
        self.stats = EndsSeen()

    def get_stats(self) -> Any:
        """Return what was seen."""
        return self.stats

    def _rows(self, x: Tensor) -> Tensor:
        """Return the elements of x that share a scale as rows, in the order of the flattened shape."""
        seen, target = split_blocks(x, self.shape, self.block_size)
        full = (1,) * (seen.ndim - len(target)) + target
        order = sorted(range(seen.ndim), key=lambda d: full[d] == 1)
        return seen.permute(order).reshape(math.prod(target), -1)


class EndsObserver(_Observer):
    """Smallest and largest values of all data."""

    def collect_stats(self, x: Tensor) -> EndsSeen:
        """Return the statistics of one tensor. Raises SpecError for one that does not fit the shape."""
        with torch.no_grad():
            ends = (end(self._rows(x), dim=1) for end in (torch.amin, torch.amax))
            return EndsSeen(*(end.reshape(self.shape) for end in ends))

    def merge_stats(self, stats: EndsSeen) -> None:
        """Add the statistics of a tensor."""
        known = self.stats
        low = stats.min if known.min is None else torch.minimum(known.min, stats.min)
        high = stats.max if known.max is None else torch.maximum(known.max, stats.max)
        self.stats = EndsSeen(low, high)


def as_shape(shape: Shape) -> tuple[int, ...]:
    """Return a shape as a tuple; a number is a shape of one axis."""
    return (shape,) if isinstance(shape, int) else tuple(shape)


class BinsObserver(_Observer):
    """Histograms of all data, whose edges grow with it, as AIMET's.

    Attributes:
        num_bins: bins of a histogram.
        growth_limit: how far the edges may grow in all, in widths of the first data.
    """

    def __init__(
        self, shape: Shape, num_bins: int, growth_limit: float | None = None, block_size: Blocks = None
    ) -> None:
        """Start without data. Raises SpecError for less than one bin, or a limit below 1."""
        if not isinstance(num_bins, int) or num_bins < 1:
            raise SpecError(f"num_bins must be an integer above 0, found {num_bins!r}; give another one")
        if growth_limit is not None and not growth_limit >= 1:
            raise SpecError(f"the growth limit must be at least 1, found {growth_limit}; give another one")
        self.num_bins = num_bins
        self.growth_limit = math.inf if growth_limit is None else float(growth_limit)
        self._limits: list[tuple[Tensor, Tensor]] = []
        super().__init__(shape, block_size)

    def collect_stats(self, x: Tensor) -> list[BinsSeen]:
        """Return the histograms of one tensor.

        Raises SpecError for one that does not fit the shape, DataError without a finite value.
        """
        with torch.no_grad():
            return [self._count(part) for part in self._rows(x)]

    def _count(self, x: Tensor) -> BinsSeen:
        finite = x.isfinite()
        if not finite.any():
            raise DataError("a histogram needs a finite value, found none; remove such samples")
        low = torch.where(finite, x, math.inf).min()
        high = torch.where(finite, x, -math.inf).max()
        edges = self._edges(low, high)
        return BinsSeen(self._counts(x, edges[0], edges[-1]), edges, low, high)

    def _counts(self, x: Tensor, low: Tensor, high: Tensor, before: Any = 0) -> Tensor:
        counts = torch.histc(x.float(), self.num_bins, low, high) + before
        counts[0] += (x < low).sum()
        counts[-1] += (x > high).sum()
        return counts

    def _edges(self, low: Tensor, high: Tensor) -> Tensor:
        # torch.histc widens a single value in this way.
        wide = torch.tensor(0.5, dtype=low.dtype) if low == high else 0
        first, last = (low - wide).float(), (high + wide).float()
        step = (last - first) / self.num_bins
        return torch.arange(self.num_bins + 1, device=low.device) * step + first

    def merge_stats(self, stats: list[BinsSeen], x: Tensor) -> None:
        """Add the histograms of a tensor; new edges count the tensor again, and move the bins so far."""
        with torch.no_grad():
            if self.stats[0].histogram is None:
                self.stats = stats
                ends = [(one.bin_edges[0], one.bin_edges[-1]) for one in stats]
                reach = [(high - low) * self.growth_limit / 2 for low, high in ends]
                self._limits = [(e[0] - far, e[1] + far) for e, far in zip(ends, reach, strict=True)]
                return
            parts = zip(self.stats, stats, self._rows(x), self._limits, strict=True)
            self.stats = [self._merge(*part) for part in parts]

    def _merge(self, known: BinsSeen, new: BinsSeen, x: Tensor, limits: tuple[Tensor, Tensor]) -> BinsSeen:
        low = new.min.clamp(limits[0], known.bin_edges[0])
        high = new.max.clamp(known.bin_edges[-1], limits[1])
        same = bool(low == known.min and high == known.max)
        before = known.histogram if same else self._rebin(known, low, high)
        return BinsSeen(self._counts(x, low, high, before), self._edges(low, high), low, high)

    def _rebin(self, known: BinsSeen, low: Tensor, high: Tensor) -> Tensor:
        """Return the counts in bins between new ends; a bin that covers two is split by its share."""
        width, start = (high - low) / self.num_bins, known.bin_edges[:-1]
        old_width = known.bin_edges[1] - known.bin_edges[0]
        last = torch.full(start.shape, self.num_bins - 1, device=start.device)

        def number(edge: Tensor) -> Tensor:
            return torch.minimum(((edge - low) / width).to(torch.int32), last)

        first = number(start)
        share = (low + width * (first + 1) - start) / old_width
        kept = torch.minimum(torch.round(share * known.histogram), known.histogram)
        counts = torch.zeros(self.num_bins, device=start.device)
        counts.index_add_(0, first, kept.float())
        moved = (kept < known.histogram).nonzero().flatten()
        counts.index_add_(0, number(start + width)[moved], (known.histogram - kept)[moved].float())
        return counts

    def reset_stats(self) -> None:
        """Forget all data."""
        self.stats = [BinsSeen() for _ in range(math.prod(self.shape))]
        self._limits = []
