"""Rules of the target that the file breaks."""

from __future__ import annotations

from collections.abc import Iterator

from onnxfq.diagnosis.reading.candidate import FileCandidate
from onnxfq.diagnosis.reading.cause import Suspicion
from onnxfq.targets.findings import Finding
from onnxfq.tools.check import check

_SYMMETRY = ("zero point", "zero_point", "uint8", "asymmetric")


def find_rules(candidate: FileCandidate) -> Iterator[Suspicion]:
    """Yield the rules of the target by which it refuses nodes, computes others or leaves them in float."""
    if not candidate.target:
        return
    by_rule: dict[str, list[Finding]] = {}
    for finding in check(candidate.proto, candidate.target).findings:
        if finding.severity != "warning":
            by_rule.setdefault(finding.rule, []).append(finding)
    for rule, findings in by_rule.items():
        first = findings[0]
        is_asymmetric = any(word in first.message.lower() for word in _SYMMETRY)
        others = f", and {len(findings) - 1} more by this rule" if len(findings) > 1 else ""
        yield Suspicion(
            kind="asymmetric_for_target" if is_asymmetric else "unsupported_by_target",
            evidence=f"{candidate.target}, rule {rule}: {first.message}{others}",
            tensor=first.tensor,
            node=first.node,
            repair=f"`onnxfq convert` for {candidate.target}",
            is_certain=True,
        )
