"""`Encodings` of torch modules, computed over batches, read and set under torch's or ONNX's names."""

from __future__ import annotations

import contextlib
import inspect
import warnings
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from onnxfq.documents.encodings import Encoding, Encodings
from onnxfq.errors import PlanError, StatisticsError, nearest
from onnxfq.graph.external.tensor import tensor_array
from onnxfq.graph.io.load import load
from onnxfq.quantized.extract_fake_quantize import has_fake_quantize
from onnxfq.torch.export import export_nodes
from onnxfq.torch.layers import SUFFIX
from onnxfq.torch.observers import Histogram, make_observer, refill
from onnxfq.torch.quantizer import FakeQuantize, quantizers
from onnxfq.torch.request import Request, bind, name_inputs
from onnxfq.torch.unfinished import find_unfinished

_RESTORED = ("is_observing", "is_rounding", "in_flight", "training_only", "observer")


def compute_encodings(
    model: nn.Module, *, quantized: bool = False
) -> contextlib.AbstractContextManager[None]:
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
    quantizers(model)  # raises at the call for a wrong argument
    block = _observe(model, quantized)
    weakref.finalize(block, _warn_unless_entered, block.gen)
    return block


def _warn_unless_entered(gen: Any) -> None:
    if inspect.getgeneratorstate(gen) == inspect.GEN_CREATED:
        why = "compute_encodings was called and never entered, so no scale was computed; write `with "
        warnings.warn(f"{why}compute_encodings(model):` around the runs", stacklevel=3)


@contextlib.contextmanager
def _observe(model: nn.Module, quantized: bool) -> Iterator[None]:
    observed = {name: q for name, q in quantizers(model).items() if q.observer is not None}
    # Quantizers with the interface of another library compute theirs in its way.
    others = [m for m in model.modules() if hasattr(m, "freeze_grid") and not isinstance(m, FakeQuantize)]
    for name, quantizer in observed.items():
        if quantizer.is_given and quantizer.overwrite is None:
            raise StatisticsError(
                f"quantizer {name!r} has a scale that was set or frozen by hand, and would get another one; "
                "call its allow_overwrite(False) to keep it, or allow_overwrite() to replace it"
            )
    before: dict[FakeQuantize, dict[str, Any]] = {}

    def begin(quantizer: FakeQuantize) -> None:
        if quantizer.observer is None or (quantizer.overwrite is False and quantizer.is_initialized):
            return
        before[quantizer] = {key: getattr(quantizer, key) for key in _RESTORED}
        if quantizer.calibrating_observer:
            observer = make_observer(quantizer.calibrating_observer, quantizer.spec, quantizer.calibrator)
            quantizer.observer = observer.to(quantizer.scale.device)
        quantizer.observer.reset()
        quantizer.is_observing, quantizer.training_only = True, False
        if quantized:
            quantizer.in_flight = "always"
        else:
            quantizer.is_rounding = False

    for quantizer in observed.values():
        begin(quantizer)
    unfinished = find_unfinished(model)
    for one in unfinished:
        one.begin = begin
    try:
        with contextlib.ExitStack() as stack:
            for module in others:
                stack.enter_context(module.compute_encodings())
            yield
        _set_floors(before)
        for name, quantizer in quantizers(model).items():
            if quantizer in before:
                _finish(name, quantizer, before[quantizer])
    finally:
        for one in unfinished:
            one.begin = None
        for quantizer, values in before.items():
            for key, value in values.items():
                setattr(quantizer, key, value)


def _set_floors(observed: Iterable[FakeQuantize]) -> None:
    """Let masks of attentions set no range: what lies far below all scores counts as a floor."""
    masked = [
        (q.observer, *q.masked)
        for q in observed
        if q.masked is not None and isinstance(q.observer, Histogram) and q.observer.seen
    ]
    held = {name: observer for observer, _, names in masked for name in names}
    statistics = {name: observer.statistics() for name, observer in held.items()}
    for scores in {id(scores): scores for _, scores, _ in masked}.values():
        for name, floor in scores.floors(statistics, (observer.spec for observer, _, _ in masked)).items():
            if name in held:
                held[name].floor = floor


def _finish(name: str, quantizer: FakeQuantize, before: dict[str, Any]) -> None:
    """Set the scale of a quantizer that has observed, and what it does from now on in `before`."""
    try:
        limits = quantizer.calibrate()
    except StatisticsError as error:
        raise StatisticsError(f"quantizer {name!r}: {error}") from None
    if isinstance(quantizer.observer, Histogram):  # frees its memory; the others may continue
        quantizer.observer.reset()
    follows = quantizer.follows_weight
    if quantizer.calibrating_observer:  # an observer that is switched on again continues from the range
        before["observer"].keep(limits)
    else:
        follows = follows or (before["training_only"] and quantizer.learned == "nothing")
    before["is_observing"] = follows


def is_initialized(model: nn.Module) -> bool:
    """Tell whether every fake quantizer of `model` has its scale."""
    return all(quantizer.is_initialized for quantizer in quantizers(model).values())


def get_encodings(model: nn.Module) -> Encodings:
    """Return the encodings of all fake quantizers with a scale, by the plan's names (stem.0.weight)."""
    encodings = []
    for name, quantizer in quantizers(model).items():
        if quantizer.is_initialized:
            scale, zero_point = (value.cpu().numpy() for value in quantizer.qparams())
            encoding = Encoding.of(_tensor(name), quantizer.spec, scale, zero_point)
            encodings.append(encoding.model_copy(update={"calibrator": quantizer.calibrator}))
    return Encodings(model_sha256="", encodings=tuple(encodings))


def set_encodings(model: nn.Module, encodings: Encodings) -> None:
    """Set the scales of the fake quantizers named by `encodings`, and switch their observers off.

    Raises PlanError for a tensor that the model lacks, with the nearest names, and for a different number
    format or granularity; then no scale is set.
    """
    known = {_tensor(name): quantizer for name, quantizer in quantizers(model).items()}
    for encoding in encodings.encodings:
        quantizer = known.get(encoding.tensor)
        if quantizer is None:
            hint = nearest(encoding.tensor, known)
            raise PlanError(f"the encodings name tensor {encoding.tensor!r}, which the module lacks{hint}")
        if encoding.spec != quantizer.spec:
            raise PlanError(
                f"tensor {encoding.tensor!r} is quantized as {quantizer.spec} and encoded as "
                f"{encoding.spec}; quantize the module with the recipe of the encodings"
            )
    for encoding in encodings.encodings:
        # Torch shares memory with arrays, and the arrays of encodings are read-only.
        known[encoding.tensor].set_qparams(encoding.scale.copy(), encoding.zero_point.copy())


def onnx_names(model: nn.Module, inputs: Tensor | Sequence[Tensor]) -> dict[str, str]:
    """Return {torch's name: ONNX's name} of each quantized tensor in the model that `export_torch` makes.

    The module is exported with a unique scale in every quantizer, which identifies it; all scales are
    restored.
    """
    arguments = bind(model, (inputs,) if isinstance(inputs, Tensor) else inputs)
    request = Request(arguments, name_inputs(arguments, None, None), None, True, None)
    named = [name for name, quantizer in quantizers(model).items() if quantizer.is_initialized]
    with _number_quantizers([quantizers(model)[name] for name in named]):
        exported = load(export_nodes(model, request))
    names: dict[str, str] = {}
    if not has_fake_quantize(exported):
        return names
    for node in exported.proto.graph.node:
        if node.op_type == "FakeQuantize":
            scale = tensor_array(exported.constants[node.input[1]])
            names[_tensor(named[int(np.asarray(scale).flat[0]) - 1])] = node.input[0]
    return names


def encodings_to_onnx(model: nn.Module, inputs: Tensor | Sequence[Tensor]) -> Encodings:
    """Return the encodings of `model` by the names of the tensors in its ONNX model.

    Raises PlanError if two quantizers of one ONNX tensor differ: encodings have one entry for each tensor.
    """
    names = onnx_names(model, inputs)
    encodings: dict[str, Encoding] = {}
    for encoding in get_encodings(model).encodings:
        if encoding.tensor not in names:
            continue
        renamed = encoding.model_copy(update={"tensor": names[encoding.tensor]})
        if encodings.setdefault(renamed.tensor, renamed) != renamed:
            raise PlanError(
                f"tensor {renamed.tensor!r} has two unequal quantizers, one is {encoding.tensor!r}; "
                "give both one scale, or export Q/DQ, which keeps both"
            )
    return Encodings(model_sha256="", encodings=tuple(encodings.values()))


def encodings_from_onnx(model: nn.Module, inputs: Tensor | Sequence[Tensor], encodings: Encodings) -> None:
    """Set the fake quantizers of `model` from encodings with ONNX's tensor names, as `calibrate` makes them.

    If several quantizers read a tensor, all are set. Raises PlanError as `set_encodings` does.
    """
    readers: dict[str, list[str]] = {}
    for ours, theirs in onnx_names(model, inputs).items():
        readers.setdefault(theirs, []).append(ours)
    renamed = []
    for encoding in encodings.encodings:
        if encoding.tensor not in readers:
            hint = nearest(encoding.tensor, readers)
            raise PlanError(f"the encodings name tensor {encoding.tensor!r}, which no quantizer reads{hint}")
        renamed += [encoding.model_copy(update={"tensor": name}) for name in readers[encoding.tensor]]
    set_encodings(model, Encodings(model_sha256="", encodings=tuple(renamed)))


def _tensor(name: str) -> str:
    return name.removesuffix(SUFFIX)


@contextlib.contextmanager
def _number_quantizers(given: Sequence[FakeQuantize]) -> Iterator[None]:
    """Set the scale of each quantizer to its number, from 1, and restore it afterwards."""
    with contextlib.ExitStack() as stack:
        for number, quantizer in enumerate(given, 1):
            stack.enter_context(quantizer.freeze_grid())
            refill(quantizer, "scale", torch.full_like(quantizer.scale, float(number)))
            refill(quantizer, "zero_point", torch.zeros_like(quantizer.zero_point))
        yield
