"""Nouns and verbs that agree with the number before them, and the first of many names."""

from __future__ import annotations

import re
from collections.abc import Sequence

_NOUNS = (
    "activation|cause|channel|feed|file|group|input|kernel|layer|matrice|node|output|product|quantizer|run|sample|"
    "tensor|thread|time|weight"
)
_VERBS = {"are": "is", "count": "counts", "have": "has", "make": "makes", "stay": "stays", "were": "was"}

_AFTER_ONE = re.compile(
    rf"(?<![\w.,/:*^-])1 ((?:[A-Za-z]+ )?)(?:({_NOUNS})s|([\w-]+)\(s\))(?: ({'|'.join(_VERBS)}))?(?![\w-])"
)
_AFTER_MORE = re.compile(r"(?<=[\d\w])\(s\)")


def agree_numbers(text: str) -> str:
    """Return `text` with `1 samples were` as `1 sample was`, and `weight(s)` as one of its two forms."""
    return _AFTER_MORE.sub("s", _AFTER_ONE.sub(_make_one, text))


def _make_one(match: re.Match[str]) -> str:
    adjective, noun, other, verb = match.groups()
    noun = {"matrice": "matrix"}.get(noun, noun) or other
    return f"1 {adjective}{noun}" + (f" {_VERBS[verb]}" if verb else "")


def name_first(words: Sequence[str], most: int) -> str:
    """Return the first of `words` for a sentence: "a, b and 3 more"."""
    more = f" and {len(words) - most} more" if len(words) > most else ""
    return ", ".join(words[:most]) + more
