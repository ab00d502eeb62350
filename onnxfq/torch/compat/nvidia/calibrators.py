"""Calibrators of `pytorch_quantization.calib`, which turn the tensors that they see into an amax."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from onnxfq.calibration.calibrators.entropy import divergences
from onnxfq.errors import ArgumentError, SpecError, StatisticsError, nearest
from onnxfq.torch.arguments import checked, checked_methods
from onnxfq.torch.compat.nvidia.amax import Axes, amax_by_index, reduce_amax
from onnxfq.torch.compat.nvidia.tensor_quant import fake_tensor_quant, scaled_e4m3


class _Calibrator:
    """Turns the tensors that it sees into an amax.

    Args:
        num_bits: bits of the grid.
        axis: axes with an amax for each index; None for one amax.
        unsigned: whether the grid has no negative integers.
    """

    def __init__(self, num_bits: Any, axis: Any, unsigned: bool) -> None:
        """Hold the settings."""
        self._num_bits, self._axis, self._unsigned = num_bits, axis, unsigned


@checked_methods("__init__", "collect", "compute_amax")
class MaxCalibrator(_Calibrator):
    """Largest magnitude of all tensors, for each index of `axis`.

    Args:
        num_bits: has no effect here.
        axis: axes with an amax for each index; None for one amax.
        unsigned: has no effect here.
        track_amax: keep the amax of each tensor in `amaxs`.
    """

    def __init__(
        self, num_bits: Any = 8, axis: Axes = None, unsigned: bool = False, track_amax: bool = False
    ) -> None:
        """Start without a tensor."""
        super().__init__(num_bits, axis, unsigned)
        self._track_amax = track_amax
        self._calib_amax: Tensor | None = None
        self.amaxs: list[NDArray[Any]] = []

    def reset(self) -> None:
        """Forget all tensors."""
        self._calib_amax = None

    def collect(self, x: Tensor) -> None:
        """Take x into account. Raises StatisticsError if its amax has another shape than before."""
        amax = amax_by_index(x, self._axis)
        seen = self._calib_amax
        if seen is not None and seen.shape != amax.shape:
            raise StatisticsError(
                f"amax shape changed from {list(seen.shape)} to {list(amax.shape)}; call reset() before it"
            )
        self._calib_amax = amax if seen is None else torch.maximum(seen, amax)
        if self._track_amax:
            self.amaxs.append(amax.cpu().numpy())

    def compute_amax(self) -> Tensor | None:
        """Return the magnitudes; None without a tensor."""
        return self._calib_amax

    def __repr__(self) -> str:
        """Return the class with its settings and what it found."""
        return f"MaxCalibrator(axis={self._axis}, track_amax={self._track_amax}, amax={self._calib_amax})"


@checked_methods("__init__", "collect", "compute_amax")
class HistogramCalibrator(_Calibrator):
    """Histogram of magnitudes whose bins have the width that the first tensor gives them.

    Args:
        num_bits: bits of the grid that a search rounds to.
        axis: None; there is one histogram.
        unsigned: whether that grid has no negative integers.
        num_bins: bins of the first tensor.
        grow_method: has no effect, as in the original; bins are appended.
        skip_zeros: leave zeros out.
        torch_hist: has no effect: there is one way to count.

    Raises SpecError for an axis and for a number of bins below 1.
    """

    def __init__(
        self, num_bits: Any = 8, axis: Axes = None, unsigned: bool = False, num_bins: int = 2048,
        grow_method: str | None = None, skip_zeros: bool = False, torch_hist: bool = True,
    ) -> None:  # fmt: skip
        """Start without a tensor."""
        if axis is not None:
            raise SpecError(f"HistogramCalibrator has one amax, got axis {axis}; use calib_method='max'")
        if not isinstance(num_bins, int) or num_bins < 1:
            raise SpecError(f"num_bins must be an integer above 0, got {num_bins!r}; leave it out for 2048")
        if grow_method is not None:
            warnings.warn(f"grow_method has no effect, got {grow_method!r}; bins are appended", stacklevel=2)
        super().__init__(num_bits, axis, unsigned)
        self._num_bins, self._skip_zeros, self._torch_hist = num_bins, skip_zeros, torch_hist
        self.reset()

    def reset(self) -> None:
        """Forget all tensors."""
        self._calib_hist: Any = None  # Tensors of counts and edges
        self._calib_bin_edges: Any = None

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def collect(self, x: Tensor) -> None:
        """Count the magnitudes of x; a larger one appends bins.

        Raises StatisticsError for NaN and infinity.
        """
        x = x.detach().abs().float()
        x = x[x != 0] if self._skip_zeros else x
        top = float(x.max()) if x.numel() else 0.0
        if not math.isfinite(top):
            raise StatisticsError("a calibrator saw NaN or infinity; remove the samples that cause them")
        hist, edges = self._calib_hist, self._calib_bin_edges
        if hist is None:
            if top:  # zeros alone give bins no width
                self._calib_hist = torch.histc(x, self._num_bins, 0, top)
                self._calib_bin_edges = torch.linspace(0, top, self._num_bins + 1, device=x.device)
            return
        if top > edges[-1]:
            width = edges[1] - edges[0]
            bins = math.ceil(float(torch.tensor(top) / width.cpu()))
            edges = (torch.arange(bins + 1, dtype=torch.float64, device=edges.device) * width).float()
        counts = torch.histc(x, len(edges) - 1, 0, float(edges[-1])).to(hist.device)
        counts[: len(hist)] += hist
        self._calib_hist, self._calib_bin_edges = counts, edges

    def compute_amax(
        self, method: str = "entropy", *, stride: int = 1, start_bin: int = 128, percentile: float = 99.99
    ) -> Tensor | None:
        """Return one magnitude, or None without a tensor.

        Args:
            method: "entropy", the least Kullback-Leibler divergence; "mse", the least squared error; or
                "percentile".
            stride: bins between two candidates of a search.
            start_bin: number of bins of the first candidate.
            percentile: share of the values below the magnitude, in percent.

        Raises ArgumentError for an unknown method, SpecError for a value out of range.
        """
        if method not in SEARCHES:
            known = nearest(str(method), SEARCHES)
            raise ArgumentError(f"method must be {', '.join(SEARCHES)}, got {method!r}{known}")
        if not (isinstance(percentile, (int, float)) and 0 <= percentile <= 100):
            raise SpecError(f"percentile must be in the range 0 to 100, got {percentile!r}; 99.99 is usual")
        if self._calib_hist is None:
            return None
        bins = len(self._calib_hist)
        if method != "percentile" and (stride < 1 or not 1 <= start_bin < bins):
            raise SpecError(f"stride {stride} must be at least 1, start_bin {start_bin} from 1 to {bins - 1}")
        wanted = percentile if method == "percentile" else range(start_bin, bins + 1, stride)
        return SEARCHES[method](self._calib_hist, self._calib_bin_edges, wanted, self)

    def __repr__(self) -> str:
        """Return the class with its settings and its bins."""
        edges = self._calib_bin_edges
        bins = "none" if edges is None else f"{len(edges) - 1} from 0 to {float(edges[-1]):.3f}"
        return f"HistogramCalibrator(num_bits={self._num_bits}, unsigned={self._unsigned}, bins={bins})"


_AT_ONCE = 256
"""Candidates that are tried in one tensor: some megabytes."""


def _entropy(hist: Tensor, edges: Tensor, ends: range, grid: _Calibrator) -> Tensor:
    bits = grid._num_bits
    if not isinstance(bits, int):
        raise SpecError(f"entropy needs an integer grid, got num_bits {bits}; use mse or percentile")
    counts = hist.double().cpu().numpy().copy()
    counts[0] = counts[1]  # zeros are exact in any grid
    tried = np.array(ends)[::-1]  # the widest of equal ones
    found = divergences(counts, np.zeros_like(tried), tried, 1 << (bits - (not grid._unsigned)))
    return edges[tried[int(np.argmin(found))]].clone()


def _mse(hist: Tensor, edges: Tensor, ends: range, grid: _Calibrator) -> Tensor:
    bits, unsigned = grid._num_bits, grid._unsigned
    centres = (edges[1:] + edges[:-1]) / 2
    tried = centres[ends.start :: ends.step]
    errors = []
    for amax in tried[:, None].split(_AT_ONCE):
        integers = isinstance(bits, int)
        rounded = fake_tensor_quant(centres, amax, bits, unsigned) if integers else scaled_e4m3(centres, amax)
        errors.append(((rounded - centres) ** 2 * hist).mean(1))
    return tried[torch.cat(errors).argmin()].clone()


def _percentile(hist: Tensor, edges: Tensor, percentile: float, _: _Calibrator) -> Tensor:
    counts = hist.double().cpu().numpy()
    below = np.cumsum(counts / counts.sum())
    return edges[int(np.searchsorted(below, percentile / 100))].clone()


SEARCHES: dict[str, Callable[..., Tensor]] = {"entropy": _entropy, "mse": _mse, "percentile": _percentile}
CALIBRATORS: dict[str, Any] = {"max": MaxCalibrator, "histogram": HistogramCalibrator}


@checked
@torch.no_grad()  # type: ignore[untyped-decorator]
def calibrate_weights(
    model: nn.Module,
    method: str = "percentile",
    perchannel: bool = True,
    percentile: float = 99.99,
    num_bins: int = 2048,
) -> None:
    """Set the amax of every `weight_quantizer` from its weight.

    Args:
        model: the module with quantized layers.
        method: "max", "mse" or "percentile".
        perchannel: one amax for each output channel, else one for each weight.
        percentile: share of the magnitudes below amax, in percent.
        num_bins: bins of each histogram.

    Raises ArgumentError for another method.
    """
    if method not in ("max", "mse", "percentile"):
        raise ArgumentError(f"method must be max, mse or percentile, got {method!r}; entropy has no weights")
    for module in model.modules():
        quantizer, weight = getattr(module, "weight_quantizer", None), getattr(module, "weight", None)
        if quantizer is None or not isinstance(weight, Tensor):
            continue
        axis = None if not perchannel else 1 if getattr(module, "transposed", False) else 0
        if method == "max":
            quantizer.amax = amax_by_index(weight, axis)
            continue
        parts = [weight] if axis is None else weight.unbind(axis)
        found = [_search_weight(part, quantizer, method, percentile, num_bins) for part in parts]
        shape = [n if d == axis else 1 for d, n in enumerate(weight.shape)] if perchannel else []
        quantizer.amax = torch.stack(found).reshape(shape)


def _search_weight(part: Tensor, quantizer: Any, method: str, percentile: float, num_bins: int) -> Tensor:
    calibrator = HistogramCalibrator(quantizer.num_bits, None, quantizer.unsigned, num_bins)
    calibrator.collect(part)
    amax = calibrator.compute_amax(method, percentile=percentile)
    return reduce_amax(part) if amax is None else amax  # all zero
