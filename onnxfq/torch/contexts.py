"""`compute_encodings`: scales of all fake quantizers over any number of batches."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from torch import nn

from onnxfq.errors import StatisticsError
from onnxfq.torch.observers import Histogram, Latest, Limits, make_observer
from onnxfq.torch.quantizer import FakeQuantize, quantizers


@contextlib.contextmanager
def compute_encodings(model: nn.Module, *, quantized: bool = False) -> Iterator[None]:
    """Observe all tensors of `model` inside the block, in float; set every scale at its end.

    With `quantized`, each quantizer passes on its input quantized by that input's own range, as AIMET does:
    later layers then observe the errors of earlier ones.

    Each quantizer with an observer is reset. Afterwards quantizers of activations no longer observe, unless
    `quantize_module` got an observer for them; quantizers that follow a weight (observer `latest` with
    minmax) still do. Fake quantization is restored. If the block raises, no scale is set. Quantizers with a
    known scale and `allow_overwrite(False)` keep it.
    Raises StatisticsError, with the quantizer's name, if one saw nothing, NaN or infinities, or has a scale
    that was set by hand. Put the model into evaluation mode first: BatchNorm would learn from the batches.
    """
    observed = {name: q for name, q in quantizers(model).items() if q.observer is not None}
    for name, quantizer in observed.items():
        if quantizer.is_given and quantizer.overwrite is None:
            raise StatisticsError(
                f"quantizer {name!r} has a scale that was set or frozen by hand, and would get another one; "
                "call its allow_overwrite(False) to keep it, or allow_overwrite() to replace it"
            )
    observed = {name: q for name, q in observed.items() if q.overwrite is not False or not q.is_initialized}
    switches = {name: (q.observer_enabled, q.fake_quant_enabled, q.in_flight) for name, q in observed.items()}
    following = {name for name, q in observed.items() if q.training_only}
    replaced = {name: q.observer for name, q in observed.items() if q.calibrating_observer}
    for quantizer in observed.values():
        if quantizer.calibrating_observer:
            made = make_observer(quantizer.calibrating_observer, quantizer.spec, quantizer.calibrator)
            quantizer.observer = made.to(quantizer.scale.device)
        assert quantizer.observer is not None
        quantizer.observer.reset()
        quantizer.observer_enabled, quantizer.training_only = True, False
        if quantized:
            quantizer.in_flight = "always"
        else:
            quantizer.fake_quant_enabled = False
    try:
        yield
        for name, quantizer in observed.items():
            assert quantizer.observer is not None
            if quantizer.may_be_unused and not quantizer.observer.seen:
                continue
            limits = _calibrate(name, quantizer)
            follows = isinstance(quantizer.observer, Latest) and quantizer.observer.live
            follows = follows or (name in following and name not in replaced)
            later = replaced.get(name)
            if later is not None:  # an observer that is switched on again continues from the range
                later.keep(limits)
            switches[name] = (follows and quantizer.learned == "nothing", *switches[name][1:])
    finally:
        for name, quantizer in observed.items():
            quantizer.observer_enabled, quantizer.fake_quant_enabled, quantizer.in_flight = switches[name]
            quantizer.training_only = name in following
            if name in replaced:
                quantizer.observer = replaced[name]


def _calibrate(name: str, quantizer: FakeQuantize) -> Limits:
    try:
        limits = quantizer.calibrate()
    except StatisticsError as error:
        raise StatisticsError(f"quantizer {name!r}: {error}") from None
    if isinstance(quantizer.observer, Histogram):  # frees its memory; the others may continue
        quantizer.observer.reset()
    return limits


def is_initialized(model: nn.Module) -> bool:
    """Tell whether every fake quantizer of `model` has its scale."""
    return all(q.is_initialized or q.may_be_unused for q in quantizers(model).values())
