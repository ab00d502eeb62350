"""Where the weights of large models are put while they are made: a file without a name, of the process alone.

So that of a model of several GB only one weight at a time is in memory. The file goes with its `Scratch`, or
with the process, however that ends.
"""

from __future__ import annotations

import itertools
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from onnxfq.errors import OutputError

PREFIX = "onnxfq-scratch:"
"""How a tensor says in place of a path that its values are in a scratch file; the rest is its number."""

_open: weakref.WeakValueDictionary[str, Scratch] = weakref.WeakValueDictionary()
_numbers = itertools.count()


class Scratch:
    """A growing file; whoever keeps tensors that refer to it keeps this."""

    def __init__(self, folder: Path | None = None) -> None:
        """Open a file in the file system of `folder`, else where the system has its temporary files."""
        self._folder = folder or Path(tempfile.gettempdir())
        try:
            self._file = cast(BinaryIO, tempfile.TemporaryFile(dir=self._folder, buffering=0))
        except OSError as error:
            raise self._refused(error) from None
        weakref.finalize(self, self._file.close)
        self.location = f"{PREFIX}{next(_numbers)}"
        _open[self.location] = self

    def append(self, values: NDArray[np.uint8]) -> int:
        """Write `values` at the end; return where they start. Raises OutputError when the disk is full."""
        offset = self._file.seek(0, 2)
        rest = np.ascontiguousarray(values).reshape(-1).data
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            raise self._refused(error) from None
        return offset

    def read(self, offset: int, length: int) -> NDArray[np.uint8]:
        """Return bytes that were written, mapped."""
        return np.memmap(self._file, np.uint8, "r", offset=offset, shape=(length,))

    def _refused(self, error: OSError) -> OutputError:
        return OutputError(
            f"cannot write temporary weights in {self._folder}: {error.strerror or error}; make room there"
        )


def scratch_at(location: str) -> Scratch:
    """Return the scratch that a tensor's `location` names. Raises ValueError when it is gone."""
    try:
        return _open[location]
    except KeyError:
        raise ValueError("the temporary file of its values is gone; keep the result of quantize") from None


_current: ContextVar[Scratch | None] = ContextVar("onnxfq_scratch", default=None)


def current_scratch() -> Scratch | None:
    """Return the scratch that constants made now go to; None where they stay in memory."""
    return _current.get()


@contextmanager
def weights_in(scratch: Scratch | None) -> Iterator[None]:
    """Let large constants that are made meanwhile go to `scratch`."""
    before = _current.set(scratch)
    try:
        yield
    finally:
        _current.reset(before)
