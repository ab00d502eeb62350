"""The error tree. Every message is one line: the thing, the rule, the value found, the remedy.

OnnxfqError
├── ModelError       the ONNX model cannot be read, is invalid, or cannot be quantized
├── RecipeError      a recipe or override asks for something unknown or impossible
├── PlanError        a plan does not fit the model or the encodings it is used with
├── DataError        feeds or labels are missing or do not fit the model's inputs
├── StatisticsError  statistics are empty, non-finite or belong to another model
├── SpecError        a qtype, granularity, scale or zero point breaks its rule
├── OutputError      a file cannot be written at the requested path
├── RuntimeLibraryError  the custom-op library, an extra such as ray, or a GPU is missing or does not work
└── DeviceMemoryError    a GPU has too little memory for a model or a feed
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class OnnxfqError(Exception):
    """Root of all errors raised by onnxfq; its message is one line that the user can act on."""


class ModelError(OnnxfqError):
    """The ONNX model cannot be read, is invalid, or cannot be quantized."""


class RecipeError(OnnxfqError):
    """A recipe or an override asks for something unknown or impossible."""


class PlanError(OnnxfqError):
    """A plan does not fit the model or the encodings it is used with."""


class DataError(OnnxfqError):
    """Feeds or labels are missing or do not fit the model's inputs."""


class StatisticsError(OnnxfqError):
    """Statistics are empty, hold non-finite values, or belong to another model."""


class SpecError(OnnxfqError):
    """A qtype, granularity, scale or zero point breaks its rule."""


class OutputError(OnnxfqError):
    """A file cannot be written at the requested path."""


class RuntimeLibraryError(OnnxfqError):
    """The custom-op library, an extra (ray, a builder) or a GPU is missing or does not work."""


class DeviceMemoryError(OnnxfqError):
    """A GPU has too little memory for a model or a feed."""


def nearest(name: str, known: Iterable[str], count: int = 3) -> str:
    """Return `; nearest: a, b` for the known names most like `name`, or all known names if they are few.

    The text ends an error message about an unknown name. It is empty if no name is known.
    """
    names = sorted(set(known))
    close = difflib.get_close_matches(name, names, n=count, cutoff=0.5)
    if close:
        return "; nearest: " + ", ".join(close)
    if names and len(names) <= 8:
        return "; known: " + ", ".join(names)
    return ""


def join_lines(text: object) -> str:
    """Return `text` on one line: white space becomes single blanks, unprintable characters are escaped."""
    line = " ".join(str(text).split())
    return line if line.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in line)
