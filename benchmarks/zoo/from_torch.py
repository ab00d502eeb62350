"""A torch module as an ONNX file and feeds, by either exporter of torch."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

SAMPLES = 3
NORMS = (nn.modules.batchnorm._BatchNorm,)


@dataclass
class Network:
    """A module, its inputs, and which axes of them may be of any size: names of axes by input and axis."""

    module: nn.Module
    inputs: tuple[Tensor, ...]
    open_axes: dict[int, dict[int, str]] = field(default_factory=dict)
    limits: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Lowest and highest value by input, where a sample of other integers would have no meaning."""


def liven(network: Network) -> None:
    """Give what an untrained network has alike some differences, and BatchNormalization its statistics."""
    module = network.module
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if (
                parameter.is_floating_point()
                and parameter.numel() > 1
                and float(parameter.float().std()) == 0
            ):
                low, high = (-0.1, 0.1) if name.endswith("bias") else (0.7, 1.3)
                parameter.uniform_(low, high)
        norms = [part for part in module.modules() if isinstance(part, NORMS)]
        module.eval()
        for norm in norms:
            norm.momentum = None
            norm.reset_running_stats()
            norm.train()
        if norms:
            try:
                module(*network.inputs)
            except (RuntimeError, ValueError) as fault:
                print(f"statistics of BatchNormalization are those of no data: {str(fault)[:80]}")
        module.eval()


def write(
    network: Network, path: Path, exporter: str, opset: int, opened: bool
) -> list[dict[str, NDArray[Any]]]:
    """Write `path` and return feeds for it. Raises whatever torch's exporter raises."""
    liven(network)
    names = [f"in{number}" for number in range(len(network.inputs))]
    axes = network.open_axes or {i: {0: "batch"} for i in range(len(names))}
    options: dict[str, Any] = {"opset_version": opset, "input_names": names}
    if exporter == "torchscript":
        if opened:
            options["dynamic_axes"] = {names[i]: by_axis for i, by_axis in axes.items()}
    else:
        options |= {"external_data": False, "verbose": False}
        if opened:
            shapes = tuple(
                {axis: torch.export.Dim.DYNAMIC for axis in axes.get(i, {})} or None
                for i in range(len(names))
            )
            options["dynamic_shapes"] = (shapes,)  # every module here takes *inputs
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # of the exporters, which are not under test
        torch.onnx.export(
            Positional(network.module), network.inputs, str(path), dynamo=exporter == "dynamo", **options
        )
    return [{name: _sample(network, i, number) for i, name in enumerate(names)} for number in range(SAMPLES)]


class Positional(nn.Module):
    """A module whose inputs have no names of their own, so that open axes are said in one way for all."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *inputs: Tensor) -> Any:
        """Return what the module does."""
        return self.module(*inputs)


def _sample(network: Network, index: int, number: int) -> NDArray[Any]:
    given = network.inputs[index].numpy()
    if number == 0 or given.dtype == bool:
        return given
    rng = np.random.default_rng([number, index])
    low, high = network.limits.get(index, (int(given.min()), int(given.max())) if given.size else (0, 0))
    if given.dtype.kind in "iu":
        return rng.integers(low, high, given.shape, endpoint=True).astype(given.dtype) if high > 1 else given
    if given.min(initial=0) >= 0:
        return rng.random(given.shape).astype(given.dtype)
    return rng.standard_normal(given.shape).astype(given.dtype)
