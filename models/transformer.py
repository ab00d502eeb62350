"""Small transformer encoder that classifies a digit from its 49 patches of 4x4 pixels."""

from __future__ import annotations

import torch
from torch import Tensor, nn

PATCH = 4  # pixels on a side
TOKENS = (28 // PATCH) ** 2


class Attention(nn.Module):
    """Self-attention, [N, tokens, width] -> [N, tokens, width], written as matmuls."""

    def __init__(self, width: int, heads: int) -> None:
        """Split `width` evenly over `heads`."""
        super().__init__()
        self.heads, self.scale = heads, (width // heads) ** -0.5
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.project = nn.Linear(width, width)

    def split(self, x: Tensor) -> Tensor:
        """Return x [N, tokens, width] as [N, heads, tokens, width / heads]."""
        return x.unflatten(2, (self.heads, -1)).transpose(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        """Weigh every token's value by how well its key fits the query."""
        query, key, value = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
        scores = query @ key.transpose(2, 3) * self.scale
        return self.project((scores.softmax(-1) @ value).transpose(1, 2).flatten(2))


class Layer(nn.Module):
    """Encoder layer, LayerNorm first: attention and a GELU perceptron, each added to its input."""

    def __init__(self, width: int, heads: int) -> None:
        """Give the perceptron twice the layer's width."""
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(width), Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.perceptron = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor of the same shape as x, [N, tokens, width]."""
        x = x + self.attention(self.norm1(x))
        return x + self.perceptron(self.norm2(x))


class Transformer(nn.Module):
    """Transformer from images [N, 1, 28, 28] in 0..1 to logits [N, 10]."""

    def __init__(self, width: int = 64, heads: int = 4, depth: int = 3) -> None:
        """Learn one position vector per patch."""
        super().__init__()
        self.embed = nn.Linear(PATCH * PATCH, width)
        self.position = nn.Parameter(0.02 * torch.randn(1, TOKENS, width))
        self.layers = nn.Sequential(*(Layer(width, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 10)

    def forward(self, image: Tensor) -> Tensor:
        """Cut the image into patches, encode them, classify their mean."""
        grid = image.reshape(-1, 28 // PATCH, PATCH, 28 // PATCH, PATCH)  # [N, row, y, column, x]
        patches = grid.transpose(2, 3).reshape(-1, TOKENS, PATCH * PATCH)
        x = self.layers(self.embed(patches) + self.position)
        return self.head(self.norm(x).mean(1))


def build() -> nn.Module:
    """Return the untrained network; torch's random seed decides its weights."""
    return Transformer()
