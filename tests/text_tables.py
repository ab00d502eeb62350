"""Tables of cases as text: a head on a line, and below it, indented, what belongs to it."""

from __future__ import annotations

import re


def read_table(text: str) -> list[tuple[str, str]]:
    """Return the head and the body of each case; a body is one line."""
    found = re.findall(r"^(\S.*)\n((?:    .*\n)+)", text, re.MULTILINE)
    return [(head, " ".join(body.split())) for head, body in found]
