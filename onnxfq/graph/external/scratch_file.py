"""Scratch files: unnamed files of this process for the weights that it makes.

Only one weight of a model of several GB is in memory at a time. A file disappears with its `Scratch`, or with
the process, even after a crash.
"""

from __future__ import annotations

import itertools
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import IO, cast

import numpy as np
import onnx
from numpy.typing import NDArray

from onnxfq.errors import OutputError
from onnxfq.graph.external import sizes
from onnxfq.graph.external.tensor import SCRATCH, attach, scratch_files, strip_values

_numbers = itertools.count()


class Scratch:
    """A growing file; keep it as long as tensors refer to it."""

    def __init__(self, folder: Path | None = None) -> None:
        """Open a file in the file system of `folder`, by default in the system's temporary folder."""
        self._folder = folder or Path(tempfile.gettempdir())
        try:
            self._file = cast(IO[bytes], tempfile.TemporaryFile(dir=self._folder, buffering=0))
        except OSError as error:
            raise self._make_write_error(error) from None
        weakref.finalize(self, self._file.close)
        self._location = f"{SCRATCH}{next(_numbers)}"
        scratch_files[self._location] = self._file

    def store(self, tensor: onnx.TensorProto, content: NDArray[np.uint8]) -> onnx.TensorProto:
        """Write `content` to the file; return a copy of `tensor` that refers to it.

        Raises OutputError when the disk is full.
        """
        offset = self._file.seek(0, 2)
        rest = content.data
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            raise self._make_write_error(error) from None
        return attach(strip_values(tensor), self._location, offset, content.size)

    def _make_write_error(self, error: OSError) -> OutputError:
        return OutputError(
            f"cannot write temporary weights in {self._folder}: {error.strerror or error}; make room there"
        )


def scratch_for(proto: onnx.ModelProto, folder: Path | None, in_memory: int | None = None) -> Scratch | None:
    """Return a scratch file for weights derived from those in `proto`; None if they stay in memory.

    Args:
        proto: the model.
        folder: folder of the output, which must have room for the weights; None without output.
        in_memory: bytes of weights up to which they stay in memory, by default and at most IN_MEMORY.
    """
    return Scratch(folder) if sizes.weight_bytes(proto) > sizes.limit_in_memory(in_memory) else None


current_scratch: ContextVar[Scratch | None] = ContextVar("onnxfq_scratch", default=None)
"""Scratch file for constants made now; None if they stay in memory."""


@contextmanager
def weights_stored_in(scratch: Scratch | None) -> Iterator[None]:
    """Send large constants that are made meanwhile to `scratch`."""
    before = current_scratch.set(scratch)
    try:
        yield
    finally:
        current_scratch.reset(before)
