"""Keys of one quantizer in state dicts of torch.ao and Horizon: the observer is `activation_post_process`.

| key                                      | value                                                      |
|------------------------------------------|------------------------------------------------------------|
| scale, zero_point                        | float32 and int32, [1] or [channels]                       |
| fake_quant_enabled, observer_enabled     | uint8, [1]                                                 |
| activation_post_process.min_val, max_val | range that the observer keeps                              |
| activation_post_process.eps              | its smallest scale                                         |
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from onnxfq.errors import SpecError
from onnxfq.torch.external_observer import ExternalObserver
from onnxfq.torch.learned_grid import FORMAT_KEY, SWITCHES, write_format
from onnxfq.torch.quantizer import FakeQuantize

OBSERVER = "activation_post_process."
_INNER = "observer.inner."
EPS = torch.finfo(torch.float32).eps
"""Smallest scale of torch.ao's observers."""


def read(quantizer: FakeQuantize, state: dict[str, Any], prefix: str) -> None:
    """Turn the keys of a quantizer into ours, in place. Raises SpecError for a state of another grid."""
    theirs = {name: state.pop(name) for name in list(state) if name.startswith(prefix + OBSERVER)}
    if not theirs:
        return
    ends = {name.removeprefix(prefix + OBSERVER): value for name, value in theirs.items()}
    if prefix + FORMAT_KEY not in state and prefix + "scale" in state:
        check_grid(quantizer, state, prefix, ends.get("min_val"), ends.get("max_val"))
        state[prefix + FORMAT_KEY] = write_format(quantizer.format)
    state.setdefault(prefix + "learned", torch.tensor(0))
    if isinstance(quantizer.observer, ExternalObserver):
        for name, value in ends.items():
            state[prefix + _INNER + name] = value
        quantizer.observer.seen = True
    elif quantizer.observer is not None and _known(ends.get("min_val")):
        shape = () if quantizer.spec.granularity.axis is None else ends["min_val"].shape
        quantizer.observer.keep((ends["min_val"].reshape(shape), ends["max_val"].reshape(shape)))


def check_grid(
    quantizer: FakeQuantize, state: dict[str, Any], prefix: str, low: Tensor | None, high: Tensor | None
) -> None:
    """Raise SpecError unless the range and the scale of a state give the number of steps of the quantizer.

    States hold no limits of integers. torch.ao: scale = (max - min) / (quant_max - quant_min), or twice the
    largest magnitude if symmetric; its fused modules then take the finest grid that holds both ends. A scale
    below `EPS` tells nothing.
    """
    if low is None or high is None or not (_known(low) and _known(high)):
        return
    scale, spec = state[prefix + "scale"].double().flatten(), quantizer.spec
    low, high = low.double().flatten().clamp(max=0), high.double().flatten().clamp(min=0)
    if low.numel() != scale.numel():
        return
    wanted = quantizer.quant_max - quantizer.quant_min
    width = 2 * torch.maximum(-low, high) if spec.symmetric else high - low
    fused = torch.maximum(low / min(quantizer.quant_min, -1), high / quantizer.quant_max) * wanted
    told = scale > 2 * EPS
    steps, others = (width / scale)[told], ((fused if spec.symmetric else width) / scale)[told]
    # A quarter of a step: float32 rounds the scale.
    fits = ((steps - wanted).abs() < 0.25) | ((others - wanted).abs() < 0.25)
    if not bool(fits.all()):
        name = prefix.removesuffix(".") or "the quantizer"
        raise SpecError(
            f"{name} has {wanted} steps, {quantizer.spec}, and the range and scale of the state dict give "
            f"{float(steps[~fits][0]):.1f}; quantize the module with the number format of the state dict"
        )


def write(quantizer: nn.Module, state: dict[str, Any], prefix: str, local_metadata: Any = None) -> None:
    """Turn our keys of a quantizer into torch.ao's, in place."""
    assert isinstance(quantizer, FakeQuantize)
    for name in [name for name in state if name.startswith(prefix + _INNER)]:
        state[prefix + OBSERVER + name.removeprefix(prefix + _INNER)] = state.pop(name)
    for name in SWITCHES:
        state[prefix + name] = getattr(quantizer, name).as_subclass(Tensor)
    if quantizer.learned == "nothing":
        state.pop(prefix + "learned", None)
    for name in ("scale", "zero_point"):
        if prefix + name in state and state[prefix + name].ndim == 0:
            state[prefix + name] = state[prefix + name].reshape(1)


def _known(end: Tensor | None) -> bool:
    return end is not None and bool(end.numel()) and bool(torch.isfinite(end).all())
