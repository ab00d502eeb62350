"""`Written`: exported encodings as text, and the entries that do not fit."""

from __future__ import annotations

from dataclasses import dataclass

from onnxfq.documents.encodings import Encodings
from onnxfq.documents.plan import Placement, Plan
from onnxfq.errors import PlanError


@dataclass(frozen=True)
class Written:
    """The text of a file.

    Attributes:
        text: the content.
        tensors: number of tensors in it.
        lost: tensor -> reason why the format cannot hold it.
    """

    text: str
    tensors: int
    lost: dict[str, str]

    def refuse_empty(self, kind: str) -> None:
        """Raise PlanError when the file holds no tensor."""
        if not self.tensors:
            first = next((f", as {name!r}: {why}" for name, why in self.lost.items()), "")
            raise PlanError(f"{kind} holds none of these encodings{first}; use a recipe in that format")


def select_calibrated(encodings: Encodings, plan: Plan) -> tuple[Placement, ...]:
    """Return the placements of `plan` that have an encoding.

    Raises PlanError when the two belong to different models, or one has no encoding though it had values.
    """
    if encodings.model_sha256 != plan.model_sha256:
        raise PlanError("the encodings and the plan belong to different models; give files of one model")
    part = plan.without(encodings.without_values, "").without_bridges(encodings.unshared, "")
    placements = part.placements
    for placement in placements:
        encodings[placement.tensor]
    return placements
