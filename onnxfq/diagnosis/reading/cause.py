"""`Suspicion` and `Cause`: what may be wrong, and what was found to be wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from onnxfq.diagnosis.reading.file_editor import Edits
from onnxfq.diagnosis.reading.quantizers import ActivationQuantizer
from onnxfq.support.records import Record

if TYPE_CHECKING:
    from onnxfq.diagnosis.reading.candidate import FileCandidate


class Cause(Record):
    """One thing that is wrong with a quantized file.

    Attributes:
        kind: short name, a line of `docs/diagnose.md`.
        tensor: by its name in the file; empty for a cause of the whole file.
        node: the node of the file that it concerns; empty for a cause of the whole file.
        evidence: what was found, in figures.
        repair: what restores it; empty if nothing here does.
        before: SQNR of the file in dB, on samples that chose nothing; None if it was not measured.
        after: the same with this repair alone.
    """

    kind: str
    tensor: str = ""
    node: str = ""
    evidence: str
    repair: str = ""
    before: float | None = None
    after: float | None = None


FOUND = ("kind", "tensor", "node", "evidence", "repair")
"""Fields that a cause takes from its suspicion."""


@dataclass(frozen=True)
class Suspicion:
    """A cause before it is measured against the others.

    Attributes:
        kind: as in `Cause`, like the next four fields.
        harm: share of the noise of the file that is due to it, 0 if it costs no accuracy.
        is_certain: whether it is a fault at any harm.
        is_whole: whether it explains what other causes say about single tensors.
        numbers: the quantizers that it concerns.
        edits: the repair; none if there is none.
    """

    kind: str
    evidence: str
    tensor: str = ""
    node: str = ""
    repair: str = ""
    harm: float = 0.0
    is_certain: bool = False
    is_whole: bool = False
    numbers: tuple[int, ...] = ()
    edits: Edits = ()

    @staticmethod
    def of(group: Sequence[ActivationQuantizer], **found: Any) -> Suspicion:
        """Return a suspicion of the quantizers that share a scale; `found` are the other fields."""
        numbers = tuple(quantizer.number for quantizer in group)
        return Suspicion(tensor=group[0].tensor, node=group[0].node, numbers=numbers, **found)


Detector = Callable[["FileCandidate"], Iterator[Suspicion]]
"""Yields what one kind of cause suspects."""
