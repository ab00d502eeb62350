"""`RowStore`: sampled inputs of layers in a temporary file, until the ranges of all data are known."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Hashable, Iterator
from contextlib import ExitStack
from typing import Generic, TypeVar

import numpy as np

from onnxfq.calibration.statistics.moments import Rows
from onnxfq.support.temporary import room_for_scratch, scratch_folder

Name = TypeVar("Name", bound=Hashable)


class RowStore(Generic[Name]):
    """Rows by name, in a file among the system's temporary files."""

    def __init__(self) -> None:
        """Open the file."""
        self._parts: dict[Name, list[tuple[int, tuple[int, ...]]]] = {}
        self._files = ExitStack()
        folder = self._files.enter_context(scratch_folder())
        self._file = self._files.enter_context((folder / "rows").open("w+b"))

    def close(self) -> None:
        """Remove the file."""
        self._files.close()

    def append(self, name: Name, rows: Rows) -> None:
        """Store more rows, [rows, groups, inputs]. Raises OutputError if the file has no room."""
        with room_for_scratch():
            self._parts.setdefault(name, []).append((self._file.tell(), rows.shape))
            self._file.write(np.ascontiguousarray(rows).data)

    def read(self, name: Name) -> Iterator[Rows]:
        """Yield the rows of `name` in the parts in which they came, after all were stored."""
        with room_for_scratch():
            self._file.flush()
        for offset, shape in self._parts[name]:
            self._file.seek(offset)
            rows = np.empty(shape, np.float32)
            self._file.readinto(rows.data.cast("B"))
            yield rows


def free_room() -> int:
    """Return half of the free bytes of the system's temporary files."""
    return shutil.disk_usage(tempfile.gettempdir()).free // 2
