"""`Plan`: what of a model is quantized, how, and why the rest is not."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pydantic
from numpy.typing import NDArray

from onnxfq.calibration.calibrators import MINMAX, Calibrator
from onnxfq.documents.encodings import Encoding, lift_calibrator
from onnxfq.errors import PlanError
from onnxfq.graph.model import Existing
from onnxfq.graph.slots import TensorUses, Use
from onnxfq.numerics.float_types import FloatType
from onnxfq.numerics.spec import QuantSpec
from onnxfq.support.records import Record, first_repeated, read_document, write_document

Role = Literal["activation", "weight"]


class Placement(TensorUses):
    """One tensor that is quantized: its spec, the input slots that read the quantized value, and why.

    float_type: of its elements; its scales are numbers of that type. calibrator: how its range is found.
    """

    role: Role
    spec: QuantSpec
    why: str
    float_type: FloatType = "float32"
    calibrator: Calibrator = MINMAX

    @pydantic.model_validator(mode="before")
    @classmethod
    def _lift(cls, fields: Any) -> Any:
        return lift_calibrator(fields)

    @pydantic.model_validator(mode="after")
    def _dynamic_activation(self) -> Placement:
        if self.spec.dynamic and self.role == "weight":
            raise ValueError(f"weight {self.tensor!r} is dynamic, and its values are known; remove dynamic")
        return self

    def encode(
        self, scale: NDArray[np.float32], zero_point: NDArray[Any], global_scale: float | None = None
    ) -> Encoding:
        """Return the encoding of the tensor with these parameters. Raises SpecError as `Encoding.of`."""
        made = Encoding.of(self.tensor, self.spec, scale, zero_point, global_scale)
        return made.model_copy(update={"calibrator": self.calibrator})


class QuantizableNode(Record):
    """A node that runs in low precision when every slot in `needs` reads a quantized value."""

    node: str
    op_type: str
    needs: tuple[Use, ...]


class Skipped(Record):
    """A tensor or node left in float, and the reason."""

    name: str
    kind: Literal["tensor", "node"]
    op_type: str
    why: str


class Coverage(NamedTuple):
    """How many nodes of one op type run in low precision, of how many."""

    op_type: str
    quantized: int
    total: int

    def __str__(self) -> str:
        """Spell it as in a report: `Conv 3/4`."""
        return f"{self.op_type} {self.quantized}/{self.total}"


class Plan(Record):
    """All decisions for one model (`.plan.json`); a person may edit it and feed it back.

    existing: how the model has to be loaded, as the recipe says.
    """

    format: Literal["onnxfq.plan/1"] = "onnxfq.plan/1"
    model_sha256: str
    recipe: str
    target: str
    placements: tuple[Placement, ...]
    nodes: tuple[QuantizableNode, ...]
    skipped: tuple[Skipped, ...]
    existing: Existing = "refuse"

    @pydantic.model_validator(mode="after")
    def _placed_once(self) -> Plan:
        twice = first_repeated(placement.tensor for placement in self.placements)
        if twice is not None:
            raise ValueError(f"tensor {twice!r} is placed twice; join its uses in one placement")
        return self

    @property
    def activations(self) -> tuple[Placement, ...]:
        """Placements whose statistics come from data."""
        return tuple(p for p in self.placements if p.role == "activation" and p.spec.observed)

    @property
    def unobserved(self) -> tuple[Placement, ...]:
        """Activations whose scales the running model makes from its own values alone."""
        return tuple(p for p in self.placements if p.role == "activation" and not p.spec.observed)

    @property
    def weights(self) -> tuple[Placement, ...]:
        """Placements whose values are constants of the model."""
        return tuple(p for p in self.placements if p.role == "weight")

    def coverage(self) -> list[Coverage]:
        """Return the coverage of each quantizable op type, most frequent first."""
        placed = {use for p in self.placements for use in p.uses}
        count: dict[str, list[int]] = {}
        for node in self.nodes:
            entry = count.setdefault(node.op_type, [0, 0])
            entry[1] += 1
            entry[0] += bool(node.needs) and all(use in placed for use in node.needs)
        rows = [Coverage(op_type, *numbers) for op_type, numbers in count.items()]
        return sorted(rows, key=lambda row: (-row.total, row.op_type))

    def without(self, tensors: Collection[str], why: str) -> Plan:
        """Return the plan with `tensors` in float, and every node that needs one of them, for reason `why`.

        A node that reads one side in float multiplies in float, so its other inputs lose their pair too.
        """
        placed = {use: p.tensor for p in self.placements for use in p.uses}
        removed = {use for use, tensor in placed.items() if tensor in tensors}
        stopped: dict[str, QuantizableNode] = {}
        found = True
        while found:  # a use that goes, as that of a shared Transpose, may stop another node
            broken = [n for n in self.nodes if n.node not in stopped and removed.intersection(n.needs)]
            stopped |= {n.node: n for n in broken}
            removed |= {use for n in broken for use in n.needs}
            found = bool(broken)
        kept = [
            p.model_copy(update={"uses": tuple(use for use in p.uses if use not in removed)})
            for p in self.placements
        ]
        left = [p for p in kept if not p.uses]
        skipped = [Skipped(name=n.node, kind="node", op_type=n.op_type, why=why) for n in stopped.values()]
        skipped += [Skipped(name=p.tensor, kind="tensor", op_type=p.role, why=why) for p in left]
        return self.model_copy(
            update={"placements": tuple(p for p in kept if p.uses), "skipped": (*self.skipped, *skipped)}
        )

    def check_model(self, sha256: str) -> None:
        """Raise PlanError when the plan was made for another model than the one with `sha256`."""
        if self.model_sha256 != sha256:
            raise PlanError(
                f"the plan was made for a model with SHA-256 {self.model_sha256[:12]}, this one has "
                f"{sha256[:12]}; make a new plan with `onnxfq plan`"
            )

    def save(self, path: str | Path) -> None:
        """Write as JSON, whole or not at all."""
        write_document(path, self)

    @staticmethod
    def load(path: str | Path) -> Plan:
        """Read what `save` wrote, edited or not. Raises PlanError in one line for any fault."""
        return read_document(path, Plan, PlanError)
