"""`quantize`: all stages in a row."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from html import escape
from pathlib import Path

import onnx

from onnxfq.calibration.statistics import Statistics
from onnxfq.choices import DEFAULT_RECIPE, RANKING_FEEDS
from onnxfq.data import Data, Feed
from onnxfq.documents.cast_plan import FloatPlan
from onnxfq.documents.encodings import Encodings
from onnxfq.documents.equalization import Equalization
from onnxfq.documents.plan import Plan
from onnxfq.documents.recipe import Recipe
from onnxfq.documents.scores import Evaluation
from onnxfq.documents.sensitivity import Sensitivity
from onnxfq.documents.trial import Trial
from onnxfq.execution.reference_runs import ReferenceRuns
from onnxfq.graph.external.scratch_file import Scratch
from onnxfq.graph.external.sizes import limit_in_memory, weight_bytes
from onnxfq.graph.io.data_paths import check_model_output
from onnxfq.graph.model import Model
from onnxfq.interchange.apply import MatchedEncodings
from onnxfq.remedies.accuracy_target import AccuracyTarget
from onnxfq.remedies.candidate import Candidate, Sources, build_candidate
from onnxfq.remedies.combinations import improve
from onnxfq.remedies.equalize_search import equalize_named
from onnxfq.remedies.forms import Forms, build_forms, describe_forms, finish_forms
from onnxfq.remedies.judge import Judge
from onnxfq.remedies.registry import REMEDIES
from onnxfq.remedies.round_weights import Rounding
from onnxfq.stages.inputs import embed_weights, load_written_recipe, open_inputs
from onnxfq.stages.options import QuantizeOptions, RunOptions
from onnxfq.stages.write import write_model
from onnxfq.stages.zeroed_values import warn_zeroed_values
from onnxfq.support.clock import Clock
from onnxfq.targets.onnxruntime.releases import release_of


@dataclass(frozen=True, repr=False)
class QuantizeResult:
    """Result of `quantize`.

    Weights of models of over 512 MB, and of a given proto of over 128 MB, are in a temporary file that exists
    as long as this object; `save` writes them.

    Attributes:
        staged: the normalised float model as the stages had it: weights of over 16 MB are in files.
        qdq: the model with Q/DQ pairs in the form of its target, or FakeQuantize nodes for simulation.
        staged_simulation: the model with FakeQuantize nodes, likewise.
        evaluation: against the float model, on unseen samples (all kept ones if they are few), until the SQNR
            is stable. Of forms with the same bits only the simulation runs; `RunOptions.exact` runs both.
        floats: the float32 exceptions of the Q/DQ model; None if the whole non-quantized part is float32.
        matched: the encodings of a file that match the plan; None without a file.
        seconds: by stage.
        trials: every remedy, in this order, with its figures on unseen samples and why it was kept or left.
        candidate: plan, encodings and rounded weights, from which the models were made.
        samples: a few feeds of the data, for reports that run the models again.
    """

    staged: Model
    recipe: Recipe
    plan: Plan
    statistics: Statistics
    encodings: Encodings
    qdq: onnx.ModelProto
    staged_simulation: onnx.ModelProto
    evaluation: Evaluation
    floats: FloatPlan | None = None
    matched: MatchedEncodings | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    scratch: Scratch | None = field(default=None, repr=False, compare=False)
    trials: tuple[Trial, ...] = ()
    candidate: Candidate | None = field(default=None, repr=False, compare=False)
    samples: tuple[Feed, ...] = field(default=(), repr=False, compare=False)

    @property
    def equalization(self) -> Equalization | None:
        """The changes of channels of the model; None without any."""
        return None if self.candidate is None else self.candidate.equalization

    @property
    def sensitivity(self) -> Sensitivity | None:
        """The measurement that left layers in float, or found none worth it; None if none was made."""
        evidence = [trial.evidence for trial in self.trials if isinstance(trial.evidence, Sensitivity)]
        return evidence[-1] if evidence else None

    @property
    def rounding(self) -> Rounding | None:
        """The weights that were rounded by moments; None if none was planned."""
        return None if self.candidate is None else self.candidate.rounding

    def trial(self, remedy: str) -> Trial:
        """Return the trial of a remedy. Raises KeyError for a name without one."""
        return {trial.remedy: trial for trial in self.trials}[remedy]

    @cached_property
    def model(self) -> Model:
        """The normalised float model, as `load` returns it. Raises ModelError if its file has changed."""
        stays = weight_bytes(self.staged.proto) > limit_in_memory(None)
        return (
            self.staged
            if stays
            else replace(self.staged, proto=embed_weights(self.staged, self.staged.proto))
        )

    @cached_property
    def simulation(self) -> onnx.ModelProto:
        """The model with FakeQuantize nodes. Raises ModelError if the file of the float model has changed."""
        return embed_weights(self.staged, self.staged_simulation)

    def _facts(self) -> dict[str, str]:
        """Return the verdict in a few words by name."""
        worst = next((one.worst for one in self.evaluation.candidates[-1:]), None)
        placed = len(self.plan.placements), len(self.plan.weights)
        return {
            "model": Path(self.staged.source).name,
            "recipe": self.recipe.name,
            "SQNR": "not compared" if worst is None else str(worst),
            "quantized": ", ".join(map(str, self.plan.coverage())),
            "tensors": f"{placed[0]}, of these {placed[1]} weights",
        }

    def __repr__(self) -> str:
        """Return the verdict in one line; models and statistics have no readable form."""
        return f"QuantizeResult({', '.join(f'{name}: {text}' for name, text in self._facts().items())})"

    def _repr_html_(self) -> str:
        """Return the verdict as a small table, for notebooks."""
        rows = (f"<tr><th>{name}</th><td>{escape(text)}</td></tr>" for name, text in self._facts().items())
        return f"<table>{''.join(rows)}</table>"


def quantize(
    model: str | Path | onnx.ModelProto,
    data: Data | None,
    output: str | Path | None = None,
    *,
    recipe: str | Path | Recipe = DEFAULT_RECIPE,
    sources: Sources | None = None,
    accuracy: AccuracyTarget | None = None,
    options: RunOptions | None = None,
) -> QuantizeResult:
    """Quantize `model` with `data` and write the Q/DQ model, or a fake-quant model, to `output`.

    The file is read back, checked and run on one feed before it takes its name. A form without kernels in
    ONNX Runtime is checked by ONNX's rules alone, with a note in the evaluation.

    Args:
        model: a path or a ModelProto, which is not changed.
        data: a file or a folder of arrays or images, arrays, an iterable of feeds such as a torch DataLoader,
            or a function that creates one; read once. None is allowed with statistics, or if no activation
            needs statistics; the result is then not compared.
        output: where to write the model; None writes nothing.
        recipe: a name, a YAML file or a Recipe; target simulation writes the fake-quant model.
        sources: statistics, moments or encodings that are known already.
        accuracy: what to keep, at the price of the cheapest groups of layers, and which remedies are tried.
        options: batch, threads, device and how data is read; `QuantizeOptions` also has the float type, the
            release of ONNX Runtime and a Ray cluster.

    Raises an OnnxfqError in one line, and writes nothing, if a stage fails.
    """
    options, sources, accuracy = (
        QuantizeOptions.of(options),
        sources or Sources(),
        accuracy or AccuracyTarget(),
    )
    check_model_output(output, model, data, sources.statistics, sources.moments, sources.encodings, recipe)
    chosen, release, clock = load_written_recipe(recipe, options), release_of(options.runtime), Clock()
    session = open_inputs(
        model, data, chosen, options, output=output, observed=sources.statistics is not None
    )
    release.check_opset(session.model.opset, f"{session.model.source} is at")
    with ReferenceRuns(session.compared, session.judged, options.threads, options.device) as runs:
        session, equalization = equalize_named(session, chosen, sources, options)
        if equalization is not None:
            clock.lap("equalize")
        start = build_candidate(session, chosen, sources, options, equalization, clock, runs)
        forms = build_forms(start, options, clock, runs)
        judge = Judge.of(start, options, sources, forms.evaluation, accuracy)
        candidate, trials = improve(judge, start, REMEDIES)
        clock.lap("remedies")
        candidate, forms = finish_forms(judge, candidate, forms, clock, runs)
    warn_zeroed_values(session.model, candidate.plan, candidate.statistics.whole, forms.encodings)
    write_model(forms.qdq, output, candidate.session.kept, options.threads)
    clock.lap("write")
    return _join_result(candidate, forms, trials, judge, clock)


def _join_result(
    candidate: Candidate, forms: Forms, trials: tuple[Trial, ...], judge: Judge, clock: Clock
) -> QuantizeResult:
    session = candidate.session
    notes = describe_forms(candidate, forms, judge)
    return QuantizeResult(
        staged=replace(session.model, notes=(*session.model.notes, *notes)) if notes else session.model,
        recipe=candidate.recipe,
        plan=candidate.plan,
        statistics=candidate.statistics.whole,
        encodings=forms.encodings,
        qdq=embed_weights(session.model, forms.qdq),
        staged_simulation=forms.simulation,
        evaluation=forms.evaluation,
        floats=forms.floats,
        scratch=session.scratch,
        matched=candidate.planned.matched,
        seconds=clock.seconds,
        trials=trials,
        candidate=candidate,
        samples=tuple(session.kept[:RANKING_FEEDS]),
    )
