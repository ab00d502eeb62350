"""`FileToggles`: a quantized file, repaired or not, whose quantizers are switched off and on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import onnx
from onnx import helper

from onnxfq.data import Feed
from onnxfq.diagnosis.reading.file_editor import Edits, edit_file
from onnxfq.diagnosis.reading.quantizers import Limit, SwitchedForm
from onnxfq.diagnosis.reading.switched_form import switch_form
from onnxfq.graph.patterns.logits import JudgedTensors
from onnxfq.graph.prune import leave_out
from onnxfq.graph.signature import output_names, with_outputs
from onnxfq.passes.give_choices import with_given_choices
from onnxfq.runtime.session import Session


@dataclass(frozen=True)
class TrialState:
    """A state of the toggles.

    Attributes:
        off: numbers of the quantizers that are off.
        edits: of the file.
    """

    off: frozenset[int] = frozenset()
    edits: Edits = ()

    def edited(self, edits: Edits) -> TrialState:
        """Return the state with more edits; each is made once."""
        return TrialState(self.off, tuple(dict.fromkeys((*self.edits, *edits))))


AS_WRITTEN = TrialState()
"""The file as it is."""


class FileToggles:
    """The session; states with edits have another one."""

    def __init__(
        self,
        file: onnx.ModelProto,
        form: SwitchedForm,
        judged: JudgedTensors,
        threads: int,
        chosen: Mapping[int, Feed],
    ) -> None:
        """Take the file.

        Args:
            file: normalised.
            form: of the file, with its switches.
            judged: what decides, and the choices that the reference makes.
            threads: of the session, 0 for one per core.
            chosen: by the identity of a feed, the feed with these choices.
        """
        self.form, self.judged, self._file, self._chosen, self._threads = form, judged, file, chosen, threads
        self.inner = [quantizer.plain for quantizer in form.activations]
        self.fetches = [*dict.fromkeys((*output_names(form.proto), *judged.sources))]
        self.limits: Mapping[int, Limit] = {}
        self._session = lru_cache(2)(self._open)

    @property
    def nothing(self) -> TrialState:
        """The state with all activations in float."""
        return TrialState(off=frozenset(range(len(self.inner))))

    def only(self, numbers: Iterable[int]) -> TrialState:
        """Return the state with all other activations in float."""
        return TrialState(off=self.nothing.off - frozenset(numbers))

    def given(self, feed: Feed) -> Feed:
        """Return a feed with the choices of the reference."""
        return self._chosen.get(id(feed), feed)

    def run(self, feed: Feed, state: TrialState, names: Sequence[str] | None = None) -> list[Any]:
        """Return the outputs and what judges with them, or the tensors of these names, of one feed."""
        wanted = self.fetches if names is None else list(names)
        if not wanted:  # to ONNX Runtime no names are all names
            return []
        session, switches = self._session(state.edits, tuple(self.limits.items()))
        off = switches.intersection(self.form.activations[number].name("on") for number in state.off)
        return session.run({**self.given(feed), **dict.fromkeys(off, np.asarray(False))}, wanted)

    def _open(self, edits: Edits, limits: tuple[tuple[int, Limit], ...]) -> tuple[Session, set[str]]:
        """Return the session of the file with these edits, and its switches."""
        ends = {self.form.activations[number].node: pair for number, pair in limits}
        form = switch_form(edit_file(self._file, edits), "the file", ends)
        proto = with_given_choices(form.proto, self.judged.choices)
        proto = with_outputs(proto, [*self.fetches, *self.inner])
        switches = {one.name("on") for one in form.activations}
        infos = [helper.make_tensor_value_info(name, onnx.TensorProto.BOOL, []) for name in switches]
        proto.graph.input.extend(infos)
        proto.ir_version = max(proto.ir_version, 4)  # defaults of inputs
        return Session(proto, self._threads), switches


def without_quantizers(form: SwitchedForm) -> onnx.ModelProto:
    """Return the form without its quantizers."""
    proto = deepcopy(form.proto)
    leave_out(proto.graph, {quantizer.output: quantizer.plain for quantizer in form.activations})
    return proto
