"""`ArrayStore`: arrays of many runs in temporary files, so that memory holds one at a time."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Hashable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from onnxfq.support.temporary import room_for_scratch, scratch_folder

Value = NDArray[Any] | list[Any]
"""An array, or a sequence of arrays as ONNX Runtime gives it."""

Name = TypeVar("Name", bound=Hashable)


@dataclass
class _Column:
    path: Path
    parts: list[tuple[int, np.dtype[Any], tuple[int, ...]] | Value] = field(default_factory=list)


class ArrayStore(Generic[Name]):
    """Several arrays for each name, in a file for each name."""

    def __init__(self) -> None:
        """Start without arrays."""
        self._columns: dict[Name, _Column] = {}
        self._files = ExitStack()
        self._folder = self._files.enter_context(scratch_folder())
        self._made = 0

    def __contains__(self, name: object) -> bool:
        """Tell whether `name` has arrays."""
        return name in self._columns

    def close(self) -> None:
        """Remove all files."""
        self._columns.clear()
        self._files.close()

    def append(self, name: Name, array: Value) -> None:
        """Store one more array of `name`. Raises OutputError if the file has no room."""
        if name not in self._columns:
            self._made += 1
            self._columns[name] = _Column(self._folder / str(self._made))
        column = self._columns[name]
        if isinstance(array, list) or array.dtype.hasobject:  # sequences and strings stay in memory
            column.parts.append(array)
            return
        # Opened each time: a system may allow fewer open files than a model has tensors.
        with room_for_scratch(), column.path.open("ab") as file:
            column.parts.append((file.tell(), array.dtype, array.shape))
            file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)

    def get(self, name: Name, number: int) -> Any:
        """Return array `number` of `name`, or the sequence."""
        column = self._columns[name]
        part = column.parts[number]
        if not isinstance(part, tuple):
            return part
        offset, dtype, shape = part
        content = np.empty(dtype.itemsize * int(np.prod(shape)), np.uint8)
        with column.path.open("rb") as file:
            file.seek(offset)
            file.readinto(content.data)
        return content.view(dtype).reshape(shape)

    def read(self, name: Name) -> Iterator[NDArray[Any]]:
        """Yield the arrays of `name` in the order in which they came."""
        for number in range(len(self._columns[name].parts)):
            yield self.get(name, number)

    def discard(self, name: Name) -> None:
        """Remove the arrays of `name`."""
        self._columns.pop(name).path.unlink(missing_ok=True)  # none if all are strings


def free_room() -> int:
    """Return half of the free bytes of the system's temporary files."""
    return shutil.disk_usage(tempfile.gettempdir()).free // 2
