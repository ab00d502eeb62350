"""`FileToggles`: one session of a quantized file whose quantizers are switched, changed and replaced."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from onnxfq.data import Feed
from onnxfq.diagnosis.reading.graph_editor import GraphEditor
from onnxfq.diagnosis.reading.quantizers import SwitchedForm
from onnxfq.diagnosis.reading.values import GridFit
from onnxfq.graph.patterns.logits import JudgedTensors
from onnxfq.graph.prune import remove_unread
from onnxfq.graph.signature import output_names, with_outputs
from onnxfq.passes.give_choices import with_given_choices
from onnxfq.runtime.session import Session

Limit = tuple[float, float]
"""The ends to which a tensor is limited where its quantizer is off."""


@dataclass(frozen=True)
class TrialState:
    """A state of the toggles, as a difference from the file.

    Attributes:
        off: numbers of the quantizers that are off.
        grids: scale and zero point by number.
        constants: values by their name in the float form.
    """

    off: frozenset[int] = frozenset()
    grids: Mapping[int, GridFit] = field(default_factory=dict)
    constants: Mapping[str, NDArray[Any]] = field(default_factory=dict)

    def __or__(self, other: TrialState) -> TrialState:
        """Return both differences; where they contradict each other the other counts."""
        return TrialState(
            self.off | other.off, {**self.grids, **other.grids}, {**self.constants, **other.constants}
        )


AS_WRITTEN = TrialState()
"""The file as it is."""


class FileToggles:
    """The session."""

    def __init__(
        self, form: SwitchedForm, judged: JudgedTensors, threads: int, chosen: Mapping[int, Feed]
    ) -> None:
        """Create the session.

        Args:
            form: with its switches.
            judged: what decides, and the choices that the reference makes.
            threads: of the session, 0 for one per core.
            chosen: by the identity of a feed, the feed with these choices.
        """
        self.judged, self._chosen = judged, chosen
        self.form = replace(form, proto=with_given_choices(form.proto, judged.choices))
        self.inner = [quantizer.plain for quantizer in form.activations]
        self.fetches = [*dict.fromkeys((*output_names(form.proto), *judged.sources))]
        self._names, self._threads = dict.fromkeys((*self.fetches, *self.inner)), threads
        self._session = Session(with_outputs(self.form.proto, self._names), threads)
        self._plain: Session | None = None
        self._kept: Mapping[str, NDArray[Any]] = {}
        self.limits: dict[int, Limit] = {}

    @property
    def nothing(self) -> TrialState:
        """The state with all activations in float."""
        return TrialState(off=frozenset(range(len(self.inner))))

    def only(self, numbers: Iterable[int]) -> TrialState:
        """Return the state with all other activations in float."""
        return TrialState(off=self.nothing.off - frozenset(numbers))

    def keep(self, constants: Mapping[str, NDArray[Any]]) -> None:
        """Take constants for granted in the session without quantizers."""
        self._kept, self._plain = constants, None

    def given(self, feed: Feed) -> Feed:
        """Return a feed with the choices of the reference."""
        return self._chosen.get(id(feed), feed)

    def run(self, feed: Feed, state: TrialState, names: Sequence[str] | None = None) -> list[Any]:
        """Return the outputs and what judges with them, or the tensors of these names, of one feed."""
        wanted = self.fetches if names is None else list(names)
        if not wanted:  # to ONNX Runtime no names are all names
            return []
        given = dict(self.given(feed))
        kept, changed = ({*map(id, values.values())} for values in (self._kept, state.constants))
        if len(state.off) == len(self.inner) and kept == changed:
            return self._without_quantizers().run(given, wanted)
        given |= {self.form.activations[number].name("on"): np.asarray(False) for number in state.off}
        for number, fit in state.grids.items():
            quantizer = self.form.activations[number]
            given[quantizer.name("scale")] = np.asarray(fit.scale, quantizer.grid.floats)
            given[quantizer.name("zero_point")] = np.asarray(fit.zero).astype(quantizer.grid.kind)
        return self._session.run({**given, **self._ends(), **state.constants}, wanted)

    def _without_quantizers(self) -> Session:
        """Return the session without quantizers, far faster because its constants are not inputs."""
        if self._plain is None:
            proto = without_quantizers(self.form, {**self._ends(), **self._kept})
            self._plain = Session(with_outputs(proto, self._names), self._threads)
        return self._plain

    def _ends(self) -> dict[str, NDArray[Any]]:
        """Return the ends of limited tensors by their inputs."""
        limited = [(self.form.activations[number], ends) for number, ends in self.limits.items()]
        return {
            quantizer.name(f"limit/{letter}"): np.asarray(end, quantizer.grid.floats)
            for quantizer, ends in limited
            for letter, end in zip(("low", "high"), ends, strict=True)
        }


def without_quantizers(form: SwitchedForm, constants: Mapping[str, NDArray[Any]]) -> onnx.ModelProto:
    """Return the form without its quantizers and switches, with these constants."""
    editor = GraphEditor(form.proto)
    for name in constants.keys() & editor.constants.keys():
        editor.store(name, constants[name])
    proto, graph = editor.proto, editor.graph
    inputs = [value for value in graph.input if value.name not in editor.constants]
    del graph.input[:]
    graph.input.extend(inputs)
    real = {quantizer.output: quantizer.real for quantizer in form.activations}
    for node in (node for node in graph.node if real.keys() & {*node.output}):
        node.CopyFrom(helper.make_node("Identity", [real[node.output[0]]], node.output, node.name))
    parts = {one.name(part) for one in form.activations for part in ("q", "clipped", "dq")}
    remove_unread(proto, [graph], lambda node: not parts.isdisjoint(node.output))
    return proto
