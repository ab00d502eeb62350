"""`pytorch_quantization.utils.amp_wrapper`: decorators of apex, without effect."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def half_function(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return `fn`: `torch.autocast` chooses types now, as the original does without apex."""
    return fn


float_function = promote_function = half_function
