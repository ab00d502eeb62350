"""`onnxfq plan`: the tensors to quantize, their formats, and the reasons for float."""

from __future__ import annotations

from onnxfq.cli.console import say
from onnxfq.cli.data_options import with_data_options
from onnxfq.cli.options import (
    BATCH,
    BatchOption,
    CustomOpsOption,
    EqualizeOption,
    GivenOption,
    JsonOption,
    KeepOption,
    ModelArgument,
    OptionalDataOption,
    OutputOption,
    QuietOption,
    RecipeOption,
    RequantizeOption,
    choose_recipe,
)
from onnxfq.data import DataOptions
from onnxfq.documents.recipe import DEFAULT_RECIPE
from onnxfq.graph.io.load import load
from onnxfq.report.text import plan_summary
from onnxfq.runtime.type_inference import lacks_ranks, with_run_ranks
from onnxfq.stages.encoding_sources import plan_encodings
from onnxfq.stages.options import open_feeds
from onnxfq.targets.registry import prepare_model


@with_data_options
def plan(
    model: ModelArgument,
    output: OutputOption,
    described: DataOptions,
    data: OptionalDataOption = None,
    batch: BatchOption = BATCH,
    recipe: RecipeOption = DEFAULT_RECIPE,
    encodings: GivenOption = None,
    equalize: EqualizeOption = None,
    keep_existing: KeepOption = False,
    requantize: RequantizeOption = False,
    custom_ops: CustomOpsOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Write a plan: a JSON file to read, edit and pass to the next stages.

    --data provides one feed to infer the tensor ranks that ONNX cannot infer.
    """
    chosen = choose_recipe(recipe, keep_existing, requantize, equalize)
    loaded = prepare_model(load(model, chosen.existing), chosen.target)
    unknown = lacks_ranks(loaded)
    feeds = None if data is None else open_feeds(loaded.proto, data, batch, described)
    ranked = with_run_ranks(loaded, next(iter(feeds))) if unknown and feeds is not None else loaded
    planned = plan_encodings(ranked, chosen, encodings)
    planned.plan.save(output)
    notes = list(loaded.notes)
    if unknown and feeds is None:
        more = f" and {len(unknown) - 1} more" if len(unknown) > 1 else ""
        notes.append(
            f"no rank is known of {unknown[0]!r}{more}; rules by axis do not apply there; "
            "--data infers ranks from one run"
        )
    if any(chosen.channel_methods[:2]):
        notes.append(
            "the plan is for the model as it is: `onnxfq quantize --artifacts` equalizes channels "
            "across layers and writes the equalized model with its plan"
        )
    for note in notes:
        say(f"note       {note}", quiet, err=as_json)
    if as_json:
        say(planned.plan.model_dump_json(indent=2))
    else:
        say(plan_summary(planned.plan), quiet)
    for line in planned.lines():
        say(line, quiet, err=as_json)
    say(f"wrote      {output}", quiet or as_json)
