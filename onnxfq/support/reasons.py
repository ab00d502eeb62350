"""Reasons for leaving something in float: a sentence and the code of its rule."""

from __future__ import annotations


class Reason(str):
    """Sentence for the user with the code of its rule; code compares the rule, never the words.

    Attributes:
        rule: a short code such as `override` or `float-type`.
    """

    rule: str

    def __new__(cls, rule: str, sentence: str) -> Reason:
        """Create a reason; an empty sentence is false, like an empty string."""
        reason = super().__new__(cls, sentence)
        reason.rule = rule
        return reason

    def __reduce__(self) -> tuple[type[Reason], tuple[str, str]]:
        """Return what pickle and copy make it from again."""
        return Reason, (self.rule, str(self))


def rule_of(reason: str) -> str:
    """Return the rule of a reason; empty for a plain string."""
    return reason.rule if isinstance(reason, Reason) else ""
