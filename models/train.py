"""Training of one of the recipes on the digits, its accuracy and its ONNX export.

Usage: python models/train.py depthwise_cnn [--epochs N] [--seed S] [-o OUT.onnx]
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import depthwise_cnn
import digits
import residual_cnn
import torch
import transformer
from torch import Tensor, nn
from torch.nn import functional as F

from onnxfq.torch import export_torch

BATCH = 100


@dataclass(frozen=True)
class Recipe:
    """Network and its training: peak learning rate, passes over the training digits."""

    build: Callable[[], nn.Module]
    peak_rate: float
    epochs: int


RECIPES = {
    "depthwise_cnn": Recipe(depthwise_cnn.build, peak_rate=4e-3, epochs=20),
    "residual_cnn": Recipe(residual_cnn.build, peak_rate=4e-3, epochs=20),
    "transformer": Recipe(transformer.build, peak_rate=3e-3, epochs=40),
}


def jitter(images: Tensor) -> Tensor:
    """Rotate, scale and shift each image at random by at most 10 degrees, 10% and 2 pixels."""

    def uniform(limit: float) -> Tensor:
        return (2 * torch.rand(len(images)) - 1) * limit

    angle, zoom = uniform(math.radians(10)), 1 + uniform(0.1)
    cos, sin = zoom * torch.cos(angle), zoom * torch.sin(angle)
    shift = 2 / 14  # torch counts half an image, 14 pixels, as 1
    rows = [torch.stack((cos, -sin, uniform(shift)), 1), torch.stack((sin, cos, uniform(shift)), 1)]
    grid = F.affine_grid(torch.stack(rows, 1), list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, align_corners=False)


def step(model: nn.Module, optimizer: torch.optim.Optimizer, images: Tensor, labels: Tensor) -> float:
    """Take one optimizer step on one batch and return the cross entropy before it."""
    optimizer.zero_grad()
    loss = F.cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()
    return loss.item()


def train(recipe: Recipe, epochs: int, seed: int) -> nn.Module:
    """Build the network and train it on the training digits; the same seed gives the same weights.

    One thread and one rate schedule (a warm-up, then a cosine down to zero), so that the result depends on
    nothing but the seed and the torch build.
    """
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    images, labels = (torch.from_numpy(array) for array in digits.load("train"))
    model = recipe.build().train()
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, recipe.peak_rate, epochs=epochs, steps_per_epoch=len(images) // BATCH
    )
    for epoch in range(epochs):
        total = 0.0
        for batch in torch.randperm(len(images)).split(BATCH):
            total += step(model, optimizer, jitter(images[batch]), labels[batch])
            schedule.step()
        print(f"epoch {epoch + 1}/{epochs}  loss {total * BATCH / len(images):.4f}", flush=True)
    return model.eval()


def count_correct(model: nn.Module) -> tuple[int, int]:
    """Return the number of scoring digits classified correctly, and their total."""
    images, labels = (torch.from_numpy(array) for array in digits.load("scoring"))
    with torch.inference_mode():
        return int((model(images).argmax(1) == labels).sum()), len(labels)


def main() -> None:
    """Read the command line, train, report, export."""
    parser = argparse.ArgumentParser(description="Train a recipe on the digits and export it to ONNX.")
    parser.add_argument("recipe", choices=sorted(RECIPES))
    parser.add_argument("--epochs", type=int, metavar="N", help="default: the recipe's own")
    parser.add_argument("--seed", type=int, default=0, metavar="S")
    parser.add_argument("-o", "--output", metavar="OUT.onnx", help="default: RECIPE.onnx")
    arguments = parser.parse_args()
    recipe = RECIPES[arguments.recipe]
    start = time.perf_counter()
    model = train(recipe, arguments.epochs or recipe.epochs, arguments.seed)
    seconds = time.perf_counter() - start
    correct, count = count_correct(model)
    accuracy = f"{correct} of {count} right, {correct / count:.2%}"
    print(f"{arguments.recipe}: {accuracy}, trained in {seconds:.0f} s")
    output = arguments.output or f"{arguments.recipe}.onnx"
    example = torch.from_numpy(digits.load("calibration")[0][:2])
    export_torch(model, (example,), output, output_names=["logits"])
    print(f"wrote {output}")


if __name__ == "__main__":
    main()
