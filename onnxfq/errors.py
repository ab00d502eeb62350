"""The error tree. Every message is one line: the thing, the rule, the value found, the remedy.

Each error is one of Python's too, the one that torch and other quantizers raise in its place: code that
catches these keeps working.

OnnxfqError
├── ModelError       the ONNX model cannot be read, is invalid, or cannot be quantized; a RuntimeError
├── RecipeError      a recipe or override asks for something unknown or impossible; a ValueError
├── PlanError        a plan does not fit the model or the encodings it is used with; a ValueError
├── DataError        feeds or labels are missing or do not fit the model's inputs; a ValueError
├── StatisticsError  statistics are empty, non-finite or belong to another model; a RuntimeError
├── SpecError        a qtype, granularity, scale or zero point breaks its rule; a ValueError and RuntimeError
├── ArgumentError    an argument is unknown, missing or of a wrong type; a TypeError
├── OutputError      a file cannot be written at the requested path; a RuntimeError
├── RuntimeLibraryError  the custom-op library, an extra such as ray, or a GPU is missing or does not work;
│                        a RuntimeError
└── DeviceMemoryError    a GPU has too little memory for a model or a feed; a RuntimeError
"""

from __future__ import annotations

from collections.abc import Iterable


class OnnxfqError(Exception):
    """Root of all errors raised by onnxfq; its message is one line that the user can act on."""

    def __init__(self, *args: object) -> None:
        """Take the message; values in it, such as tensors, may bring line breaks."""
        super().__init__(*(join_lines(arg) if isinstance(arg, str) and "\n" in arg else arg for arg in args))


class ModelError(OnnxfqError, RuntimeError):
    """The ONNX model cannot be read, is invalid, or cannot be quantized."""


class RecipeError(OnnxfqError, ValueError):
    """A recipe or an override asks for something unknown or impossible."""


class PlanError(OnnxfqError, ValueError):
    """A plan does not fit the model or the encodings it is used with."""


class DataError(OnnxfqError, ValueError):
    """Feeds or labels are missing or do not fit the model's inputs."""


class StatisticsError(OnnxfqError, RuntimeError):
    """Statistics are empty, hold non-finite values, or belong to another model."""


class SpecError(OnnxfqError, ValueError, RuntimeError):
    """A qtype, granularity, scale or zero point breaks its rule.

    torch raises RuntimeError for some of these faults, and others ValueError.
    """


class ArgumentError(OnnxfqError, TypeError):
    """An argument is unknown, missing or of a wrong type."""


class OutputError(OnnxfqError, RuntimeError):
    """A file cannot be written at the requested path."""


class RuntimeLibraryError(OnnxfqError, RuntimeError):
    """The custom-op library, an extra (ray, a builder) or a GPU is missing or does not work."""


class DeviceMemoryError(OnnxfqError, RuntimeError):
    """A GPU has too little memory for a model or a feed."""


def nearest(name: str, known: Iterable[str], count: int = 3) -> str:
    """Return `; nearest: a, b` for the known names most like `name`, or all known names if they are few.

    A name is like another that it begins or ends, or that differs in one letter, from six letters on in two,
    or of which it is an abbreviation, as `trt` is of `tensorrt`.
    The text ends an error message about an unknown name. It is empty if no name is known.
    """
    import difflib  # slow, and for misspelled names alone

    def is_like(other: str) -> bool:
        if len(name) > 3 and (other.startswith(name) or other.endswith(name)):
            return True
        rest = iter(other)
        is_short = len(name) > 2 and name[0] == other[:1] and all(letter in rest for letter in name)
        if is_short or sorted(name) == sorted(other):
            return True
        steps = difflib.SequenceMatcher(None, name.lower(), other.lower(), False).get_opcodes()
        apart = sum(max(i2 - i1, j2 - j1) for kind, i1, i2, j1, j2 in steps if kind != "equal")
        return apart < max(len(name), len(other)) and apart <= max(1, min(2, len(name) // 3))

    names = sorted(set(known))
    close = difflib.get_close_matches(name, filter(is_like, names), n=count, cutoff=0.0)
    if close:
        return "; nearest: " + ", ".join(close)
    if names and len(names) <= 8:
        return "; known: " + ", ".join(names)
    return ""


def join_lines(text: object) -> str:
    """Return `text` on one line: white space becomes single blanks, unprintable characters are escaped."""
    line = " ".join(str(text).split())
    return line if line.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in line)
