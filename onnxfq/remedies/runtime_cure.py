"""`finish_proven`: the result of all remedies, proven in the runtime of its target, and cured if they differ.

The operator that a runtime computes otherwise is found by leaving operators in float: more and more of them
until the runtime agrees with the simulation, then fewer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from onnxfq.documents.override import Override
from onnxfq.documents.proof import Proof, name_figure
from onnxfq.documents.trial import Trial
from onnxfq.errors import ModelError, OnnxfqError
from onnxfq.execution.sides import Outputs
from onnxfq.graph.external.scratch_file import weights_stored_in
from onnxfq.graph.node_fields import attributes_of
from onnxfq.graph.ops import WEIGHTED_INPUTS
from onnxfq.judging.candidate import Candidate
from onnxfq.judging.judge import Judge
from onnxfq.judging.written_proof import DIFFERENCE_DB, FIRST, Written, count_kept, prove
from onnxfq.remedies.fit_size import answer_promise
from onnxfq.remedies.forms import Forms, Models, finish_forms
from onnxfq.stages.zeroed_values import warn_zeroed_values
from onnxfq.support.clock import Clock
from onnxfq.support.progress import announce
from onnxfq.targets.target import target_by_name

OPENED = 256
"""Samples from which on the file also runs as users open it, where that differs.

OpenVINO compiles a convolutional network in the time of 40 runs: of fewer samples a quarter of the whole job.
"""

_ROUNDS, _TRIALS = 2, 40
"""Kinds of operators that are looked for, one by one, and models that are built for it: more have no cure."""


def finish_proven(
    judge: Judge,
    candidate: Candidate,
    forms: Forms,
    trials: Sequence[Trial],
    clock: Clock,
) -> tuple[Candidate, Forms, tuple[Trial, ...]]:
    """Return what `finish_forms` returns, proven in the runtime of its target, and the trials with answers.

    Operators that the runtime computes otherwise stay in float. The proof names a difference that this does
    not cure. Raises RecipeError if the file is then larger than promised.
    """
    announce("prove")
    done, made = finish_forms(judge, candidate, forms, clock)
    proof = prove_candidate(judge, done, made.models, is_last=True)
    if proof.difference:
        cure, told = find_cure(judge, done, proof)
        clock.lap("prove")
        proof = proof.model_copy(update={"difference": proof.difference + told})
        if cure:
            candidate = candidate.with_overrides(cure, judge.sources.encodings, judge.options)
            done, made = finish_forms(judge, candidate, forms, clock)
            proof = prove_candidate(judge, done, made.models, is_last=True)
    kept = [name for one in done.recipe.overrides if one.why == _reason(proof) for name in one.nodes]
    kinds = {node.name: node.op_type for node in done.session.model.proto.graph.node}
    proof = proof.model_copy(update={"kept_float": tuple(f"{kinds[name]} {name!r}" for name in kept)})
    with weights_stored_in(done.session.scratch):
        proof = count_kept(proof, target_by_name(done.recipe.target), made.models.qdq)
    clock.lap("prove")
    warn_zeroed_values(judge.start.session.model, done.plan, done.statistics.whole, made.models.encodings)
    made = replace(made, evaluation=made.evaluation.model_copy(update={"proof": proof}))
    return done, made, answer_promise(judge, trials, done, made)


def prove_candidate(judge: Judge, candidate: Candidate, models: Models, is_last: bool = False) -> Proof:
    """Return the proof of the file of a candidate: the last one also as users open it, for many samples."""
    session = candidate.session

    def expected() -> Iterator[Outputs] | None:
        return None if session.floats is None else session.floats.over(session.kept)

    target = target_by_name(candidate.recipe.target)
    many = is_last and (candidate.statistics.whole.data.samples or 0) >= OPENED
    simulation = models.qdq if target.values is None else models.simulation  # nothing runs it
    written = Written(
        models.qdq, simulation, session.compared, session.kept, session.judged, judge.options.threads
    )
    with weights_stored_in(session.scratch):
        return prove(target, written, expected, as_opened=many)


def prove_built(judge: Judge, candidate: Candidate) -> Proof:
    """Return the proof of the file that `candidate` would be now, which is built for it once."""
    return candidate.recall(
        Proof, lambda: prove_candidate(judge, candidate, Models(candidate, judge.options, Clock()))
    )


def cure_promised(judge: Judge, candidate: Candidate) -> Candidate:
    """Return `candidate` with the operators in float that the runtime of its target computes otherwise."""
    proof = prove_built(judge, candidate)
    cure = find_cure(judge, candidate, proof)[0] if proof.difference else ()
    return candidate.with_overrides(cure, judge.sources.encodings, judge.options) if cure else candidate


def find_cure(judge: Judge, candidate: Candidate, proof: Proof) -> tuple[tuple[Override, ...], str]:
    """Return the operators to leave in float so that the runtime agrees; none, and why, if none cure it.

    Args:
        judge: of the call.
        candidate: whose file the runtime computes otherwise.
        proof: of it.
    """
    told = _explain_float(judge, candidate, proof)
    if told:
        return (), told

    def leave(nodes: Sequence[str]) -> tuple[Override, ...]:
        return (Override(nodes=tuple(nodes), keep_float=True, why=_reason(proof)),)

    def agrees(nodes: Sequence[str]) -> bool | None:
        try:
            made = candidate.with_overrides(leave(nodes), judge.sources.encodings, judge.options)
        except ModelError:
            return None
        found = prove_built(judge, made)
        return not found.difference and not found.why

    search = _FloatSearch(_list_units(candidate), agrees)
    kept = search.run()
    why = "no operator in float cures it" if search.trials <= _TRIALS else f"{_TRIALS} trials cured nothing"
    return (leave(kept), "") if kept else ((), f"; {why}")


def _reason(proof: Proof) -> str:
    return f"{proof.runtime} computes the model otherwise with it in low precision"


def _explain_float(judge: Judge, candidate: Candidate, proof: Proof) -> str:
    """Return why the float model explains the difference; empty if pairs do."""
    session, target = candidate.session, target_by_name(candidate.recipe.target)
    assert target.values is not None
    floats = session.compared
    written = Written(floats, floats, floats, session.kept, session.judged, judge.options.threads)
    try:
        with weights_stored_in(session.scratch):
            scores = written.score(
                {proof.runtime: floats}, {proof.runtime: target.values}, session.kept[:FIRST]
            )
    except OnnxfqError:
        return "; it does not run the float model either"
    float_db = scores[proof.runtime].lowest_db
    noise = sum(10 ** (-one / 10) for one in (proof.simulated_db, float_db))
    together_db = -10 * math.log10(noise) if noise else math.inf
    if proof.samples and proof.runtime_db > together_db - DIFFERENCE_DB:
        return f"; the float model has {name_figure(float_db)} there"
    return ""


def _list_units(candidate: Candidate) -> dict[str, str]:
    """Return the kinds of operators that read or make quantized activations: first those without weights."""
    plan = candidate.plan
    placed = {placement.tensor for placement in plan.placements if placement.role == "activation"}
    users = {use.node for placement in plan.placements for use in placement.uses}
    found = [
        node
        for node in candidate.session.model.proto.graph.node
        if node.name in users or not placed.isdisjoint((*node.input, *node.output))
    ]
    found.sort(key=lambda node: node.op_type in WEIGHTED_INPUTS)
    return {node.name: f"{node.op_type} {sorted(attributes_of(node).items())}" for node in found}


@dataclass
class _FloatSearch:
    """Search for the fewest units that must stay in float.

    Attributes:
        units: their kinds by name, the cheapest first.
        agrees: takes names, and tells whether the runtime agrees with these in float; None if nothing is left
            to quantize.
        trials: how often it was asked.
    """

    units: Mapping[str, str]
    agrees: Callable[[Sequence[str]], bool | None]
    trials: int = 0

    def run(self) -> list[str]:
        """Return the names; none if no choice makes the runtime agree."""
        kept: list[str] = []
        for _ in range(_ROUNDS):
            rest = [unit for unit in self.units if unit not in kept]
            prefix = [*kept, *rest[: self._shortest(kept, rest)]]
            if prefix == kept:
                return []
            alike = [unit for unit, kind in self.units.items() if kind == self.units[prefix[-1]]]
            for more in ([prefix[-1]], alike):
                found = [*kept, *(unit for unit in more if unit not in kept)]
                if self._ask(found):
                    return found
            kept.append(prefix[-1])
        return []

    def _ask(self, units: Sequence[str]) -> bool | None:
        """Return what `agrees` says; None for nothing once the trials are over."""
        self.trials += 1
        return self.agrees(units) if self.trials <= _TRIALS else None

    def _shortest(self, kept: Sequence[str], rest: Sequence[str]) -> int:
        """Return how many of `rest`, from the first on, must stay in float next to `kept`; 0 if none do.

        A float model agrees.
        """
        low, high = 0, 1
        while rest and self._ask([*kept, *rest[:high]]) is False:
            if high >= len(rest):
                return 0
            low, high = high, min(2 * high, len(rest))
        while high - low > 1:
            middle = (low + high) // 2
            differs = self._ask([*kept, *rest[:middle]]) is False
            low, high = (middle, high) if differs else (low, middle)
        return high if rest else 0
