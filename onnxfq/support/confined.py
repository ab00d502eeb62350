"""Native libraries on files of anyone: a panic, endless memory and endless time end in one line."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from typing import Any

from onnxfq.errors import OnnxfqError, join_lines
from onnxfq.support.workers import Worker, WorkerFault

SECONDS = 60.0
"""Longest time for one result."""
MEMORY = 2 << 30
"""Most bytes that a worker may allocate; its libraries and their threads take a part."""
_AHEAD = 3
"""Calls that run while the one before them is used."""


def call_confined(
    worker: Worker,
    name: str,
    given: Iterable[tuple[Any, ...]],
    error: type[OnnxfqError],
    what: str,
    remedy: str,
) -> Iterator[Any]:
    """Yield the result of the function called `name` for each arguments `given`, in order.

    Args:
        worker: has the function; it is bounded by `MEMORY`.
        name: of the function.
        given: arguments that can be pickled; they are taken a few calls ahead.
        error: class of the error for whatever ends a call, also for a panic, which is no Exception.
        what: names the work in it, such as "the tokenizer x".
        remedy: of the error.

    Raises `error` as the function raises it, and with `what` in one line for all other faults.
    """
    replies: deque[Future[Any]] = deque()
    try:
        for arguments in given:
            replies.append(worker.begin(name, *arguments))
            if len(replies) > _AHEAD:
                yield worker.wait(replies.popleft(), SECONDS)
        while replies:
            yield worker.wait(replies.popleft(), SECONDS)
    except WorkerFault as fault:
        if fault.kind == error.__name__:
            raise error(fault.text) from None
        how = f"{'' if fault.kind else 'its process '}{join_lines(fault)[:200]}"
        raise error(f"{what}: {how}; {remedy}") from None
