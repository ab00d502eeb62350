"""`pytorch_quantization.nn.modules.quant_instancenorm`: InstanceNorm."""

from __future__ import annotations

from typing import Any

from onnxfq.torch.compat.nvidia import layers as _home


def __getattr__(name: str) -> Any:
    """Return a name of this path."""
    return getattr(_home, name)
