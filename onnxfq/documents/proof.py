"""`Proof`: a written file in the runtime of its target, next to its simulation on the same samples."""

from __future__ import annotations

import math
from typing import Literal

from onnxfq.support.records import Count, Record

Expected = Literal["low", "weight-only", "MXFP8"]
"""Precision that a graph wants of a node: all operands low, the constant alone, or both in MXFP8.

MXFP8 counts apart: TensorRT for RTX 1.7.1 has no kernel for it and multiplies in a half type. B200 has one.
"""


class CheckCoverage(Record):
    """Number of nodes of one operator that keep their expected precision; of MXFP8, weights of 8 bits."""

    op_type: str
    expects: Expected
    kept: int
    promised: int

    def __str__(self) -> str:
        """Return `Conv 52/52 low`."""
        apart = " weights, multiplied in half by TensorRT for RTX" if self.expects == "MXFP8" else ""
        return f"{self.op_type} {self.kept}/{self.promised} {self.expects}{apart}"


class Proof(Record):
    """Figures of a written file in the runtime of its users.

    Attributes:
        runtime: name and release; empty if nothing ran.
        samples: on which both were compared with the float model, in the order of their digests.
        simulated_db: SQNR of the simulation, of the worst output.
        runtime_db: the same in the runtime.
        losses: what outputs and their parts surely lose in the runtime, in dB of at least 0, by key.
        opened_db: SQNR as users open the file, where that differs; it decides nothing.
        opened_as: what differs there, such as bf16.
        why: why nothing was tried; empty if the file ran.
        difference: what differs, or the refusal of the runtime; empty if both agree.
        saturated: whether it is only that int8 sums saturate on this processor, which `check` warns of.
        coverage: promised operators that keep their precision in the graph of the runtime, as `check` counts
            them; empty where the runtime is not asked by default.
        kept_float: operators that stay in float because the runtime computes them otherwise.
    """

    runtime: str = ""
    samples: Count = 0
    simulated_db: float = math.inf
    runtime_db: float = math.inf
    losses: dict[str, float] = {}
    opened_db: float | None = None
    opened_as: str = ""
    why: str = ""
    difference: str = ""
    saturated: bool = False
    coverage: tuple[CheckCoverage, ...] = ()
    kept_float: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """Return both figures and what stays in float, or why nothing ran."""
        lines = [f"not run    {self.why}"] if self.why else []
        if self.samples:
            ran, meant = map(name_figure, (self.runtime_db, self.simulated_db))
            lines += [f"proof      {ran} in {self.runtime}, {meant} simulated: {self.samples} samples"]
        if self.opened_db is not None:
            lines.append(f"           {name_figure(self.opened_db)} as users open it, in {self.opened_as}")
        if self.saturated:
            lines.append("           sums of int8 products saturate on this processor, which has no VNNI")
        if self.coverage:
            lines.append(f"runs       {', '.join(map(str, self.coverage))} in {self.runtime}")
        if self.kept_float:
            names = ", ".join(self.kept_float)
            lines.append(f"           {names} in float, because {self.runtime} computes it otherwise")
        return lines


def name_figure(sqnr_db: float) -> str:
    """Return an SQNR as text."""
    return "equal" if sqnr_db == math.inf else f"{sqnr_db:.1f} dB"
