"""State dicts of Horizon's plugin: torch.ao's keys with symmetric grids, whose zero points are 0."""

from __future__ import annotations

from typing import Any

from torch import nn

from onnxfq.errors import SpecError
from onnxfq.torch.checkpoints import torch_ao
from onnxfq.torch.quantizer import quantizers


def read(model: nn.Module, theirs: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the state with our keys. Raises SpecError for a zero point other than 0."""
    for key, value in theirs.items():
        if key.endswith(("fake_quant.zero_point", "post_process.zero_point")) and bool((value != 0).any()):
            raise SpecError(f"{key} is not 0, and Horizon's grids are symmetric; load it as torch-ao")
    return torch_ao.read(model, theirs)


def write(model: nn.Module) -> tuple[dict[str, Any], list[str]]:
    """Return the state with Horizon's keys. Raises SpecError for a quantizer that is not symmetric."""
    for path, quantizer in quantizers(model).items():
        if not quantizer.spec.symmetric:
            raise SpecError(f"{path!r} is {quantizer.spec}, and Horizon's grids are symmetric; use torch-ao")
    return torch_ao.write(model)
