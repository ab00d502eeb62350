"""Rules of the target that the file breaks."""

from __future__ import annotations

from collections.abc import Iterator

from onnxfq.diagnosis.reading.candidate import FileCandidate
from onnxfq.diagnosis.reading.cause import Suspicion
from onnxfq.support.groups import group_pairs
from onnxfq.tools.check import check

_SYMMETRY = ("zero point", "zero_point", "uint8", "asymmetric")


def find_rules(candidate: FileCandidate) -> Iterator[Suspicion]:
    """Yield the rules of the target by which it refuses nodes, computes others or leaves them in float."""
    if not candidate.target:
        return
    found = check(candidate.proto, candidate.target).findings
    for rule, findings in group_pairs((one.rule, one) for one in found if one.severity != "warning").items():
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
