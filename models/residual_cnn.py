"""Plain residual CNN: a stem, three stages of two 3x3 convolutions with a shortcut, mean, linear."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F


class Block(nn.Module):
    """Two 3x3 convolutions parallel to a shortcut, [N, cin, H, W] -> [N, cout, H / stride, W / stride]."""

    def __init__(self, cin: int, cout: int, stride: int) -> None:
        """Make the shortcut a 1x1 convolution where the shape changes, the identity elsewhere."""
        super().__init__()
        self.conv1 = nn.Conv2d(cin, cout, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(cout)
        self.conv2 = nn.Conv2d(cout, cout, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(cout)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or cin != cout:
            self.shortcut = nn.Sequential(nn.Conv2d(cin, cout, 1, stride, bias=False), nn.BatchNorm2d(cout))

    def forward(self, x: Tensor) -> Tensor:
        """Add the shortcut before the last ReLU, as in the first residual networks."""
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


class ResidualCNN(nn.Module):
    """CNN from images [N, 1, 28, 28] in 0..1 to logits [N, 10]."""

    def __init__(self) -> None:
        """Make layers of 16, 32 and 64 channels at 28, 14 and 7 pixels: 78 thousand weights."""
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
        self.stages = nn.Sequential(Block(16, 16, 2), Block(16, 32, 2), Block(32, 64, 1))
        self.head = nn.Linear(64, 10)

    def forward(self, image: Tensor) -> Tensor:
        """Average the last 7x7 positions, then classify."""
        return self.head(self.stages(self.stem(image)).mean((2, 3)))


def build() -> nn.Module:
    """Return the untrained network; torch's random seed decides its weights."""
    return ResidualCNN()
