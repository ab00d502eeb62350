"""Texts as data of language models: files of texts, and windows of their tokens."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from onnxfq.errors import DataError, RuntimeLibraryError
from onnxfq.support.reading import read_bytes

SUFFIXES = (".txt", ".jsonl")
"""Ends of the names of files of texts."""

FIELDS = ("text", "prompt", "content")
"""Fields of a line of .jsonl that hold its text; the first one there counts."""


def read_texts(path: Path) -> list[str]:
    """Return the texts of a file: a .txt is one text, a .jsonl has one a line.

    A line of .jsonl is a string, or an object with one of `FIELDS`. Raises DataError for another file, a line
    that is neither, and a file without text.
    """
    try:
        content = read_bytes(path).decode("utf-8")
    except OSError as fault:
        raise DataError(
            f"cannot read {path}: {fault.strerror or fault}; give a .txt or .jsonl file"
        ) from None
    except UnicodeDecodeError as fault:
        raise DataError(f"{path} is not UTF-8 text at byte {fault.start}; convert it") from None
    if path.suffix == ".jsonl":
        lines = enumerate(content.splitlines(), 1)
        texts = [_read_line(path, number, line) for number, line in lines if line.strip()]
    else:
        texts = [content]
    texts = [text for text in texts if text.strip()]
    if not texts:
        raise DataError(f"{path} holds no text; give texts like those that the model will see")
    return texts


def _read_line(path: Path, number: int, line: str) -> str:
    try:
        value: Any = json.loads(line)
    except (ValueError, RecursionError):
        raise DataError(f"{path}: line {number} is not JSON; write a string or an object a line") from None
    if isinstance(value, dict):
        value = next((value[name] for name in FIELDS if name in value), None)
    if not isinstance(value, str):
        raise DataError(f"{path}: line {number} has no text; write a string, or one of {', '.join(FIELDS)}")
    return value


class TextTokens:
    """Texts as numbers, by the tokenizer in a folder of a model."""

    def __init__(self, folder: Path) -> None:
        """Read `tokenizer.json`. Raises DataError without one, RuntimeLibraryError without tokenizers."""
        path = folder / "tokenizer.json"
        try:
            import tokenizers
        except ImportError:
            raise RuntimeLibraryError(
                'texts need tokenizers; `pip install "onnxfq[text]"`, or give token numbers as .npz'
            ) from None
        try:
            content = read_bytes(path).decode("utf-8")
        except (OSError, UnicodeDecodeError) as fault:
            raise DataError(
                f"cannot read the tokenizer {path}: {getattr(fault, 'strerror', None) or fault}; give token "
                "numbers as .npz"
            ) from None
        try:
            self._tokenizer = tokenizers.Tokenizer.from_str(content)
        except Exception as fault:  # its Rust code raises the base class alone
            raise DataError(
                f"cannot read the tokenizer {path}: {fault!s:.200}; export the folder again"
            ) from None

    def windows(self, texts: Sequence[str], length: int) -> Iterator[list[int]]:
        """Yield runs of at most `length` tokens of the texts, one after the other; the last may be shorter.

        A text begins with what the tokenizer puts in front of it, such as a beginning of sequence.
        """
        waiting: list[int] = []
        for text in texts:
            waiting += self._tokenizer.encode(text).ids
            while len(waiting) >= length:
                yield waiting[:length]
                waiting = waiting[length:]
        if len(waiting) > 1:  # one token predicts nothing
            yield waiting
