"""BatchNorm folded into the convolution before it.

The quantizer sees weight * gamma / sqrt(running_var + eps), the deployed weight. In training the result is
divided by the same factor and the usual BatchNorm follows, with the statistics of the batch. A frozen or
exported BatchNorm is part of the convolution: only weight and bias remain.

Source: Jacob et al., "Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only
Inference", 2018, section 3.2; Krishnamoorthi, "Quantizing deep convolutional networks for efficient
inference".
"""

from __future__ import annotations

from torch import Tensor, nn

from onnxfq.torch.layers import Swapped, swap
from onnxfq.torch.onnx_node import is_exporting

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


class SwappedNorm(Swapped):
    """BatchNorm whose factor is folded into the preceding convolution."""

    frozen: bool

    def forward(self, input: Tensor) -> Tensor:  # torch's name: callers may pass it as a keyword
        """Normalise as usual; return the input unchanged if the convolution has done it all."""
        if self.frozen or is_exporting():
            return input
        return super().forward(input)


def is_foldable(layer: nn.Module, norm: nn.Module) -> bool:
    """Tell whether `norm` is a BatchNorm with running statistics that fits after the convolution `layer`."""
    return (
        isinstance(layer, CONVOLUTIONS)
        and isinstance(norm, NORMS)
        and type(norm).forward in [base.forward for base in NORMS]
        and norm.running_var is not None
        and norm.num_features == layer.out_channels
    )


def fold(layer: nn.Module, norm: nn.Module) -> None:
    """Fold `norm` into the swapped convolution `layer`."""
    swap(norm, {}, SwappedNorm)
    norm.__dict__["frozen"] = False
    layer.__dict__["folded_norm"] = norm  # not a child: it already has its place in the model


def freeze_batchnorm(model: nn.Module, frozen: bool = True) -> None:
    """Make every folded BatchNorm a fixed part of its convolution, or trainable again if not `frozen`."""
    for module in model.modules():
        if isinstance(module, SwappedNorm):
            module.__dict__["frozen"] = frozen
