"""NVIDIA's document, pytorch-quantization: switches of a `TensorQuantizer`."""

from __future__ import annotations

from onnxfq.torch.compat.nvidia_calibration import Calibration


class Switches(Calibration):
    """Whether a quantizer observes and quantizes."""

    disabled = False
    if_quant = True
    if_calib = False

    def enable_calib(self) -> None:
        """Observe inputs."""
        self.if_calib = True

    def disable_calib(self) -> None:
        """Stop observing."""
        self.if_calib = False

    def enable_quant(self) -> None:
        """Quantize inputs."""
        self.if_quant = True

    def disable_quant(self) -> None:
        """Pass inputs on."""
        self.if_quant = False

    def disable(self) -> None:
        """Neither observe nor quantize."""
        self.disabled = True

    def enable(self) -> None:
        """Do as the other switches say."""
        self.disabled = False

    def reset_amax(self) -> None:
        """Forget amax: each batch has its own from here on."""
        self._amax = None
