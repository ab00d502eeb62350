"""Observers of fake quantizers: a range for each group that shares a scale.

| name               | range                                                   | while it observes        |
|--------------------|---------------------------------------------------------|--------------------------|
| minmax             | all tensors seen                                        | up to date               |
| moving_average:c   | r + c (r of this tensor - r), torch's rule; c is 0.01   | up to date               |
| latest             | the last tensor seen, by the calibrator                 | up to date for minmax    |
| histogram          | statistics of all tensors seen, by the calibrator       | needs `calibrate`        |

Torch operations keep "up to date" ranges, on the tensor's device and inside a compiled graph. The histogram
is the same as in `calibration.statistics`: its counts are exact for any batches, and calibrators return the
same range.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from onnxfq.calibration.calibrators import MINMAX, Calibrator
from onnxfq.calibration.calibrators.groups import group_ranges
from onnxfq.calibration.calibrators.minmax import use_lowest_number
from onnxfq.calibration.statistics import BIN_COUNT, BIN_SHIFT, TensorStatistics
from onnxfq.errors import SpecError, StatisticsError, nearest
from onnxfq.numerics.granularity import PER_TENSOR
from onnxfq.numerics.layout import Layout
from onnxfq.numerics.spec import QuantSpec
from onnxfq.torch.arithmetic import View

Limits = tuple[Tensor, Tensor]
"""(rmin, rmax) float32, in the shape of the scale."""


def group_limits(x: Tensor, spec: QuantSpec) -> Limits:
    """Return the smallest and largest element of each group of x that shares a scale, float32."""
    values = x.detach().float()
    layout = Layout(spec.granularity, x.shape)
    params, sizes = layout.scale_shape, layout.block_sizes
    if all(n == 1 for n in params):
        # Two passes: torch's aminmax takes longer than both together.
        return values.amin().reshape(params), values.amax().reshape(params)
    for d, (n, block) in enumerate(zip(x.shape, sizes, strict=True)):
        if block < n and n % block:  # more of the last element fills its block, and moves no end
            last = values.narrow(d, n - 1, 1).repeat_interleave(block - n % block, dim=d)
            values = torch.cat([values, last], d)
    view = View.from_shapes(values.shape, params, spec.granularity)
    dims = [d for d, n in enumerate(view.params) if n == 1]
    # All dimensions at once: one after the other would take fifty times as long.
    ends = (end(view.see(values), dim=dims) if dims else values for end in (torch.amin, torch.amax))
    low, high = (end.reshape(params) for end in ends)
    return low, high


def refill(module: nn.Module, name: str, value: Tensor) -> None:
    """Write `value` into a buffer in place, in a new shape too: replicas of DataParallel share its memory.

    Compiled code cannot change a shape in place, and gets a new tensor.
    """
    held = module._buffers[name]
    assert held is not None
    if torch.compiler.is_compiling() and held.shape != value.shape:
        setattr(module, name, value.to(held.dtype, copy=True))
        return
    if not torch.compiler.is_compiling():
        # The module was made in inference mode, or an array of NumPy shares memory, which cannot grow then.
        stuck = value.numel() > held.numel() and not held.untyped_storage().resizable()
        if held.is_inference() or stuck:
            with torch.inference_mode(False):
                held = module._buffers[name] = held.clone()
        held.resize_(value.shape)
    held.copy_(value)


class OwnTypes(nn.Module):
    """Module whose tensors keep their types when a model is cast: half() does not change scales and ranges.

    Rounding to 16 bits would change a scale, and float() would not restore it.
    """

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> OwnTypes:
        held = {**self._parameters, **self._buffers}
        kept = {name: tensor.detach() for name, tensor in held.items() if tensor is not None}
        super()._apply(fn, recurse)
        for name, old in kept.items():
            new = getattr(self, name)
            if new.dtype != old.dtype:
                new.data = old.to(new.device)
                if new.grad is not None:
                    new.grad.data = new.grad.to(old.dtype)
        return self


class Observer(OwnTypes):
    """Common base of observers: the spec and a running range.

    Attributes:
        live: whether the range is valid after every tensor; else the quantizer's `calibrate` reads it.
    """

    rmin: Tensor
    rmax: Tensor

    def __init__(self, spec: QuantSpec) -> None:
        """Observe for `spec`."""
        super().__init__()
        self.spec = spec
        self.live = True
        self.register_buffer("rmin", torch.zeros(0), persistent=False)
        self.register_buffer("rmax", torch.zeros(0), persistent=False)

    @property
    def seen(self) -> bool:
        """Tell whether any tensor was observed since the last reset."""
        return bool(self.rmin.numel())

    def reset(self) -> None:
        """Discard the range."""
        self.keep((self.rmin.new_zeros(0), self.rmax.new_zeros(0)))

    def limits(self) -> Limits:
        """Return the current range."""
        return self.rmin, self.rmax

    def keep(self, limits: Limits) -> None:
        """Store a running range in place."""
        for name, limit in zip(("rmin", "rmax"), limits, strict=True):
            refill(self, name, limit)

    def extend(self, low: Tensor, high: Tensor) -> None:
        """Let the running range hold another one."""
        if self.seen:
            low, high = torch.minimum(self.rmin, low), torch.maximum(self.rmax, high)
        self.keep((low, high))

    min_val = property(lambda self: self.rmin, doc="Lower end of the running range, by torch's name.")
    max_val = property(lambda self: self.rmax, doc="Upper end of the running range, by torch's name.")


class MinMax(Observer):
    """Range of all tensors seen."""

    def forward(self, x: Tensor) -> None:
        """Extend the range to include x."""
        self.extend(*group_limits(x, self.spec))

    def limits(self) -> Limits:
        """Return the range of calibrator minmax."""
        return use_lowest_number(*super().limits(), self.spec)


class MovingAverage(Observer):
    """Exponential moving average of ranges, bit-identical to torch's observers."""

    def __init__(self, spec: QuantSpec, constant: float = 0.01) -> None:
        """Weigh each new tensor by `constant`."""
        super().__init__(spec)
        self.constant = constant

    def forward(self, x: Tensor) -> None:
        """Move both ends towards the range of x; the first tensor sets them."""
        low, high = group_limits(x, self.spec)
        if self.seen:
            low = self.rmin + self.constant * (low - self.rmin)
            high = self.rmax + self.constant * (high - self.rmax)
        self.keep((low, high))


class Latest(Observer):
    """Range of the last tensor, for weights, which change with every step of training."""

    def __init__(self, spec: QuantSpec, calibrator: Calibrator = MINMAX) -> None:
        """Keep the last tensor only for calibrators other than minmax."""
        super().__init__(spec)
        self.calibrator = calibrator
        self.live = calibrator == MINMAX
        self.last: Tensor | None = None

    def forward(self, x: Tensor) -> None:
        """Store the range of x, and x if the calibrator needs it."""
        self.keep(group_limits(x, self.spec))
        if not self.live:
            self.last = x.detach()

    def limits(self) -> Limits:
        """Return the calibrated range of each group."""
        if self.last is None:
            return use_lowest_number(*super().limits(), self.spec)
        low, high = group_ranges(self.last.float().cpu().numpy(), self.spec, self.calibrator)
        self.last = None
        return torch.from_numpy(low).to(self.rmin), torch.from_numpy(high).to(self.rmin)


class Histogram(Observer):
    """Exact statistics as in `calibration.statistics`, counted on the tensor's device; per tensor.

    Attributes:
        gathered: the statistics of all tensors seen.
        floor: counts for every value below it, as for masks; None for no floor.
    """

    floor: float | None

    def __init__(self, spec: QuantSpec, calibrator: Calibrator = MINMAX) -> None:
        """Raise SpecError unless `spec` is per tensor, because statistics are."""
        super().__init__(spec)
        if spec.granularity != PER_TENSOR:
            raise SpecError(f"observer 'histogram' is per tensor, got {spec}; use minmax or latest")
        self.live, self.calibrator = False, calibrator
        self.reset()

    def reset(self) -> None:
        """Discard the statistics."""
        super().reset()
        self.gathered, self.floor = TensorStatistics(), None

    def forward(self, x: Tensor) -> None:
        """Count the elements of x into their bins."""
        values = x.detach().float().flatten()
        finite = values[torch.isfinite(values)] + 0.0  # + 0 turns -0 into +0
        nans = int(values.isnan().sum())
        codes = (finite.view(torch.int32) >> BIN_SHIFT) & (BIN_COUNT - 1)
        counts = torch.bincount(codes, minlength=BIN_COUNT).cpu().numpy()
        bins = np.flatnonzero(counts).astype(np.int32)
        totals = values.numel(), nans, values.numel() - finite.numel() - nans, int((finite == 0).sum())
        ends = [end.item() for end in torch.aminmax(finite)] if finite.numel() else []
        if ends:
            self.extend(*values.new_tensor(ends))
        ranges, limits = np.asarray(ends, np.float32).reshape(-1, 2), ends or (math.inf, -math.inf)
        seen = TensorStatistics.from_results(limits, totals, bins, counts[bins], ranges)
        self.gathered = self.gathered.merge(seen)

    def statistics(self) -> TensorStatistics:
        """Return the statistics of all tensors, with the floor."""
        return self.gathered if self.floor is None else self.gathered.begin_at(self.floor)

    def limits(self) -> Limits:
        """Return the calibrated range. Raises StatisticsError if NaN or infinities were seen."""
        statistics = self.statistics()
        if statistics.nans or statistics.infinities:
            raise StatisticsError(
                f"{statistics.nans} NaN and {statistics.infinities} infinite values; remove the samples"
            )
        low, high = self.calibrator(statistics, self.spec)
        return self.rmin.new_tensor(low, dtype=torch.float64), self.rmin.new_tensor(high, dtype=torch.float64)


class Fixed(Observer):
    """Range of a calibrator that reads no data, the same for every tensor."""

    def __init__(self, spec: QuantSpec, calibrator: Calibrator) -> None:
        """Take the range of `calibrator`, which `is_fixed`."""
        super().__init__(spec)
        self.ends = calibrator(TensorStatistics.from_array(np.zeros(0, np.float32)), spec)

    def forward(self, x: Tensor) -> None:
        """Store the range on the device of x."""
        low, high = (torch.tensor(end, dtype=torch.float64, device=x.device) for end in self.ends)
        self.keep((low, high))


OBSERVERS: dict[str, Callable[..., Observer]] = {
    "minmax": MinMax,
    "moving_average": MovingAverage,
    "latest": Latest,
    "histogram": Histogram,
}


def make_observer(name: str, spec: QuantSpec, calibrator: Calibrator = MINMAX) -> Observer:
    """Return an observer by name. Raises SpecError for an unknown name.

    Args:
        name: a key of `OBSERVERS`; `moving_average:0.1` sets the constant.
        spec: number format and granularity of the tensor.
        calibrator: turns the data of `latest` and `histogram` into a range.
    """
    if name.startswith("moving_average:"):
        parameters = Calibrator.parse(name).parameters
        return MovingAverage(spec, *map(float, parameters))
    if name not in OBSERVERS:
        raise SpecError(f"unknown observer {name!r}{nearest(name, OBSERVERS)}")
    return OBSERVERS[name](spec, *([calibrator] if name in ("latest", "histogram") else []))
