"""What `quantize` reads before its first stage: the model in its forms, the data, room for weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import onnx

from onnxfq.data import Data, Feed
from onnxfq.data.replay import KeptFeeds
from onnxfq.documents.recipe import Recipe
from onnxfq.graph.external.scratch_file import Scratch, scratch_for, weights_in
from onnxfq.graph.external.sizes import is_large
from onnxfq.graph.external.weightless import with_weights
from onnxfq.graph.io.load import normalised, read_model
from onnxfq.graph.model import Model
from onnxfq.graph.normalize.steps import name_nodes
from onnxfq.runtime.device_choice import choose_device
from onnxfq.runtime.type_inference import lacks_ranks, with_run_ranks
from onnxfq.stages.options import RunOptions, open_feeds


@dataclass(frozen=True)
class QuantizeInputs:
    """A model and its data.

    Attributes:
        reference: the float model as it was given, to compare with.
        model: the normalised model.
        ranked: the same for planning, with ranks that only a run tells.
        feeds: the data; None without any.
        runs: how many feeds a pass has, where known.
        scratch: where large weights are kept while models are made.
    """

    reference: onnx.ModelProto
    model: Model
    ranked: Model
    feeds: KeptFeeds | None
    runs: int | None
    scratch: Scratch | None

    @property
    def kept(self) -> list[Feed]:
        """The feeds that a pass over the data has kept."""
        return [] if self.feeds is None else self.feeds.feeds

    def take_in(self, proto: onnx.ModelProto) -> onnx.ModelProto:
        """Return `proto` with its weights in memory, but for large models."""
        return proto if self.scratch is None or is_large(self.model.proto) else with_weights(proto)


def open_inputs(
    model: str | Path | onnx.ModelProto,
    data: Data | None,
    recipe: Recipe,
    options: RunOptions,
    *,
    output: str | Path | None = None,
    observed: bool = False,
) -> QuantizeInputs:
    """Read and normalise `model`, and open `data`.

    Args:
        model: a path or a ModelProto, which is not changed.
        data: as `quantize` takes it, or None.
        recipe: says how a model that is quantized already is loaded.
        options: how the data is read.
        output: large temporary weights go to the file system that it goes to.
        observed: whether statistics are given, so that no run is needed for ranks.

    Raises:
        ModelError: for a model that cannot be read.
        DataError: for data that cannot be opened.
        RuntimeLibraryError: for a device that cannot be used.
    """
    choose_device(options.device)  # a missing device is an error now, not after the plan
    folder = None if output is None else Path(output).parent
    # A given model is held once by its owner, and not a second time.
    scratch = scratch_for(model, folder) if isinstance(model, onnx.ModelProto) else None
    with weights_in(scratch):
        proto, sha256, source = read_model(model)
    reference = with_unique_names(proto)
    loaded = ranked = normalised(proto, sha256, source, recipe.existing)
    opened = None if data is None else open_feeds(loaded.proto, data, options.batch, options.data)
    feeds = None if opened is None else KeptFeeds(opened)
    if feeds is not None and not observed and lacks_ranks(loaded):
        ranked = with_run_ranks(loaded, feeds.read_first())
    runs = None if opened is None else opened.runs
    return QuantizeInputs(
        reference, loaded, ranked, feeds, runs, scratch or scratch_for(loaded.proto, folder)
    )


def with_unique_names(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy as it is, but for doubled node names, which ONNX allows and ONNX Runtime refuses."""
    proto = onnx.ModelProto()
    proto.CopyFrom(model)
    name_nodes(proto)
    return proto
