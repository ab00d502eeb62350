"""NVIDIA's document, pytorch-quantization: calibration of a `TensorQuantizer`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from onnxfq.errors import SpecError
from onnxfq.torch.compat.nvidia_descriptor import QuantDescriptor
from onnxfq.torch.compat.nvidia_histogram import HistogramCalibrator
from onnxfq.torch.compat.nvidia_max import MaxCalibrator, largest_magnitude
from onnxfq.torch.compat.wrapper import Wrapper

_CALIBRATORS = {"max": MaxCalibrator, "histogram": HistogramCalibrator}


class Calibration(Wrapper):
    """The largest magnitude of a tensor: observed, set or unknown."""

    def __init__(self, desc: QuantDescriptor) -> None:
        """Observe by the calibrator of `desc`, with one amax for each index of its axis."""
        super().__init__()
        if desc.calib_method not in _CALIBRATORS:
            raise SpecError(f"calib_method must be max or histogram, got {desc.calib_method!r}")
        self.axes = (desc.axis,) if isinstance(desc.axis, int) else tuple(desc.axis or ())
        made: Any = _CALIBRATORS[desc.calib_method]
        self._calibrator = made(desc.num_bits, desc.axis, desc.unsigned)
        self._amax: Tensor | None
        self.register_buffer("_amax", None)

    @property
    def amax(self) -> Tensor | None:
        """Largest magnitude of the grid, of any shape that broadcasts against the tensor; None: unknown."""
        return self._amax

    @amax.setter
    def amax(self, value: Any) -> None:
        tensor = torch.as_tensor(value, dtype=torch.float32).detach().clone()
        self._amax = torch.nn.Parameter(tensor) if isinstance(self._amax, torch.nn.Parameter) else tensor

    def amax_of(self, x: Tensor) -> Tensor:
        """Return the largest magnitude of x, for each index of the axes."""
        return largest_magnitude(x, self.axes)

    def load_calib_amax(self, *args: Any, **keywords: Any) -> None:
        """Set amax from what was observed, with arguments of the calibrator's `compute_amax`."""
        if isinstance(self._calibrator, MaxCalibrator) and (args or keywords):
            given = [*args, *keywords][0]
            raise SpecError(f"calibrator max takes no {given!r}: it has one method; remove it")
        self.amax = self._calibrator.compute_amax(*args, **keywords)
