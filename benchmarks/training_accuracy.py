"""Accuracy after training with fake quantization on the digits, next to torch.ao's `prepare_qat_fx`.

    python benchmarks/training_accuracy.py [--seeds 0 1 2] [--epochs N] [--steps N] [--out FILE]

All start from one float network and see the same batches. Inputs and weights are quantized symmetrically,
without calibration: scales of activations follow the data by a moving average. torch.ao prepares for its
TensorRT backend. `--out` replaces the section of this title in a Markdown file, or adds it.
"""

from __future__ import annotations

import argparse
import copy
import sys
import warnings
from pathlib import Path
from statistics import mean

import torch
from timing import markdown_table
from torch import Tensor, nn
from torch.ao import quantization as peers
from torch.ao.quantization.backend_config import get_tensorrt_backend_config
from torch.ao.quantization.quantize_fx import prepare_qat_fx

from onnxfq.documents.recipe import Recipe
from onnxfq.targets.recipes import load_recipe
from onnxfq.torch import quantize_module

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "models"))  # not an installed package
import digits
import train

TITLE = "## Next to torch.ao"
NOTE = """Scales of activations are moving averages of ranges. torch.ao's `prepare_qat_fx`
for its TensorRT backend also quantizes the other operand of residual sums."""
BATCH = 100


def limits(bits: int) -> tuple[int, int]:
    """Return the least and the largest signed integer of `bits`."""
    return -(1 << (bits - 1)), (1 << (bits - 1)) - 1


def ours(model: nn.Module, bits: int, **settings: str) -> nn.Module:
    """Return the model quantized by the places of tensorrt-int8, uncalibrated."""
    low, high = limits(bits)
    base = load_recipe("tensorrt-int8")
    schemes = {
        name: getattr(base, name).model_dump() | {"qtype": f"int8[{low},{high}]" if bits < 8 else "int8"}
        for name in ("activations", "weights")
    }
    quantize_module(model, Recipe.model_validate(base.model_dump() | schemes), **settings)
    return model


def torch_ao(model: nn.Module, bits: int, example: Tensor) -> nn.Module:
    """Return the model prepared by torch.ao."""
    low, high = limits(bits)
    how = {"quant_min": low, "quant_max": high, "dtype": torch.qint8}
    activation = peers.FakeQuantize.with_args(
        observer=peers.MovingAverageMinMaxObserver, qscheme=torch.per_tensor_symmetric, **how
    )
    weight = peers.FakeQuantize.with_args(
        observer=peers.MovingAveragePerChannelMinMaxObserver, qscheme=torch.per_channel_symmetric, **how
    )
    mapping = peers.QConfigMapping().set_global(peers.QConfig(activation=activation, weight=weight))
    return prepare_qat_fx(model.train(), mapping, (example,), backend_config=get_tensorrt_backend_config())


def fit(model: nn.Module, seed: int, steps: int) -> float:
    """Train for `steps` batches and return the score."""
    torch.manual_seed(seed)
    images, labels = (torch.from_numpy(array) for array in digits.load("train"))
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=steps)
    model.train()
    for _ in range(steps):
        batch = torch.randint(len(images), (BATCH,))
        train.step(model, optimizer, images[batch], labels[batch])
        schedule.step()
    return score(model)


def score(model: nn.Module) -> float:
    """Return the share of scoring digits that are right, in percent."""
    right, total = train.count_correct(model.eval())
    return 100 * right / total


def count(model: nn.Module) -> int:
    """Return the number of fake quantizers of either library."""
    return sum(isinstance(module, peers.FakeQuantizeBase) for module in model.modules())


def compare(network: nn.Module, bits: int, seed: int, steps: int) -> dict[str, float]:
    """Return the accuracies of a trained network after more training, by the way of quantization."""
    example = torch.from_numpy(digits.load("calibration")[0][:2])
    made = {
        "torch.ao": torch_ao(copy.deepcopy(network), bits, example),
        "onnxfq": ours(copy.deepcopy(network), bits),
        'onnxfq, `scale_rule="width"`': ours(copy.deepcopy(network), bits, scale_rule="width"),
    }
    scores = {"float32, before": score(network)}
    for label, model in made.items():
        scores[f"{label}, {count(model)} quantizers"] = fit(model, seed, steps)
        print(f"seed {seed}, {bits} bits: {scores}", flush=True)
    return scores


def main() -> None:
    """Measure, print, and write the section."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", nargs="+", default=["depthwise_cnn", "residual_cnn", "transformer"])
    parser.add_argument("--bits", type=int, nargs="+", default=[8, 4])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--epochs", type=int, default=1, help="of the float network")
    parser.add_argument("--steps", type=int, default=120, help="of training with fake quantization")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    warnings.filterwarnings("ignore", category=DeprecationWarning)  # torch announces that torch.ao will go
    warnings.filterwarnings("ignore", ".*reduce_range", UserWarning)
    rows = []
    for name in options.networks:
        networks = {s: train.train(train.RECIPES[name], options.epochs, s) for s in options.seeds}
        for bits in options.bits:
            results = [compare(networks[s], bits, s, options.steps) for s in options.seeds]
            for label in results[0]:
                values = [scores[label] for scores in results]
                rows.append([name, str(bits), label, *(f"{v:.2f}" for v in values), f"{mean(values):.2f}"])
    seeds = [f"seed {seed}" for seed in options.seeds]
    table = markdown_table(["network", "bits", "%", *seeds, "mean"], rows)
    text = (
        f"{TITLE}\n\nAccuracy on the scoring digits in percent, by `benchmarks/training_accuracy.py --out "
        f"docs/qat-results.md`.\nEpochs of the float network: {options.epochs}. "
        f"Steps with fake quantization: {options.steps}, without calibration.\n{NOTE}\n\n{table}\n"
    )
    print(text)
    if options.out:
        before = options.out.read_text().partition(f"\n{TITLE}\n")[0] if options.out.exists() else ""
        options.out.write_text(f"{before}\n{text}")


if __name__ == "__main__":
    main()
