"""Reasons for leaving something in float: a sentence and the code of the rule behind it."""

from __future__ import annotations


class Reason(str):
    """A sentence for people that carries the code of its rule: code asks for the rule, never for words.

    Attributes:
        rule: a short code such as `override` or `float-type`.
    """

    rule: str

    def __new__(cls, rule: str, sentence: str) -> Reason:
        """Make the reason; an empty sentence is false, as an empty string is."""
        made = super().__new__(cls, sentence)
        made.rule = rule
        return made


def rule_of(reason: str) -> str:
    """Return the rule of a reason; empty for a plain string."""
    return reason.rule if isinstance(reason, Reason) else ""
