"""Job files: the options of `quantize` in YAML, with paths relative to the file."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, get_args

import pydantic
import typer
import yaml

from onnxfq.cli.known_names import fill_text
from onnxfq.documents.recipe import RECIPES
from onnxfq.errors import RecipeError
from onnxfq.support.files import write_text
from onnxfq.support.records import Record, read_document

_LEFT_OUT = ("write_job", "as_json", "verbose", "quiet")
"""Options that choose what is printed, and where the job is written; they do not change results."""

_NAMES_OR_PATHS = ("data", "example", "recipe")
"""Options whose text may name a file or something else."""


class _Job(Record):
    model_config = pydantic.ConfigDict(coerce_numbers_to_str=True)


def job_type(command: Callable[..., None]) -> type[Record]:
    """Return the record of a job file: a field for every option of `command` that changes its results.

    Args:
        command: `quantize` with its groups of options expanded.
    """
    fields: dict[str, Any] = {
        key: (
            kind,
            pydantic.Field(
                ... if default is inspect.Parameter.empty else default,
                description=text,
                ge=getattr(option, "min", None),
                le=getattr(option, "max", None),
            ),
        )
        for key, kind, option, default, text in _fields(command)
    }
    doc = "A job of `onnxfq run`: options of `onnxfq quantize`."
    return pydantic.create_model("Job", __base__=_Job, __doc__=doc, **fields)


def _fields(command: Callable[..., None]) -> Iterator[tuple[str, Any, Any, Any, str]]:
    for name, parameter in inspect.signature(command).parameters.items():
        kind, *marks = get_args(parameter.annotation) or (None,)
        if marks and name not in _LEFT_OUT:
            (option,) = marks
            # In an annotation, typer keeps the first declaration as the default.
            key = _key(name, [str(option.default), *(option.param_decls or ())])
            yield key, kind, option, parameter.default, fill_text(option.help)


def _key(name: str, declarations: Iterable[str]) -> str:
    """Return the field of the parameter `name`: its long option with underscores."""
    long = [one for one in declarations if one.startswith("--")]
    return long[0][2:].replace("-", "_") if long else name


def read_job(path: Path, command: Callable[..., None]) -> dict[str, Any]:
    """Return the given fields of a job file. Raises RecipeError in one line for any fault."""
    return read_document(path, job_type(command), RecipeError).model_dump(exclude_unset=True)


def job_arguments(job: dict[str, Any]) -> Iterator[str]:
    """Yield the command line of a job without the name of the command; the model comes last."""
    for key, value in job.items():
        option = "--" + key.replace("_", "-")
        for one in value if isinstance(value, list) else [value]:
            if one is True:
                yield option
            elif one is not None and one is not False and key != "model":
                yield f"{option}={one}"
    yield from ("--", str(job["model"]))


def write_job(path: Path, context: typer.Context) -> None:
    """Write the options of the command line of `context`, with paths relative to the folder of `path`."""
    folder = path.absolute().parent
    options = {
        _key(one.name, one.opts): _relative(context.params[one.name], one, folder)
        for one in context.command.params
        if one.name in context.params and one.name not in _LEFT_OUT and _is_given(context, one.name)
    }
    write_text(path, yaml.safe_dump(options, sort_keys=False))


def _relative(value: Any, option: Any, folder: Path) -> Any:
    """Return the value of an option for a job in `folder`; a path is made relative."""
    if isinstance(value, (list, tuple)):
        return [_relative(one, option, folder) for one in value]
    # Older releases of typer hold paths as text with a type here.
    is_path = isinstance(value, Path) or getattr(getattr(option, "type", None), "name", "") == "path"
    if is_path or (option.name in _NAMES_OR_PATHS and _is_path(value)):
        return Path(os.path.relpath(value, folder)).as_posix()
    return value


def _is_path(text: str) -> bool:
    """Tell files and folders from the name of a recipe and from module:function, as the options do."""
    return Path(text).suffix in (".yaml", ".yml", ".json") or (text not in RECIPES and os.path.exists(text))


def _is_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name != "DEFAULT"
