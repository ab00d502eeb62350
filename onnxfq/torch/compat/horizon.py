"""Horizon's document, `horizon_plugin_pytorch.quantization.FakeQuantize`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn
from torch.ao.quantization.observer import MovingAverageMinMaxObserver, MovingAveragePerChannelMinMaxObserver

from onnxfq.errors import ArgumentError, SpecError
from onnxfq.numerics.granularity import Granularity
from onnxfq.numerics.qtypes import qtype_of_integers
from onnxfq.numerics.spec import QuantSpec
from onnxfq.torch import quantizer
from onnxfq.torch.arguments import checked_methods
from onnxfq.torch.checkpoints import ao_keys

_SETTINGS: dict[str, Any] = {"rounding": "half_up", "scale_rule": "width", "training_only": True}
_BITS: dict[Any, int] = {"qint8": 8, "qint16": 16, torch.qint8: 8}


@checked_methods("__init__", "set_qparams")
class FakeQuantize(quantizer.FakeQuantize):
    """Symmetric rounding floor(x / scale + 0.5), with a scale that moves in training only."""

    def __init__(
        self,
        observer: str | nn.Module | Callable[..., nn.Module] = MovingAverageMinMaxObserver,
        saturate: bool | int | None = None,
        in_place: bool | int = False,
        compat_mask: bool = True,
        channel_len: int = 1,
        fast_training: bool = True,
        **observer_kwargs: Any,
    ) -> None:
        """Make a quantizer without a scale; every argument is an attribute of it.

        Args:
            observer: class of an observer, of torch.ao or a user's own, or a name of `onnxfq.torch`.
            saturate: zero the gradient outside the grid; None means True. An integer here and in the next
                place are quant_min and quant_max, the order of torch.ao.
            in_place: write the result over the input, where no gradient is recorded.
            compat_mask: keep one bit an element for the gradient.
            channel_len: has no effect: the first input gives it.
            fast_training: has no effect: observing and rounding are one step always.
            observer_kwargs: dtype (qint8, qint16), quant_min, quant_max, ch_axis, and arguments of the
                observer, such as averaging_constant.

        Raises SpecError for an unknown dtype, ArgumentError for an integer in place of a bool.
        """
        given = dict(observer_kwargs)
        numbers = [x for x in (saturate, in_place) if isinstance(x, int) and not isinstance(x, bool)]
        if len(numbers) == 2:
            given |= {"quant_min": saturate, "quant_max": in_place}
            saturate, in_place = None, False
        elif numbers:
            raise ArgumentError(
                f"saturate and in_place are bools, found {numbers[0]}; give quant_min and quant_max by name"
            )
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
        spec = QuantSpec(qtype=qtype, granularity=Granularity(None if axis == -1 else axis))
        switches: dict[str, Any] = {"saturate": saturate is not False, "packed_mask": compat_mask}
        super().__init__(spec, observer, in_place=bool(in_place), **_SETTINGS, **switches, **given)
        self.saturate, self.compat_mask, self.channel_len = saturate, compat_mask, channel_len
        self.fast_training, self.observer_kwargs, self._dtype = fast_training, observer_kwargs, dtype
        self.register_state_dict_post_hook(ao_keys.write)

    @property
    def dtype(self) -> Any:
        """The dtype as it was given: qint8, qint16 or torch.qint8."""
        return torch.qint8 if self._dtype == "qint8" else self._dtype

    def set_qparams(self, scale: Tensor | ArrayLike, zero_point: Tensor | ArrayLike | None = None) -> None:
        """Set the scale and switch the observer off; the zero point of a symmetric grid is 0 or None."""
        super().set_qparams(scale, 0 if zero_point is None else zero_point)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        ao_keys.read(self, state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *args)
