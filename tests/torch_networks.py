"""The torch networks of models/ for tests, untrained. Import it where torch is known to be there."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import torch
from torch import nn

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
