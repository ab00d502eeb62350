"""Frozen quantizers for an export: scales as buffers, computed weights as constants."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import nn

from onnxfq.errors import StatisticsError
from onnxfq.torch.layers import fold_weight, refresh
from onnxfq.torch.quantizer import quantizers

BAKED = "baked_weight"


@contextlib.contextmanager
def freeze_grids(model: nn.Module) -> Iterator[None]:
    """Freeze all grids of `model`, and restore everything afterwards.

    Raises StatisticsError, with the quantizer's name, if one has no scale yet.
    """
    with torch.no_grad():
        refresh(model)
    for name, quantizer in quantizers(model).items():
        needed = quantizer.fake_quant_enabled and not quantizer.may_be_unused
        if needed and not quantizer.is_initialized:
            raise StatisticsError(
                f"quantizer {name!r} has no scale yet; run data through the model in compute_encodings"
            )
    folded = [module for module in model.modules() if module.__dict__.get("folded_norm") is not None]
    with contextlib.ExitStack() as stack:
        for quantizer in quantizers(model).values():
            stack.enter_context(quantizer.freeze_grid())
        for layer in folded:
            layer.register_buffer(BAKED, fold_weight(layer).detach().clone(), persistent=False)
            stack.callback(layer.__delattr__, BAKED)
        yield
