"""Options of commands that run models on data."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from onnxfq.choices import DEFAULT_BATCH, MOST_THREADS, DeviceChoice
from onnxfq.cli.console import Printer
from onnxfq.cli.data_options import Described
from onnxfq.cli.option import RUNNING, flag, option
from onnxfq.cli.option_groups import OptionGroup

if TYPE_CHECKING:
    from onnxfq.stages.options import RunOptions

BatchOption = Annotated[
    int,
    option(
        "N",
        "Run this many samples at once if the batch axis is open; 0 keeps the batches of the data.",
        panel=RUNNING,
        min=0,
    ),
]
_THREADS = option("N", "Use this many threads; 0 for one per core.", panel=RUNNING, min=0, max=MOST_THREADS)
_DEVICE = option(None, "Run models on this device; any: on a GPU if one works and has room.", panel=RUNNING)
_EXACT = flag(
    "Compare without graph optimisation, bit for bit: slower; quantize compares both forms.",
    "--exact",
    panel=RUNNING,
)


@dataclass(frozen=True)
class Run:
    """How models run, and how their data is read."""

    described: Described
    batch: BatchOption = DEFAULT_BATCH
    threads: Annotated[int, _THREADS] = 0
    device: Annotated[DeviceChoice, _DEVICE] = "any"
    exact: Annotated[bool, _EXACT] = False

    @contextmanager
    def progress(self, printer: Printer) -> Iterator[RunOptions]:
        """Yield options that show progress on standard error, unless the printer is silent."""
        from onnxfq.stages.options import RunOptions
        from onnxfq.support.progress import show_progress

        wanted = not printer.silent
        with show_progress(wanted):
            yield RunOptions(self.batch, self.threads, wanted, self.described, self.device, exact=self.exact)


Running = Annotated[Run, OptionGroup(Run)]
RunningFast = Annotated[Run, OptionGroup(Run, exact=False)]
RunningOnCpu = Annotated[Run, OptionGroup(Run, device="cpu", exact=False)]
"""Run options of commands that compare without graph optimisation on request, never do, and need no GPU."""
