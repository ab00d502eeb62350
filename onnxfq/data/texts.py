"""Texts as data of language models: files of texts, and windows of their tokens."""

from __future__ import annotations

import codecs
import importlib.util
import logging
from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from onnxfq.errors import DataError, RuntimeLibraryError
from onnxfq.support.confined import MEMORY, call_confined
from onnxfq.support.reading import open_input, read_bytes
from onnxfq.support.readings import reading
from onnxfq.support.records import join_lines, read_json
from onnxfq.support.workers import Worker

log = logging.getLogger(__name__)

SUFFIXES = (".txt", ".jsonl")
"""Ends of the names of files of texts."""

FIELDS = ("text", "prompt", "content")
"""Fields of a line of .jsonl that hold its text; the first one there counts."""

PIECE = 1 << 20
"""Bytes of a .txt that are read at once."""
_MOST_LINE = 16 << 20
_MOST_TOKENIZER = 64 << 20


def read_texts(path: Path) -> Iterator[str]:
    """Yield the texts of a file.

    A .txt is one text up to `PIECE`; then one begins behind each line that passes it. A .jsonl has one a
    line, a string or an object with one of `FIELDS`; empty ones are left out, with a note. Raises DataError
    for another file, a line that is neither, and a file without text.
    """
    texts = left = 0
    try:
        for text in _read_lines(path) if path.suffix == ".jsonl" else _read_pieces(path):
            if text.strip():
                yield text
                texts += 1
            else:
                left += 1
    except OSError as fault:
        raise DataError(
            f"cannot read {path}: {fault.strerror or fault}; give a .txt or .jsonl file"
        ) from None
    if not texts:
        raise DataError(f"{path} holds no text; give texts like those that the model will see")
    told = f"of {path}, {texts} text(s) are read; {left} are empty and left out"
    found = {"took": f"{texts} text(s)"} | ({"left": told} if left else {})
    log.log(logging.WARNING if left else logging.INFO, "%s", told, extra=reading(str(path), **found))


def _read_pieces(path: Path) -> Iterator[str]:
    decoder, begin = codecs.getincrementaldecoder("utf-8")(), 0
    with open_input(path) as stream:
        while piece := stream.read(PIECE):
            piece = decoder.getstate()[0] + piece + stream.readline(PIECE)
            decoder.reset()
            try:
                text = decoder.decode(piece, final=not stream.peek(1))  # type: ignore[attr-defined]
                yield text if begin else text.removeprefix("\ufeff")
            except UnicodeDecodeError as fault:
                where = begin + fault.start
                raise DataError(f"{path} is not UTF-8 text at byte {where}; convert it") from None
            begin += len(piece) - len(decoder.getstate()[0])


def _read_lines(path: Path) -> Iterator[str]:
    """Yield the text of each line, which a line feed alone ends: strings may hold other separators."""
    with open_input(path) as stream:
        number = 0
        while line := stream.readline(_MOST_LINE + 1):
            number += 1
            if len(line) > _MOST_LINE:
                raise DataError(
                    f"{path}: line {number} has over {_MOST_LINE >> 20} MB; write a text a line, or a .txt"
                )
            yield _read_line(path, number, line) if line.strip() else ""


def _read_line(path: Path, number: int, line: bytes) -> str:
    try:
        value: Any = read_json(line.decode("utf-8-sig" if number == 1 else "utf-8"))
    except (ValueError, RecursionError) as fault:
        raise DataError(
            f"{path}: line {number} is not JSON ({join_lines(fault):.80}); write a string or an object a line"
        ) from None
    if isinstance(value, dict):
        value = next((value[name] for name in FIELDS if name in value), None)
    if not isinstance(value, str):
        raise DataError(f"{path}: line {number} has no text; write a string, or one of {', '.join(FIELDS)}")
    return value


class TextTokens:
    """Texts as numbers, by the tokenizer in a folder of a model, whose own cuts and padding are off."""

    def __init__(self, folder: Path) -> None:
        """Read `tokenizer.json`. Raises DataError without one, RuntimeLibraryError without tokenizers."""
        self._path = folder / "tokenizer.json"
        if importlib.util.find_spec("tokenizers") is None:
            raise RuntimeLibraryError(
                'texts need tokenizers; `pip install "onnxfq[text]"`, or give token numbers as .npz'
            )
        try:
            self._content = read_bytes(self._path, _MOST_TOKENIZER).decode("utf-8")
        except (OSError, UnicodeDecodeError) as fault:
            raise DataError(
                f"cannot read the tokenizer {self._path}: {getattr(fault, 'strerror', None) or fault}; give "
                "token numbers as .npz"
            ) from None

    def windows(self, texts: Iterable[str], length: int) -> Iterator[list[int]]:
        """Yield runs of at most `length` tokens of the texts, one after the other; the last may be shorter.

        A text begins with what the tokenizer puts in front of it, such as a beginning of sequence. Raises
        DataError if the tokenizer fails, or takes too long or too much memory.
        """
        waiting = array("q")
        with Worker(str(Path(__file__).with_name("tokenizer.py")), MEMORY) as worker:
            own = next(self._call(worker, "open_tokenizer", [self._content]))
            if own:
                log.warning(f"the tokenizer {self._path} has its own {' and '.join(own)}, which is off here")
            for tokens in self._call(worker, "encode", texts):
                waiting += tokens
                whole = len(waiting) - len(waiting) % length
                for start in range(0, whole, length):
                    yield waiting[start : start + length].tolist()
                del waiting[:whole]
        if len(waiting) > 1:  # one token predicts nothing
            yield waiting.tolist()

    def _call(self, worker: Worker, name: str, given: Iterable[str]) -> Iterator[Any]:
        what = f"cannot read the tokenizer {self._path}"
        remedy = "export the folder again, or give token numbers as .npz"
        return call_confined(worker, name, ((text,) for text in given), DataError, what, remedy)
