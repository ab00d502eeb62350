"""Tokens of texts, in a process of their own without the package."""

from __future__ import annotations

from array import array

import tokenizers

_opened: list[tokenizers.Tokenizer] = []


def open_tokenizer(content: str) -> list[str]:
    """Keep the tokenizer of a tokenizer.json, and return which of its own cuts and padding are off here."""
    tokenizer = tokenizers.Tokenizer.from_str(content)
    own = [name for name in ("truncation", "padding") if getattr(tokenizer, name) is not None]
    tokenizer.no_truncation()
    tokenizer.no_padding()
    _opened.append(tokenizer)
    return own


def encode(text: str) -> array[int]:
    """Return the tokens of a text."""
    return array("q", _opened[0].encode(text).ids)
