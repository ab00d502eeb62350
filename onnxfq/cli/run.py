"""`onnxfq run`: `quantize` with the options of a job file."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from onnxfq.cli.console import Printing
from onnxfq.cli.guard import OUTPUTS
from onnxfq.cli.main import build_app
from onnxfq.cli.option_groups import expand_groups
from onnxfq.cli.quantize import quantize
from onnxfq.errors import OnnxfqError
from onnxfq.support.outputs import check_apart


def run(
    job: Annotated[
        Path | None, typer.Argument(metavar="[JOB]", help="The job file of `quantize --write-job`.")
    ] = None,
    schema: Annotated[
        bool, typer.Option("--schema", help="Print the JSON schema of job files, for editors.")
    ] = False,
    *,
    printer: Printing,
) -> None:
    """Run `quantize` with the options of a YAML file; paths are relative to that file."""
    from onnxfq.cli.job import job_arguments, job_type, read_job

    command = expand_groups(quantize)
    if schema:
        draft = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
        typer.echo(json.dumps(draft | job_type(command).model_json_schema(), indent=2))
        return
    if job is None:
        raise typer.BadParameter("give a job file, or --schema")
    fields = read_job(job, command)
    for output in (fields[name] for name in OUTPUTS if name in fields):
        check_apart(job.parent / output, [job])
    words = [f"--{name}" for name in ("quiet", "verbose") if getattr(printer, name)]
    words += ["--json"] if printer.as_json else []
    with _working_folder(job.parent):
        try:
            arguments = ["quantize", *words, *job_arguments(fields)]
            code = build_app(["quantize"])(args=arguments, standalone_mode=False)
        except OnnxfqError as error:
            raise type(error)(f"{job}: {error}") from None
    if code:
        raise typer.Exit(code)


@contextmanager
def _working_folder(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
