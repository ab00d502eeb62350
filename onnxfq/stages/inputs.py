"""Inputs of `quantize`: the model in its forms, the data, and storage for large weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import onnx

from onnxfq.data import Data, DrawnInputs, Feed
from onnxfq.data.replay import KeptFeeds
from onnxfq.data.stream import FloatOutputs
from onnxfq.documents.recipe import Recipe
from onnxfq.documents.rounding import explain_mode
from onnxfq.documents.scores import Evaluation
from onnxfq.errors import RecipeError
from onnxfq.execution.column_parts import find_columns, list_open, with_columns
from onnxfq.execution.drawn_inputs import draw_inputs
from onnxfq.execution.reference_runs import ReferenceRuns, keep_outputs, keep_stream_outputs
from onnxfq.execution.sequences import STREAM_FEEDS, FedBack
from onnxfq.execution.sides import LEAST_FEEDS, Side, run_sides
from onnxfq.graph.external.scratch_file import Scratch, scratch_for, weights_stored_in
from onnxfq.graph.external.sizes import STAGED, is_large
from onnxfq.graph.external.tensor import is_external
from onnxfq.graph.external.weightless import with_weights
from onnxfq.graph.io.load import read_model
from onnxfq.graph.model import Model
from onnxfq.graph.normalize.steps import name_nodes
from onnxfq.graph.normalize.write_out_functions import make_runnable
from onnxfq.graph.patterns.logits import JudgedTensors, judge_given, judge_outputs
from onnxfq.graph.patterns.parts import OutputPart
from onnxfq.graph.signature import computed_tensors, output_names
from onnxfq.numerics.float_types import HALF_TYPES
from onnxfq.quantized.existing import normalize_existing
from onnxfq.quantized.forms import is_quantized
from onnxfq.quantized.qonnx import pairs_of_qonnx
from onnxfq.runtime.device_choice import choose_device
from onnxfq.runtime.type_inference import lacks_ranks, with_run_ranks
from onnxfq.stages.options import QuantizeOptions, RunOptions, open_feeds
from onnxfq.stages.score import score_models
from onnxfq.support.progress import announce
from onnxfq.targets.recipes import load_recipe
from onnxfq.targets.target import prepare_model, target_by_name

DRAWN = (
    "inputs were drawn from a fixed seed in place of data: no figure of this run tells anything about real "
    "data; measure on some, by `onnxfq evaluate`"
)
"""Note on a model without data, behind the number of inputs."""


@dataclass(frozen=True)
class QuantizeSession:
    """A model and its data.

    Attributes:
        reference: the float model as given; of a model whose quantizers are taken out, what is left.
        model: the normalised model, as the target of the recipe prepares it.
        ranked: the same for planning, with ranks that only a run can infer.
        feeds: the data; None without any.
        runs: number of feeds of a pass, if known.
        scratch: storage of large weights while models are built.
        loaded: the normalised model before its target prepared it.
        columns: parts of outputs that their values tell; None before the float model ran on kept samples.
        threads: as the options have them, 0 for one per core.
        is_drawn: whether the data was drawn from a fixed seed.
        floats: runs of `compared`, which comparisons share; None where each runs it again.
    """

    reference: onnx.ModelProto
    model: Model
    ranked: Model
    feeds: KeptFeeds | None
    runs: int | None
    scratch: Scratch | None
    loaded: Model
    columns: Mapping[str, tuple[OutputPart, ...]] | None = None
    threads: int = 0
    is_drawn: bool = False
    floats: ReferenceRuns | None = None

    def for_target(self, target: str) -> QuantizeSession:
        """Return the session of the same model and data for another target, which prepares the model.

        Call it before a pass over data that can be read once only.
        """
        model = prepare_model(self.loaded, target)
        return replace(self, model=model, ranked=model).with_ranks(self.ranked is not self.model)

    def with_ranks(self, is_needed: bool) -> QuantizeSession:
        """Return the session with ranks that a run on the first feed infers, if they are needed."""
        if self.feeds is None or not is_needed:
            return self
        return replace(self, ranked=with_run_ranks(self.model, self.feeds.read_first()))

    def alone(self) -> QuantizeSession:
        """Return the session before any pass over the data: nothing of another pass is kept."""
        if self.feeds is None:
            return self
        feeds = KeptFeeds(self.feeds.source)
        feeds.find_starts = self.feeds.find_starts
        return replace(self, feeds=feeds)

    @cached_property
    def judged(self) -> JudgedTensors:
        """The tensors that judge the model; of logits those that `reference` has too."""
        judge = judge_given if is_quantized(self.model.proto) else judge_outputs
        judged = judge(self.model.proto).within(computed_tensors(self.reference))
        return with_columns(judged, self.columns or {})

    @cached_property
    def compared(self) -> onnx.ModelProto:
        """The float model to compare with: as given, or as prepared if only that has all that decides."""
        inner = self.judged.sources.keys() | self.judged.choices.keys()
        has_all = inner <= computed_tensors(self.reference)
        return self.reference if has_all else self.model.proto

    def with_columns(self, options: RunOptions) -> QuantizeSession:
        """Return the session with the parts of outputs that the first kept samples tell."""
        feeds = self.kept[:LEAST_FEEDS]
        if self.columns is not None or not feeds or not list_open(self.judged):
            return self
        outputs = None if self.floats is None else self.floats.over(feeds, more=True)
        if outputs is None:
            with weights_stored_in(self.scratch):
                kept = keep_outputs(self.compared, self.judged, feeds, options.threads, options.device)
            outputs = iter(kept)
        names = output_names(self.compared)
        return replace(self, columns=find_columns(self.judged, names, list(outputs)))

    def score(
        self,
        candidates: Mapping[str, onnx.ModelProto],
        feeds: Sequence[Feed],
        options: RunOptions,
        **how: Any,
    ) -> Evaluation:
        """Return the scores of quantized forms against the float model; `how` is as for `score_models`."""
        usual: dict[str, Any] = {"threads": options.threads, "device": options.device, "exact": options.exact}
        if candidates and self.floats is not None and self.floats.serves(self.compared, self.judged):
            usual["expected"] = self.floats.over(feeds)
        with weights_stored_in(self.scratch):
            found = score_models(self.compared, candidates, feeds, **{**usual, "judged": self.judged, **how})
        return found.model_copy(update={"drawn": self.is_drawn})

    @property
    def kept(self) -> list[Feed]:
        """The samples to compare models on, a feed each, in the order of their digests.

        After a pass, the unseen ones; of few samples, and next to statistics of all, the kept ones.
        """
        return [] if self.feeds is None else self.feeds.compared


def load_written_recipe(recipe: str | Path | Recipe, options: QuantizeOptions) -> Recipe:
    """Return the loaded recipe. Raises RecipeError for a rounding, float type or GPU that it is not for."""
    loaded = load_recipe(recipe)
    hardware = target_by_name(loaded.target).hardware
    if options.gpus and hardware is not None:
        hardware.refuse(loaded, options.gpus)
    if not target_by_name(loaded.target).has_pairs:
        if options.floats.name in HALF_TYPES:
            raise RecipeError(
                f"recipe {loaded.name}: target {loaded.target} is written as a fake-quant model in the float "
                f"types of the given one, not in {options.floats.name}; use fp32, or choose another target"
            )
        return loaded
    for name, value in loaded.simulation.changes.items():
        raise RecipeError(f"recipe {loaded.name}: {explain_mode(name, value)}")
    return loaded


def open_inputs(
    model: str | Path | onnx.ModelProto,
    data: Data | None,
    recipe: Recipe,
    options: RunOptions,
    *,
    output: str | Path | None = None,
    observed: bool = False,
) -> QuantizeSession:
    """Read and normalise `model`, and open `data`.

    Args:
        model: a path or a ModelProto, which is not changed.
        data: as `quantize` takes it, or None.
        recipe: names the target, and the policy for models that are quantized already.
        options: how the data is read.
        output: large temporary weights go to the file system of this path.
        observed: whether statistics are given, so that ranks need no run.

    Raises:
        ModelError: for a model that cannot be read.
        DataError: for data that cannot be opened.
        RuntimeLibraryError: for a device that cannot be used.
    """
    announce("read")
    choose_device(options.device)  # report a missing device now, not after planning
    folder = None if output is None else Path(output).parent
    # The caller holds a given model; its weights are not copied in memory.
    scratch = scratch_for(model, folder, STAGED) if isinstance(model, onnx.ModelProto) else None
    with weights_stored_in(scratch):
        read, sha256, source = read_model(model, in_memory=STAGED)
        proto = pairs_of_qonnx(read, source)
    given = None if recipe.existing == "requantize" else with_unique_names(proto)
    loaded = normalize_existing(proto, sha256, source, recipe.existing)
    is_drawn = isinstance(data, DrawnInputs)
    if is_drawn:
        with weights_stored_in(scratch):
            data = draw_inputs(loaded.proto, options.data)
        loaded = replace(loaded, notes=(*loaded.notes, f"{len(data)} {DRAWN}"))
    session = QuantizeSession(
        given or loaded.proto,
        loaded,
        loaded,
        None,
        None,
        scratch,
        loaded,
        threads=options.threads,
        is_drawn=is_drawn,
    )
    session = session.for_target(recipe.target)
    prepared = session.model
    is_filled = options.data.padding == "cut" and target_by_name(recipe.target).fixed_sizes
    read_as = replace(options.data, padding="fill") if is_filled else options.data
    opened = None if data is None else open_feeds(prepared.proto, data, options.batch, read_as)
    feeds = None if opened is None else KeptFeeds(opened)
    runs = None if opened is None else opened.runs
    scratch = scratch or scratch_for(prepared.proto, folder, STAGED)
    session = replace(session, feeds=feeds, runs=runs, scratch=scratch)
    session = session.with_ranks(not observed and bool(lacks_ranks(prepared)))
    if feeds is not None and session.judged.states:
        if _follow(session, options, feeds.read_samples(STREAM_FEEDS)).is_stream:
            feeds.find_starts = partial(_find_starts, session, options)
    return session


def _find_starts(session: QuantizeSession, options: RunOptions, samples: Sequence[Feed]) -> list[bool]:
    """Return which samples begin a recording, and keep what the float model gives for them."""
    assert session.feeds is not None
    return [not step for step in _follow(session, options, samples, session.feeds.outputs).steps]


def _follow(
    session: QuantizeSession, options: RunOptions, samples: Sequence[Feed], into: FloatOutputs | None = None
) -> FedBack:
    """Return which samples have the state that the float model leaves on the one before."""
    names = (*output_names(session.compared), *session.judged.inner)
    fed_back, side = FedBack(session.judged.states, names), Side(session.compared, names, exact=False)
    runs = run_sides([side], samples, options.threads, options.device, fed_back=fed_back)
    keep_stream_outputs({} if into is None else into.setdefault(names, {}), samples, (one for (one,) in runs))
    return fed_back


def embed_weights(model: Model, proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return `proto`, a form of `model`, with its weights in memory; large models keep them in the file."""
    as_it_is = is_large(model.proto) or not any(map(is_external, proto.graph.initializer))
    return proto if as_it_is else with_weights(proto)


def with_unique_names(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy with unique node names; ONNX allows duplicates, ONNX Runtime rejects them.

    Operators of new opsets that ONNX Runtime lacks are written out.
    """
    proto = deepcopy(model)
    name_nodes(proto)
    make_runnable(proto)
    return proto
