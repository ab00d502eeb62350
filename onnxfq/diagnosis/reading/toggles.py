"""`FileToggles`: one session of a quantized file whose quantizers are switched, changed and replaced."""

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
from onnxfq.diagnosis.reading.file_editor import Edit, edit_file
from onnxfq.diagnosis.reading.graph_editor import GraphEditor
from onnxfq.diagnosis.reading.quantizers import SwitchedForm
from onnxfq.diagnosis.reading.switched_form import switch_form
from onnxfq.diagnosis.reading.values import GridFit
from onnxfq.graph.patterns.logits import JudgedTensors
from onnxfq.graph.prune import leave_out
from onnxfq.graph.signature import output_names, with_outputs
from onnxfq.passes.give_choices import with_given_choices
from onnxfq.runtime.session import Session

Limit = tuple[float, float]
"""The ends to which a tensor is limited where its quantizer is off."""


@dataclass(frozen=True)
class TrialState:
    """A state of the toggles, as a difference from the file: a repair is one too.

    Attributes:
        off: numbers of the quantizers that are off.
        grids: numbers of quantizers with another scale and zero point.
        edits: other changes of the file.
    """

    off: frozenset[int] = frozenset()
    grids: tuple[tuple[int, GridFit], ...] = ()
    edits: tuple[Edit, ...] = ()

    def __or__(self, other: TrialState) -> TrialState:
        """Return both differences; where they contradict each other the other counts."""
        grids, edits = dict((*self.grids, *other.grids)), dict.fromkeys((*self.edits, *other.edits))
        return TrialState(self.off | other.off, tuple(grids.items()), tuple(edits))


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
        given, quantizers = dict(self.given(feed)), self.form.activations
        given |= {quantizers[number].name("on"): np.asarray(False) for number in state.off}
        for number, fit in state.grids:
            for part, value in zip(("scale", "zero_point"), fit, strict=True):
                given[quantizers[number].name(part)] = np.asarray(value, np.float32)
        return self._session(state.edits, tuple(self.limits.items())).run(given, wanted)

    def _open(self, edits: tuple[Edit, ...], limits: tuple[tuple[int, Limit], ...]) -> Session:
        form = switch_form(edit_file(self._file, edits), "the repaired file") if edits else self.form
        editor = GraphEditor(with_given_choices(form.proto, self.judged.choices))
        for number, ends in limits:
            for letter, end in zip(("low", "high"), ends, strict=True):
                editor.store(form.activations[number].name(f"limit/{letter}"), np.asarray(end))
        names = [one.name(part) for one in form.activations for part in ("scale", "zero_point", "on")]
        kinds = ((name, editor.constants[name].data_type) for name in names)
        editor.graph.input.extend(helper.make_tensor_value_info(name, kind, []) for name, kind in kinds)
        editor.proto.ir_version = max(editor.proto.ir_version, 4)  # defaults of inputs
        return Session(with_outputs(editor.proto, [*self.fetches, *self.inner]), self._threads)


def without_quantizers(form: SwitchedForm) -> onnx.ModelProto:
    """Return the form without its quantizers."""
    proto = deepcopy(form.proto)
    leave_out(proto.graph, {quantizer.output: quantizer.real for quantizer in form.activations})
    return proto
