"""The form of files: a digest that comments, docstrings and white space of Python do not change.

Every Python gives the same digest: texts are hashed, not trees or tokens.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import io
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
KINDS = (".py", ".cc", ".h", ".cu", ".cuh", ".json", ".txt", ".sh", ".c")
Span = tuple[int, int, int, int]
"""First line from 1, first byte, last line, byte behind the last."""


@functools.cache
def form_of(patterns: tuple[str, ...], root: Path = ROOT) -> str:
    """Return 16 hex digits for the files that patterns match below `root`; a folder stands for its files.

    Raises FileNotFoundError if a pattern matches nothing: what it measured is gone.
    """
    whole = hashlib.sha256()
    for pattern in patterns:
        found = sorted(_files(root.glob(pattern)))
        if not found:
            raise FileNotFoundError(f"{pattern} matches no file below {root}; name what is measured now")
        for path in found:
            whole.update(f"{path.relative_to(root)}\0{_content(path)}\0".encode())
    return whole.hexdigest()[:16]


def _files(paths: Iterable[Path]) -> Iterator[Path]:
    for path in paths:
        inner = path.rglob("*") if path.is_dir() else [path]
        yield from (one for one in inner if one.suffix in KINDS and "__pycache__" not in one.parts)


@functools.cache
def _content(path: Path) -> str:
    """Return the hash of what counts of a file."""
    content = path.read_bytes()
    if path.suffix == ".py":
        lines = [bytearray(line) for line in content.split(b"\n")]
        for first, start, last, end in (*_docstrings(content), *_comments(content)):
            for number in range(first, last + 1):
                line = lines[number - 1]
                line[start if number == first else 0 : end if number == last else len(line)] = b""
        content = b"".join(b"".join(bytes(line).split()) for line in lines)
    return hashlib.sha256(content).hexdigest()


def _docstrings(content: bytes) -> list[Span]:
    """Return the texts that stand alone as a statement."""
    texts = [
        node
        for node in ast.walk(ast.parse(content))
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    ]
    return [(one.lineno, one.col_offset, one.end_lineno or 0, one.end_col_offset or 0) for one in texts]


def _comments(content: bytes) -> list[Span]:
    found = []
    for token in tokenize.generate_tokens(io.StringIO(content.decode()).readline):
        if token.type == tokenize.COMMENT:
            start = len(token.line[: token.start[1]].encode())
            found.append((token.start[0], start, token.end[0], start + len(token.string.encode())))
    return found
