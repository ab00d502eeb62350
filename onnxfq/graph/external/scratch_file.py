"""Scratch files: unnamed files of this process for the weights that it makes.

Of a model of several GB only one weight at a time is in memory. A file goes with its `Scratch`, or with the
process, however that ends.
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
    """A growing file; whoever keeps tensors that refer to it keeps this."""

    def __init__(self, folder: Path | None = None) -> None:
        """Open a file in the file system of `folder`, else where the system has its temporary files."""
        self._folder = folder or Path(tempfile.gettempdir())
        try:
            self._file = cast(IO[bytes], tempfile.TemporaryFile(dir=self._folder, buffering=0))
        except OSError as error:
            raise self._refused(error) from None
        weakref.finalize(self, self._file.close)
        self._location = f"{SCRATCH}{next(_numbers)}"
        scratch_files[self._location] = self._file

    def store(self, tensor: onnx.TensorProto, content: NDArray[np.uint8]) -> onnx.TensorProto:
        """Write `content` to the file; return a copy of `tensor` that refers to it there.

        Raises OutputError when the disk is full.
        """
        offset = self._file.seek(0, 2)
        rest = content.data
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            raise self._refused(error) from None
        return attach(strip_values(tensor), self._location, offset, content.size)

    def _refused(self, error: OSError) -> OutputError:
        return OutputError(
            f"cannot write temporary weights in {self._folder}: {error.strerror or error}; make room there"
        )


def scratch_for(proto: onnx.ModelProto, folder: Path | None) -> Scratch | None:
    """Return where weights made from those of `proto` go; None where they stay in memory.

    folder: where the output goes, for there must be room for them; None for no output.
    """
    return Scratch(folder) if sizes.weight_bytes(proto) > sizes.IN_MEMORY else None


current_scratch: ContextVar[Scratch | None] = ContextVar("onnxfq_scratch", default=None)
"""Where constants made now go; None where they stay in memory."""


@contextmanager
def weights_in(scratch: Scratch | None) -> Iterator[None]:
    """Let large constants that are made meanwhile go to `scratch`."""
    before = current_scratch.set(scratch)
    try:
        yield
    finally:
        current_scratch.reset(before)
