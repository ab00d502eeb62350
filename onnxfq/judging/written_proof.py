"""`prove`: a written file in the runtime that its users open, next to its simulation."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import onnx

from onnxfq.calibration.statistics.moments import multiply_floats
from onnxfq.data import Feed
from onnxfq.data.model_inputs import input_specs
from onnxfq.documents.proof import Proof, name_figure
from onnxfq.documents.scores import CandidateScore, OutputScore
from onnxfq.errors import OnnxfqError, RuntimeLibraryError
from onnxfq.execution.sides import Outputs
from onnxfq.graph.external.sizes import ONE_PIECE, weight_bytes
from onnxfq.graph.patterns.logits import NOTHING_KNOWN, JudgedTensors
from onnxfq.graph.signature import computed_tensors
from onnxfq.numerics.intervals import ratio_interval_db
from onnxfq.passes.float_caches import with_float_caches
from onnxfq.runtime.integer_products import find_byte_products
from onnxfq.runtime.random_numbers import needs_seed
from onnxfq.runtime.unsupported_ops import explain_unsupported
from onnxfq.stages.score import score_models
from onnxfq.targets.target import AnyModel, BuildOptions, Opener, Target, Values

FIRST, MOST = 4, 16
"""Samples that show whether two runtimes agree, and those that tell by how much they do not.

A difference is the same at every run, so that few samples show it.
"""

CLEAR_DB = 0.25
"""Loss in dB up to which the first samples are enough."""

DIFFERENCE_DB = 1.0
"""Loss in dB from which a runtime computes another model than the simulation."""

REACH_DB = 80.0
"""SQNR from which a difference comes from sums in float32, which every runtime adds in another order."""

_SIMULATED, _OPENED = "simulation", "as opened"


@dataclass(frozen=True)
class Written:
    """A file, and what it is compared with.

    Attributes:
        proto: the model of the file.
        simulation: of the file, for an exact session; the file itself where it has no other form.
        reference: the float model.
        feeds: samples in the order of their digests.
        judged: of the reference.
        threads: of sessions.
    """

    proto: onnx.ModelProto
    simulation: onnx.ModelProto
    reference: onnx.ModelProto
    feeds: Sequence[Feed]
    judged: JudgedTensors = NOTHING_KNOWN
    threads: int = 0

    @property
    def common(self) -> JudgedTensors:
        """The tensors that judge, with the inner ones that both forms have."""
        present = computed_tensors(self.simulation) & computed_tensors(self.proto)
        return self.judged.within(present, ("sources", "logits", "choices"))

    def score(
        self,
        candidates: Mapping[str, onnx.ModelProto],
        openers: Mapping[str, Opener],
        feeds: Sequence[Feed],
        expected: Iterator[Outputs] | None = None,
    ) -> dict[str, CandidateScore]:
        """Return the scores of candidates by name. Raises what a runtime raises that refuses one."""
        found = score_models(
            self.reference,
            candidates,
            feeds,
            threads=self.threads,
            device="cpu",
            judged=self.common,
            expected=expected if self.common.inner == self.judged.inner else None,
            openers={name: _in_own_types(opener) for name, opener in openers.items()},
        )
        return {one.candidate: one for one in found.candidates}


def prove(
    target: Target,
    written: Written,
    expected: Callable[[], Iterator[Outputs] | None] = lambda: None,
    *,
    as_opened: bool = True,
) -> Proof:
    """Run a file as its users run it, and compare it with its simulation on a few samples.

    Args:
        target: of the file.
        written: the file, its simulation and the float model.
        expected: returns outputs of the float model on the samples, if it has run already.
        as_opened: also run it as users open it, where that differs.
    """
    if target.values is None and not target.has_pairs:
        return Proof()  # a simulation is all that there is
    why = _explain_untried(target, written)
    try:
        release = "" if why else target.release() or target.name
        differs = target.differs() if as_opened and not why else ""
    except RuntimeLibraryError as error:
        why = str(error)
    if why or target.values is None:
        return Proof(why=why)
    candidates, openers = {_SIMULATED: written.simulation, release: written.proto}, {release: target.values}
    also: dict[str, Opener] = {_OPENED: target.open} if differs and target.open is not None else {}
    first, most = written.feeds[:FIRST], written.feeds[:MOST]
    try:
        all_forms = candidates | dict.fromkeys(also, written.proto)
        scores = written.score(all_forms, openers | also, first, expected())
        proof = _join(release, scores, len(first))
        pairs = _pair_outputs(scores[_SIMULATED], scores[release])
        if len(most) > len(first) and not all(_lose(*pair) <= CLEAR_DB for pair in pairs):
            proof = _join(release, written.score(candidates, openers, most, expected()), len(most))
        if proof.difference and target.unsaturated is not None and find_byte_products() is multiply_floats:
            spared = written.score(candidates, {release: target.unsaturated}, most, expected())
            if not _join(release, spared, len(most)).difference:
                proof = proof.model_copy(update={"difference": "", "saturated": True})
    except OnnxfqError as error:
        difference = f"{release} does not run the file: {error}"
        return Proof(runtime=release, runtime_db=-math.inf, difference=difference)
    opened = scores.get(_OPENED)
    more = {} if opened is None else {"opened_db": opened.lowest_db, "opened_as": differs}
    return proof.model_copy(update=more)


def count_kept(proof: Proof, target: Target, proto: onnx.ModelProto) -> Proof:
    """Return `proof` with what runs in low precision of a file that ran, as `check` counts it.

    The session of the proof cannot tell: its logits are outputs, so that ONNX Runtime fuses less.
    """
    if not target.asked or target.check is None or not proof.samples:
        return proof
    return proof.model_copy(update={"coverage": target.check(proto, "", BuildOptions()).coverage})


def _explain_untried(target: Target, written: Written) -> str:
    """Return why a file is not run as its users run it; empty if it is."""
    if target.values is None:
        engine = "; --build makes an engine" if target.run is not None else ""
        sessions = "sessions of ONNX Runtime need ORT_ENABLE_BASIC"
        return f"nothing here runs a file for target {target.name} as its users do; {sessions}{engine}"
    if not written.feeds:
        return "there is no sample; give --data"
    if needs_seed(written.proto):
        return "the model draws random numbers, and every runtime draws others"
    if weight_bytes(written.proto) > ONE_PIECE:
        return f"weights of over {ONE_PIECE >> 20} MB would be in memory twice"
    return explain_unsupported(written.proto)


def _join(release: str, scores: Mapping[str, CandidateScore], samples: int) -> Proof:
    """Return the proof by the scores of a simulation and of the runtime."""
    simulated, computed = scores[_SIMULATED], scores[release]
    difference = "" if simulated.unlike else "; ".join(f"{release}: {line}" for line in computed.unlike)
    sure = {ran.key: (want, ran) for want, ran in _pair_outputs(simulated, computed) if _is_sure(want, ran)}
    losses = {name: _lose(*pair) for name, pair in sure.items()}
    worst = max(losses, key=losses.__getitem__, default="")
    if worst and not losses[worst] <= DIFFERENCE_DB:
        meant_db, ran_db = (name_figure(one.sqnr_db) for one in sure[worst])
        difference = f"{release} computes {ran_db} at {sure[worst][1].name!r}, the simulation {meant_db}"
    return Proof(
        runtime=release,
        samples=samples,
        simulated_db=simulated.lowest_db,
        runtime_db=computed.lowest_db,
        losses=losses,
        difference=difference,
    )


def _pair_outputs(
    simulated: CandidateScore, computed: CandidateScore
) -> list[tuple[OutputScore, OutputScore]]:
    """Return the scores of each judging output, in the simulation and in the runtime."""
    meant = {one.key: one for one in simulated.judging}
    return [(meant[one.key], one) for one in computed.judging if one.key in meant]


def _lose(meant: OutputScore, ran: OutputScore) -> float:
    return max(0.0, meant.sqnr_db - ran.sqnr_db) if ran.sqnr_db < REACH_DB else 0.0


def _is_sure(meant: OutputScore, ran: OutputScore) -> bool:
    """Tell whether a loss is above chance.

    Sums in another order round some values to the other neighbour, which moves each sample to either side.
    """
    ends = ratio_interval_db(ran.noises, meant.noises)
    return ends is None or ends[0] > 0


def _in_own_types(opener: Opener) -> Opener:
    """Return an opener of models whose inputs, caches too, may have another type than the samples."""

    def open_model(model: AnyModel, threads: int) -> Callable[[Feed], Values]:
        assert isinstance(model, onnx.ModelProto)
        model = with_float_caches(model)
        run = opener(model, threads)
        types = {spec.name: spec.dtype for spec in input_specs(model)}
        return lambda feed: run({name: feed[name].astype(dtype, copy=False) for name, dtype in types.items()})

    return open_model
