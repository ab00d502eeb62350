"""`onnxfq plan`: the tensors to quantize, their formats, and the reasons for float."""

from __future__ import annotations

from dataclasses import replace

from onnxfq.choices import DEFAULT_BATCH
from onnxfq.cli.build_options import GpuOption, note_gpus
from onnxfq.cli.console import Printing
from onnxfq.cli.data_options import Described, NoDataOption, OptionalDataOption, read_data
from onnxfq.cli.options import CustomOpsOption, GivenOption, ModelArgument, OutputOption, PlannedRecipe
from onnxfq.cli.run_options import BatchOption
from onnxfq.cli.streams import show


def plan(
    model: ModelArgument,
    output: OutputOption,
    data: OptionalDataOption = None,
    no_data: NoDataOption = False,
    batch: BatchOption = DEFAULT_BATCH,
    encodings: GivenOption = None,
    gpu: GpuOption = None,
    custom_ops: CustomOpsOption = None,
    *,
    described: Described,
    recipe: PlannedRecipe,
    printer: Printing,
) -> None:
    """OUT is a JSON file to read, edit and pass to the next stages.

    --data provides one feed to infer the tensor ranks that ONNX cannot infer.
    """
    from onnxfq.data import DrawnInputs
    from onnxfq.documents.plan_text import plan_summary
    from onnxfq.execution.drawn_inputs import draw_inputs
    from onnxfq.quantized.existing import load_existing
    from onnxfq.runtime.type_inference import lacks_ranks, with_run_ranks
    from onnxfq.stages.options import open_feeds
    from onnxfq.stages.planned_encodings import plan_encodings
    from onnxfq.targets.target import prepare_model, target_by_name

    note_gpus(gpu, printer)
    chosen = recipe.load()
    hardware = target_by_name(chosen.target).hardware
    if gpu and hardware is not None:
        hardware.refuse(chosen, gpu)
    loaded = prepare_model(load_existing(model, chosen.existing), chosen.target)
    unknown = lacks_ranks(loaded)
    given = read_data(data, no_data)
    if isinstance(given, DrawnInputs):
        given = draw_inputs(loaded.proto, replace(described, limit=1))  # ranks need one
    feeds = None if given is None else open_feeds(loaded.proto, given, batch, described)
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
    if any(chosen.channel_methods[:2]) or chosen.rotate != "none":
        notes.append(
            "the plan is for the model as it is: `onnxfq quantize --artifacts` equalizes or rotates channels "
            "across layers and writes the changed model with its plan"
        )
    for note in notes:
        printer.note(f"note       {note}")
    if printer.as_json:
        show(planned.plan.model_dump_json(indent=2))
    printer.say(plan_summary(planned.plan))
    for line in planned.lines():
        printer.note(line)
    printer.wrote(output)
