"""Reading of .npy and .npz: one array at a time, if the file has the bytes of its shape; writing of .npz.

`UNREADABLE` is all that is raised: ValueError for faults of NumPy and of zip files, OSError for the system's.
"""

from __future__ import annotations

import os
import warnings
import zipfile
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from onnxfq.support.reading import open_input

UNREADABLE = (OSError, ValueError)
"""Errors for files that are missing, pickled, encrypted, cut off or damaged, or too large for the memory."""

NPY_MAGIC = b"\x93NUMPY"
"""Leading bytes of an .npy."""

MOST_ARRAYS = 2 << 30
"""Most bytes of the arrays in a document; a small file may unfold to more."""

_CHUNK = 1 << 24


class SingleArrayError(ValueError):
    """An .npy, which holds one unnamed array, given in place of an .npz."""


class _Header(NamedTuple):
    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype[Any]

    @property
    def bytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize


class StoredArray:
    """An array in an .npz whose samples are read when they are asked for, at the least cost in order.

    It has shape, dtype and ndim of the array; an index or a slice of axis 0 reads that part.
    """

    def __init__(self, path: str | Path, name: str, header: _Header) -> None:
        """Refer to the array `name` in the file at `path`."""
        self.shape, self.dtype, self.ndim = header.shape, header.dtype, len(header.shape)
        self._path, self._name, self._header = path, name, header
        self._stream: IO[bytes] | None = None
        self._at = 0

    def __getitem__(self, index: int | slice) -> NDArray[Any]:
        """Return one sample or a slice of them. Raises one of `UNREADABLE`."""
        start, stop, _ = (index if isinstance(index, slice) else slice(index, index + 1)).indices(
            self.shape[0]
        )
        with _own_faults():
            if self._stream is None or start < self._at:
                self._stream, self._at = _open_member(self._path, self._name)[0], 0
            before = (start - self._at) * self._rows(1).bytes
            while before and (skipped := len(self._stream.read(min(_CHUNK, before)))):
                before -= skipped
            part = _read_values(self._stream, self._rows(stop - start))
            self._at = stop
        return part if isinstance(index, slice) else np.asarray(part[0])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """Return the whole array, for NumPy."""
        return np.asarray(self[:], dtype)

    def _rows(self, count: int) -> _Header:
        return self._header._replace(shape=(count, *self.shape[1:]))


def load_npz(path: str | Path, names: Collection[str] | None = None) -> dict[str, NDArray[Any]]:
    """Return the arrays `names` of an .npz that it has, or all. Raises one of `UNREADABLE` for any fault."""
    arrays: dict[str, NDArray[Any]] = {}
    left = MOST_ARRAYS
    with _own_faults(), _open_zip(path) as packed:  # once: a file of statistics has thousands of arrays
        members = {info.filename: info for info in packed.infolist()}
        for name in dict.fromkeys(member.removesuffix(".npy") for member in members):
            if names is not None and name not in names:
                continue
            info = members.get(f"{name}.npy") or members[name]
            with packed.open(info) as stream:
                header = _read_header(stream, info.file_size, f"{name!r} in it is not an array")
                if header.bytes >= left:
                    raise ValueError(f"its arrays have more than {MOST_ARRAYS >> 30} GB")
                arrays[name] = _read_values(stream, header)
                stream.read(1)  # at the end the checksum is compared
            left -= header.bytes
    return arrays


def npz_names(path: str | Path) -> list[str]:
    """Return the names of the arrays in an .npz without reading them. Raises one of `UNREADABLE`."""
    with _own_faults(), _open_zip(path) as packed:
        return list(dict.fromkeys(name.removesuffix(".npy") for name in packed.namelist()))


def load_member(path: str | Path, name: str, later: int) -> NDArray[Any] | StoredArray:
    """Return one array of an .npz; of `later` bytes or more a StoredArray. Raises one of `UNREADABLE`."""
    with _own_faults():
        stream, header = _open_member(path, name)
        with stream:
            if header.shape and not header.fortran and header.bytes >= later:
                return StoredArray(path, name, header)
            values = _read_values(stream, header)
            stream.read(1)  # at the end the checksum is compared
            return values


def load_npy(path: str | Path, mapped: bool = False) -> NDArray[Any]:
    """Return the array of an .npy, memory-mapped or read. Raises one of `UNREADABLE` for any fault."""
    with _own_faults(), open_input(path) as stream:
        return read_npy(stream, os.fstat(stream.fileno()).st_size, path if mapped else None)


def read_npy(stream: IO[bytes], size: int, mapped: str | Path | None = None) -> NDArray[Any]:
    """Return the array in the `size` bytes of `stream`, an .npy; memory-mapped from the path `mapped`.

    Raises ValueError for any fault.
    """
    with _own_faults():
        header = _read_header(stream, size, "it does not begin as an .npy")
        if mapped is None or not header.bytes:
            return _read_values(stream, header)
        order: Any = "F" if header.fortran else "C"
        return np.asarray(np.memmap(mapped, header.dtype, "r", stream.tell(), header.shape, order))


def write_npz(path: Path, arrays: Iterable[tuple[str, NDArray[Any]]]) -> None:
    """Write `arrays` of any names to an .npz, compressed; `numpy.savez` keeps some names to itself.

    Equal arrays give equal bytes.
    """
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in arrays:
            member = zipfile.ZipInfo(f"{name}.npy")
            member.compress_type = zipfile.ZIP_DEFLATED  # of the archive, for names alone
            with archive.open(member, "w", force_zip64=True) as stream:
                np.lib.format.write_array(stream, np.asanyarray(array), allow_pickle=False)


@contextmanager
def _own_faults() -> Iterator[None]:
    """Turn what NumPy and zipfile raise for damaged files into one of `UNREADABLE`; show no warning."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except UNREADABLE:
        raise
    except MemoryError:
        raise ValueError("its arrays do not fit in memory") from None
    except Exception as fault:
        raise ValueError(str(fault) or type(fault).__name__) from None


@contextmanager
def _open_zip(path: str | Path) -> Iterator[zipfile.ZipFile]:
    with open_input(path) as stream:
        head = stream.read(len(NPY_MAGIC))
        if head == NPY_MAGIC:
            raise SingleArrayError("it is a single array")
        if not head.startswith(b"PK"):  # NumPy would take it for a pickle and advise to trust it
            raise ValueError("it is not a zip archive")
        stream.seek(0)
        with zipfile.ZipFile(stream) as packed:
            yield packed


def _open_member(path: str | Path, name: str) -> tuple[IO[bytes], _Header]:
    """Return (stream at the values, header) of one array of an .npz."""
    with _open_zip(path) as packed:
        info = packed.getinfo(f"{name}.npy" if f"{name}.npy" in packed.namelist() else name)
    with zipfile.ZipFile(path) as packed:
        stream = packed.open(info)  # it holds the file open, and closes it
    try:
        return stream, _read_header(stream, info.file_size, f"{name!r} in it is not an array")
    except BaseException:
        stream.close()
        raise


def _read_header(stream: IO[bytes], size: int, otherwise: str) -> _Header:
    """Read the header of the .npy of `size` bytes in `stream`.

    Raises ValueError: `otherwise` for other content, and for a damaged header or a shape beyond `size`.
    """
    if stream.read(len(NPY_MAGIC)) != NPY_MAGIC:
        raise ValueError(otherwise)
    try:
        version = stream.read(2)
        read = np.lib.format.read_array_header_2_0
        if version[0] == 1:
            read = np.lib.format.read_array_header_1_0
        header = _Header(*read(stream))
        whole = all(isinstance(size_of_axis, int) and size_of_axis >= 0 for size_of_axis in header.shape)
        if not whole or header.dtype.hasobject:
            raise ValueError(
                "it has no shape, or holds Python objects, which are not loaded; store texts by astype('str')"
            )
        if stream.tell() + header.bytes > size:
            raise ValueError(f"shape {list(header.shape)} needs {header.bytes} bytes, and it has {size}")
    except Exception as fault:  # NumPy evaluates the header, and raises whatever Python does
        raise ValueError(f"its header is damaged: {fault}") from None
    return header


def _read_values(stream: IO[bytes], header: _Header) -> NDArray[Any]:
    """Return the values that follow a header. Raises ValueError if they are cut off."""
    content = np.empty(header.bytes, np.uint8)
    done = 0
    while done < content.size:
        part = stream.read(min(_CHUNK, content.size - done))
        if not part:
            raise ValueError(f"it ends after {done} of {content.size} bytes of shape {list(header.shape)}")
        content[done : done + len(part)] = np.frombuffer(part, np.uint8)
        done += len(part)
    if not header.dtype.itemsize:
        return np.zeros(header.shape, header.dtype)
    return content.view(header.dtype).reshape(header.shape, order="F" if header.fortran else "C")
