"""Export of torch.ao's FakeQuantize modules: during an export they only round.

They branch on buffers to decide whether to observe, which an export cannot follow.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor, nn

from onnxfq.torch.affine import fake_quantize_per_channel_affine, fake_quantize_per_tensor_affine


@contextlib.contextmanager
def disable_observers(model: nn.Module) -> Iterator[None]:
    """Let the FakeQuantize modules of torch.ao in `model` only round, not observe."""
    # Imported already if the model has such modules.
    home = sys.modules.get("torch.ao.quantization.fake_quantize")
    base = None if home is None else home.FakeQuantizeBase
    # onnxfq's own count as such modules too; their switches are plain.
    changed = [
        module
        for module in model.modules()
        if base is not None and isinstance(module, base) and isinstance(module.fake_quant_enabled, Tensor)
    ]
    try:
        for module in changed:
            module.forward = _rounding_of(module)
        yield
    finally:
        for module in changed:
            module.__dict__.pop("forward", None)


def _rounding_of(module: Any) -> Callable[[Tensor], Tensor]:
    if not bool(module.fake_quant_enabled[0]):
        return lambda x: x
    observer = module.activation_post_process
    low, high = observer.quant_min, observer.quant_max
    scale, zero_point = module.scale.detach().clone(), module.zero_point.detach().clone()
    if module.is_per_channel:
        axis = module.ch_axis
        return lambda x: fake_quantize_per_channel_affine(x, scale, zero_point, axis, low, high)
    return lambda x: fake_quantize_per_tensor_affine(x, scale, zero_point, low, high)
