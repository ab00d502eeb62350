"""Depthwise-separable residual CNN: inverted residual blocks, as in mobile networks.

Its depthwise filters and the BatchNorm folded into them differ widely in size from channel to channel.
One scale for a whole weight tensor then leaves few steps for the small channels, which is why this
family of networks is the usual trial of int8 weights.
"""

from __future__ import annotations

from torch import Tensor, nn


def conv_norm(cin: int, cout: int, kernel: int, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    """Return a convolution that keeps the image size (divided by `stride`) and its BatchNorm."""
    convolution = nn.Conv2d(cin, cout, kernel, stride, kernel // 2, groups=groups, bias=False)
    return [convolution, nn.BatchNorm2d(cout)]


class InvertedResidual(nn.Module):
    """Inverted residual block, [N, cin, H, W] -> [N, cout, H / stride, W / stride]."""

    def __init__(self, cin: int, cout: int, stride: int, expansion: int = 3) -> None:
        """Add the input to the output where both have the same shape."""
        super().__init__()
        wide = cin * expansion
        self.body = nn.Sequential(
            *conv_norm(cin, wide, 1),
            nn.ReLU(),
            *conv_norm(wide, wide, 3, stride, groups=wide),
            nn.ReLU(),
            *conv_norm(wide, cout, 1),  # no activation: the narrow tensor carries all information onward
        )
        self.residual = stride == 1 and cin == cout

    def forward(self, x: Tensor) -> Tensor:
        """Return the narrowed tensor, with the input added where the shapes allow it."""
        y = self.body(x)
        return x + y if self.residual else y


class DepthwiseCNN(nn.Module):
    """CNN from images [N, 1, 28, 28] in 0..1 to logits [N, 10]."""

    def __init__(self) -> None:
        """Make layers of 16, 24 and 40 channels at 14, 14 and 7 pixels."""
        super().__init__()
        self.stem = nn.Sequential(*conv_norm(1, 16, 3, stride=2), nn.ReLU())
        self.blocks = nn.Sequential(
            InvertedResidual(16, 16, 1),
            InvertedResidual(16, 24, 1),
            InvertedResidual(24, 24, 1),
            InvertedResidual(24, 40, 2),
            InvertedResidual(40, 40, 1),
            InvertedResidual(40, 40, 1),
        )
        self.last = nn.Sequential(*conv_norm(40, 128, 1), nn.ReLU())
        self.head = nn.Linear(128, 10)

    def forward(self, image: Tensor) -> Tensor:
        """Average the last 7x7 positions, then classify."""
        return self.head(self.last(self.blocks(self.stem(image))).mean((2, 3)))


def build() -> nn.Module:
    """Return the untrained network; torch's random seed decides its weights."""
    return DepthwiseCNN()
