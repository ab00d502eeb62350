"""Horizon's document, `horizon_plugin_pytorch.quantization.FakeQuantize`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.ao.quantization.observer import (
    MovingAverageMinMaxObserver,
    MovingAveragePerChannelMinMaxObserver,
)

from onnxfq.errors import SpecError
from onnxfq.numerics.granularity import Granularity
from onnxfq.numerics.qtypes import qtype_of_integers
from onnxfq.numerics.spec import QuantSpec
from onnxfq.torch import quantizer

_BITS: dict[Any, int] = {"qint8": 8, "qint16": 16, torch.qint8: 8}


class FakeQuantize(quantizer.FakeQuantize):
    """Symmetric rounding floor(x / scale + 0.5), with a scale that moves in training only."""

    def __init__(
        self,
        observer: str | nn.Module | Callable[..., nn.Module] = MovingAverageMinMaxObserver,
        saturate: bool | None = None,
        in_place: bool = False,
        compat_mask: bool = True,
        channel_len: int = 1,
        fast_training: bool = True,
        **observer_kwargs: Any,
    ) -> None:
        """Make a quantizer without a scale. Raises SpecError for an unknown dtype.

        Args:
            observer: class of an observer, of torch.ao or a user's own, or a name of `onnxfq.torch`.
            saturate: zero the gradient outside the grid; None means True.
            in_place: write the result over the input, where no gradient is recorded.
            compat_mask: keep one bit an element for the gradient.
            channel_len: has no effect: the first input gives it.
            fast_training: has no effect: observing and rounding are one step always.
            observer_kwargs: dtype (qint8, qint16), quant_min, quant_max, ch_axis, and arguments of the
                observer, such as averaging_constant.
        """
        given = dict(observer_kwargs)
        dtype, axis = given.pop("dtype", "qint8"), given.pop("ch_axis", -1)
        scheme = given.pop("qscheme", torch.per_tensor_symmetric)
        if dtype not in _BITS:
            raise SpecError(f"dtype must be qint8 or qint16, got {dtype}")
        if scheme not in (torch.per_tensor_symmetric, torch.per_channel_symmetric):
            raise SpecError(f"qscheme must be symmetric, got {scheme}; use onnxfq.torch.FakeQuantize")
        half = 1 << (_BITS[dtype] - 1)
        qtype = qtype_of_integers(given.pop("quant_min", -half), given.pop("quant_max", half - 1))
        if axis != -1 and observer is MovingAverageMinMaxObserver:
            observer = MovingAveragePerChannelMinMaxObserver
        super().__init__(
            QuantSpec(qtype=qtype, granularity=Granularity(None if axis == -1 else axis)),
            observer,
            rounding="half_up",
            saturate=saturate is not False,
            in_place=in_place,
            packed_mask=compat_mask,
            scale_rule="width",
            training_only=True,
            **given,
        )
