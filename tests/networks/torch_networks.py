"""Torch networks of tests: those of models/, untrained, and small transformers. Importing it needs torch."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

MODELS = Path(__file__).parents[2] / "models"


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


def small_network(name: str) -> nn.Module:
    """Return a network of models/ with few of its blocks: one of each kind."""
    model = network(name)
    if name == "transformer":
        model.layers = model.layers[:1]
    if name == "depthwise_cnn":
        model.blocks = model.blocks[1:4]
    return model


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
        cos, sin = angle.cos(), angle.sin()
        return torch.cat((one * cos - two * sin, two * cos + one * sin), dim=-1)

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


def conv(cin: int, cout: int, kernel: int = 3, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """Return a convolution that keeps the size of the image, its norm and an activation."""
    body = nn.Conv2d(cin, cout, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(body, nn.BatchNorm2d(cout), nn.SiLU())


class Plus(nn.Module):
    """The input plus what `body` makes of it."""

    def __init__(self, *body: nn.Module) -> None:
        super().__init__()
        self.body = nn.Sequential(*body)

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor of the shape of `x`."""
        return x + self.body(x)


class Gate(nn.Module):
    """Squeeze and excite: each channel times a number that its mean decides."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.narrow, self.wide = nn.Conv2d(width, width // 4, 1), nn.Conv2d(width // 4, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor of the shape of `x`."""
        mean = x.mean((2, 3), keepdim=True)
        return x * functional.hardsigmoid(self.wide(functional.relu(self.narrow(mean))))


class Swapped(nn.Module):
    """What `body` makes of a tensor whose axes `one` and `other` are swapped, swapped back."""

    def __init__(self, one: int, other: int, *body: nn.Module) -> None:
        super().__init__()
        self.axes, self.body = (one, other), nn.Sequential(*body)

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor of the shape of `x`."""
        return self.body(x.transpose(*self.axes)).transpose(*self.axes)


class Branches(nn.Module):
    """Inception's block: four branches, joined."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.one, self.three = conv(width, 32, 1), nn.Sequential(conv(width, 32, 1), conv(32, 64))
        self.five = nn.Sequential(conv(width, 16, 1), conv(16, 32, 5))
        self.pool = nn.Sequential(nn.MaxPool2d(3, 1, 1), conv(width, 32, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Return [N, 160, height, width]."""
        return torch.cat([self.one(x), self.three(x), self.five(x), self.pool(x)], 1)


class Conditioned(nn.Module):
    """A step of a diffusion network: convolutions between two sizes, and attention to a text."""

    def __init__(self, width: int = 64, heads: int = 2) -> None:
        super().__init__()
        self.heads, self.first = heads, conv(4, width)
        self.down, self.up = conv(width, 2 * width, 3, 2), conv(3 * width, width)
        self.query, self.out = nn.Linear(2 * width, 2 * width), nn.Linear(2 * width, 2 * width)
        self.key, self.value = nn.Linear(96, 2 * width), nn.Linear(96, 2 * width)
        self.last = nn.Conv2d(width, 4, 3, 1, 1)

    def forward(self, image: Tensor, text: Tensor) -> Tensor:
        """Return [N, 4, height, width] of an image and a text [N, words, 96]."""
        first = self.first(image)
        x = self.down(first)
        n, c, h, w = x.shape
        y, split = x.flatten(2).transpose(1, 2), (-1, self.heads, c // self.heads)
        read = (self.query, y), (self.key, text), (self.value, text)
        q, k, v = (layer(z).reshape(n, *split).transpose(1, 2) for layer, z in read)
        mixed = ((q @ k.transpose(2, 3) * split[-1] ** -0.5).softmax(-1) @ v).transpose(1, 2)
        x = x + self.out(mixed.reshape(n, -1, c)).transpose(1, 2).reshape(n, c, h, w)
        return self.last(self.up(torch.cat([first, functional.interpolate(x, scale_factor=2.0)], 1)))


class Lines(nn.Module):
    """A reader of text lines: convolutions, an LSTM along the line, letters."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(conv(1, 32, 3, 2), conv(32, 64, 3, 2), conv(64, 64))
        self.turn, self.letters = nn.LSTM(64, 48, bidirectional=True), nn.Linear(96, 40)

    def forward(self, image: Tensor) -> Tensor:
        """Return [width / 4, N, 40] of images [N, 1, 32, width]."""
        x, _ = self.turn(self.body(image).mean(2).permute(2, 0, 1))
        return self.letters(x)


class Boxes(nn.Module):
    """DETR: convolutions, an encoder over their places, a decoder of fixed queries, two heads."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.body = nn.Sequential(conv(3, 32, 3, 2), conv(32, width, 3, 2))
        self.queries = nn.Parameter(torch.randn(1, 20, width))
        self.reader = nn.Transformer(width, 2, 1, 1, 128, batch_first=True)
        self.classes, self.boxes = nn.Linear(width, 11), nn.Linear(width, 4)

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        """Return classes [N, 20, 11] and boxes [N, 20, 4]."""
        places = self.body(image).flatten(2).transpose(1, 2)
        x = self.reader(places, self.queries.expand(len(image), -1, -1))
        return self.classes(x), self.boxes(x).sigmoid()


def gated() -> nn.Module:
    """Return MobileNetV3's blocks: wider, depthwise, gate, narrow."""
    blocks = [
        Plus(conv(w, 4 * w, 1), conv(4 * w, 4 * w, 5, 1, 4 * w), Gate(4 * w), nn.Conv2d(4 * w, w, 1))
        for w in (24, 48)
    ]
    return nn.Sequential(conv(3, 24, 3, 2), blocks[0], conv(24, 48, 3, 2), blocks[1], conv(48, 96, 1))


def wide_depthwise() -> nn.Module:
    """Return ConvNeXt's blocks: depthwise of 7 x 7, a norm, two linear layers over channels."""
    layers = (nn.LayerNorm(64), nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))
    blocks = [Plus(nn.Conv2d(64, 64, 7, 1, 3, groups=64), Swapped(1, 3, *layers)) for _ in range(2)]
    return nn.Sequential(nn.Conv2d(3, 64, 4, 4), *blocks)


def mixer() -> nn.Module:
    """Return MLP-Mixer's blocks over 64 tokens of 128: linear layers over tokens, then over channels."""
    two = [nn.Sequential(nn.LayerNorm(n), nn.Linear(n, 256), nn.GELU(), nn.Linear(256, n)) for n in (64, 128)]
    return nn.Sequential(*[Plus(Swapped(1, 2, two[0]), nn.Identity()), Plus(two[1])] * 2)


def sound() -> nn.Module:
    """Return a network over samples of sound: dilated convolutions of one axis."""
    steps = [
        Plus(nn.Conv1d(64, 64, 3, padding=2**i, dilation=2**i), nn.ReLU(), nn.Conv1d(64, 64, 1))
        for i in range(4)
    ]
    return nn.Sequential(nn.Conv1d(1, 64, 16, 8), *steps, nn.Conv1d(64, 20, 1))


def grouped() -> nn.Module:
    """Return ResNeXt's blocks: narrow, groups of four channels, wide."""
    blocks = [Plus(conv(128, 64, 1), conv(64, 64, 3, 1, 16), nn.Conv2d(64, 128, 1)) for _ in range(3)]
    return nn.Sequential(conv(3, 128, 7, 2), nn.MaxPool2d(3, 2, 1), *blocks)


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
    "residual": Family(lambda: network("residual_cnn"), (torch.zeros(2, 1, 28, 28),), 0),
    "depthwise": Family(lambda: network("depthwise_cnn"), (torch.zeros(2, 1, 28, 28),), 0),
    "gated": Family(gated, (torch.zeros(2, 3, 64, 64),), 0),
    "wide depthwise": Family(wide_depthwise, (torch.zeros(2, 3, 64, 64),), 4),
    "mixer": Family(mixer, (torch.zeros(2, 64, 128),), 8),
    "conditioned": Family(Conditioned, (torch.zeros(2, 4, 32, 32), torch.zeros(2, 40, 96)), 4),
    "sound": Family(sound, (torch.zeros(2, 1, 4096),), 0),
    "lines": Family(Lines, (torch.zeros(2, 1, 32, 128),), 1),
    "grouped": Family(grouped, (torch.zeros(2, 3, 64, 64),), 0),
    "boxes": Family(Boxes, (torch.zeros(2, 3, 64, 64),), 12),
    "branches": Family(
        lambda: nn.Sequential(conv(3, 64, 3, 2), Branches(64), Branches(160)), (torch.zeros(2, 3, 64, 64),), 0
    ),
}
"""Families of torch; `linear` counts the layers of those that MatMul or Gemm multiplies."""
