"""`EngineListing`: layers of an engine that was built elsewhere, their nodes and their times."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from onnxfq.support.records import Amount, Record
from onnxfq.support.tables import table_lines

MOST_LINES = 8
"""Layers and modules that a summary names, those that take most time first."""


class RanLayer(Record):
    """One layer of an engine.

    Attributes:
        layer: its name there.
        kind: its type there.
        types: of what it reads and gives, such as `Int8, Int8 -> Half`.
        nodes: nodes of the model that it computes, wholly or in part.
        op_types: their operators.
        promised: those of them that are promised in low precision.
        modules: torch modules of what the layer computes; empty if the model has none.
        ms: time of a run in milliseconds; None without a profile.
    """

    layer: str
    kind: str
    types: str
    nodes: tuple[str, ...]
    op_types: tuple[str, ...]
    promised: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    ms: Amount | None = None

    @property
    def only_quantizes(self) -> bool:
        """Whether it computes no node but quantizers."""
        return bool(self.op_types) and set(self.op_types) <= {"QuantizeLinear", "DequantizeLinear", "Cast"}

    @property
    def main(self) -> str:
        """The node that stands for the layer, and the number of the others; its own name without nodes."""
        if not self.nodes:
            return self.layer
        first = [*self.promised, *self.nodes][0]
        others = len(self.nodes) - 1
        return f"{first} and {others} more" if others else first


class EngineListing(Record):
    """Layers that an engine really runs.

    Attributes:
        layers: in the order of execution.
        attentions: layers that compute a whole attention.
        times: where the times come from; empty without any.
    """

    layers: tuple[RanLayer, ...]
    attentions: int = 0
    times: str = ""

    @property
    def milliseconds(self) -> float:
        """The time of all layers; 0 without a profile."""
        return sum(layer.ms or 0.0 for layer in self.layers)

    def time_of(self, node: str) -> float | None:
        """Return the time of the layer that computes a promised node, in equal parts for several of them."""
        times = [
            layer.ms / len(layer.promised)
            for layer in self.layers
            if layer.ms is not None and node in layer.promised
        ]
        return sum(times) if times else None

    def by_module(self) -> dict[str, float]:
        """Return the time by module, the slowest first; a layer of several modules counts in parts."""
        sums: Counter[str] = Counter()
        for layer in self.layers:
            for module in layer.modules:
                sums[module] += (layer.ms or 0.0) / len(layer.modules)  # type: ignore[assignment]
        return dict(sums.most_common())

    def lines(self) -> list[str]:
        """Return counts, the slowest layers and the slowest modules."""
        fused = sum(len(layer.nodes) > 1 for layer in self.layers)
        quantizing = sum(layer.only_quantizes for layer in self.layers)
        moving = sum(not layer.nodes for layer in self.layers)
        counts = [
            f"{len(self.layers)} layers",
            f"{fused} fuse several nodes",
            f"{self.attentions} fused attentions",
            f"{quantizing} only quantize",
            f"{moving} belong to no node",
        ]
        lines = [f"engine     {', '.join(counts)}"]
        return lines + (self._time_lines() if self.times else [])

    def _time_lines(self) -> list[str]:
        total = self.milliseconds or 1.0
        slowest = sorted(self.layers, key=lambda layer: -(layer.ms or 0.0))[:MOST_LINES]
        rows = [("ms", "share", "types", "nodes")]
        rows += [(*_cells(layer.ms or 0.0, total), layer.types, layer.main) for layer in slowest]
        lines = [f"time       {self.milliseconds:.3f} ms in all layers, by {self.times}; the slowest:"]
        lines += _indent(table_lines(rows, names=(2, 3)))
        modules = list(self.by_module().items())[:MOST_LINES]
        if modules:
            rows = [("ms", "share", "module", "")] + [
                (*_cells(ms, total), name or "(root)", "") for name, ms in modules
            ]
            lines += ["by module:", *_indent(table_lines([row[:3] for row in rows], names=(2,)))]
        return lines


def _cells(ms: float, total: float) -> tuple[str, str]:
    return f"{ms:.4f}", f"{ms / total:.0%}"


def _indent(lines: Iterable[str]) -> list[str]:
    return [f"  {line}".rstrip() for line in lines]
