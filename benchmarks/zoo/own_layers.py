"""Networks written by hand, small, one for each structure that the libraries of models have seldom."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Made = tuple[nn.Module, tuple[Tensor, ...]]


class Function(nn.Module):
    """Modules by name, and a function of them and of the inputs."""

    def __init__(self, call: Callable[..., object], **modules: nn.Module | nn.Parameter) -> None:
        super().__init__()
        for name, module in modules.items():
            setattr(self, name, module)
        self.call = call

    def forward(self, *inputs: Tensor) -> object:
        """Return what the function makes of the inputs."""
        return self.call(self, *inputs)


def _weight(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(shape) / math.sqrt(math.prod(shape[1:]) or 1))


def yolo_head() -> Made:
    """Three strides, boxes from a distribution over distances, as one tensor."""

    def call(m: nn.Module, x: Tensor) -> Tensor:
        maps = []
        for stage, head in zip(m.stages, m.heads, strict=True):
            x = stage(x)
            maps.append(head(x).flatten(2))
        boxes, scores = torch.cat(maps, 2).split((64, 10), 1)
        n = boxes.shape[0]
        sides = m.mean(boxes.view(n, 4, 16, -1).transpose(1, 2).softmax(1)).view(n, 4, -1)
        low, high = sides.chunk(2, 1)
        return torch.cat(((high - low) / 2, low + high, scores.sigmoid()), 1)

    def stage(i: int, o: int) -> nn.Module:
        return nn.Sequential(nn.Conv2d(i, o, 3, 2, 1, bias=False), nn.BatchNorm2d(o), nn.SiLU())

    mean = nn.Conv2d(16, 1, 1, bias=False)
    mean.weight.data = torch.arange(16.0).view(1, 16, 1, 1)
    stages = nn.ModuleList([stage(3, 16), stage(16, 32), stage(32, 64)])
    heads = nn.ModuleList([nn.Conv2d(c, 74, 1) for c in (16, 32, 64)])
    return Function(call, stages=stages, heads=heads, mean=mean), (torch.rand(2, 3, 64, 64),)


def conv_lstm() -> Made:
    """A convolution inside of a recurrence, four steps unrolled."""

    def call(m: nn.Module, x: Tensor) -> Tensor:
        h = x.new_zeros(x.shape[0], 16, x.shape[3], x.shape[4])
        c = h
        for step in range(x.shape[1]):
            i, f, o, g = m.gates(torch.cat([x[:, step], h], 1)).chunk(4, 1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
        return m.out(h)

    gates, out = nn.Conv2d(19, 64, 3, padding=1), nn.Conv2d(16, 3, 1)
    return Function(call, gates=gates, out=out), (torch.randn(2, 4, 3, 16, 16),)


def tagger() -> Made:
    """Words, a GRU in both directions, a tag for each word."""
    tags = nn.Linear(64, 10)
    words, rnn = nn.Embedding(50, 32), nn.GRU(32, 32, bidirectional=True, batch_first=True)
    return Function(lambda m, x: m.tags(m.rnn(m.words(x))[0]), words=words, rnn=rnn, tags=tags), (
        torch.randint(0, 50, (2, 12)),
    )


def state_space() -> Made:
    """S4D: the kernel of a long convolution is computed from the parameters."""

    def call(m: nn.Module, x: Tensor) -> Tensor:
        t = torch.arange(32, dtype=torch.float32)
        kernel = (m.c[:, :, None] * torch.exp(-F.softplus(m.a)[:, :, None] * t)).sum(1)
        y = F.conv1d(F.pad(x, (31, 0)), kernel.flip(-1)[:, None], groups=16)
        return m.mix(F.gelu(y + x * m.d[:, None]).transpose(1, 2))

    return Function(call, c=_weight(16, 8), a=_weight(16, 8), d=_weight(16), mix=nn.Linear(16, 16)), (
        torch.randn(2, 16, 32),
    )


def rwkv() -> Made:
    """Time mixing by a running weighted mean, channel mixing by squared ReLU."""

    def call(m: nn.Module, x: Tensor) -> Tensor:
        before = F.pad(x, (0, 0, 1, -1))
        k = m.k(x * m.mu + before * (1 - m.mu)).exp()
        v = m.v(x * m.mu + before * (1 - m.mu))
        r = m.r(x).sigmoid()
        num = torch.zeros_like(x[:, 0])
        den, out = num, []
        for step in range(x.shape[1]):
            num = num * m.decay.sigmoid() + k[:, step] * v[:, step]
            den = den * m.decay.sigmoid() + k[:, step]
            out.append(num / (den + 1e-4))
        x = x + m.o(r * torch.stack(out, 1))
        return x + m.down(m.up(x).relu().square())

    layers = {name: nn.Linear(32, 32, bias=False) for name in "kvro"}
    return Function(
        call, mu=_weight(32), decay=_weight(32), up=nn.Linear(32, 64), down=nn.Linear(64, 32), **layers
    ), (torch.randn(2, 8, 32),)


def graph_network() -> Made:
    """Messages along edges, summed at the nodes with a scatter."""

    def call(m: nn.Module, x: Tensor, edges: Tensor) -> Tensor:
        for layer in m.layers:
            sent = layer(x[edges[0]])
            x = F.relu(torch.zeros_like(x).index_add(0, edges[1], sent) + m.own(x))
        return m.out(x.mean(0, keepdim=True))

    layers = nn.ModuleList([nn.Linear(32, 32), nn.Linear(32, 32)])
    return Function(call, layers=layers, own=nn.Linear(32, 32), out=nn.Linear(32, 7)), (
        torch.randn(20, 32),
        torch.randint(0, 20, (2, 60)),
    )


def graph_attention() -> Made:
    """Attention over the neighbours given by a dense adjacency."""

    def call(m: nn.Module, x: Tensor, adjacency: Tensor) -> Tensor:
        h = m.w(x)
        scores = F.leaky_relu(m.a(h) + m.b(h).transpose(1, 2)).masked_fill(adjacency == 0, -1e9)
        return m.out(scores.softmax(-1) @ h)

    return Function(
        call, w=nn.Linear(16, 32), a=nn.Linear(32, 1), b=nn.Linear(32, 1), out=nn.Linear(32, 4)
    ), (torch.randn(2, 12, 16), (torch.rand(2, 12, 12) > 0.5).float())


def point_net() -> Made:
    """Points, a learned transform of their own, the maximum over them."""

    def call(m: nn.Module, x: Tensor) -> Tensor:
        turn = m.turn(m.a(x).amax(2)).view(-1, 3, 3) + torch.eye(3)
        return m.out(m.b(torch.bmm(turn, x)).amax(2))

    def shared(*sizes: int) -> nn.Module:
        pairs = zip(sizes[:-1], sizes[1:], strict=True)
        return nn.Sequential(
            *(part for i, o in pairs for part in (nn.Conv1d(i, o, 1), nn.BatchNorm1d(o), nn.ReLU()))
        )

    return Function(
        call, a=shared(3, 32, 64), turn=nn.Linear(64, 9), b=shared(3, 64, 128), out=nn.Linear(128, 10)
    ), (torch.randn(2, 3, 100),)


def radiance_field() -> Made:
    """A NeRF: sines of positions, a skip into the middle, colour and density."""

    def call(m: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
        waves = x[..., None] * 2.0 ** torch.arange(6)
        code = torch.cat([x, waves.sin().flatten(-2), waves.cos().flatten(-2)], -1)
        h = m.b(torch.cat([m.a(code).relu(), code], -1)).relu()
        return m.colour(h).sigmoid(), m.density(h).relu()

    layers = {"a": nn.Linear(39, 64), "b": nn.Linear(103, 64)}
    return Function(call, colour=nn.Linear(64, 3), density=nn.Linear(64, 1), **layers), (torch.randn(64, 3),)


def recommender() -> Made:
    """A DLRM: bags of embeddings, and the products of all pairs."""

    def call(m: nn.Module, dense: Tensor, ids: Tensor) -> Tensor:
        all_ = torch.stack([m.low(dense), *(bag(ids[:, i]) for i, bag in enumerate(m.bags))], 1)
        pairs = torch.bmm(all_, all_.transpose(1, 2))
        rows, columns = torch.tril_indices(4, 4, -1)
        return m.top(torch.cat([all_[:, 0], pairs[:, rows, columns]], 1)).sigmoid()

    bags = nn.ModuleList([nn.EmbeddingBag(40, 16, mode="sum") for _ in range(3)])
    low = nn.Sequential(nn.Linear(13, 32), nn.ReLU(), nn.Linear(32, 16))
    top = nn.Sequential(nn.Linear(22, 32), nn.ReLU(), nn.Linear(32, 1))
    return Function(call, bags=bags, low=low, top=top), (torch.randn(4, 13), torch.randint(0, 40, (4, 3, 5)))


def cross_network() -> Made:
    """A DCN: crosses of the input with itself, plain and of low rank."""

    def call(m: nn.Module, x: Tensor) -> Tensor:
        y = x * (x @ m.w[:, None]) + x
        y = x * m.u(m.v(y)) + y
        return m.out(y)

    return Function(call, w=_weight(32), u=nn.Linear(8, 32), v=nn.Linear(32, 8), out=nn.Linear(32, 1)), (
        torch.randn(4, 32),
    )


def feature_tokens() -> Made:
    """An FT-Transformer: a token for each number of a table, made by a product of its own."""

    def call(m: nn.Module, x: Tensor) -> Tensor:
        tokens = x[..., None] * m.w + m.b
        tokens = torch.cat([m.cls.expand(x.shape[0], -1, -1), tokens], 1)
        return m.out(m.encoder(tokens)[:, 0])

    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, activation="gelu", norm_first=True)
    return Function(
        call,
        w=_weight(10, 32),
        b=_weight(10, 32),
        cls=_weight(1, 1, 32),
        encoder=nn.TransformerEncoder(layer, 2, enable_nested_tensor=False),
        out=nn.Linear(32, 3),
    ), (torch.randn(4, 10),)


def tab_net() -> Made:
    """Sparsemax masks over the columns: sorting and running sums between the products."""

    def sparsemax(x: Tensor) -> Tensor:
        ordered = x.sort(-1, descending=True).values
        total = ordered.cumsum(-1)
        k = torch.arange(1, x.shape[-1] + 1)
        size = (1 + k * ordered > total).sum(-1, keepdim=True)
        threshold = (total.gather(-1, size - 1) - 1) / size
        return F.relu(x - threshold)

    def call(m: nn.Module, x: Tensor) -> Tensor:
        x = m.norm(x)
        h, prior, total = m.first(x), torch.ones_like(x), 0.0
        for mask, step in zip(m.masks, m.steps, strict=True):
            chosen = sparsemax(mask(h) * prior)
            prior = prior * (1.3 - chosen)
            h = F.glu(step(chosen * x))
            total = total + F.relu(h)
        return m.out(total)

    return Function(
        call,
        norm=nn.BatchNorm1d(16),
        first=nn.Linear(16, 16),
        masks=nn.ModuleList([nn.Linear(16, 16) for _ in range(2)]),
        steps=nn.ModuleList([nn.Linear(16, 32) for _ in range(2)]),
        out=nn.Linear(16, 2),
    ), (torch.randn(4, 16),)


def modulated() -> Made:
    """StyleGAN 2: the weight of a convolution is scaled by what another product computes."""

    def call(m: nn.Module, x: Tensor, style: Tensor) -> Tensor:
        n = x.shape[0]
        w = m.weight[None] * m.affine(style)[:, None, :, None, None]
        w = w * (w.square().sum((2, 3, 4), keepdim=True) + 1e-8).rsqrt()
        y = F.conv2d(x.reshape(1, -1, 16, 16), w.view(-1, 16, 3, 3), padding=1, groups=n)
        return m.rgb(F.leaky_relu(y.reshape(n, 32, 16, 16), 0.2))

    return Function(call, weight=_weight(32, 16, 3, 3), affine=nn.Linear(24, 16), rgb=nn.Conv2d(32, 3, 1)), (
        torch.randn(2, 16, 16, 16),
        torch.randn(2, 24),
    )


def dynamic_convolution() -> Made:
    """CondConv: each sample mixes several kernels into one of its own."""

    def call(m: nn.Module, x: Tensor) -> Tensor:
        n = x.shape[0]
        mix = m.gate(x.mean((2, 3))).softmax(-1)
        w = (mix @ m.kernels.flatten(1)).view(n * 16, 8, 3, 3)
        return m.out(F.conv2d(x.reshape(1, n * 8, 16, 16), w, padding=1, groups=n).view(n, 16, 16, 16))

    return Function(call, gate=nn.Linear(8, 4), kernels=_weight(4, 16, 8, 3, 3), out=nn.Conv2d(16, 4, 1)), (
        torch.randn(2, 8, 16, 16),
    )


def sampled() -> Made:
    """A window that moves with the data, by grid_sample."""

    def call(m: nn.Module, x: Tensor) -> Tensor:
        lines = torch.linspace(-1, 1, 16)
        grid = torch.stack(torch.meshgrid(lines, lines, indexing="xy"), -1)
        moved = F.grid_sample(x, grid + 0.1 * m.offset(x).permute(0, 2, 3, 1).tanh(), align_corners=True)
        return m.out(torch.cat([x, moved], 1))

    return Function(call, offset=nn.Conv2d(8, 2, 3, padding=1), out=nn.Conv2d(16, 8, 3, padding=1)), (
        torch.randn(2, 8, 16, 16),
    )


def volumes() -> Made:
    """A U-Net in three dimensions, with transposed convolutions and one joined skip."""

    def call(m: nn.Module, x: Tensor) -> Tensor:
        a = F.leaky_relu(m.na(m.a(x)))
        b = F.leaky_relu(m.nb(m.b(a)))
        return m.out(F.leaky_relu(m.c(torch.cat([m.up(b), a], 1))))

    return Function(
        call,
        a=nn.Conv3d(1, 8, 3, padding=1),
        na=nn.InstanceNorm3d(8, affine=True),
        b=nn.Conv3d(8, 16, 3, 2, 1),
        nb=nn.GroupNorm(4, 16),
        up=nn.ConvTranspose3d(16, 8, 2, 2),
        c=nn.Conv3d(16, 8, 3, padding=1),
        out=nn.Conv3d(8, 2, 1),
    ), (torch.randn(1, 1, 8, 16, 16),)


def decoder() -> Made:
    """Transposed convolutions: with groups, output padding, dilation, in one and two dimensions."""

    def call(m: nn.Module, z: Tensor) -> Tensor:
        x = m.start(z).view(-1, 16, 4, 4)
        x = F.relu(m.a(x))
        x = F.relu(m.b(x))
        return torch.tanh(m.c(x)).flatten(2).add(m.line(z[:, None]).mean())

    return Function(
        call,
        start=nn.Linear(8, 256),
        a=nn.ConvTranspose2d(16, 16, 3, 2, 1, output_padding=1, groups=4),
        b=nn.ConvTranspose2d(16, 8, 4, 2, 1),
        c=nn.ConvTranspose2d(8, 3, 3, padding=2, dilation=2),
        line=nn.ConvTranspose1d(1, 4, 5, 2),
    ), (torch.randn(2, 8),)


def upscaler() -> Made:
    """EDSR: residual blocks and a PixelShuffle; and a dense block of ESRGAN."""

    def call(m: nn.Module, x: Tensor) -> Tensor:
        x = h = m.first(x)
        for a, b in zip(m.a, m.b, strict=True):
            h = h + 0.1 * b(a(h).relu())
        dense = [h]
        for layer in m.dense:
            dense.append(F.leaky_relu(layer(torch.cat(dense, 1)), 0.2))
        h = h + 0.2 * m.join(torch.cat(dense, 1))
        return m.last(F.pixel_shuffle(m.up(x + h), 2))

    return Function(
        call,
        first=nn.Conv2d(3, 16, 3, padding=1),
        a=nn.ModuleList([nn.Conv2d(16, 16, 3, padding=1) for _ in range(2)]),
        b=nn.ModuleList([nn.Conv2d(16, 16, 3, padding=1) for _ in range(2)]),
        dense=nn.ModuleList([nn.Conv2d(16 + 8 * i, 8, 3, padding=1) for i in range(3)]),
        join=nn.Conv2d(40, 16, 1),
        up=nn.Conv2d(16, 64, 3, padding=1),
        last=nn.Conv2d(16, 3, 3, padding=1),
    ), (torch.rand(1, 3, 24, 24),)


def wave_net() -> Made:
    """Gated dilated convolutions with weight normalisation, causal."""
    norm = nn.utils.parametrizations.weight_norm

    def call(m: nn.Module, x: Tensor) -> Tensor:
        x, total = m.first(x), 0.0
        for i, (gate, mix) in enumerate(zip(m.gates, m.mixes, strict=True)):
            a, b = gate(F.pad(x, (2**i, 0))).chunk(2, 1)
            h = mix(a.tanh() * b.sigmoid())
            x, total = x + h, total + h
        return m.out(F.relu(total))

    return Function(
        call,
        first=nn.Conv1d(1, 16, 1),
        gates=nn.ModuleList([norm(nn.Conv1d(16, 32, 2, dilation=2**i)) for i in range(4)]),
        mixes=nn.ModuleList([norm(nn.Conv1d(16, 16, 1)) for _ in range(4)]),
        out=nn.Conv1d(16, 8, 1),
    ), (torch.randn(2, 1, 64),)


def conformer() -> Made:
    """A block of a Conformer: half steps, attention with relative positions, depthwise convolution."""

    def call(m: nn.Module, x: Tensor) -> Tensor:
        x = x + 0.5 * m.ff1(x)
        y = m.norm(x)
        n, t, _ = y.shape
        q, k, v = (part.view(n, t, 4, 8).transpose(1, 2) for part in m.qkv(y).chunk(3, -1))
        place = m.places(torch.arange(-t + 1, t))  # [2t-1, 32]
        place = m.place(place).view(-1, 4, 8).permute(1, 2, 0)
        shifted = F.pad(q @ place, (1, 0)).view(n, 4, 2 * t, t)[:, :, 1:].reshape(n, 4, t, 2 * t - 1)
        scores = (q @ k.transpose(-1, -2) + shifted[..., :t]) / math.sqrt(8)
        x = x + m.o((scores.softmax(-1) @ v).transpose(1, 2).reshape(n, t, 32))
        y = F.glu(m.up(m.norm2(x).transpose(1, 2)), 1)
        x = x + m.down(F.silu(m.bn(m.depth(y)))).transpose(1, 2)
        return m.last(x + 0.5 * m.ff2(x))

    def half() -> nn.Module:
        return nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 64), nn.SiLU(), nn.Linear(64, 32))

    class Places(nn.Module):
        def forward(self, offset: Tensor) -> Tensor:
            """Return sines and cosines of offsets."""
            angle = offset[:, None] / 10000 ** (torch.arange(0, 32, 2) / 32)
            return torch.cat([angle.sin(), angle.cos()], -1)

    return Function(
        call,
        ff1=half(),
        ff2=half(),
        norm=nn.LayerNorm(32),
        norm2=nn.LayerNorm(32),
        last=nn.LayerNorm(32),
        qkv=nn.Linear(32, 96),
        places=Places(),
        place=nn.Linear(32, 32, bias=False),
        o=nn.Linear(32, 32),
        up=nn.Conv1d(32, 64, 1),
        depth=nn.Conv1d(32, 32, 7, padding=3, groups=32),
        bn=nn.BatchNorm1d(32),
        down=nn.Conv1d(32, 32, 1),
    ), (torch.randn(2, 16, 32),)


def tied_autoencoder() -> Made:
    """One weight for the way down and, transposed, for the way up; and one for a Linear and a 1x1 Conv."""

    def call(m: nn.Module, x: Tensor) -> Tensor:
        h = F.relu(F.linear(x, m.w, m.b))
        y = F.linear(h, m.w.t())
        return y + F.conv1d(y[..., None], m.v[..., None])[..., 0] + F.linear(y, m.v)

    return Function(call, w=_weight(16, 32), b=_weight(16), v=_weight(32, 32)), (torch.randn(4, 32),)


def siamese() -> Made:
    """One encoder for two images."""
    encoder = nn.Sequential(
        nn.Conv2d(3, 16, 3, 2, 1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, 2, 1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(512, 16),
    )
    return Function(lambda m, a, b: F.cosine_similarity(m.encoder(a), m.encoder(b)), encoder=encoder), (
        torch.rand(2, 3, 16, 16),
        torch.rand(2, 3, 16, 16),
    )


def standardized() -> Made:
    """Weight standardisation and spectral normalisation: weights computed from constants."""

    def call(m: nn.Module, x: Tensor) -> Tensor:
        w = m.w - m.w.mean((1, 2, 3), keepdim=True)
        w = w / (w.std((1, 2, 3), keepdim=True) + 1e-5)
        return m.out(F.relu(m.norm(F.conv2d(x, w, padding=1))))

    return Function(
        call,
        w=_weight(16, 3, 3, 3),
        norm=nn.GroupNorm(4, 16),
        out=nn.utils.parametrizations.spectral_norm(nn.Conv2d(16, 8, 3, padding=1)),
    ), (torch.randn(2, 3, 16, 16),)


def low_rank_adapter() -> Made:
    """LoRA that was not merged."""
    return Function(
        lambda m, x: m.base(x) + 0.5 * m.up(m.down(x)),
        base=nn.Linear(64, 64),
        up=nn.Linear(4, 64, bias=False),
        down=nn.Linear(64, 4, bias=False),
    ), (torch.randn(2, 8, 64),)


def merged_adapter() -> Made:
    """LoRA merged by the graph: a weight that two constants are multiplied for."""
    return Function(
        lambda m, x: F.linear(x, m.w + 0.5 * m.up @ m.down),
        w=_weight(64, 64),
        up=_weight(64, 4),
        down=_weight(4, 64),
    ), (torch.randn(2, 8, 64),)


def experts() -> Made:
    """A mixture of experts: all of them by a batched product, two chosen by their gate."""

    def call(m: nn.Module, x: Tensor) -> Tensor:
        chosen, which = m.gate(x).softmax(-1).topk(2, -1)
        weight = torch.zeros(*x.shape[:-1], 4).scatter(-1, which, chosen)
        h = F.silu(x[:, None] @ m.up) @ m.down
        return (h * weight.permute(0, 2, 1)[..., None]).sum(1)

    return Function(call, gate=nn.Linear(32, 4), up=_weight(4, 32, 64), down=_weight(4, 64, 32)), (
        torch.randn(2, 8, 32),
    )


def einsums() -> Made:
    """Products as equations: heads, experts, a bilinear form."""

    def call(m: nn.Module, x: Tensor) -> Tensor:
        q = torch.einsum("btd,dhk->bhtk", x, m.q)
        k = torch.einsum("btd,dhk->bhtk", x, m.k)
        scores = torch.einsum("bhik,bhjk->bhij", q, k).softmax(-1)
        mixed = torch.einsum("bhij,bjd->bihd", scores, x)
        return torch.einsum("bihd,hdo->bio", mixed, m.o)

    return Function(call, q=_weight(32, 4, 8), k=_weight(32, 4, 8), o=_weight(4, 32, 16)), (
        torch.randn(2, 6, 32),
    )


def linear_attention() -> Made:
    """Attention without a Softmax between its products."""

    def call(m: nn.Module, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (4, 8)).transpose(1, 2) for part in m.qkv(x).chunk(3, -1))
        q, k = F.elu(q) + 1, F.elu(k) + 1
        y = (q @ (k.transpose(-1, -2) @ v)) / (q @ k.sum(2)[..., None] + 1e-5)
        return m.o(y.transpose(1, 2).flatten(2))

    return Function(call, qkv=nn.Linear(32, 96), o=nn.Linear(32, 32)), (torch.randn(2, 10, 32),)


def spectrogram() -> Made:
    """A front end of sound: frames by a convolution with sines, squares, mel bands, logarithm, a Conv."""

    def call(m: nn.Module, x: Tensor) -> Tensor:
        waves = F.conv1d(F.pad(x[:, None], (32, 32), mode="reflect"), m.sines, stride=16)
        real, imaginary = waves.chunk(2, 1)
        mel = torch.log(m.bands @ (real.square() + imaginary.square()) + 1e-3)
        return m.out(F.relu(m.a(mel)).mean(-1))

    t = torch.arange(64.0)[None] * torch.arange(33.0)[:, None] * (2 * math.pi / 64)
    sines = nn.Parameter(torch.cat([t.cos(), t.sin()])[:, None] * torch.hann_window(64), requires_grad=False)
    return Function(
        call,
        sines=sines,
        bands=nn.Parameter(torch.rand(20, 33)),
        a=nn.Conv1d(20, 32, 3),
        out=nn.Linear(32, 5),
    ), (torch.randn(2, 512),)


def pads() -> Made:
    """Padding by reflection, edges and from the other side, each in front of a convolution; a fixed blur."""

    def call(m: nn.Module, x: Tensor) -> Tensor:
        x = F.relu(m.a(F.pad(x, (1, 1, 1, 1), mode="reflect")))
        x = F.relu(m.b(F.pad(x, (1, 1, 1, 1), mode="replicate")))
        x = F.relu(m.c(x))
        blur = torch.tensor([1.0, 2.0, 1.0])
        kernel = (blur[:, None] * blur / 16).expand(16, 1, 3, 3)
        return m.d(F.conv2d(F.pad(x, (1, 1, 1, 1)), kernel, stride=2, groups=16))

    return Function(
        call,
        a=nn.Conv2d(3, 16, 3),
        b=nn.Conv2d(16, 16, 3),
        c=nn.Conv2d(16, 16, 3, padding=1, padding_mode="circular"),
        d=nn.Conv2d(16, 8, 1),
    ), (torch.randn(2, 3, 16, 16),)


def unfolded() -> Made:
    """Local attention by unfold; a convolution as unfold and a product; fold back."""

    def call(m: nn.Module, x: Tensor) -> Tensor:
        columns = F.unfold(x, 3, padding=1)
        y = (m.w @ columns).view(-1, 16, 12, 12)
        return F.fold(m.v @ F.unfold(y, 2, stride=2), (12, 12), 2, stride=2)

    return Function(call, w=_weight(16, 72), v=_weight(32, 64)), (torch.randn(2, 8, 12, 12),)


def normalised_image() -> Made:
    """Bytes in, cast and normalised by constants, resized, two heads of different types out."""

    def call(m: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
        y = (x.permute(0, 3, 1, 2).float() / 255 - m.mean[:, None, None]) / 0.25
        y = F.interpolate(F.relu(m.a(y)), scale_factor=2.0, mode="bilinear")
        y = m.b(y)
        return y, y.argmax(1)

    return Function(call, mean=_weight(3), a=nn.Conv2d(3, 16, 3, 2, 1), b=nn.Conv2d(16, 4, 3, padding=1)), (
        torch.randint(0, 255, (2, 24, 24, 3), dtype=torch.uint8),
    )


def hyper_network() -> Made:
    """The weights of a product come from another network."""

    def call(m: nn.Module, x: Tensor, c: Tensor) -> Tensor:
        w = m.hyper(c).view(-1, 16, 8)
        return m.out(F.relu(torch.bmm(x, w)))

    return Function(call, hyper=nn.Linear(6, 128), out=nn.Linear(8, 4)), (
        torch.randn(2, 5, 16),
        torch.randn(2, 6),
    )


def quantile_trees() -> Made:
    """A tree of soft decisions as products: how Hummingbird writes trees."""

    def call(m: nn.Module, x: Tensor) -> Tensor:
        left = (x @ m.a < m.t).float()
        leaf = (left @ m.b == m.d).float()
        return leaf @ m.e

    return Function(
        call,
        a=nn.Parameter(F.one_hot(torch.randint(0, 8, (15,)), 8).T.float()),
        t=_weight(15),
        b=nn.Parameter(torch.randint(-1, 2, (15, 16)).float()),
        d=nn.Parameter(torch.randint(0, 2, (16,)).float()),
        e=_weight(16, 3),
    ), (torch.randn(8, 8),)


def correlation() -> Made:
    """Optical flow: the products of all pairs of pixels of two images, a pyramid, a lookup."""

    def call(m: nn.Module, a: Tensor, b: Tensor) -> Tensor:
        n = a.shape[0]
        fa, fb = m.f(a).flatten(2), m.f(b).flatten(2)
        volume = (fa.transpose(1, 2) @ fb / 4).view(n * 64, 1, 8, 8)
        levels = [volume, F.avg_pool2d(volume, 2)]
        found = torch.cat([level.flatten(1).view(n, 64, -1) for level in levels], -1)
        return m.flow(found.transpose(1, 2).reshape(n, -1, 8, 8))

    f = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.InstanceNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3, 1, 1))
    return Function(call, f=f, flow=nn.Conv2d(80, 2, 3, padding=1)), (
        torch.rand(2, 3, 16, 16),
        torch.rand(2, 3, 16, 16),
    )


def shuffled() -> Made:
    """Grouped convolutions with their channels shuffled between."""
    a, b = nn.Conv2d(16, 32, 1, groups=4), nn.Conv2d(32, 16, 1, groups=4)
    depth = nn.Conv2d(32, 32, 3, padding=1, groups=32)
    return Function(
        lambda m, x: x + m.b(m.depth(F.channel_shuffle(m.a(x), 4)).relu()), a=a, b=b, depth=depth
    ), (torch.randn(2, 16, 8, 8),)


def memory() -> Made:
    """Attention to a table of learned constants: one side of each product is a constant."""

    def call(m: nn.Module, x: Tensor) -> Tensor:
        scores = m.q(x) @ m.keys.T / 4
        return m.out(scores.softmax(-1) @ m.values)

    return Function(
        call, q=nn.Linear(32, 16), keys=_weight(24, 16), values=_weight(24, 16), out=nn.Linear(16, 8)
    ), (torch.randn(2, 6, 32),)


def half_precision() -> Made:
    """A convolution and a Linear whose parameters are halves, inputs too."""
    module = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(1024, 10)).half()
    return module, (torch.rand(2, 3, 16, 16).half(),)


def quantile_regression() -> Made:
    """An MLP-Mixer that ends in a product with an outer sum, all axes swapped between."""

    def call(m: nn.Module, x: Tensor) -> Tensor:
        x = x + m.time(x.transpose(1, 2)).transpose(1, 2)
        x = x + m.channel(x)
        return m.out(x.transpose(1, 2)).unsqueeze(-1) * m.scale

    return Function(
        call, time=nn.Linear(16, 16), channel=nn.Linear(8, 8), out=nn.Linear(16, 4), scale=_weight(1, 3)
    ), (torch.randn(2, 16, 8),)


def vector_quantizer() -> Made:
    """A VQ-VAE: distances to a code book by a product, the nearest looked up, decoded."""

    def call(m: nn.Module, x: Tensor) -> Tensor:
        z = m.encoder(x)
        flat = z.permute(0, 2, 3, 1).reshape(-1, 16)
        distance = flat.square().sum(1, keepdim=True) + m.book.square().sum(1) - 2 * flat @ m.book.t()
        code = m.book[distance.argmin(1)].view(z.shape[0], 4, 4, 16).permute(0, 3, 1, 2)
        return m.decoder(code)

    encoder = nn.Sequential(nn.Conv2d(3, 16, 4, 2, 1), nn.ReLU(), nn.Conv2d(16, 16, 4, 2, 1))
    up = nn.Sequential(nn.ConvTranspose2d(16, 16, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(16, 3, 4, 2, 1))
    return Function(call, encoder=encoder, decoder=up, book=_weight(24, 16)), (torch.rand(2, 3, 16, 16),)


NETWORKS: dict[str, Callable[[], Made]] = {
    make.__name__: make
    for make in (
        *(yolo_head, conv_lstm, tagger, state_space, rwkv, graph_network, graph_attention, point_net),
        *(radiance_field, recommender, cross_network, feature_tokens, tab_net, modulated),
        *(dynamic_convolution, sampled, volumes, decoder, upscaler, wave_net, conformer, tied_autoencoder),
        *(siamese, standardized, low_rank_adapter, merged_adapter, experts, einsums, linear_attention),
        *(spectrogram, pads, unfolded, normalised_image, hyper_network, quantile_trees, correlation),
        *(shuffled, memory, half_precision, quantile_regression, vector_quantizer),
    )
}
