"""`onnxfq quantize`: all stages in a row."""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

from onnxfq.choices import DEFAULT_RECIPE, REPAIR_AUTO, THOROUGH, FloatName, RepairWord, Uncalibrated
from onnxfq.cli.build_options import BuildChoice, GpuOption, TimeOption, note_gpus
from onnxfq.cli.console import Printing
from onnxfq.cli.data_options import NoDataOption, OptionalDataOption, read_data
from onnxfq.cli.option import ACCURACY, KNOWN, PRINTED, RECIPE, flag, option, refuse
from onnxfq.cli.options import (
    CustomOpsOption,
    GivenOption,
    ModelArgument,
    MomentsOption,
    OutputOption,
    PageOption,
    PromiseOptions,
    PythonOption,
    RayOption,
    RecipeChanges,
    RecipesOption,
    StatisticsOption,
)
from onnxfq.cli.quantize_outputs import QuantizeOutputs
from onnxfq.cli.run_options import Running

OFF = "off"
"""Word of --repair for no remedy at all."""

_UNCALIBRATED = option(
    None, "Without data, stop at activations that --encodings lacks, or keep them in float.", panel=KNOWN
)
_FLOAT = option(
    "fp32|fp16|bf16", "Set the precision of operators that stay in float.", "--float", panel=RECIPE
)
_FLOAT_IO = flag("Cast inputs and outputs to the type of --float too.", "--float-io", panel=RECIPE)
_RUNTIME = option("onnxruntime==X", "Write opset and IR version for this release, or fail.", panel=RECIPE)
_REPAIR = option(
    "off|auto|thorough|DB",
    "Try remedies; also those that cost speed if outputs are below DB (auto: 20); thorough: no time limit.",
    panel=ACCURACY,
)
_THUMBNAILS = flag(
    "Show pictures of the worst samples in the report: your data.", "--thumbnails", panel=PRINTED
)
_ARTIFACTS = option(
    "DIR", "Write plan, statistics, encodings, result and fake-quant model to this folder.", panel=PRINTED
)


def quantize(
    model: ModelArgument,
    output: OutputOption,
    data: OptionalDataOption = None,
    no_data: NoDataOption = False,
    recipe: RecipesOption = None,
    gpu: GpuOption = None,
    *,
    promise: PromiseOptions,
    report: PageOption = None,
    repair: Annotated[str, _REPAIR] = REPAIR_AUTO,
    changes: RecipeChanges,
    float_type: Annotated[FloatName, _FLOAT] = "fp32",
    float_io: Annotated[bool, _FLOAT_IO] = False,
    runtime: Annotated[str | None, _RUNTIME] = None,
    statistics: StatisticsOption = None,
    moments: MomentsOption = None,
    encodings: GivenOption = None,
    uncalibrated: Annotated[Uncalibrated, _UNCALIBRATED] = "error",
    running: Running,
    ray: RayOption = None,
    python: PythonOption = None,
    custom_ops: CustomOpsOption = None,
    building: BuildChoice,
    time: TimeOption = False,
    artifacts: Annotated[Path | None, _ARTIFACTS] = None,
    thumbnails: Annotated[bool, _THUMBNAILS] = False,
    printer: Printing,
) -> None:
    """--data is optional with --statistics or --encodings, and for recipes that observe nothing.

    Several --recipe observe the data once, write MODEL.RECIPE.onnx each into the folder OUT, and print one
    table.
    """
    from onnxfq.documents.cast_plan import FloatOptions
    from onnxfq.interchange.genai_builder import built_folder
    from onnxfq.judging.candidate import Sources
    from onnxfq.quantizing import pipeline
    from onnxfq.stages.options import QuantizeOptions

    refuse(
        thumbnails and (report is None or len(recipe or ()) > 1),
        "--thumbnails is for the report of one recipe; give --report too",
    )
    gpus = tuple(gpu or ())
    build = None if building.options is None else replace(building.options, gpus=gpus)
    chosen = [replace(changes, recipe=name).load() for name in recipe or [DEFAULT_RECIPE]]
    given = read_data(data, no_data)
    refuse(time and given is None, "--time needs a sample; give --data")
    building.check()
    refuse(
        float_io and float_type == "fp32",
        "--float-io needs --float fp16 or bf16; inputs and outputs are fp32 already",
    )
    sources = Sources(statistics, moments, encodings, uncalibrated)
    accuracy = promise.to_target(_read_repair(repair))
    note_gpus(gpu, printer)
    near = output.absolute().parent
    # The result reads weights of a folder that is built until the command ends.
    with (
        running.progress(printer) as options,
        nullcontext(model) if python is None else built_folder(model, python, near) as opened,
    ):
        outputs = QuantizeOutputs(opened, output, report, artifacts, time, build, printer, thumbnails)
        how, floats = QuantizeOptions.of(options), FloatOptions(float_type, float_io)
        how = replace(how, floats=floats, runtime=runtime, gpus=gpus, ray=ray)
        chain = partial(
            pipeline.quantize, opened, given, output, sources=sources, accuracy=accuracy, options=how
        )
        outcome = chain(recipe=chosen[0] if len(chosen) == 1 else chosen)
        if isinstance(outcome, list):
            outputs.show_outcomes(outcome, options)
        else:
            outputs.show_result(outcome, options)


def _read_repair(text: str) -> float | RepairWord | None:
    """Return the word or the SQNR in dB of --repair; None for off."""
    if text == OFF:
        return None
    if text == REPAIR_AUTO or text == THOROUGH:
        return text
    try:
        wanted = float(text)
    except ValueError:
        wanted = math.nan
    refuse(
        not math.isfinite(wanted), f"--repair takes off, auto, thorough or a number of dB, got {text!r:.40}"
    )
    return wanted
