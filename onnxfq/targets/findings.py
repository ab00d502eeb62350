"""Findings of a check: `Finding`, the coverage of low-precision nodes, and `CheckResult`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection
from typing import Literal

from onnxfq.documents.engine_listing import EngineListing
from onnxfq.documents.proof import CheckCoverage, Expected
from onnxfq.support.groups import group_pairs
from onnxfq.support.plurals import name_first
from onnxfq.support.records import PrintedRecord, Record
from onnxfq.support.tables import table_lines
from onnxfq.targets.engine_figures import EngineComparison

Severity = Literal["refused", "float", "wrong", "warning"]
"""refused: no engine. float: it runs, but not in low precision. wrong: it computes other values."""

Verdict = Literal["low", "weight-only", "mixed", "float", "missing"]
"""Precision in which an engine runs a node, see `EngineNode`."""

_EIGHT_BITS: tuple[Verdict, ...] = ("low", "weight-only")

_NAMED = 3
"""Most nodes that a line of text names for findings like its first one."""

_PARTICULARS = re.compile(r"'[^']*'|\"[^\"]*\"|[-+]?[0-9]*\.?[0-9]+(?:e[-+]?[0-9]+)?")
"""Parts in which similar findings differ: quoted names, and numbers."""

_ORDER: tuple[Severity, ...] = ("refused", "wrong", "float", "warning")


class Finding(Record):
    """One deviation of the target from the model.

    Attributes:
        rule: short name of the rule.
        node: name of the node; empty for a tensor that no node reads.
        op_type: type of the node; empty for a tensor that no node reads.
        tensor: name of the tensor; empty if the finding concerns the whole node.
        message: one line with the observation, the rule and the remedy.
    """

    rule: str
    severity: Severity
    node: str
    op_type: str
    tensor: str = ""
    message: str


class EngineNode(Record):
    """Precision of one node in a built engine, or in the graph that a runtime makes of the model.

    Attributes:
        device: GPU architecture, such as SM89, or CPU.
        verdict: "low" if all operands have 8 bits or fewer, "weight-only" if the constant has, "mixed" if an
            operand is converted to float on the way, "float" if none has, "missing" if no layer of the
            engine names the node.
        why: observed reason for another precision than the expected one; empty if it is unknown.
    """

    device: str
    node: str
    op_type: str
    expects: Expected
    verdict: Verdict
    why: str = ""

    @property
    def is_kept(self) -> bool:
        """Tell whether it runs as expected; an MXFP8 product at least has a weight of 8 bits."""
        return self.verdict == self.expects or (self.expects == "MXFP8" and self.verdict in _EIGHT_BITS)


class CheckResult(PrintedRecord):
    """Findings of one model, worst first, and its coverage.

    Attributes:
        coverage: coverage by the rules, or by the engines if some were built.
        builder: name and version of the builder; empty without a build.
        engine: precision of each expected low-precision node in the engines.
        listing: layers and times of an engine that was built elsewhere; None without its files.
        against: the engines beside those of the same graph without pairs; empty if these were not built.
        ignored: findings that were not asked for.
    """

    source: str
    target: str
    findings: tuple[Finding, ...]
    coverage: tuple[CheckCoverage, ...]
    builder: str = ""
    engine: tuple[EngineNode, ...] = ()
    listing: EngineListing | None = None
    against: tuple[EngineComparison, ...] = ()
    ignored: tuple[Finding, ...] = ()

    def without(self, codes: Collection[str]) -> CheckResult:
        """Return the result without the findings of some rules, which are kept apart."""
        kept = tuple(one for one in self.findings if one.rule not in codes)
        left = tuple(one for one in self.findings if one.rule in codes)
        return self.model_copy(update={"findings": kept, "ignored": (*self.ignored, *left)})

    def annotations(self) -> list[str]:
        """Return the findings as workflow commands of GitHub Actions, which annotate the model's file."""

        def escape(text: str) -> str:
            return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")

        place = escape(self.source).replace(":", "%3A").replace(",", "%2C")
        lines = []
        for found in self.findings:
            kind = "warning" if found.severity == "warning" else "error"
            text = escape(f"{found.op_type} {found.node!r}: {found.message}")
            lines.append(f"::{kind} file={place},title={found.rule}::{text}")
        return lines

    @property
    def passed(self) -> bool:
        """Tell whether all findings are warnings."""
        return all(finding.severity == "warning" for finding in self.findings)

    def table(self) -> str:
        """Return a line for each kind of finding, the coverage and the totals, as plain text."""
        parts = ((f.severity, f.rule, _PARTICULARS.sub("", f.message)) for f in self.findings)
        alike = group_pairs(zip(parts, self.findings, strict=True)).values()
        rows = [(like[0].severity, like[0].rule, _summed(like)) for like in alike]
        lines = table_lines(rows) if rows else []
        counts = Counter(finding.severity for finding in self.findings)
        words = [
            f"{counts[one]} {one}{'s' * (one == 'warning' and counts[one] > 1)}"
            for one in _ORDER
            if counts[one]
        ]
        how = f"built by {self.builder}" if self.builder else "by the rules, nothing was built"
        covered = ", ".join(map(str, self.coverage)) or "no operator between pairs"
        lines.append(f"coverage   {covered} ({how})")
        lines += [] if self.listing is None else self.listing.lines()
        lines.append(f"findings   {', '.join(words) or 'none'}")
        rules = Counter(finding.rule for finding in self.ignored).items()
        lines += [f"ignored    {', '.join(f'{count} {rule}' for rule, count in rules)}"] if rules else []
        lines += [line for compared in self.against for line in compared.lines()]
        return "\n".join(lines)


def about_model(rule: str, message: str, severity: Severity = "refused") -> Finding:
    """Return a finding about the model as a whole."""
    return Finding(rule=rule, severity=severity, node="", op_type="model", message=message)


def _summed(alike: list[Finding]) -> str:
    """Return one line for similar findings: the first in full, some names and the number of the others."""
    first, *others = alike
    said = f"{first.op_type} {first.node!r}: {first.message}"
    if not others:
        return said
    names = name_first([f"{found.op_type} {found.node!r}" for found in others], _NAMED)
    rest = ", all in --json" if len(others) > _NAMED else ""
    return f"{len(alike)} times: {said}; the same of {names}{rest}"


def worst_first(findings: list[Finding]) -> tuple[Finding, ...]:
    """Return the findings without duplicates, by severity, then in order of discovery."""
    unique = dict.fromkeys(findings)
    return tuple(sorted(unique, key=lambda finding: _ORDER.index(finding.severity)))
