"""`quantize`: all stages in a row and nothing else, with the files they leave."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

import onnx

from onnxfq.calibration.statistics import Statistics
from onnxfq.data import Data
from onnxfq.documents.cast_plan import ALL_FLOAT32, FloatOptions, FloatPlan
from onnxfq.documents.encodings import Encodings
from onnxfq.documents.plan import Plan
from onnxfq.documents.recipe import DEFAULT_RECIPE, Recipe, load_recipe
from onnxfq.documents.scores import Evaluation
from onnxfq.errors import RecipeError
from onnxfq.graph.external.scratch_file import Scratch
from onnxfq.graph.io.data_files import check_model_output
from onnxfq.graph.model import Model
from onnxfq.interchange import GivenFile
from onnxfq.interchange.apply import Fitted
from onnxfq.stages.cast import cast_rest
from onnxfq.stages.encoding_sources import Missing, plan_encodings
from onnxfq.stages.evaluate import compare_forms
from onnxfq.stages.gather import gather_statistics
from onnxfq.stages.half_scales import with_half_scales
from onnxfq.stages.insert import insert_forms
from onnxfq.stages.options import RunOptions
from onnxfq.stages.quantize_inputs import open_inputs
from onnxfq.stages.write import write_model
from onnxfq.targets.onnxruntime.releases import release_of


@dataclass(frozen=True)
class QuantizeResult:
    """Everything that `quantize` found and made.

    qdq, simulation: the model with Q/DQ as its target wants it, and with FakeQuantize nodes. evaluation: both
    against the float model on some feeds of the calibration data, spread over all. floats: what of the Q/DQ
    model stays in float32, None where all that is not quantized does. fitted: what a file of encodings gave,
    None without one. seconds: by stage. Weights of models of over 512 MB, and of a given proto of over
    128 MB, are in a temporary file, which is there as long as this is: `save` writes them.
    """

    model: Model
    recipe: Recipe
    plan: Plan
    statistics: Statistics
    encodings: Encodings
    qdq: onnx.ModelProto
    simulation: onnx.ModelProto
    evaluation: Evaluation
    floats: FloatPlan | None = None
    fitted: Fitted | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    scratch: Scratch | None = field(default=None, repr=False, compare=False)


def quantize(
    model: str | Path | onnx.ModelProto,
    data: Data | None,
    output: str | Path | None = None,
    *,
    recipe: str | Path | Recipe = DEFAULT_RECIPE,
    calibrator: str | None = None,
    statistics: str | Path | Statistics | None = None,
    encodings: GivenFile | None = None,
    missing: Missing = "stop",
    floats: FloatOptions = ALL_FLOAT32,
    runtime: str | None = None,
    options: RunOptions | None = None,
) -> QuantizeResult:
    """Quantize `model` with `data` and write the Q/DQ model to `output`.

    data: a file or a folder of arrays or images, arrays, an iterable of feeds such as a torch DataLoader,
    or a function that makes one; gone through once. options: how it is read, among others.
    recipe: a name, a YAML file or a Recipe. calibrator: for activations, in place of the recipe's.
    statistics: gathered before, so that nothing is observed; data may then be None, as it may be where no
    activation needs statistics, and the result is not compared; other data than theirs is refused.
    encodings: scales of another tool, a file or a dictionary of onnxruntime's overrides: they are taken
    exactly, and their formats go before the recipe's; what the file has of ranges alone has that of the
    recipe. Nothing is observed but what it lacks. missing: what becomes of activations that it lacks where
    there are neither data nor statistics.
    floats: the type of what is not quantized; tensors that do not fit in it stay in float32.
    runtime: as `onnxruntime==1.18`, which the written model is kept to, or refused for.
    The file is read back, checked and run on one feed before it takes its name; one in a form that ONNX
    Runtime has no kernels for is checked by ONNX's rules alone, and a note of the evaluation says so. Raises
    an OnnxfqError in one line, and writes nothing, when a stage refuses.
    """
    options = options or RunOptions()
    check_model_output(output, model, data, statistics, encodings)
    chosen, release = _chosen_recipe(recipe, calibrator), release_of(runtime)
    clock = _Clock()
    inputs = open_inputs(model, data, chosen, options, output=output, observed=statistics is not None)
    release.check_opset(inputs.model.opset, f"{inputs.model.source} is at")
    planned = plan_encodings(inputs.ranked, chosen, encodings)
    if inputs.feeds is None and statistics is None:
        planned = planned.without_missing(missing)
    clock.lap("plan")
    found = gather_statistics(inputs, planned.unknown, statistics, options)
    clock.lap("observe")
    plan, encoded = planned.encode(inputs.model, found)
    encoded = with_half_scales(encoded, floats.name)
    clock.lap("calibrate")
    simulation, qdq = insert_forms(inputs, plan, encoded, floats)
    clock.lap("insert")
    cast = cast_rest(inputs, qdq, floats, options)
    qdq = release.kept_to(cast.qdq, chosen.name)
    clock.lap("cast")
    evaluation = compare_forms(inputs, simulation, cast.comparable, options)
    clock.lap("evaluate")
    write_model(qdq, output, inputs.kept, options.threads)
    made = (plan, found, encoded, inputs.take_in(qdq), inputs.take_in(simulation), evaluation)
    ends = (cast.floats, planned.matched, clock.seconds, inputs.scratch)
    return QuantizeResult(inputs.model, chosen, *made, *ends)


def _chosen_recipe(recipe: str | Path | Recipe, calibrator: str | None) -> Recipe:
    """Load the recipe. Raises RecipeError for one whose target has nothing to write."""
    chosen = load_recipe(recipe)
    if chosen.target == "simulation":
        raise RecipeError(
            f"recipe {chosen.name}: quantize writes a model to hand over, and target simulation has none; "
            "run the stages and insert fake-quant nodes, or name another target"
        )
    return chosen if calibrator is None else chosen.with_calibrator(calibrator)


class _Clock:
    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, stage: str) -> None:
        now = time.perf_counter()
        self.seconds[stage] = now - self._last
        self._last = now
