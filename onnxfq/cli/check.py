"""`onnxfq check`: nodes that the target would reject, run in float or compute wrongly."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import Annotated, Literal

import typer

from onnxfq.choices import DEFAULT_TARGET
from onnxfq.cli.build_options import BuildChoice, GpuOption, note_gpus
from onnxfq.cli.console import PrintingAll
from onnxfq.cli.option import BUILDING, PRINTED, flag, option, refuse
from onnxfq.cli.options import ModelArgument
from onnxfq.errors import OnnxfqError

_TARGET = option(
    "NAME",
    "Use the rules of this target: {checked_targets}.",
    show_default=f"that of the model, else {DEFAULT_TARGET}",
)
_LAYERS = option(
    "FILE",
    "Read what an engine on the real GPU runs: layers.json of the scripts of `handoff`.",
    panel=BUILDING,
)
_PROFILE = option("FILE", "Add the times of its layers: profile.json of the same run.", panel=BUILDING)
_NO_BUILD = flag(
    "Read the file alone. By default a file for target onnxruntime is opened in ONNX Runtime too.",
    "--no-build",
    panel=BUILDING,
)
_AGAINST = option(
    "half",
    "With --build, also build the same graph without pairs, and compare kernels and bytes (target tensorrt).",
    panel=BUILDING,
)


def _explain(code: str | None) -> None:
    """Print the text of a rule, and end."""
    if code is not None:
        from onnxfq.tools.explain_rules import explain_rule

        typer.echo(explain_rule(code))
        raise typer.Exit


_EXPLAIN = option(
    "CODE",
    "Print what a rule looks for and why.",
    panel=PRINTED,
    kind="rules",
    callback=_explain,
    is_eager=True,
)
_IGNORE = option("CODE", "Leave out the findings of this rule (repeatable).", "--ignore", kind="rules")
_GITHUB = flag("Also print findings as annotations of GitHub Actions.", "--github", panel=PRINTED)


def check(
    model: ModelArgument,
    target: Annotated[str | None, _TARGET] = None,
    gpu: GpuOption = None,
    *,
    building: BuildChoice,
    no_build: Annotated[bool, _NO_BUILD] = False,
    against: Annotated[Literal["half"] | None, _AGAINST] = None,
    layers: Annotated[Path | None, _LAYERS] = None,
    profile: Annotated[Path | None, _PROFILE] = None,
    ignore: Annotated[list[str] | None, _IGNORE] = None,
    github: Annotated[bool, _GITHUB] = False,
    explain: Annotated[str | None, _EXPLAIN] = None,
    printer: PrintingAll,
) -> None:
    """Exits with 1 if the model breaks a rule of its target. Findings begin with the code of their rule."""
    from onnxfq.support.progress import show_progress
    from onnxfq.tools.check import check as check_model
    from onnxfq.tools.explain_rules import check_codes

    building.check()
    check_codes(ignore or [])
    refuse(profile is not None and layers is None, "--profile needs --layers of the same engine; add it")
    refuse(building.build and layers is not None, "--build and --layers exclude each other; give one")
    refuse(against and not building.build, "--against needs --build; add it")
    refuse(no_build and building.build, "--build and --no-build exclude each other; give one")
    options = building.options
    if options is not None and against:
        options = replace(options, against=against)
    note_gpus(gpu, printer)
    with show_progress(not printer.silent):
        result = check_model(
            model,
            target,
            build=False if no_build else options,
            layers=layers,
            profile=profile,
            gpus=gpu or (),
        )
    result = result.without(ignore or [])
    printer.say(f"target     {result.target}")
    printer.show(result)
    for line in result.annotations() if github else ():
        printer.say(line)
    if not result.passed:
        if layers is None and not printer.silent and (cure := _find_cure(model, result.target)):
            printer.say(f"cure       onnxfq {cure} -o OUT.onnx")
        raise typer.Exit(1)


def _find_cure(model: Path, target: str) -> str:
    """Return the command that makes another tool's model pass: there is no recipe to change."""
    from onnxfq.graph.io.load import read_model
    from onnxfq.interchange.genai_folder import find_decoder
    from onnxfq.quantized.forms import is_quantized
    from onnxfq.stages.insert import find_target
    from onnxfq.targets.target import target_by_name
    from onnxfq.tools.convert import convert

    with suppress(OnnxfqError):
        found = convert(model, target=target).check
        if found is not None and found.passed:
            return f"convert {quote(str(model))} --target {target}"
    proto, *_ = read_model(find_decoder(model))
    if find_target(proto) or not is_quantized(proto):
        return ""
    recipe = target_by_name(target).recipes[0].name
    return f"quantize {quote(str(model))} --requantize --recipe {recipe} --data DATA"
