"""Fused kernels of torch's encoder layers, which would pass by the quantizers."""

from __future__ import annotations

from torch import nn

# Each with the attribute that switches its kernel off.
_FUSED: tuple[tuple[type[nn.Module], str, object], ...] = (
    (nn.TransformerEncoderLayer, "activation_relu_or_gelu", 0),
    (nn.TransformerEncoder, "use_nested_tensor", False),
)
_BEFORE = "before_quantization"


def switch_fused(model: nn.Module, fused: bool) -> None:
    """Switch torch's fused encoder kernels off, or restore their previous state."""
    for module in model.modules():
        for kind, name, off in _FUSED:
            if isinstance(module, kind) and not fused and hasattr(module, name):
                module.__dict__[_BEFORE] = getattr(module, name)
                setattr(module, name, off)
            elif isinstance(module, kind) and fused and _BEFORE in module.__dict__:
                setattr(module, name, module.__dict__.pop(_BEFORE))
