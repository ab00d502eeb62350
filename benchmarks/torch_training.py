"""Training steps of a ResNet-18 in torch: float, with fake quantizers of onnxfq, and with torch.ao.

    python benchmarks/torch_training.py [--threads N] [--rounds N] [--batch N] [--size N] [--out FILE]

A step is forward, cross entropy, backward and SGD, in eager mode. All have int8 per tensor for activations,
int8 per output channel for weights, symmetric, and BatchNorm folded into the weight. torch.ao prepares by
`prepare_qat_fx` for its TensorRT backend, which quantizes the same tensors. Marks: `MARKS`.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import warnings
from collections.abc import Callable

import torch
from timing import machine, markdown_table, median_ratio, paired_costs, report
from torch import Tensor, nn
from torch.ao import quantization as peers
from torch.ao.quantization.backend_config import get_tensorrt_backend_config
from torch.ao.quantization.quantize_fx import prepare_qat_fx
from torch.nn import functional as F

from onnxfq.torch import compute_encodings, learn_grids, quantize_module, quantizers

CLASSES = 1000
# Ratios to a float step that may not be passed, and the peer that must be slower.
MARKS = {
    "onnxfq": (1.5, "torch.ao, activations not observed"),
    "onnxfq, activations observed": (1.5, "torch.ao"),
    "onnxfq, scales learned": (1.5, "torch.ao"),
}


class Block(nn.Module):
    """Two convolutions of 3 x 3 and a shortcut."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        """Make the layers; the shortcut is a convolution where the shape changes."""
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.relu1, self.relu2 = nn.ReLU(), nn.ReLU()
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != width:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, width, 1, stride, bias=False), nn.BatchNorm2d(width)
            )

    def forward(self, x: Tensor) -> Tensor:
        """Return [N, width, H / stride, W / stride] for x [N, inputs, H, W]."""
        y = self.bn2(self.conv2(self.relu1(self.bn1(self.conv1(x)))))
        return self.relu2(y + self.shortcut(x))


def resnet18() -> nn.Module:
    """ResNet-18: 20 convolutions, each with a BatchNorm, and one linear layer."""
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    layers.append(nn.MaxPool2d(3, 2, 1))
    inputs = 64
    for width, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        layers += [Block(inputs, width, stride), Block(width, width, 1)]
        inputs = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, CLASSES))


def ours(model: nn.Module, x: Tensor, learned: str = "nothing", observed: bool = False) -> nn.Module:
    """Return the model quantized by tensorrt-int8, scales from x; observe weights if no scale is learned.

    observed: whether activations are observed while training, by moving averages as torch.ao does.
    """
    model = copy.deepcopy(model).eval()
    quantize_module(model, "tensorrt-int8")
    with torch.no_grad(), compute_encodings(model):
        model(x)
    learn_grids(model, learned)
    for name, quantizer in quantizers(model).items():
        if observed and "weight" not in name:
            quantizer.enable_observer()
    return model.train()


_INT8 = {"quant_min": -128, "quant_max": 127, "dtype": torch.qint8}


def torch_ao(model: nn.Module, x: Tensor, fake: type[nn.Module]) -> nn.Module:
    """Return the model prepared by torch.ao with modules of the type `fake`."""
    activation = fake.with_args(
        observer=peers.MovingAverageMinMaxObserver, qscheme=torch.per_tensor_symmetric, **_INT8
    )
    weight = fake.with_args(
        observer=peers.MovingAveragePerChannelMinMaxObserver, qscheme=torch.per_channel_symmetric, **_INT8
    )
    mapping = peers.QConfigMapping().set_global(peers.QConfig(activation=activation, weight=weight))
    model = copy.deepcopy(model).train()
    prepared = prepare_qat_fx(model, mapping, (x,), backend_config=get_tensorrt_backend_config())
    prepared(x)
    return prepared


def without_activation_observers(model: nn.Module) -> nn.Module:
    """Switch off the observers of a torch.ao model, except for weights."""
    for name, module in model.named_modules():
        if isinstance(module, peers.FakeQuantizeBase) and "weight" not in name:
            module.disable_observer()
    return model


def step(model: nn.Module, x: Tensor, labels: Tensor) -> Callable[[], None]:
    """Run one training step."""
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)

    def call() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(x), labels).backward()
        optimizer.step()

    return call


def candidates(x: Tensor) -> dict[str, nn.Module]:
    """Return the models, all copies of one."""
    torch.manual_seed(0)
    model = resnet18().train()
    return {
        "float": copy.deepcopy(model),
        "onnxfq": ours(model, x),
        "onnxfq, activations observed": ours(model, x, observed=True),
        "onnxfq, scales learned": ours(model, x, "scale"),
        "torch.ao": torch_ao(model, x, peers.FakeQuantize),
        "torch.ao, activations not observed": without_activation_observers(
            torch_ao(model, x, peers.FakeQuantize)
        ),
        "torch.ao fused": torch_ao(model, x, peers.FusedMovingAvgObsFakeQuantize),
    }


def verdict(name: str, costs: dict[str, list[float]]) -> str:
    """Tell whether processor time meets the marks of a candidate; empty if it has none."""
    if name not in MARKS:
        return ""
    most, peer = MARKS[name]
    met = median_ratio(costs, name, "float") <= most and median_ratio(costs, name, peer) < 1
    return f"at most {most}, below {peer}: {'met' if met else 'missed'}"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--size", type=int, default=224, help="height and width of the images")
    parser.add_argument("--out")
    options = parser.parse_args()
    warnings.filterwarnings("ignore", category=DeprecationWarning)  # torch announces that torch.ao will go
    warnings.filterwarnings("ignore", ".*reduce_range", UserWarning)
    torch.set_num_threads(options.threads)
    x = torch.rand(options.batch, 3, options.size, options.size)
    labels = torch.randint(CLASSES, (options.batch,))
    steps = {name: step(model, x, labels) for name, model in candidates(x).items()}
    walls, costs = paired_costs(steps, options.rounds)
    rows = [
        [
            name,
            f"{1000 * statistics.median(walls[name]):.0f}",
            f"{median_ratio(walls, name, 'float'):.2f}",
            f"{median_ratio(costs, name, 'float'):.2f}",
            verdict(name, costs),
        ]
        for name in steps
    ]
    text = (
        f"{machine()}; torch {torch.__version__}, {options.threads} threads, {options.rounds} rounds; batch "
        f"{options.batch}, {options.size} x {options.size}. Ratios are medians over the rounds; marks are "
        "held against processor time, which other processes disturb less.\n\n"
        + markdown_table(["step", "ms", "wall / float", "processor time / float", "mark"], rows)
    )
    report(f"Training steps of a ResNet-18, threads: {options.threads}", text, options.out)


if __name__ == "__main__":
    main()
