"""Run options shared by stages."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, TypeVar, cast

import onnx

from onnxfq.choices import MOST_THREADS, DeviceChoice
from onnxfq.data import DEFAULT_BATCH, Data, DataOptions, Feeds
from onnxfq.data.model_inputs import input_specs
from onnxfq.documents.cast_plan import ALL_FLOAT32, FloatOptions
from onnxfq.errors import ArgumentError, DataError
from onnxfq.runtime.random_numbers import explain_draws
from onnxfq.stages.input_axes import find_mixing, proves_padding
from onnxfq.stages.observers import ObserveOptions
from onnxfq.support.progress import StageProgress, show_progress
from onnxfq.targets.tensorrt.gpus import read_gpu

log = logging.getLogger(__name__)

Function = TypeVar("Function", bound=Callable[..., Any])
Options = TypeVar("Options", bound="RunOptions")


@dataclass(frozen=True)
class RunOptions:
    """Options of running models.

    Attributes:
        batch: samples per run if the model leaves it open; 0 keeps the batches of the data.
        threads: 0 for one per core.
        progress: called with the name of what runs, the number of feeds, weights or runs done, and their
            total or None; True for a bar or lines on standard error, False for nothing, None for a bar in a
            terminal or notebook.
        data: how the data is read.
        device: "any" is a GPU if one works and has room.
        exact: compare quantized models without graph optimisation, so that forms of one model can be compared
            bit for bit; `quantize` then compares both forms, on every feed that it kept.

    Raises DataError for a batch below 0 and threads below 0 or above MOST_THREADS.
    """

    batch: int = DEFAULT_BATCH
    threads: int = 0
    progress: StageProgress | bool | None = None
    data: DataOptions = DataOptions()
    device: DeviceChoice = "any"
    exact: bool = False

    def __post_init__(self) -> None:
        """Raise DataError for numbers out of range."""
        if self.batch < 0:
            raise DataError(
                f"batch {self.batch} is below 0; give samples per run, or 0 to keep the data's batches"
            )
        if not 0 <= self.threads <= MOST_THREADS:
            raise DataError(f"threads {self.threads} is not in 0 to {MOST_THREADS}; give 0 for one per core")

    @property
    def observing(self) -> ObserveOptions:
        """The same options for observing."""
        return ObserveOptions(threads=self.threads, device=self.device, nonfinite=self.data.nonfinite)


def shows_progress(function: Function) -> Function:
    """Return `function`, which shows its progress as the keyword `options` says."""

    @functools.wraps(function)
    def call(*given: Any, **keywords: Any) -> Any:
        options: RunOptions | None = keywords.get("options")
        if not isinstance(options, RunOptions | None):
            part = ", as its part data" if isinstance(options, DataOptions) else ""
            raise ArgumentError(f"options is a {type(options).__name__}; give onnxfq.RunOptions(...){part}")
        with show_progress(None if options is None else options.progress):
            return function(*given, **keywords)

    return cast(Function, call)


@dataclass(frozen=True)
class QuantizeOptions(RunOptions):
    """Options of running models that only `quantize` takes.

    Attributes:
        floats: the type of the non-quantized part; tensors that do not fit in it stay in float32.
        runtime: such as `onnxruntime==1.18`; the written model is kept to this release, or rejected.
        gpus: those that run the model: names such as l4, or compute capabilities such as "8.9" or "SM89". A
            recipe with a format that one of them lacks is refused; repair may give layers the formats that
            all of them multiply in at the speed of int8.
        ray: address of a Ray cluster, or "local", that observes, gathers moments and rounds weights by them;
            the written model is the same to the bit.
    """

    floats: FloatOptions = ALL_FLOAT32
    runtime: str | None = None
    gpus: tuple[str, ...] = ()
    ray: str | None = None

    def __post_init__(self) -> None:
        """Raise DataError for numbers out of range and unknown GPUs."""
        super().__post_init__()
        if not isinstance(self.gpus, tuple | list):
            raise DataError(f"gpus is {self.gpus!r:.40}; give a tuple of names, such as ('l4',)")
        assert self.capability is None or self.capability >= 0  # reads every name

    @property
    def capability(self) -> int | None:
        """The least compute capability of `gpus`, 89 for 8.9; 0 for DLA, None without one."""
        return min((read_gpu(name).capability for name in self.gpus), default=None)

    @staticmethod
    def of(options: RunOptions | None) -> QuantizeOptions:
        """Return `options` with the defaults of `quantize` for what they lack."""
        if options is None or isinstance(options, QuantizeOptions):
            return options or QuantizeOptions()
        return QuantizeOptions(**{one.name: getattr(options, one.name) for one in fields(options)})


def choose_padding(options: Options, is_labelled: bool) -> Options:
    """Return `options` whose data keeps the padding that labels, a metric or a 16-bit float type see.

    Values beyond such a type are infinite, and infinity times a probability of 0 is NaN.
    """
    if isinstance(options, QuantizeOptions) and options.floats != ALL_FLOAT32:
        return replace(options, data=options.data.padded)
    return replace(options, data=options.data.labelled) if is_labelled else options


def open_feeds(
    model: onnx.ModelProto,
    data: Data,
    batch: int = DEFAULT_BATCH,
    options: DataOptions | None = None,
    others: Iterable[onnx.ModelProto] = (),
) -> Feeds:
    """Return feeds of `data`; each is checked against the inputs of `model` when it is read.

    Runs of the model tell whether an open axis 0 counts samples, along which feeds are cut and joined, and
    whether padding that a mask hides changes an output; where it does not, it is cut off. It stays if
    `others`, which run on the same feeds, fix axes that `model` leaves open. A note names the nodes of the
    model that draw random numbers.
    """
    note = explain_draws(model)
    if note:
        log.warning("%s", note)
    padding, inputs = (options or DataOptions()).padding, input_specs(model)
    shapes = {one.name: one.shape for one in inputs}
    differ = any(one.shape != shapes.get(one.name) for other in others for one in input_specs(other))
    keeps = padding == "keep" or differ
    prove = None if keeps else partial(proves_padding, model, is_pooled=padding == "pooled")
    return Feeds(data, inputs, batch, options, partial(find_mixing, model), prove)
