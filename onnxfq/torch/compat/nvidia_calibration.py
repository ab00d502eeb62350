"""NVIDIA's document, pytorch-quantization: calibration of a `TensorQuantizer`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from onnxfq.calibration.calibrators import Calibrator
from onnxfq.errors import SpecError, StatisticsError
from onnxfq.numerics.spec import QuantSpec
from onnxfq.torch.compat.wrapper import Wrapper
from onnxfq.torch.observers import Histogram, MinMax

_FIXED = ("stride", "start_bin", "num_bins")


class Calibration(Wrapper):
    """The largest magnitude of a tensor: observed, set or unknown."""

    def __init__(self, method: str, axis: int | tuple[int, ...] | None, unsigned: bool) -> None:
        """Observe by `method`, max or histogram, with one amax for each index of `axis`."""
        super().__init__()
        if method not in ("max", "histogram"):
            raise SpecError(f"calib_method must be max or histogram, got {method!r}")
        self.axes = (axis,) if isinstance(axis, int) else tuple(axis or ())
        spec = QuantSpec(qtype="uint8" if unsigned else "int8", symmetric=not unsigned)
        self.calibrator = MinMax(spec) if method == "max" else Histogram(spec)
        self._amax: Tensor | None
        self.register_buffer("_amax", None)
        self.seen: Tensor | None = None

    @property
    def amax(self) -> Tensor | None:
        """Largest magnitude of the grid, of any shape that broadcasts against the tensor; None: unknown."""
        return self._amax

    @amax.setter
    def amax(self, value: Any) -> None:
        tensor = torch.as_tensor(value, dtype=torch.float32).detach().clone()
        self._amax = torch.nn.Parameter(tensor) if isinstance(self._amax, torch.nn.Parameter) else tensor

    def amax_of(self, x: Tensor) -> Tensor:
        """Return the largest magnitude of x; with axes, of each index, and of x's rank."""
        magnitude = x.detach().abs()
        if not self.axes:
            return magnitude.amax()
        rest = [d for d in range(x.ndim) if d not in {axis % x.ndim for axis in self.axes}]
        return magnitude.amax(rest, keepdim=True)

    def observe(self, x: Tensor) -> None:
        """Take x into the statistics."""
        if isinstance(self.calibrator, Histogram):
            self.calibrator(x)
        else:
            amax = self.amax_of(x)
            self.seen = amax if self.seen is None else torch.maximum(self.seen, amax)

    def load_calib_amax(self, method: str = "entropy", **keywords: Any) -> None:
        """Set amax from what was observed, by `method` for a histogram.

        Args:
            method: entropy, mse or percentile.
            keywords: percentile; stride, start_bin and num_bins are refused: bins here are fixed.
        """
        for name in set(keywords) - {"percentile"}:
            why = "bins are fixed, 1/128 of a value wide" if name in _FIXED else "it is unknown"
            raise SpecError(f"load_calib_amax takes no {name}: {why}; remove it")
        if not isinstance(self.calibrator, Histogram):
            if self.seen is None:
                raise StatisticsError("the calibrator saw no tensor; enable_calib() and run data first")
            self.amax = self.seen
            return
        percent = keywords.get("percentile", 99.99)
        self.calibrator.calibrator = Calibrator.parse(
            f"percentile:{percent}" if method == "percentile" else method
        )
        low, high = self.calibrator.limits()
        self.amax = torch.maximum(-low, high)
