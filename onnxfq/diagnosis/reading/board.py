"""`Board`: one session of a quantized file in which quantizers are switched, changed and replaced."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from onnxfq.data import Feed
from onnxfq.diagnosis.reading.quantizers import ActivationQuantizer, SwitchedForm
from onnxfq.diagnosis.reading.values import GridFit
from onnxfq.graph.external.tensor import tensor_array
from onnxfq.graph.patterns.choices import ChoiceType
from onnxfq.graph.signature import with_outputs
from onnxfq.numerics.metrics import ErrorSums, ratio_db
from onnxfq.passes.give_choices import with_given_choices
from onnxfq.runtime.session import Session

Limit = tuple[float, float]
"""The ends to which a tensor is limited where its quantizer is off."""


@dataclass(frozen=True)
class Change:
    """A difference from the file.

    Attributes:
        off: numbers of the quantizers that are off.
        grids: scale and zero point by number.
        constants: values by their name in the float form.
    """

    off: frozenset[int] = frozenset()
    grids: Mapping[int, GridFit] = field(default_factory=dict)
    constants: Mapping[str, NDArray[Any]] = field(default_factory=dict)

    def __or__(self, other: Change) -> Change:
        """Return both changes; where they differ the other counts."""
        return Change(
            self.off | other.off, {**self.grids, **other.grids}, {**self.constants, **other.constants}
        )


@dataclass(frozen=True)
class Noise:
    """Error of a change against the reference, by output.

    Attributes:
        ratios: squared error over squared reference, inf for values that are no numbers.
    """

    ratios: tuple[float, ...]

    @property
    def db(self) -> float:
        """SQNR of the worst output in dB."""
        return min((ratio_db(1.0, ratio) for ratio in self.ratios), default=np.inf)

    def share_over(self, other: Noise, whole: Noise) -> float:
        """Return by how much this is more than `other`, as a share of `whole`, for the worst output."""
        shares = []
        for mine, theirs, total in zip(self.ratios, other.ratios, whole.ratios, strict=True):
            if np.isinf(mine):
                shares.append(0.0 if np.isinf(theirs) else 1.0)
            else:
                shares.append((mine - theirs) / total if total > 0 and np.isfinite(total) else 0.0)
        return max(shares, default=0.0)


class Board:
    """The session."""

    def __init__(
        self,
        form: SwitchedForm,
        outputs: Sequence[str],
        threads: int,
        choices: Mapping[str, ChoiceType] | None = None,
        chosen: Mapping[int, Feed] | None = None,
    ) -> None:
        """Create the session.

        Args:
            form: with its switches.
            outputs: the tensors that are compared.
            threads: of the session, 0 for one per core.
            choices: those that the reference makes, as `JudgedTensors` has them.
            chosen: by the identity of a feed, the feed with these choices.
        """
        self.choices, self._chosen = choices or {}, chosen or {}
        form = replace(form, proto=with_given_choices(form.proto, self.choices))
        self.form, self.outputs = form, list(outputs)
        self.inner = [q.plain for q in form.activations]
        names = dict.fromkeys((*self.outputs, *self.inner))
        self._session = Session(with_outputs(form.proto, names), threads)
        self._names, self._threads = names, threads
        self._plain: Session | None = None
        self._embedded: Mapping[str, NDArray[Any]] = {}
        self.limits: dict[int, Limit] = {}

    @property
    def nothing(self) -> Change:
        """The change that leaves all activations in float."""
        return Change(off=frozenset(q.number for q in self.form.activations))

    def only(self, numbers: Iterable[int]) -> Change:
        """Return the change that leaves all other activations in float."""
        return Change(off=self.nothing.off - frozenset(numbers))

    def embed(self, constants: Mapping[str, NDArray[Any]]) -> None:
        """Take constants for granted in the session without quantizers."""
        self._embedded, self._plain = constants, None

    def given(self, feed: Feed) -> Feed:
        """Return a feed with the choices of the reference."""
        return self._chosen.get(id(feed), feed)

    def _plain_session(self) -> Session:
        """Return the session without quantizers, far faster because its constants are not inputs."""
        if self._plain is None:
            proto = without_quantizers(self.form, self._embedded)
            self._plain = Session(with_outputs(proto, self._names), self._threads)
        return self._plain

    def run(self, feed: Feed, change: Change, names: Sequence[str] | None = None) -> list[NDArray[Any]]:
        """Return the outputs, or the tensors of these names, of one feed."""
        wanted = self.outputs if names is None else list(names)
        if not wanted:  # to ONNX Runtime no names are all names
            return []
        given: dict[str, Any] = dict(self.given(feed))
        known = self._embedded.items()
        is_plain = len(change.off) == len(self.inner) and len(known) == len(change.constants)
        is_plain &= all(change.constants.get(name) is values for name, values in known)
        for number in () if is_plain else change.off:
            given[self.form.activations[number].switch] = np.asarray(False)
        for number, fit in change.grids.items():
            quantizer = self.form.activations[number]
            given[quantizer.scale_input] = np.asarray(fit.scale, quantizer.grid.floats)
            given[quantizer.zero_input] = np.asarray(fit.zero).astype(quantizer.grid.kind)
        for number, (low, high) in self.limits.items():
            quantizer = self.form.activations[number]
            for letter, end in (("low", low), ("high", high)):
                given[f"{quantizer.limit_input}/{letter}"] = np.asarray(end, quantizer.grid.floats)
        if is_plain:
            return self._plain_session().run(given, wanted)
        given.update(change.constants)
        return self._session.run(given, wanted)

    def noise(
        self, feeds: Sequence[Feed], references: Sequence[Sequence[NDArray[Any]]], change: Change
    ) -> Noise:
        """Return the error of a change against the reference outputs of the same feeds."""
        runs = (self.run(feed, change) for feed in feeds)
        return Noise(tuple(map(_ratio, sum_errors(references, runs))))


def without_quantizers(form: SwitchedForm, constants: Mapping[str, NDArray[Any]]) -> onnx.ModelProto:
    """Return the form without its quantizers and with these constants, where limits alone are inputs."""
    proto = onnx.ModelProto()
    proto.CopyFrom(form.proto)
    graph = proto.graph
    real = {quantizer.output: quantizer.real for quantizer in form.activations}
    parts = {f"{output.removesuffix('out')}{part}" for output in real for part in ("q", "clipped", "dq")}
    for node in list(graph.node):
        if node.output and node.output[0] in parts:
            graph.node.remove(node)
        elif node.output and node.output[0] in real:
            node.op_type, node.input[:] = "Identity", [real[node.output[0]]]
    for tensor in graph.initializer:
        if tensor.name in constants:
            values = np.asarray(constants[tensor.name], tensor_array(tensor).dtype)
            tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    kept = {quantizer.limit_input for quantizer in form.activations}
    defaults = {tensor.name for tensor in graph.initializer}
    inputs = [v for v in graph.input if v.name not in defaults or v.name.rpartition("/")[0] in kept]
    del graph.input[:]
    graph.input.extend(inputs)
    return proto


def sum_errors(
    references: Iterable[Sequence[NDArray[Any]]], runs: Iterable[Sequence[NDArray[Any]]]
) -> list[ErrorSums]:
    """Return the error of each output over all runs; an output of another shape counts nothing."""
    sums: list[ErrorSums] = []
    for reference, run in zip(references, runs, strict=True):
        sums = sums or [ErrorSums() for _ in reference]
        for at, (want, have) in enumerate(zip(reference, run, strict=True)):
            if want.shape == have.shape:
                sums[at] += ErrorSums.from_arrays(want, have)
    return sums


def _ratio(total: ErrorSums) -> float:
    """Return squared error over squared reference; inf without a finite figure."""
    if total.noise == 0:
        return 0.0
    ratio = total.noise / total.signal if total.signal else np.inf
    return float(ratio) if np.isfinite(ratio) else np.inf


def quantizers_by_scale(form: SwitchedForm) -> list[list[ActivationQuantizer]]:
    """Return the quantizers in groups that share their scale in the file; they change together."""
    groups: dict[str, list[ActivationQuantizer]] = {}
    for quantizer in form.activations:
        groups.setdefault(quantizer.scale, []).append(quantizer)
    return list(groups.values())
