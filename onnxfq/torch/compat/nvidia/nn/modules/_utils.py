"""`pytorch_quantization.nn.modules._utils`: the descriptors of a layer's quantizers."""

from __future__ import annotations

from typing import Any

from onnxfq.torch.compat.nvidia import layers as _home


def __getattr__(name: str) -> Any:
    """Return a name of this path."""
    return getattr(_home, name)
