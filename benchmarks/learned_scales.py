"""Accuracy after training with learned scales and with fixed ones, by each of several optimizers.

    python benchmarks/learned_scales.py [--networks depthwise_cnn ...] [--optimizers NAME ...] [--seeds 3]
        [--steps 120] [--out benchmarks/results/learned_scales.md]

The networks of `models/` have an epoch of float training, int4 for weights and uint4 for activations. Both
ways train by the loop of docs/torch.md on the same batches, from the same calibrated scales. The mean gain of
learned scales must be above its standard error on two networks, and below minus that on none.
"""

from __future__ import annotations

import argparse
import copy
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from onnxfq.torch import compute_encodings, freeze_batchnorm, learn_grids, quantize_module

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "models"))  # not an installed package
import digits
import train
from timing import markdown_table, report

RECIPE = Path(__file__).resolve().parents[1] / "examples" / "quantization_aware_training" / "recipe.yaml"
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "AdamW(1e-3)": lambda parameters: torch.optim.AdamW(parameters, 1e-3),
    "AdamW(1e-3, weight_decay=0.1)": lambda parameters: torch.optim.AdamW(parameters, 1e-3, weight_decay=0.1),
    "SGD(0.1)": lambda parameters: torch.optim.SGD(parameters, 0.1),
}
WAYS = ("nothing", "scale")


def calibrated(name: str, seed: int) -> nn.Module:
    """Return a network after an epoch in float, with scales from 500 digits."""
    model = train.train(train.RECIPES[name], epochs=1, seed=seed)
    quantize_module(model, RECIPE)
    with torch.no_grad(), compute_encodings(model):
        for batch in torch.from_numpy(digits.load("calibration")[0]).split(train.BATCH):
            model(batch)
    return model


def fine_tune(model: nn.Module, optimizer: torch.optim.Optimizer, seed: int, steps: int) -> float:
    """Train by the loop of the page, BatchNorm frozen from the middle on; return the accuracy in percent."""
    images, labels = (torch.from_numpy(array) for array in digits.load("train"))
    generator = torch.Generator().manual_seed(seed)
    model.train()
    for step in range(steps):
        if step == steps // 2:
            freeze_batchnorm(model)
        batch = torch.randint(len(images), (train.BATCH,), generator=generator)
        optimizer.zero_grad()
        F.cross_entropy(model(images[batch]), labels[batch]).backward()
        optimizer.step()
    right, count = train.count_correct(model.eval())
    return 100 * right / count


def main() -> None:
    """Measure, print and write the table; exit with 1 if it misses the mark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", nargs="+", choices=train.RECIPES, default=list(train.RECIPES))
    parser.add_argument("--optimizers", nargs="+", choices=OPTIMIZERS, default=list(OPTIMIZERS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--out")
    given = parser.parse_args()
    rows = []
    gains: dict[str, list[float]] = {name: [] for name in given.optimizers}
    for network in given.networks:
        scores: dict[tuple[str, str], list[float]] = {}
        for seed in range(given.seeds):
            start = calibrated(network, seed)
            for name in given.optimizers:
                for what in WAYS:
                    model = copy.deepcopy(start)
                    learn_grids(model, what)
                    accuracy = fine_tune(model, OPTIMIZERS[name](model.parameters()), seed, given.steps)
                    scores.setdefault((name, what), []).append(accuracy)
                    print(network, seed, name, what, f"{accuracy:.2f}", flush=True)
        for name in given.optimizers:
            fixed, learned = (np.array(scores[name, what]) for what in WAYS)
            gain = float(np.mean(learned - fixed))
            error = float(np.std(learned - fixed, ddof=1)) / len(fixed) ** 0.5
            gains[name].append(gain / error)
            cells = [" ".join(f"{value:.2f}" for value in way) for way in (fixed, learned)]
            rows.append([network, f"`{name}`", *cells, f"{gain:+.2f} ± {error:.2f}"])
    header = ["network", "optimizer", "scales fixed", "scales learned", "mean gain, standard error"]
    text = f"""Accuracy on the scoring digits in percent, a number for each seed, after {given.steps} steps \
with int4 weights and uint4 activations,
from the same calibrated scales and on the same batches. `benchmarks/learned_scales.py` measures it.

{markdown_table(header, rows)}"""
    report("Learned and fixed scales", text, given.out)
    missed = [name for name, each in gains.items() if min(each) < -1 or sum(one > 1 for one in each) < 2]
    if missed:
        raise SystemExit(f"learned scales do not gain with {', '.join(missed)}")


if __name__ == "__main__":
    main()
