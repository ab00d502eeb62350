"""NVIDIA's document, pytorch-quantization: switches of a `TensorQuantizer`."""

from __future__ import annotations

from collections.abc import Callable

from onnxfq.torch.compat.nvidia_calibration import Calibration


def _setter(name: str, value: bool, text: str) -> Callable[[Switches], None]:
    def change(self: Switches) -> None:
        setattr(self, name, value)

    change.__doc__ = text
    return change


class Switches(Calibration):
    """Whether a quantizer observes and quantizes."""

    disabled = False
    if_quant = True
    if_calib = False

    enable_calib = _setter("if_calib", True, "Observe inputs.")
    disable_calib = _setter("if_calib", False, "Stop observing.")
    enable_quant = _setter("if_quant", True, "Quantize inputs.")
    disable_quant = _setter("if_quant", False, "Pass inputs on.")
    disable = _setter("disabled", True, "Neither observe nor quantize.")
    enable = _setter("disabled", False, "Do as the other switches say.")

    def reset_amax(self) -> None:
        """Forget amax: each batch has its own from here on."""
        self._amax = None
