"""`gather`: the loop over the data that adds up statistics of every kind."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple, TypeVar

from onnxfq.calibration.statistics import Accumulator, Key, Results
from onnxfq.data import DataDigest
from onnxfq.runtime.session import Progress

Result = TypeVar("Result")


class Sum(NamedTuple):
    """A total, and the function from the outputs of a run to what it adds."""

    total: Accumulator[Any]
    read: Callable[[Results], Results]


@dataclass
class Tally:
    """Count of the feeds of a run.

    Attributes:
        first: number of the first feed in messages.
        progress: called with the number of feeds done.
        stopped: asked after every feed; once it returns true, the run ends and is not complete.
        done: feeds that were added up.
        data: digest of their samples.
        complete: whether the data came to its end.
    """

    first: int = 0
    progress: Progress | None = None
    stopped: Callable[[], bool] = lambda: False
    done: int = 0
    data: DataDigest = DataDigest()
    complete: bool = True

    @property
    def number(self) -> int:
        """The number of the next feed, for messages."""
        return self.first + self.done

    def over(self, runs: Iterable[tuple[Result, DataDigest]]) -> Iterator[Result]:
        """Yield the result of every run, given with its digest, and count it once the caller has added it up.

        Ends after the last one, or when observing is stopped.
        """
        for result, digest in runs:
            yield result
            self.done += 1
            self.data += digest
            if self.progress is not None:
                self.progress(self.number)
            self.complete = not self.stopped()
            if not self.complete:
                return


def gather(
    runs: Iterable[tuple[Results, DataDigest]],
    sums: list[dict[Key, Sum]],
    tally: Tally,
    room: int | None = None,
) -> dict[Key, Any]:
    """Return the totals over all runs, by what was observed and kind.

    Args:
        runs: outputs and digest of each feed.
        sums: empty totals in groups that belong together; the list is emptied.
        tally: counts the feeds.
        room: bytes of totals beyond which the last groups are left out; None for no limit.

    Raises StatisticsError for NaN and infinities that a kind refuses.
    """
    for arrays in tally.over(runs):
        for sum_ in (sum_ for group in sums for sum_ in group.values()):
            sum_.total.add(sum_.read(arrays), tally.number)
        if room is not None:
            sizes = accumulate(sum(sum_.total.bytes for sum_ in group.values()) for group in sums)
            del sums[max(1, sum(size <= room for size in sizes)) :]
    values: dict[Key, Any] = {}
    while sums:  # popped, so that their memory is released
        values |= {key: sum_.total.result() for key, sum_ in sums.pop(0).items()}
    return values
