"""Batching: feeds joined and split to one batch size, whatever sizes the data came in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnxfq.data.inputs import Feed, Inputs, open_count, take_samples
from onnxfq.data.validation import layout_hint


def add_batch_axis(arrays: Feed, inputs: Inputs) -> Feed:
    """Return `arrays`, with a batch axis added if all of them lack it and so are one sample."""
    ranked = [spec for spec in inputs if spec.shape]
    single = ranked and all(spec.shape and arrays[spec.name].ndim == len(spec.shape) - 1 for spec in ranked)
    if not single or any(spec.shape is None or spec.shape[:1] not in ((None,), (1,)) for spec in ranked):
        return arrays
    if any(layout_hint((spec.shape or ())[1:], arrays[spec.name].shape) for spec in ranked):
        return arrays  # a later check reports its original shape
    names = {spec.name for spec in ranked}
    return {name: array[np.newaxis] if name in names else array for name, array in arrays.items()}


def split_fixed_runs(arrays: Feed, inputs: Inputs) -> Iterator[Feed]:
    """Split a feed that holds a multiple of the model's fixed batch into runs; yield others unchanged."""
    ranked = [spec for spec in inputs if spec.shape != ()]
    times = {_times(arrays[spec.name], spec.shape) for spec in ranked}
    if len(times) != 1 or None in times:
        yield arrays
        return
    for run in range(times.pop() or 0):
        yield {
            spec.name: _run(arrays[spec.name], spec.shape[0] or 0, run) if spec.shape else arrays[spec.name]
            for spec in inputs
        }


def first_samples(feeds: Iterable[Feed], inputs: Inputs, limit: int) -> Iterator[Feed]:
    """Yield feeds up to `limit` samples without reading further."""
    left = limit
    for feed in feeds:
        count = open_count(feed, inputs)
        if count is not None and count > left:
            feed = take_samples(feed, inputs, 0, left)
        yield feed
        left -= 1 if count is None else count
        if left <= 0:
            return


def rebatch(feeds: Iterable[Feed], inputs: Inputs, batch: int) -> Iterator[Feed]:
    """Yield feeds of `batch` samples each, in order; with 0 feeds keep their size.

    Feeds are joined until a shape or a scalar changes, or until a feed whose axis 0 does not count samples;
    the last joined feed may be smaller. Feeds without samples are left out.
    """
    held: list[Feed] = []
    for feed in feeds:
        count = open_count(feed, inputs)
        if count == 0:
            continue
        if held and (count is None or not can_join(held[0], feed, inputs)):
            yield join_feeds(held, inputs)
            held = []
        if count is None or batch == 0:
            yield feed
            continue
        held.append(feed)
        have = sum(open_count(part, inputs) or 0 for part in held)
        start = 0
        if have >= batch:
            joined = join_feeds(held, inputs)
            for start in range(batch, have + 1, batch):
                yield take_samples(joined, inputs, start - batch, start) if have > batch else joined
            held = [take_samples(joined, inputs, start, have)] if start < have else []
    if held:
        yield join_feeds(held, inputs)


def _times(array: NDArray[Any], shape: tuple[int | None, ...] | None) -> int | None:
    """Return the number of runs in `array` for an input of `shape`; None if its batch is open or misfits."""
    fixed = shape[0] if shape else None
    if not fixed or shape is None or array.ndim != len(shape) or array.shape[0] % fixed:
        return None
    return int(array.shape[0]) // fixed


def _run(array: NDArray[Any], size: int, run: int) -> NDArray[Any]:
    return array[run * size : (run + 1) * size] if array.shape[0] != size else array


def can_join(feed: Feed, other: Feed, inputs: Inputs) -> bool:
    """Return whether two feeds can be joined: equal shapes except axis 0, equal scalars."""
    for spec in inputs:
        a, b = feed[spec.name], other[spec.name]
        if a.shape[1:] != b.shape[1:] or (not spec.shape and a.tobytes() != b.tobytes()):
            return False
    return True


def join_feeds(feeds: list[Feed], inputs: Inputs) -> Feed:
    """Return feeds that `can_join` as one."""
    if len(feeds) == 1:
        return feeds[0]
    return {
        spec.name: np.concatenate([feed[spec.name] for feed in feeds]) if spec.shape else feeds[0][spec.name]
        for spec in inputs
    }
