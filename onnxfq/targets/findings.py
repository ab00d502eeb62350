"""What a check says: `Finding`, the coverage of low-precision nodes, and `CheckResult` over both."""

from __future__ import annotations

import re
from collections import Counter
from typing import Literal

from onnxfq.support.records import Record
from onnxfq.support.tables import table_lines

Severity = Literal["refused", "float", "wrong", "warning"]
"""refused: no engine. float: it runs, not in low precision. wrong: it computes something else."""

_NAMED = 3
"""Findings like the first one that are named in text."""

_PARTICULARS = re.compile(r"'[^']*'|\"[^\"]*\"|[-+]?[0-9]*\.?[0-9]+(?:e[-+]?[0-9]+)?")
"""What differs between findings that are alike: quoted names, and numbers."""

_ORDER: tuple[Severity, ...] = ("refused", "wrong", "float", "warning")


class Finding(Record):
    """One thing that the target would not do as the model asks.

    rule: its short name. node, op_type: where, empty for a tensor that no node reads. tensor: which, empty
    when it is about the node as a whole. message: one line with what is found, the rule and the remedy.
    """

    rule: str
    severity: Severity
    node: str
    op_type: str
    tensor: str = ""
    message: str


class Coverage(Record):
    """How many nodes of one operator keep what the graph promises.

    expects: "low" where all multiplied inputs are quantized, "weight-only" where only the constant is.
    """

    op_type: str
    expects: Literal["low", "weight-only"]
    kept: int
    promised: int

    def __str__(self) -> str:
        """Return `Conv 52/52 low`."""
        return f"{self.op_type} {self.kept}/{self.promised} {self.expects}"


class EngineNode(Record):
    """How one node runs in an engine that was built.

    capability: the GPU architecture, as SM89. verdict: "low" all operands are of 8 bits or fewer,
    "weight-only" the constant is, "mixed" an operand is turned into float on the way, "float" none is,
    "missing" no layer of the engine names the node.
    """

    capability: str
    node: str
    op_type: str
    expects: Literal["low", "weight-only"]
    verdict: Literal["low", "weight-only", "mixed", "float", "missing"]


class CheckResult(Record):
    """The findings of one model, worst first, and its coverage.

    coverage: by the rules, or by the engines where some were built. builder: name and version of the
    builder that was asked, empty for none. engine: what it made of each promised node.
    """

    source: str
    target: str
    findings: tuple[Finding, ...]
    coverage: tuple[Coverage, ...]
    builder: str = ""
    engine: tuple[EngineNode, ...] = ()

    @property
    def passed(self) -> bool:
        """Tell whether there is nothing but warnings."""
        return all(finding.severity == "warning" for finding in self.findings)

    def table(self) -> str:
        """Return a line for each kind of finding, the coverage and the sum, as plain text."""
        rows = [(like[0].severity, like[0].rule, _summed(like)) for like in _alike(self.findings)]
        lines = table_lines(rows) if rows else []
        counts = Counter(finding.severity for finding in self.findings)
        found = ", ".join(f"{counts[severity]} {severity}" for severity in _ORDER if counts[severity])
        how = f"built by {self.builder}" if self.builder else "by the rules, nothing was built"
        lines.append(f"coverage   {', '.join(map(str, self.coverage)) or 'no quantized operator'} ({how})")
        lines.append(f"findings   {found or 'none'}")
        return "\n".join(lines)


def _alike(findings: tuple[Finding, ...]) -> list[list[Finding]]:
    """Return the findings in groups of one rule that say the same but for names and numbers."""
    groups: dict[tuple[str, str, str], list[Finding]] = {}
    for found in findings:
        words = _PARTICULARS.sub("", found.message)
        groups.setdefault((found.severity, found.rule, words), []).append(found)
    return list(groups.values())


def _summed(alike: list[Finding]) -> str:
    """Return what findings that are alike say: the first in full, of the others how many and some names."""
    first, *others = alike
    said = f"{first.op_type} {first.node!r}: {first.message}"
    if not others:
        return said
    names = ", ".join(f"{found.op_type} {found.node!r}" for found in others[:_NAMED])
    rest = f" and {len(others) - _NAMED} more, all in --json" if len(others) > _NAMED else ""
    return f"{len(alike)} times: {said}; the same of {names}{rest}"


def worst_first(findings: list[Finding]) -> tuple[Finding, ...]:
    """Return the findings without repetitions, by severity; in each in the order they were found."""
    unique = dict.fromkeys(findings)
    return tuple(sorted(unique, key=lambda finding: _ORDER.index(finding.severity)))
