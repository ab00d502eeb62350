"""`Sensitivity`: noise that each group of quantizers adds to the outputs, as record and table."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from onnxfq.documents.recipe import Override
from onnxfq.numerics.metrics import ratio_db
from onnxfq.support.records import Record, write_document
from onnxfq.support.tables import table_lines

_SHOWN = 12


class GroupNoise(Record):
    """Quantizers that stay in float only together, because the same nodes read them.

    Attributes:
        tensors: the quantized tensors.
        nodes: the nodes that read them.
        op_types: of these nodes, each once.
        noise: noise-to-signal ratio of the outputs with only this group quantized.
        rest: the same with all groups but this one quantized; None where it was not measured.
        multiplies: share of the model's multiply-adds in these nodes, 0 to 1; None if shapes are unknown.
        weight_bytes: share of the bytes of quantized weights.
    """

    tensors: tuple[str, ...]
    nodes: tuple[str, ...]
    op_types: tuple[str, ...]
    noise: float
    rest: float | None = None
    multiplies: float | None = None
    weight_bytes: float = 0.0

    @property
    def alone_db(self) -> float:
        """SQNR of the outputs in dB with only this group quantized."""
        return ratio_db(1.0, self.noise)

    @property
    def rest_db(self) -> float | None:
        """SQNR of the outputs in dB with all groups but this one quantized."""
        return None if self.rest is None else ratio_db(1.0, self.rest)


class Remedy(Record):
    """The fewest groups in float, in the order of their noise, that reach an SQNR.

    Attributes:
        wanted_db: the SQNR that was asked for.
        reached_db: the SQNR that was measured with these groups in float.
        groups: number of groups in float, the first of `Sensitivity.groups`.
        multiplies: their share of the multiply-adds; None if unknown.
    """

    wanted_db: float
    reached_db: float
    groups: int
    multiplies: float | None = None

    @property
    def reached(self) -> bool:
        """Tell whether the measured SQNR is what was asked for."""
        return self.reached_db >= self.wanted_db


class Sensitivity(Record):
    """Noise of all groups of quantizers, the worst first (`.json`).

    Attributes:
        outputs: the measured tensors; the input of a final sigmoid or softmax stands for its output.
        samples: number of feeds it was measured on.
        noise: noise-to-signal ratio of the outputs with everything quantized, averaged over `outputs`.
    """

    format: Literal["onnxfq.sensitivity/1"] = "onnxfq.sensitivity/1"
    model_sha256: str
    recipe: str
    outputs: tuple[str, ...]
    samples: int
    noise: float
    groups: tuple[GroupNoise, ...]
    remedy: Remedy | None = None

    @property
    def sqnr_db(self) -> float:
        """SQNR of the outputs in dB with everything quantized."""
        return ratio_db(1.0, self.noise)

    def override(self, count: int) -> Override:
        """Return the override of a recipe that keeps the `count` worst groups in float."""
        nodes = dict.fromkeys(node for group in self.groups[:count] for node in group.nodes)
        return Override(nodes=tuple(nodes), keep_float=True)

    def remedy_text(self) -> str:
        """Return the remedy in one line: number of groups in float, their cost, and the SQNR reached."""
        remedy = self.remedy
        if remedy is None:
            return "none was asked for"
        if not remedy.groups:
            return f"none needed: {self.sqnr_db:.1f} dB is at least {remedy.wanted_db:g} dB"
        cost = "" if remedy.multiplies is None else f", {remedy.multiplies:.1%} of the multiply-adds"
        return (
            f"{remedy.groups} of {len(self.groups)} groups in float{cost}: {remedy.reached_db:.1f} dB, "
            f"wanted {remedy.wanted_db:g} dB"
        )

    def save(self, path: str | Path) -> None:
        """Write as JSON, whole or not at all."""
        write_document(path, self)

    def table(self, shown: int = _SHOWN) -> str:
        """Return the worst groups as text, one line each.

        Columns: SQNR with only this group quantized; its share of the noise of all groups; SQNR with all but
        this group quantized, where measured; its share of multiply-adds; readers and tensors.
        """
        total = sum(group.noise for group in self.groups)
        rows = [("alone dB", "noise", "without dB", "multiplies", "operators", "first node", "tensors")]
        for group in self.groups[:shown]:
            rows.append(
                (
                    f"{group.alone_db:.1f}",
                    f"{group.noise / total:.1%}" if total else "",
                    "" if group.rest_db is None else f"{group.rest_db:.1f}",
                    "" if group.multiplies is None else f"{group.multiplies:.1%}",
                    ", ".join(group.op_types),
                    group.nodes[0],
                    ", ".join(group.tensors),
                )
            )
        more = len(self.groups) - shown
        lines = [
            f"all quantized: {self.sqnr_db:.1f} dB at {', '.join(self.outputs)}, {self.samples} samples",
            *table_lines(rows, names=(5, 6)),
        ]
        return "\n".join([*lines, *([f"and {more} groups with less noise"] if more > 0 else [])])
