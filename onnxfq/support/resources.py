"""Installed files of the package: the custom-op library, the sample model."""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path

from onnxfq.errors import RuntimeLibraryError


def package_file(*parts: str) -> Path:
    """Return the path of an installed file, as in `package_file("digits", "NOTICE")`.

    The package folder is searched first, then the record of `pip install`: in an editable install, or if
    Python runs inside a checkout, these are different folders.
    Raises RuntimeLibraryError if the file is in neither.
    """
    beside = Path(__file__).parents[1].joinpath(*parts)
    if beside.is_file():
        return beside
    wanted = ("onnxfq", *parts)
    try:
        recorded = importlib.metadata.files("onnxfq") or []
    except importlib.metadata.PackageNotFoundError:
        recorded = []
    for entry in recorded:
        if entry.parts[-len(wanted) :] == wanted:
            path = Path(str(entry.locate()))
            if path.is_file():
                return path
    raise RuntimeLibraryError(
        f"{'/'.join(wanted)} is not installed: not in {beside.parent} and in no installed onnxfq; "
        "run `pip install .` in the checkout"
    )


def custom_ops_library() -> Path:
    """Return the path of the custom-op library. Raises RuntimeLibraryError if it is not built."""
    if sys.platform == "win32":
        return package_file("onnxfq_custom_ops.dll")
    suffix = "dylib" if sys.platform == "darwin" else "so"
    return package_file(f"libonnxfq_custom_ops.{suffix}")
