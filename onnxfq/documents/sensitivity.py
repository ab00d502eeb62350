"""`Sensitivity`: noise that each group of quantizers adds to the outputs, as record and table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import partial
from typing import Any, Literal

from onnxfq.choices import FLOAT as FLOAT
from onnxfq.choices import WEIGHTS as WEIGHTS
from onnxfq.documents.layers import ChannelSizes, describe_channels
from onnxfq.documents.override import Override
from onnxfq.documents.recipe import Recipe
from onnxfq.numerics.metrics import ratio_db
from onnxfq.numerics.qtypes import qtype_by_name
from onnxfq.support.records import Amount, Count, Document, PrintedRecord, Record
from onnxfq.support.tables import table_lines

_SHOWN = 12
_TERMS = (
    "alone and without dB: SQNR of the outputs with this group alone quantized, and with all others; noise "
    "and multiplies: its shares of the noise of all groups and of the multiply-adds; a remedy is measured "
    "on more samples"
)
"""Meaning of the headings of the table."""


class GroupNoise(Record):
    """Quantizers that stay in float only together, because the same nodes read them.

    Attributes:
        tensors: the quantized tensors.
        nodes: the nodes that read them.
        op_types: of these nodes, each once.
        modules: paths of the torch modules of these nodes, each once; empty if the model has none.
        noise: noise-to-signal ratio of the outputs with only this group quantized.
        rest: the same with all groups but this one quantized; None where it was not measured.
        metric: value of the task's metric with only this group quantized; None without a metric.
        metric_rest: the same with all groups but this one quantized; None where it was not measured.
        multiplies: share of the model's multiply-adds in these nodes, 0 to 1; None if shapes are unknown.
        weight_bytes: share of the bytes of quantized weights.
        price: share of the time of all groups, in multiply-adds and starts of kernels.
    """

    tensors: tuple[str, ...]
    nodes: tuple[str, ...]
    op_types: tuple[str, ...]
    modules: tuple[str, ...] = ()
    noise: Amount
    rest: Amount | None = None
    metric: float | None = None
    metric_rest: float | None = None
    multiplies: Amount | None = None
    weight_bytes: Amount = 0.0
    price: Amount = 0.0

    @property
    def alone_db(self) -> float:
        """SQNR of the outputs in dB with only this group quantized."""
        return ratio_db(1.0, self.noise)

    @property
    def rest_db(self) -> float | None:
        """SQNR of the outputs in dB with all groups but this one quantized."""
        return None if self.rest is None else ratio_db(1.0, self.rest)

    def layers(self) -> str:
        """Return its operators, and some of its modules or nodes."""
        names = self.modules or self.nodes or self.tensors
        named = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
        return f"{', '.join(self.op_types)} {named}"


class MetricValues(Record):
    """Metric of the task, on the half of the data that chooses.

    Attributes:
        name: of the metric, with its unit.
        reference: value of the float model.
        quantized: value with everything quantized.
        chance: largest rise above `reference` with one group quantized, at least 0. Quantization helps no
            task: such a rise is chance, and a drop up to this size is no evidence either.
    """

    name: str
    reference: float
    quantized: float
    chance: float

    def clear_drop(self, value: float | None) -> float:
        """Return the drop from `reference` to `value` if it is larger than chance, else 0."""
        drop = 0.0 if value is None else self.reference - value
        return drop if drop > self.chance else 0.0


_KINDS = {FLOAT: "in float", WEIGHTS: "with quantized weights only"}


def name_format(name: str) -> str:
    """Return what a group with another format is in, in words."""
    return _KINDS.get(name, f"in {name}")


class MixPoint(Record):
    """A mix of formats of least noise for its cost.

    Attributes:
        cost: what it takes more than the own format of all groups: a share of the time, or bits of weights.
        noise: noise-to-signal ratio of the outputs, as predicted.
        changed: groups with another format.
    """

    cost: Amount
    noise: Amount
    changed: Count

    @property
    def sqnr_db(self) -> float:
        """SQNR of the outputs in dB, as predicted."""
        return ratio_db(1.0, self.noise)


class GroupRemedy(Record):
    """The cheapest groups found that keep a promise in another format.

    Attributes:
        measure: what was measured, with its unit.
        wanted: the least value that keeps the promise.
        reached: the value with these groups in `formats`.
        before: the value with everything quantized.
        kept: places of the groups in `Sensitivity.groups`, the most useful for its cost first.
        formats: of each: FLOAT, WEIGHTS, or the number format or recipe that it has instead.
        multiplies: their share of the multiply-adds; None if unknown.
        size: what was promised of weights instead of an accuracy, in words; empty without.
        frontier: mixes of least noise for their costs, the cheapest first, as they were predicted.
        chosen: place of the chosen one in `frontier`; None if none was predicted.
    """

    measure: str
    wanted: float
    reached: float
    before: float
    kept: tuple[Count, ...]
    formats: tuple[str, ...]
    multiplies: Amount | None = None
    size: str = ""
    frontier: tuple[MixPoint, ...] = ()
    chosen: Count | None = None

    @property
    def kind(self) -> str:
        """Tell the formats: the one, or in brackets how many groups have each."""
        counts = Counter(name_format(one) for one in self.formats)
        many = ", ".join(f"{count} {name}" for name, count in counts.items())
        return f"({many})" if len(counts) > 1 else "".join(counts)

    @property
    def is_kept(self) -> bool:
        """Tell whether the measured value is what was asked for."""
        return self.reached >= self.wanted


class Sensitivity(PrintedRecord, Document):
    """Noise of all groups of quantizers, the worst first (`.json`).

    With a metric, the groups with a drop larger than chance are first, by their drop; the others follow by
    their noise.

    Attributes:
        outputs: the measured tensors: float outputs, and what classes, indices and selected rows come from.
        samples: number of feeds it was measured on.
        noise: noise-to-signal ratio of the outputs with everything quantized, of the worst part of `outputs`.
        metric: values of the metric that was given, if any.
        channels: largest channels of the activations of groups that leave less than 20 dB alone.
    """

    format: Literal["onnxfq.sensitivity/1"] = "onnxfq.sensitivity/1"
    model_sha256: str
    recipe: str
    outputs: tuple[str, ...]
    samples: Count
    noise: Amount
    metric: MetricValues | None = None
    groups: tuple[GroupNoise, ...]
    remedy: GroupRemedy | None = None
    channels: dict[str, ChannelSizes] = {}

    @property
    def sqnr_db(self) -> float:
        """SQNR of the outputs in dB with everything quantized."""
        return ratio_db(1.0, self.noise)

    def share(self, group: GroupNoise) -> float | None:
        """Return the part of the noise of all groups, each alone, that `group` makes; None without noise."""
        total = sum(one.noise for one in self.groups)
        return group.noise / total if total else None

    def by_gain(self) -> list[int]:
        """Return the places of the groups by their noise for their price, the best first.

        With a metric, groups with a clear drop of it come first, by their drop for their price.
        """
        metric = self.metric

        def gain(at: int) -> tuple[float, float]:
            group = self.groups[at]
            price = group.price or 1.0 / len(self.groups)
            return (0.0 if metric is None else metric.clear_drop(group.metric)) / price, group.noise / price

        return sorted(range(len(self.groups)), key=gain, reverse=True)

    def multiplies(self, kept: Iterable[int]) -> float | None:
        """Return the share of the multiply-adds of the groups at the places `kept`; None if unknown."""
        shares = [self.groups[at].multiplies for at in kept]
        known = [share for share in shares if share is not None]
        return sum(known) if len(known) == len(shares) else None

    def override(self, kept: Iterable[int], fallback: str | Recipe = FLOAT) -> Override:
        """Return the override of a recipe for the groups at the places `kept`.

        Args:
            kept: places of groups.
            fallback: FLOAT, WEIGHTS, a recipe, or a number format; integers are for
                activations only, so that weights keep theirs, floats for both.
        """
        groups = [self.groups[at] for at in kept]
        nodes = tuple(dict.fromkeys(node for group in groups for node in group.nodes))
        # No node reads an output of the model.
        tensors = tuple(name for group in groups if not group.nodes for name in group.tensors)
        some = partial(Override, nodes=nodes, tensors=tensors)
        if fallback == FLOAT:
            return some(keep_float=True)
        if fallback == WEIGHTS:
            return some(activations=None)
        if isinstance(fallback, Recipe):
            recipe = fallback.model_dump(mode="json")
            return some(activations=recipe["activations"], weights=recipe["weights"])
        wide: dict[str, Any] = {"qtype": fallback}
        # By tensor, for all that read it: a node would ask this of its output too, which another group reads.
        return Override(
            tensors=tuple(name for group in groups for name in group.tensors),
            activations=wide,
            weights=wide if qtype_by_name(fallback).is_float else {},
        )

    def float_overrides(self, kept: Iterable[int]) -> tuple[Override, ...]:
        """Return overrides for the groups at the places `kept` in float, each with its figure as reason."""
        return tuple(
            self.override([at]).model_copy(
                update={"why": f"kept in float by repair: alone {self.groups[at].alone_db:.1f} dB"}
            )
            for at in kept
        )

    def remedy_text(self) -> str:
        """Return the remedy in one line: number of groups, their cost, and the value reached."""
        remedy = self.remedy
        if remedy is None:
            return "none was asked for"
        wanted = remedy.size or f"wanted at least {remedy.wanted:g}"
        if not remedy.kept:
            return f"none needed: {remedy.reached:.4g} {remedy.measure}, {wanted}"
        cost = "" if remedy.multiplies is None else f", {remedy.multiplies:.1%} of the multiply-adds"
        return (
            f"{len(remedy.kept)} of {len(self.groups)} groups {remedy.kind}{cost}: {remedy.before:.4g} -> "
            f"{remedy.reached:.4g} {remedy.measure}, {wanted}"
        )

    def remedy_lines(self, shown: int = 6) -> list[str]:
        """Return the remedy, and its groups or the worst one, a line each."""
        remedy = self.remedy
        assert remedy is not None
        if not remedy.kept:
            worst = self.groups[:1]  # none of a plan without pairs
            return [f"the worst, {one.layers()}, alone leaves {one.alone_db:.1f} dB" for one in worst]
        groups = [self.groups[at] for at in remedy.kept]
        lines = [self.remedy_text()]
        lines += [f"{one.layers()}: alone it leaves {one.alone_db:.1f} dB" for one in groups[:shown]]
        return [*lines, *([f"and {len(groups) - shown} more"] if len(groups) > shown else [])]

    def table(self, shown: int = _SHOWN) -> str:
        """Return the worst groups as text, one line each.

        Columns: SQNR with only this group quantized; its share of the noise of all groups; SQNR with all but
        this group quantized, where measured; the metric with only this group quantized, and with all others,
        if a metric was given; its share of multiply-adds; readers and tensors.
        """
        task = ["metric alone", "metric without"] if self.metric is not None else []
        rows = [
            ["alone dB", "noise", "without dB", *task, "multiplies", "operators", "module or node", "tensors"]
        ]
        for group in self.groups[:shown]:
            share = self.share(group)
            rows.append(
                [
                    f"{group.alone_db:.1f}",
                    "" if share is None else f"{share:.1%}",
                    "" if group.rest_db is None else f"{group.rest_db:.1f}",
                    *(
                        "" if one is None else f"{one:.5g}"
                        for one in (group.metric, group.metric_rest)[: len(task)]
                    ),
                    "" if group.multiplies is None else f"{group.multiplies:.1%}",
                    ", ".join(group.op_types),
                    ", ".join(group.modules or group.nodes[:1] or group.tensors[:1]),
                    ", ".join(group.tensors),
                ]
            )
        more = len(self.groups) - shown
        lines = [
            f"all quantized: {self.sqnr_db:.1f} dB at {', '.join(self.outputs)}, {self.samples} samples",
            *([] if self.metric is None else [self._metric_text(self.metric)]),
            *table_lines(rows, names=(len(rows[0]) - 2, len(rows[0]) - 1)),
        ]
        lines += [f"and {more} groups with less noise"] if more > 0 else []
        lines.append(_TERMS)
        wide = describe_channels(self.channels)
        cure = "cure       `onnxfq quantize` with --repair auto evens out channels where that gains"
        return "\n".join([*lines, *wide, *([cure] if wide else [])])

    def _metric_text(self, metric: MetricValues) -> str:
        """Return the metric of the whole model, and how many groups it ranks, in one line."""
        clear = sum(metric.clear_drop(group.metric) > 0 for group in self.groups)
        return (
            f"{metric.name}: float {metric.reference:.5g}, all quantized {metric.quantized:.5g}; {clear} of "
            f"{len(self.groups)} groups drop by more than chance, {metric.chance:.3g}, and are first"
        )
