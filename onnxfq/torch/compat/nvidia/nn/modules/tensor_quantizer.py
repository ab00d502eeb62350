"""`pytorch_quantization.nn.modules.tensor_quantizer`: the quantizer of a tensor."""

from __future__ import annotations

from typing import Any

from onnxfq.torch.compat.nvidia import tensor_quantizer as _home


def __getattr__(name: str) -> Any:
    """Return a name of this path."""
    return getattr(_home, name)
