"""`QuantizeResult`: what `quantize` returns; `RecipeOutcome`: what it returns for each of many recipes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from html import escape
from pathlib import Path

import onnx

from onnxfq.calibration.statistics import Statistics
from onnxfq.data import Feed
from onnxfq.documents.cast_plan import FloatPlan
from onnxfq.documents.encodings import Encodings
from onnxfq.documents.equalization import Equalization
from onnxfq.documents.plan import Plan
from onnxfq.documents.proof import Proof
from onnxfq.documents.recipe import Recipe
from onnxfq.documents.scores import Evaluation
from onnxfq.documents.sensitivity import Sensitivity
from onnxfq.documents.trial import Trial
from onnxfq.errors import OnnxfqError
from onnxfq.graph.external.scratch_file import Scratch
from onnxfq.graph.external.sizes import limit_in_memory, weight_bytes
from onnxfq.graph.model import Model
from onnxfq.interchange.apply import MatchedEncodings
from onnxfq.judging.candidate import Candidate
from onnxfq.layers.round_weights import Rounding
from onnxfq.remedies.forms import Models
from onnxfq.stages.inputs import embed_weights


@dataclass(frozen=True, repr=False)
class QuantizeResult:
    """Result of `quantize`.

    Weights of models of over 512 MB, and of a given proto of over 128 MB, are in a temporary file that exists
    as long as this object; `save` writes them.

    Attributes:
        staged: the normalised float model as the stages had it: weights of over 16 MB are in files.
        qdq: the model with Q/DQ pairs in the form of its target, or FakeQuantize nodes for simulation.
        models: builds the model with FakeQuantize nodes when it is first read.
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
    models: Models
    evaluation: Evaluation
    floats: FloatPlan | None = None
    matched: MatchedEncodings | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    scratch: Scratch | None = field(default=None, repr=False, compare=False)
    trials: tuple[Trial, ...] = ()
    candidate: Candidate | None = field(default=None, repr=False, compare=False)
    samples: tuple[Feed, ...] = field(default=(), repr=False, compare=False)

    @property
    def threads(self) -> int:
        """The threads of the run, with which reports run the models again; 0 for one per core."""
        return 0 if self.candidate is None else self.candidate.session.threads

    @property
    def equalization(self) -> Equalization | None:
        """The changes of channels of the model; None without any."""
        return None if self.candidate is None else self.candidate.equalization

    @property
    def proof(self) -> Proof | None:
        """The written model in the runtime of its target; its `difference` is empty if it is as simulated."""
        return self.evaluation.proof

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
        if weight_bytes(self.staged.proto) > limit_in_memory(None):
            return self.staged
        return replace(self.staged, proto=embed_weights(self.staged, self.staged.proto))

    @cached_property
    def simulation(self) -> onnx.ModelProto:
        """The model with FakeQuantize nodes. Raises ModelError if the file of the float model has changed."""
        return embed_weights(self.staged, self.models.simulation)

    def _facts(self) -> dict[str, str]:
        """Return the verdict in a few words by name."""
        worst = self.evaluation.worst
        placed = len(self.plan.placements), len(self.plan.weights)
        return {
            "model": Path(self.staged.source).name,
            "recipe": self.recipe.name,
            "SQNR": "not compared" if worst is None else f"{worst}{', drawn inputs' * self.evaluation.drawn}",
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


@dataclass(frozen=True)
class RecipeOutcome:
    """Result or error of one of many recipes.

    Attributes:
        recipe: its name, or as it was given if it could not be read.
        result: what `quantize` returns for it alone; None if it failed.
        error: why it failed; None if it did not.
        output: the written file; None if nothing was written.
        bytes: of that file with its data.
    """

    recipe: str
    result: QuantizeResult | None = None
    error: OnnxfqError | None = None
    output: Path | None = None
    bytes: int = 0

    def unwrap(self) -> QuantizeResult:
        """Return the result. Raises the error of a recipe that failed."""
        if self.result is None:
            assert self.error is not None
            raise self.error
        return self.result
