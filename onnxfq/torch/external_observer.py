"""Observers of torch.ao, and of a user, as observers of fake quantizers."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from onnxfq.calibration.calibrators import Calibrator
from onnxfq.errors import SpecError
from onnxfq.numerics.spec import QuantSpec
from onnxfq.torch.observers import Observer, make_observer


class ExternalObserver(Observer):
    """Module that observes in its forward and has `calculate_qparams() -> (scale, zero point)`.

    Attributes:
        seen: whether it has a range, observed since the last reset or from a state dict.
    """

    seen = False

    def __init__(self, spec: QuantSpec, inner: nn.Module) -> None:
        """Wrap `inner`. Raises SpecError if it lacks the method."""
        super().__init__(spec)
        if not callable(getattr(inner, "calculate_qparams", None)):
            raise SpecError(f"observer {type(inner).__name__} has no calculate_qparams(); give it one")
        self.inner = inner

    def reset(self) -> None:
        """Discard what was observed, by the module's own method if it has one."""
        self.seen = False
        methods = (getattr(self.inner, name, None) for name in ("reset_min_max_vals", "reset"))
        if method := next(filter(callable, methods), None):
            method()

    def forward(self, x: Tensor) -> None:
        """Let the module observe x."""
        self.inner(x.detach())
        self.seen = True

    def params(self) -> tuple[Tensor, Tensor]:
        """Return its scale and zero point, in the shape of the quantizer's scale."""
        scale, zero_point = self.inner.calculate_qparams()
        scale = torch.as_tensor(scale).float()
        zeros = torch.zeros_like(scale) if zero_point is None else torch.as_tensor(zero_point)
        if self.spec.granularity.axis is None and not self.spec.granularity.is_blocked:
            return scale.reshape(()), zeros.reshape(())
        return scale, zeros.expand(scale.shape)


def open_observer(
    given: Any, spec: QuantSpec, calibrator: Calibrator, keywords: Mapping[str, Any]
) -> Observer | None:
    """Return the observer of a name, an observer, a module, a class or a factory.

    Args:
        given: see `FakeQuantize`.
        spec: number format and granularity of the tensor.
        calibrator: for observers by name.
        keywords: arguments for a class or factory. Those of the spec, such as quant_min and dtype, are added
            if it takes them.

    Raises SpecError for keywords that nothing takes.
    """
    if keywords and (given is None or isinstance(given, (str, nn.Module))):
        raise SpecError(f"argument {next(iter(keywords))!r} is for an observer class, got {given!r:.40}")
    if given is None or isinstance(given, Observer):
        return given
    if isinstance(given, str):
        return make_observer(given, spec, calibrator)
    if not isinstance(given, nn.Module):
        if isinstance(given, type) and issubclass(given, Observer):
            return given(spec, **keywords)
        given = given(**(_spec_arguments(given, spec) | dict(keywords)))
    return given if isinstance(given, Observer) else ExternalObserver(spec, given)


def torch_dtype(spec: QuantSpec) -> torch.dtype:
    """Return torch's quantized dtype for a grid: qint8, quint8, or qint32 for wider ones."""
    narrow = torch.qint8 if spec.qtype.signed else torch.quint8
    return narrow if spec.qtype.bits <= 8 else torch.qint32


def torch_scheme(spec: QuantSpec) -> torch.qscheme:
    """Return torch's scheme of a spec: per tensor or per channel, affine or symmetric."""
    kind = "tensor" if spec.granularity.axis is None else "channel"
    scheme: torch.qscheme = getattr(torch, f"per_{kind}_{'symmetric' if spec.symmetric else 'affine'}")
    return scheme


def _spec_arguments(maker: Callable[..., Any], spec: QuantSpec) -> dict[str, Any]:
    """Return the arguments of torch.ao's observers that follow from the spec, if `maker` takes them."""
    known = {
        "quant_min": int(spec.qtype.qmin),
        "quant_max": int(spec.qtype.qmax),
        "dtype": torch_dtype(spec),
        "qscheme": torch_scheme(spec),
        "ch_axis": spec.granularity.axis or 0,
    }
    inner = getattr(getattr(maker, "p", maker), "func", maker)  # torch.ao's with_args wraps a partial
    taken = inspect.signature(inner).parameters
    fixed = getattr(getattr(maker, "p", maker), "keywords", {})
    return {name: value for name, value in known.items() if name in taken and name not in fixed}
