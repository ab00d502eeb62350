"""Accuracy after training with fake quantization: each interface's quantizers and torch.ao's.

    python benchmarks/qat_interfaces.py [--interfaces core horizon ...] [--cifar FOLDER] [--seeds 3]
        [--out benchmarks/results/training.md]

The network is the residual one on the digits of `models/`, or with --cifar a ResNet-20 with the
weights of resnet20_op13_bn.onnx on the JPEG images of cifar10_jpeg.zip in that folder. All train by one
schedule. Quantized are input and weight of each convolution and linear layer, int8 and symmetric, activations
per tensor, weights per output channel. The mean of each interface must be within `MARK` points of torch.ao's.
--out replaces the network's section of that page.
"""

from __future__ import annotations

import argparse
import copy
import io
import sys
import warnings
import zipfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from PIL import Image
from torch import Tensor, nn
from torch.ao import quantization as ao
from torch.nn import functional as F

from onnxfq.torch import quantize_module

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "models"))  # not an installed package
import digits
import train
from timing import markdown_table, write_section

MARK = 0.3
BATCH = 50
RATE = 2e-4
Data = tuple[Tensor, Tensor]


class Layer(nn.Module):
    """A float layer with one quantizer for its input and one for its weight."""

    def __init__(self, layer: nn.Module, activation: nn.Module, weight: nn.Module) -> None:
        """Take the layer and its quantizers."""
        super().__init__()
        self.layer, self.activation, self.weight = layer, activation, weight

    def forward(self, x: Tensor) -> Tensor:
        """Run the layer with both quantized."""
        weight = self.weight(self.layer.weight)
        return torch.func.functional_call(self.layer, {"weight": weight}, (self.activation(x),))


def replace(model: nn.Module, make: Callable[[nn.Module], nn.Module]) -> nn.Module:
    """Return the model with `make(layer)` in place of each convolution and linear layer."""
    for name, child in model.named_children():
        done = isinstance(child, (nn.Conv2d, nn.Linear))
        setattr(model, name, make(child) if done else replace(child, make))
    return model


LIMITS: dict[str, Any] = {"dtype": torch.qint8, "quant_min": -128, "quant_max": 127}
ACTIVATION = ao.FakeQuantize.with_args(
    observer=ao.MovingAverageMinMaxObserver, qscheme=torch.per_tensor_symmetric, **LIMITS
)
WEIGHT = ao.FakeQuantize.with_args(
    observer=ao.PerChannelMinMaxObserver, qscheme=torch.per_channel_symmetric, ch_axis=0, **LIMITS
)


def with_core(model: nn.Module, images: Tensor) -> nn.Module:
    """Return the model of `quantize_module` by the same QConfig, whose scales follow the data in training."""
    quantize_module(model, ao.QConfig(ACTIVATION, WEIGHT), fold_batchnorm=False)
    return model


def with_torch_ao(model: nn.Module, images: Tensor) -> nn.Module:
    """Return the model with torch.ao's FakeQuantize."""

    # Weights have the range of this step, as in all other interfaces.
    def fresh(quantizer: nn.Module) -> nn.Module:
        reset = quantizer.activation_post_process.reset_min_max_vals
        quantizer.register_forward_pre_hook(lambda module, args: reset())
        return quantizer

    return replace(model, lambda layer: Layer(layer, ACTIVATION(), fresh(WEIGHT())))


def with_horizon(model: nn.Module, images: Tensor) -> nn.Module:
    """Return the model with Horizon's FakeQuantize."""
    from onnxfq.torch.compat.horizon import FakeQuantize

    def make(layer: nn.Module) -> nn.Module:
        return Layer(layer, FakeQuantize(), FakeQuantize("latest", ch_axis=0))

    return replace(model, make)


def with_aimet(model: nn.Module, images: Tensor) -> nn.Module:
    """Return the model with AIMET's quantizers, whose ranges learn, calibrated on some images."""
    import onnxfq.torch.compat.aimet as library

    def make(layer: nn.Module) -> nn.Module:
        shape = (layer.weight.shape[0], *[1] * (layer.weight.ndim - 1))
        return Layer(
            layer, library.QuantizeDequantize((), 8, True), library.QuantizeDequantize(shape, 8, True)
        )

    model = replace(model, make).eval()
    layers = [module for module in model.modules() if isinstance(module, Layer)]
    with torch.no_grad():
        for layer in layers:
            with layer.weight.compute_encodings():
                layer.weight(layer.layer.weight)
        with ExitStack() as stack:
            for layer in layers:
                stack.enter_context(layer.activation.compute_encodings())
            model(images)
    return model


def with_nvidia(model: nn.Module, images: Tensor) -> nn.Module:
    """Return the model with pytorch-quantization's quantizers, calibrated on some images."""
    from onnxfq.torch.compat.nvidia import QuantDescriptor, TensorQuantizer

    def make(layer: nn.Module) -> nn.Module:
        return Layer(layer, TensorQuantizer(QuantDescriptor()), TensorQuantizer(QuantDescriptor(axis=0)))

    model = replace(model, make).eval()
    quantizers = [module.activation for module in model.modules() if isinstance(module, Layer)]
    for quantizer in quantizers:
        quantizer.disable_quant()
        quantizer.enable_calib()
    with torch.no_grad():
        model(images)
    for quantizer in quantizers:
        quantizer.load_calib_amax()
        quantizer.disable_calib()
        quantizer.enable_quant()
    return model


INTERFACES = {
    "torch.ao": with_torch_ao,
    "core": with_core,
    "horizon": with_horizon,
    "aimet": with_aimet,
    "nvidia": with_nvidia,
}


class Block(nn.Module):
    """Two convolutions and a shortcut that drops pixels and adds empty channels."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        """Make the layers."""
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.stride, self.added = stride, (width - inputs) // 2

    def forward(self, x: Tensor) -> Tensor:
        """Return [N, width, H / stride, W / stride] for x [N, inputs, H, W]."""
        y = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu()))
        kept = x[:, :, :: self.stride, :: self.stride]
        return (y + F.pad(kept, (0, 0, 0, 0, self.added, self.added))).relu()


class ResNet20(nn.Module):
    """ResNet-20 for images of 32 x 32 (He et al., 2016), with shortcuts without parameters."""

    def __init__(self) -> None:
        """Make the layers, by the names of the file."""
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16)
        self.layer1 = nn.Sequential(*(Block(16, 16, 1) for _ in range(3)))
        self.layer2 = nn.Sequential(Block(16, 32, 2), Block(32, 32, 1), Block(32, 32, 1))
        self.layer3 = nn.Sequential(Block(32, 64, 2), Block(64, 64, 1), Block(64, 64, 1))
        self.linear = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits [N, 10]."""
        x = self.bn1(self.conv1(x)).relu()
        return self.linear(self.layer3(self.layer2(self.layer1(x))).mean((2, 3)))


def cifar(folder: Path) -> tuple[nn.Module, Data, Data]:
    """Return the network of the folder, and its images to train on and to score."""
    graph = onnx.load(folder / "resnet20_op13_bn.onnx").graph
    state = {t.name: torch.from_numpy(onnx.numpy_helper.to_array(t).copy()) for t in graph.initializer}
    model = ResNet20()
    missing, _ = model.load_state_dict(state, strict=False)
    assert all(name.endswith("num_batches_tracked") for name in missing), missing
    mean, std = ([[[v]] for v in values] for values in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    parts: dict[str, list[tuple[Tensor, int]]] = {"calib": [], "eval": []}
    with zipfile.ZipFile(folder / "cifar10_jpeg.zip") as archive:
        for name in sorted(archive.namelist()):
            if name.endswith(".jpg"):
                part, label, _ = name.split("/")
                image = np.asarray(Image.open(io.BytesIO(archive.read(name))).convert("RGB"), np.float32)
                pixels = torch.from_numpy(image / np.float32(255)).permute(2, 0, 1)
                parts[part].append(((pixels - torch.tensor(mean)) / torch.tensor(std), int(label[0])))
    sets = {
        name: (torch.stack([x for x, _ in p]), torch.tensor([y for _, y in p])) for name, p in parts.items()
    }
    return model.eval(), sets["calib"], sets["eval"]


def digit_network(seed: int) -> tuple[nn.Module, Data, Data]:
    """Return the residual network after an epoch of float training, and its digits."""
    model = train.train(train.RECIPES["residual_cnn"], epochs=1, seed=seed)
    pairs = [tuple(torch.from_numpy(array) for array in digits.load(part)) for part in ("train", "scoring")]
    return model.eval(), pairs[0], pairs[1]


@torch.no_grad()
def accuracy(model: nn.Module, data: Data) -> float:
    """Return the share of right answers in percent."""
    right = [model.eval()(x).argmax(1) == y for x, y in zip(*(part.split(250) for part in data), strict=True)]
    return 100 * float(torch.cat(right).float().mean())


def fine_tune(model: nn.Module, data: Data, seed: int, steps: int) -> nn.Module:
    """Train by SGD with a falling rate; BatchNorm keeps its statistics."""
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.SGD(model.parameters(), RATE, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    model.train()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval()
    for _ in range(steps):
        batch = torch.randint(len(data[0]), (BATCH,), generator=generator)
        optimizer.zero_grad()
        F.cross_entropy(model(data[0][batch]), data[1][batch]).backward()
        optimizer.step()
        schedule.step()
    return model


def distances(scores: dict[str, list[float]]) -> dict[str, float]:
    """Return how far each mean is from torch.ao's, in points."""
    peer = float(np.mean(scores["torch.ao"]))
    return {name: float(np.mean(values)) - peer for name, values in scores.items()}


def section(training: int, scoring: int, steps: int, scores: dict[str, list[float]]) -> str:
    """Return the text of a section: how it was measured, and a row for each interface."""
    seeds = [f"seed {i}" for i in range(len(scores["torch.ao"]))]
    rows = [
        [name, *(f"{value:.2f}" for value in [*scores[name], np.mean(scores[name])]), f"{off:+.2f}"]
        for name, off in distances(scores).items()
    ]
    return f"""Accuracy in percent on {scoring} images after {steps} steps, each of {BATCH} images out of \
{training}.
`benchmarks/qat_interfaces.py` measures it: input and weight of each layer in symmetric int8, one schedule,
the same batches. Means should be within {MARK} points of torch.ao's.

{markdown_table(["quantizers", *seeds, "mean", "off torch.ao"], rows)}"""


def main() -> None:
    """Measure, print and write the table; exit with 1 if a mean misses the mark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--interfaces", nargs="+", choices=INTERFACES, default=list(INTERFACES))
    parser.add_argument("--cifar", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    title = "ResNet-20, CIFAR-10" if given.cifar else "residual_cnn, digits"
    scores: dict[str, list[float]] = {name: [] for name in ("none, float", "torch.ao", *given.interfaces)}
    for seed in range(given.seeds):
        model, training, scoring = cifar(given.cifar) if given.cifar else digit_network(seed)
        for name, values in scores.items():
            made = copy.deepcopy(model)
            made = INTERFACES[name](made, training[0][:BATCH]) if name in INTERFACES else made
            values.append(accuracy(fine_tune(made, training, seed, given.steps), scoring))
            print(title, seed, name, f"{values[-1]:.2f}", flush=True)
    text = section(len(training[1]), len(scoring[1]), given.steps, scores)
    write_section(given.out, "Training with fake quantization", f"By interface: {title}", text)
    missed = [name for name in given.interfaces if abs(distances(scores)[name]) > MARK]
    if missed:
        raise SystemExit(f"{title}: more than {MARK} points off torch.ao: {', '.join(missed)}")


if __name__ == "__main__":
    main()
