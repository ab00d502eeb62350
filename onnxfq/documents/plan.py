"""`Plan`: quantized tensors, their specs, and reasons for float."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pydantic
from numpy.typing import NDArray

from onnxfq.calibration.calibrators import BY_CHANNEL, MINMAX, Calibrator
from onnxfq.documents.encodings import Encoding
from onnxfq.documents.plan_text import plan_summary
from onnxfq.documents.rounding import NEAREST, RoundingMethod, Simulation
from onnxfq.errors import PlanError
from onnxfq.graph.model import Existing
from onnxfq.graph.names import TensorUses, Use
from onnxfq.numerics.float_types import FloatType
from onnxfq.numerics.granularity import PER_TENSOR, Granularity
from onnxfq.numerics.spec import QuantSpec
from onnxfq.support.reasons import Reason
from onnxfq.support.records import Document, Record, first_repeated, read_document

Role = Literal["activation", "weight", "bias"]


class Placement(TensorUses):
    """One quantized tensor: its spec, the input slots that read the quantized value, and the reason.

    Attributes:
        role: a bias is a constant with input scale times weight scale as its scale.
        float_type: of its elements; its scales are numbers of that type.
        calibrator: how its range is found.
        rounding: how the values of a weight are rounded.
        stored: whether the numbers of an activation leave the model and come back, as those of a cache.
    """

    role: Role
    spec: QuantSpec
    why: str
    float_type: FloatType = "float32"
    calibrator: Calibrator = MINMAX
    rounding: RoundingMethod = NEAREST
    stored: bool = False

    @pydantic.model_validator(mode="after")
    def _dynamic_activation(self) -> Placement:
        if self.spec.dynamic and self.role != "activation":
            raise ValueError(
                f"{self.role} {self.tensor!r} is dynamic, but its values are constant; remove dynamic"
            )
        return self

    @property
    def observes_channels(self) -> bool:
        """Tell whether statistics have the range of each channel and one histogram."""
        return self.spec.equalized or self.calibrator == BY_CHANNEL

    @property
    def observed_granularity(self) -> Granularity:
        """Granularity of the histograms of an activation."""
        return PER_TENSOR if self.observes_channels else self.spec.observed_granularity

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


class Bridge(Record):
    """An operator between quantized tensors that runs in low precision if they have pairs.

    Attributes:
        node: its name.
        op_type: its operator.
        tensors: its inputs and its output.
        one_scale: whether they need one scale, unless calibration refuses it.
        required: whether calibration cannot refuse it.
        counts: whether the coverage counts it, as a check of the target does.
    """

    node: str
    op_type: str
    tensors: tuple[str, ...]
    one_scale: bool
    required: bool = False
    counts: bool = False


class Skipped(Record):
    """A tensor or node left in float, the reason, and the code of its rule."""

    name: str
    kind: Literal["tensor", "node"]
    op_type: str
    why: str
    rule: str = ""

    @pydantic.model_validator(mode="before")
    @classmethod
    def _take_rule(cls, fields: Any) -> Any:
        if isinstance(fields, dict) and isinstance(fields.get("why"), Reason):
            return {"rule": fields["why"].rule} | fields
        return fields


class Coverage(NamedTuple):
    """Number of low-precision nodes of one op type, out of all."""

    op_type: str
    quantized: int
    total: int

    def __str__(self) -> str:
        """Return the form used in reports: `Conv 3/4`."""
        return f"{self.op_type} {self.quantized}/{self.total}"


class Plan(Document):
    """All decisions for one model (`.plan.json`); a person may edit the file and pass it to later stages.

    Attributes:
        existing: policy for loading a quantized model, from the recipe.
        bridges: operators that multiply nothing and run in low precision between quantized tensors.
        pays: device and date of the times that left products in float; empty for none.
        simulation: rounding mode and arithmetic of fake-quant models, from the recipe.
    """

    format: Literal["onnxfq.plan/1"] = "onnxfq.plan/1"
    model_sha256: str
    recipe: str
    target: str
    placements: tuple[Placement, ...]
    nodes: tuple[QuantizableNode, ...]
    skipped: tuple[Skipped, ...]
    existing: Existing = "refuse"
    bridges: tuple[Bridge, ...] = ()
    pays: str = ""
    simulation: Simulation = Simulation()

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
        """Activations with dynamic scales that need no statistics."""
        return tuple(p for p in self.placements if p.role == "activation" and not p.spec.observed)

    @property
    def weights(self) -> tuple[Placement, ...]:
        """Placements of constants whose scales come from their values."""
        return tuple(p for p in self.placements if p.role == "weight")

    @property
    def biases(self) -> tuple[Placement, ...]:
        """Placements whose scales follow from an input and a weight."""
        return tuple(p for p in self.placements if p.role == "bias")

    @property
    def quantized_nodes(self) -> frozenset[str]:
        """Names of the quantizable nodes whose inputs are all quantized."""
        placed = {use for p in self.placements for use in p.uses}
        return frozenset(n.node for n in self.nodes if n.needs and placed.issuperset(n.needs))

    def coverage(self) -> list[Coverage]:
        """Return the coverage of each quantizable op type, most frequent first."""
        quantized = self.quantized_nodes
        low = {node.node: node.node in quantized for node in self.nodes}
        kinds = {node.node: node.op_type for node in self.nodes}
        for bridge in self.bridges:
            if bridge.counts and bridge.node not in low:
                low[bridge.node], kinds[bridge.node] = True, bridge.op_type
        count: dict[str, list[int]] = {}
        for name, op_type in kinds.items():
            entry = count.setdefault(op_type, [0, 0])
            entry[1] += 1
            entry[0] += low[name]
        rows = [Coverage(op_type, *numbers) for op_type, numbers in count.items()]
        return sorted(rows, key=lambda row: (-row.total, row.op_type))

    def table(self) -> str:
        """Return coverage, counts, and the most frequent reasons for float as text."""
        return plan_summary(self)

    def without(self, tensors: Collection[str], why: str) -> Plan:
        """Return the plan with `tensors` in float, and every node that needs one of them, for reason `why`.

        A node with one float input multiplies in float, so its other inputs lose their pair too. The pair of
        a result stays as long as a node needs it: the one that makes it, or the one that reads it.
        """
        placed = {use: p.tensor for p in self.placements for use in p.uses}
        given = {use for use, tensor in placed.items() if tensor in tensors}
        removed, stopped = given, dict[str, QuantizableNode]()
        # A removed use, such as of a shared Transpose, may stop another node.
        while broken := [n for n in self.nodes if n.node not in stopped and removed.intersection(n.needs)]:
            stopped |= {n.node: n for n in broken}
            removed = given | {use for n in stopped.values() for use in n.needs} - self._needed(stopped)
        part = self._without_uses(removed, {n.node: n.op_type for n in stopped.values()}, why, why)
        return part.without_bridges(part.incomplete_bridges, f"not all its tensors are quantized: {why}")

    def _needed(self, stopped: Collection[str]) -> set[Use]:
        """Return the inputs of nodes that a node needs which is neither in float nor one of `stopped`."""
        names = {n.node for n in self.nodes}
        running = names.difference(stopped, self._skipped_nodes)
        return {use for n in self.nodes if n.node in running for use in n.needs if use.node in names}

    @property
    def _skipped_nodes(self) -> set[str]:
        return {one.name for one in self.skipped if one.kind == "node"}

    def _without_uses(self, removed: set[Use], nodes: Mapping[str, str], why: str, why_tensor: str) -> Plan:
        """Return the plan without these uses; `nodes`, with their op types, and unread tensors are noted."""
        kept = [
            p.model_copy(update={"uses": tuple(use for use in p.uses if use not in removed)})
            for p in self.placements
        ]
        skipped = [Skipped(name=name, kind="node", op_type=op, why=why) for name, op in nodes.items()]
        skipped += [
            Skipped(name=p.tensor, kind="tensor", op_type=p.role, why=why_tensor) for p in kept if not p.uses
        ]
        return self.model_copy(
            update={"placements": tuple(p for p in kept if p.uses), "skipped": (*self.skipped, *skipped)}
        )

    @property
    def incomplete_bridges(self) -> tuple[str, ...]:
        """Names of the bridges with a tensor that has no placement."""
        placed = {placement.tensor for placement in self.placements}
        return tuple(bridge.node for bridge in self.bridges if not placed.issuperset(bridge.tensors))

    def without_bridges(self, nodes: Collection[str], why: str) -> Plan:
        """Return the plan with the bridges `nodes` in float, for reason `why`.

        Tensors that only they read have no placement any more, unless the node that makes one needs it; other
        readers keep theirs.
        """
        gone = {bridge.node: bridge.op_type for bridge in self.bridges if bridge.node in nodes}
        if not gone:
            return self
        removed = {use for p in self.placements for use in p.uses if use.node in gone} - self._needed(gone)
        told = {name: op for name, op in gone.items() if name not in self._skipped_nodes}
        part = self._without_uses(removed, told, why, f"read by an operator in float: {why}")
        bridges = tuple(bridge for bridge in self.bridges if bridge.node not in gone)
        part = part.model_copy(update={"bridges": bridges})
        return part.without_bridges(part.incomplete_bridges, why)

    def check_model(self, sha256: str) -> None:
        """Raise PlanError if the plan is for a model other than the one with `sha256`."""
        if self.model_sha256 != sha256:
            raise PlanError(
                f"the plan was made for a model with SHA-256 {self.model_sha256[:12]}, this one has "
                f"{sha256[:12]}; make a new plan with `onnxfq plan`"
            )

    @staticmethod
    def load(path: str | Path) -> Plan:
        """Return the plan that `save` wrote, edited or not. Raises PlanError in one line for any fault."""
        return read_document(path, Plan, PlanError)
