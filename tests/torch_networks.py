"""Torch networks of tests: those of models/, untrained, and small transformers. Importing it needs torch."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

MODELS = Path(__file__).parents[1] / "models"


def network(name: str) -> nn.Module:
    """Return a network of models/ with random weights and BatchNorm statistics that matter."""
    spec = importlib.util.spec_from_file_location(name, MODELS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    torch.manual_seed(0)
    model = module.build()
    for part in model.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.running_mean.normal_(0, 0.1)
            part.running_var.uniform_(0.5, 2)
    return model.eval()


class Windows(nn.Module):
    """Swin's block: attention in windows with a bias of places, linear layers over [N, height, width, C]."""

    def __init__(self, width: int = 64, heads: int = 2, size: int = 4) -> None:
        super().__init__()
        self.heads, self.size = heads, size
        self.embed = nn.Conv2d(3, width, 4, 4)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.wide, self.narrow = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.norm = nn.LayerNorm(width)
        self.places = nn.Parameter(torch.randn(1, heads, size**2, size**2))

    def forward(self, image: Tensor) -> Tensor:
        """Return [N, C] of images [N, 3, height, width]."""
        x = self.embed(image).permute(0, 2, 3, 1)
        _, h, w, c = x.shape
        s, split = self.size, (-1, self.size**2, self.heads, c // self.heads)
        y = x.reshape(-1, h // s, s, w // s, s, c).transpose(2, 3).reshape(-1, s * s, c)
        q, k, v = (f(y).reshape(split).transpose(1, 2) for f in (self.query, self.key, self.value))
        weights = (q @ k.transpose(2, 3) * split[-1] ** -0.5 + self.places).softmax(-1)
        y = self.out((weights @ v).transpose(1, 2).reshape(-1, s * s, c))
        x = x + y.reshape(-1, h // s, w // s, s, s, c).transpose(2, 3).reshape(-1, h, w, c)
        return (x + self.narrow(functional.gelu(self.wide(self.norm(x))))).mean((1, 2))


class Decoder(nn.Module):
    """A decoder's layer: rotated queries and keys, two query heads for a key, causal, gated perceptron."""

    def __init__(self, width: int = 128, heads: int = 4) -> None:
        super().__init__()
        self.heads, self.head = heads, width // heads
        self.embed, self.norm = nn.Embedding(64, width), nn.LayerNorm(width)
        self.query, self.out = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.key, self.value = (nn.Linear(width, width // 2, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(width, 2 * width, bias=False) for _ in range(2))
        self.down, self.words = nn.Linear(2 * width, width, bias=False), nn.Linear(width, 64, bias=False)

    def rotate(self, x: Tensor) -> Tensor:
        """Turn each pair of channels by the place of its token."""
        half = self.head // 2
        angle = torch.arange(x.shape[2])[:, None] * 10000 ** -(torch.arange(half) / half)
        one, two = x[..., :half], x[..., half:]
        return torch.cat(
            (one * angle.cos() - two * angle.sin(), two * angle.cos() + one * angle.sin()), dim=-1
        )

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the scores of the next words, [N, T, 64], of [N, T]."""
        x = self.embed(tokens)
        _, t, _ = x.shape
        y, split = self.norm(x), (-1, t, self.heads, self.head)
        q = self.rotate(self.query(y).reshape(split).transpose(1, 2))
        few = (-1, t, self.heads // 2, self.head)
        k = self.rotate(self.key(y).reshape(few).transpose(1, 2)).repeat_interleave(2, 1)
        v = self.value(y).reshape(few).transpose(1, 2).repeat_interleave(2, 1)
        scores = q @ k.transpose(2, 3) * self.head**-0.5 + torch.full((t, t), -1e4).triu(1)
        x = x + self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(-1, t, self.heads * self.head))
        return self.words(x + self.down(functional.silu(self.gate(x)) * self.up(x)))


@dataclass(frozen=True)
class Family:
    """A network, its inputs for a batch of two, and the number of its linear layers."""

    build: Callable[[], nn.Module]
    inputs: tuple[Tensor, ...]
    linear: int


FAMILIES = {
    "vision": Family(lambda: network("transformer"), (torch.zeros(2, 1, 28, 28),), 20),
    "windows": Family(Windows, (torch.zeros(2, 3, 32, 32),), 6),
    "decoder": Family(Decoder, (torch.zeros(2, 32, dtype=torch.int64),), 8),
    "encoder-decoder": Family(
        lambda: nn.Transformer(64, 2, 1, 1, 128, batch_first=True),
        (torch.zeros(2, 32, 64), torch.zeros(2, 16, 64)),
        11,
    ),
}
"""Four families of torch; the fifth, BERT, is one of models/networks."""
