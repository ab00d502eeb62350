"""Small whole networks whose structure decides what a runtime fuses. Importing it needs torch."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable

import onnx
import torch
from torch import Tensor, nn
from torch.nn import functional

W = 32


class Mixer(nn.Module):
    """An MLP-mixer: the weights of the mixing of tokens stand on the left of their products."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Conv2d(3, W, 4, 4)
        self.up, self.down = (nn.Parameter(torch.randn(*s) * 0.1) for s in ((48, 16), (16, 48)))
        self.norm, self.wide, self.narrow = nn.LayerNorm(W), nn.Linear(W, 64), nn.Linear(64, W)

    def forward(self, x: Tensor) -> Tensor:
        """Return [N, W] of images [N, 3, 16, 16]."""
        x = self.embed(x).flatten(2).transpose(1, 2)
        for _ in range(2):
            x = x + self.down @ functional.gelu(self.up @ self.norm(x))
            x = x + self.narrow(functional.gelu(self.wide(self.norm(x))))
        return x.mean(1)


class EinsumAttention(nn.Module):
    """Attention whose products and projections are Einsums."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Parameter(torch.randn(W, 2, 16) * 0.2) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        """Return [N, T, W] of the same."""
        q, k, v = (torch.einsum("btw,whd->bthd", x, part) for part in (self.q, self.k, self.v))
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * 0.25
        mixed = torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v)
        return x + torch.einsum("bthd,whd->btw", mixed, self.o)


class ScaledGemms(nn.Module):
    """Gemms with alpha and beta between Relus."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterList(nn.Parameter(torch.randn(W, W) * 0.2) for _ in range(4))
        self.biases = nn.ParameterList(nn.Parameter(torch.randn(W)) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        """Return [N, W] of the same."""
        for at, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            x = torch.addmm(bias, x, weight, alpha=(1, 0.5, 2, 1)[at], beta=(1, 1, 0.5, 3)[at]).relu()
        return x


class SharedHeads(nn.Module):
    """A pyramid whose levels share the convolutions of two heads, with a scale for each level."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.next = nn.Conv2d(3, 16, 3, 2, 1), nn.Conv2d(16, 16, 3, 2, 1)
        self.head, self.boxes, self.classes = (nn.Conv2d(16, 16, 3, 1, 1) for _ in range(3))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """Return boxes and scores of both levels of images [N, 3, 32, 32]."""
        first = self.stem(x).relu()
        levels = first, self.next(first).relu()
        shared = [self.head(level).relu() for level in levels]
        boxes = [(self.boxes(one) * (at + 1.5)).exp() for at, one in enumerate(shared)]
        return (*boxes, *(self.classes(one).sigmoid() for one in shared))


class Recurrence(nn.Module):
    """An unrolled recurrence: each step has the same convolutions of the input and of the state."""

    def __init__(self) -> None:
        super().__init__()
        self.read, self.keep = nn.Conv2d(3, 16, 3, 1, 1), nn.Conv2d(16, 16, 3, 1, 1)
        self.out = nn.Conv2d(16, 4, 1)

    def forward(self, frames: Tensor) -> Tensor:
        """Return [N, 4, 16, 16] of frames [N, 4, 3, 16, 16]."""
        state = self.read(frames[:, 0]).tanh()
        for at in range(1, 4):
            state = (self.read(frames[:, at]) + self.keep(state)).tanh()
        return self.out(state)


class Upward(nn.Module):
    """A decoder of transposed convolutions of one to three dimensions, the middle one in groups."""

    def __init__(self, rank: int, groups: int = 1) -> None:
        super().__init__()
        conv, turned = getattr(nn, f"Conv{rank}d"), getattr(nn, f"ConvTranspose{rank}d")
        self.parts = nn.Sequential(
            conv(4, 16, 3, 1, 1), nn.ReLU(), turned(16, 16, 4, 2, 1, groups=groups), nn.ReLU(),
            conv(16, 16, 3, 1, 1), nn.ReLU(), turned(16, 8, 2, 2), nn.LeakyReLU(0.1), conv(8, 4, 1),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        """Return an output with sides four times as long."""
        return self.parts(x)


class Attention(nn.Module):
    """Attention with a mask or without, over its own tokens or others."""

    def __init__(self, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(W, W) for _ in range(4))

    def forward(self, x: Tensor, y: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return [N, T, W] for x [N, T, W] and y [N, S, W]."""
        q, k, v = (
            f(z).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for f, z in zip((self.q, self.k, self.v), (x, y, y), strict=True)
        )
        scores = q @ k.transpose(2, 3) * 0.25
        if mask is not None:
            scores = scores.masked_fill(mask, torch.finfo(torch.float32).min)
        return self.o((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Attention and a perceptron behind norms."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.one, self.two = Attention(), nn.LayerNorm(W), nn.LayerNorm(W)
        self.wide, self.narrow = nn.Linear(W, 64), nn.Linear(64, W)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return [N, T, W] of the same."""
        y = self.one(x)
        x = x + self.mix(y, y, mask)
        return x + self.narrow(functional.gelu(self.wide(self.two(x))))


class LearnedQueries(nn.Module):
    """A ViT whose patches are read by learned queries."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.blocks = nn.Conv2d(3, W, 4, 4), nn.ModuleList([Block(), Block()])
        self.places, self.queries = (nn.Parameter(torch.randn(1, n, W)) for n in (16, 5))
        self.read, self.norm, self.head = Attention(), nn.LayerNorm(W), nn.Linear(W, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return [N, 5, 10] of images [N, 3, 16, 16]."""
        x = self.embed(x).flatten(2).transpose(1, 2) + self.places
        for block in self.blocks:
            x = block(x)
        queries = self.queries.expand(x.shape[0], -1, -1)
        return self.head(self.norm(queries + self.read(queries, x)))


class MaskedDecoder(nn.Module):
    """A decoder of words with a causal mask of the lowest float."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.blocks = nn.Embedding(50, W), nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(W, 50)

    def forward(self, words: Tensor) -> Tensor:
        """Return [N, T, 50] of words [N, T]."""
        x, count = self.table(words), words.shape[1]
        mask = torch.ones(count, count, dtype=torch.bool).triu(1)
        for block in self.blocks:
            x = block(x, mask)
        return self.head(x)


class ShiftedWindows(nn.Module):
    """Attention in shifted windows with a mask of -100."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.block, self.head = nn.Conv2d(3, W, 4, 4), Block(), nn.Linear(W, 10)
        parts = torch.zeros(4, 4)
        parts[:2], parts[:, 1:3] = 1, parts[:, 1:3] + 2
        rows = parts.reshape(2, 2, 2, 2).transpose(1, 2).reshape(4, 4)
        self.register_buffer("mask", torch.where(rows[:, None] == rows[:, :, None], 0.0, -100.0)[:, None])

    def forward(self, x: Tensor) -> Tensor:
        """Return [N, 10] of images [N, 3, 16, 16]."""
        x = self.embed(x).permute(0, 2, 3, 1).roll((-1, -1), (1, 2))
        x = x.reshape(-1, 2, 2, 2, 2, W).transpose(2, 3).reshape(-1, 4, W)
        block = self.block
        y, mix = block.one(x), block.mix
        q, k, v = (f(y).unflatten(-1, (2, -1)).transpose(1, 2) for f in (mix.q, mix.k, mix.v))
        scores = (q @ k.transpose(2, 3) * 0.25).unflatten(0, (-1, 4)) + self.mask
        x = x + mix.o((scores.flatten(0, 1).softmax(-1) @ v).transpose(1, 2).flatten(2))
        x = x + block.narrow(functional.gelu(block.wide(block.two(x))))
        return self.head(x.unflatten(0, (-1, 4)).mean((1, 2)))


class Unet(nn.Module):
    """A U of convolutions with Resizes and Concats."""

    def __init__(self) -> None:
        super().__init__()
        sizes = ((3, 16), (16, 32), (32, 32), (64, 16), (32, 16))
        self.a, self.b, self.c, self.d, self.e = (nn.Conv2d(*size, 3, 1, 1) for size in sizes)
        self.out = nn.Conv2d(16, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return [N, 4, 32, 32] of images [N, 3, 32, 32]."""
        a = self.a(x).relu()
        b = self.b(functional.max_pool2d(a, 2)).relu()
        c = self.c(functional.avg_pool2d(b, 2)).relu()
        up = functional.interpolate(c, scale_factor=2.0, mode="nearest")
        d = self.d(torch.cat([up, b], 1)).relu()
        up = functional.interpolate(d, scale_factor=2.0, mode="bilinear", align_corners=False)
        return self.out(self.e(torch.cat([up, a], 1)).relu())


class Excited(nn.Module):
    """Inverted residuals with SiLU, gates of squeezed channels, and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Conv2d(3, 16, 3, 2, 1), nn.Linear(16, 10)
        self.parts = nn.ModuleList()
        for _ in range(2):
            wide, deep = nn.Conv2d(16, 48, 1), nn.Conv2d(48, 48, 3, 1, 1, groups=48)
            gate = nn.Conv2d(48, 8, 1), nn.Conv2d(8, 48, 1)
            self.parts.append(nn.ModuleList([wide, deep, *gate, nn.Conv2d(48, 16, 1)]))

    def forward(self, x: Tensor) -> Tensor:
        """Return [N, 10] of images [N, 3, 32, 32]."""
        x = functional.silu(self.stem(x))
        for wide, deep, less, more, narrow in self.parts:
            y = functional.silu(deep(functional.silu(wide(x))))
            gate = more(less(y.mean((2, 3), keepdim=True)).relu()).sigmoid()
            x = x + narrow(y * gate)
        return self.head(x.mean((2, 3)))


IMAGE, LARGE = torch.Size([1, 3, 16, 16]), torch.Size([1, 3, 32, 32])
STRUCTURES: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "mixer": (Mixer, lambda: torch.randn(IMAGE)),
    "einsum attention": (EinsumAttention, lambda: torch.randn(1, 12, W)),
    "scaled gemms": (ScaledGemms, lambda: torch.randn(4, W)),
    "shared heads": (SharedHeads, lambda: torch.randn(LARGE)),
    "unrolled recurrence": (Recurrence, lambda: torch.randn(1, 4, *IMAGE[1:])),
    "upward 1": (lambda: Upward(1), lambda: torch.randn(1, 4, 24)),
    "upward 1 in groups": (lambda: Upward(1, 4), lambda: torch.randn(1, 4, 24)),
    "upward 2": (lambda: Upward(2), lambda: torch.randn(1, 4, 8, 8)),
    "upward 2 in groups": (lambda: Upward(2, 4), lambda: torch.randn(1, 4, 8, 8)),
    "upward 3": (lambda: Upward(3), lambda: torch.randn(1, 4, 4, 4, 4)),
    "learned queries": (LearnedQueries, lambda: torch.randn(IMAGE)),
    "masked decoder": (MaskedDecoder, lambda: torch.randint(50, (1, 12))),
    "shifted windows": (ShiftedWindows, lambda: torch.randn(IMAGE)),
    "unet": (Unet, lambda: torch.randn(LARGE)),
    "squeeze and excite": (Excited, lambda: torch.randn(LARGE)),
}
"""Name -> constructor and random input."""


def structure(name: str, count: int = 24, seed: int = 0) -> tuple[onnx.ModelProto, list[dict[str, object]]]:
    """Return a network with random weights as torch exports it, and `count` samples."""
    make, draw = STRUCTURES[name]
    torch.manual_seed(seed)
    module, content = make().eval(), io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(module, (draw(),), content, input_names=["x"], opset_version=17, dynamo=False)
    return onnx.load_from_string(content.getvalue()), [{"x": draw().numpy()} for _ in range(count)]
