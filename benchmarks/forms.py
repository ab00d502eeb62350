"""The form of files: a digest that comments, docstrings and layout of Python do not change."""

from __future__ import annotations

import ast
import functools
import hashlib
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
KINDS = (".py", ".cc", ".h", ".cu", ".cuh", ".json", ".txt", ".sh", ".c")


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


def _files(paths: Iterable[Path]) -> Iterable[Path]:
    for path in paths:
        if path.is_dir():
            yield from (
                one for one in path.rglob("*") if one.suffix in KINDS and "__pycache__" not in one.parts
            )
        else:
            yield path


@functools.cache
def _content(path: Path) -> str:
    """Return what counts of a file: its bytes, of Python the tree without docstrings."""
    if path.suffix != ".py":
        return hashlib.sha256(path.read_bytes()).hexdigest()
    tree = ast.parse(path.read_bytes())
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [one for one in body if not _is_text(one)]  # type: ignore[attr-defined]
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest()


def _is_text(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )
