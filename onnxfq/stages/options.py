"""How models are run: options that the stages share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import onnx

from onnxfq.data import DEFAULT_BATCH, Data, DataOptions, Feeds
from onnxfq.data.model_inputs import input_specs
from onnxfq.errors import DataError
from onnxfq.runtime.device_choice import DeviceChoice
from onnxfq.stages.observers import ObserveOptions

MOST_THREADS = 1024
"""More are a slip of the hand, and each would take memory before the first of them did anything."""


StageProgress = Callable[[str, int, int | None], None]
"""Called with the stage's name, the number of feeds done and, where known, of how many."""


@dataclass(frozen=True)
class RunOptions:
    """How models are run.

    batch: samples a run where the model leaves it open; 0 for feeds as they come. threads: 0 for one a
    core. progress: hears of every feed. data: how the data is read. device: "auto" is a GPU where one works
    and has room. Raises DataError for a batch below 0 and threads below 0 or above MOST_THREADS.
    """

    batch: int = DEFAULT_BATCH
    threads: int = 0
    progress: StageProgress | None = None
    data: DataOptions = DataOptions()
    device: DeviceChoice = "auto"

    def __post_init__(self) -> None:
        """Refuse numbers that cannot be meant."""
        if self.batch < 0:
            raise DataError(f"batch {self.batch} is below 0; give samples a run, or 0 for feeds as they come")
        if not 0 <= self.threads <= MOST_THREADS:
            raise DataError(f"threads {self.threads} is not in 0 to {MOST_THREADS}; give 0 for one a core")

    @property
    def observing(self) -> ObserveOptions:
        """The same for observing."""
        return ObserveOptions(threads=self.threads, device=self.device)

    def stage(self, name: str, feeds: int | None = None) -> Callable[[int], None] | None:
        """Return the progress callback of one stage that goes through `feeds` feeds."""
        progress = self.progress
        return None if progress is None else lambda done: progress(name, done, feeds)


def open_feeds(
    model: onnx.ModelProto, data: Data, batch: int = DEFAULT_BATCH, options: DataOptions | None = None
) -> Feeds:
    """Return feeds of `data` that are checked against the inputs of `model` as they are read."""
    return Feeds(data, input_specs(model), batch, options)
