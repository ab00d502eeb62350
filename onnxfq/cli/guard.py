"""Guard of every command: it has memory, replaces no input, and its outputs appear together or not at all."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterator
from itertools import chain, combinations
from pathlib import Path
from typing import Any

import typer

from onnxfq.cli.artifacts import artifact_paths, node_data_paths
from onnxfq.cli.console import arguments
from onnxfq.cli.streams import keep_output_clean
from onnxfq.errors import OnnxfqError, OutputError
from onnxfq.support.files import check_place, check_writable
from onnxfq.support.memory import check_limits
from onnxfq.support.other_words import MODEL_FILES
from onnxfq.support.outputs import check_apart, write_together

OUTPUTS = ("output", "report", "artifacts", "table_csv", "recipe_out", "node_data")
"""Parameters of commands that name files and folders to write; all others name inputs, if files."""

FOLDERS = ("handoff", "demo")
"""Commands whose output is a folder."""

FILE_OR_FOLDER = ("convert",)
"""Commands whose output is a folder unless it ends in .onnx."""

DOCUMENTS = (".csv", ".doc", ".docx", ".jpg", ".json", ".md", ".pdf", ".png", ".svg", ".txt", ".xml")
"""Endings of pages in formats that are not written."""

_MODEL = "model"


def guard_files(command: Callable[..., None]) -> Callable[..., None]:
    """Return `command` with its outputs checked before it runs and named after it.

    A command that ends with an exit code, as after Ctrl-C, keeps the files it has written.
    """

    @functools.wraps(command)
    def run(**given: Any) -> None:
        check_limits()
        from onnxfq.graph.io.data_paths import check_keeps_data, data_files

        outputs = [Path(given[name]) for name in OUTPUTS if given.get(name) is not None]
        data = data_files(given.get(_MODEL)) if outputs else []
        inputs = [*_list_inputs(given), *data] if outputs else []
        folder, recipes = given.get("artifacts"), given.get("recipe")
        is_shared = isinstance(recipes, list) and len(recipes) > 1  # the output is a folder then
        inside = list(artifact_paths(folder, given[_MODEL]).values()) if folder is not None else []
        if given.get("node_data") is not None:
            check_writable(given["node_data"])  # its name is that of other files too
            inside += list(node_data_paths(given["node_data"]).values())[1:]
        for output in (*outputs, *inside):
            check_apart(output, inputs)
            check_keeps_data(output, data)
            if output.suffix.lower() in MODEL_FILES and command.__name__ not in FOLDERS:
                raise OutputError(
                    f"{output}: nothing writes {output.suffix} here; give a name that ends in .onnx"
                )
        is_folder = command.__name__ in FILE_OR_FOLDER and outputs and outputs[0].suffix != ".onnx"
        for output in outputs if command.__name__ not in FOLDERS and not is_folder else ():
            if output == folder:
                check_place(output)
            elif not (is_shared and output == outputs[0]):
                check_writable(output)
                named = any(word.endswith(f"{output}{os.sep}") for word in arguments.get())
                if named and not os.path.isdir(given.get(_MODEL) or ""):
                    raise OutputError(f"{output}{os.sep} is the name of a folder; name the file in it")
        for one, other in combinations([*outputs, *inside], 2):
            check_apart(one, [other])
        page = given.get("output" if command.__name__ == "report" else "report")
        if page is not None and page.suffix.lower() in DOCUMENTS:
            raise OutputError(f"{page}: the page is HTML; give a name that ends in .html")
        ended: typer.Exit | None = None
        with write_together(outputs, inputs):
            try:
                with keep_output_clean():
                    command(**given)
            except typer.Exit as exit_code:
                ended = exit_code
            except BrokenPipeError as error:  # typer would take it for a closed standard output
                raise OnnxfqError(
                    f"the connection to another process ended ({error}); run it again"
                ) from None
        if ended is not None:
            raise ended

    return run


def _list_inputs(given: dict[str, Any]) -> Iterator[Path]:
    """Yield the files and folders that the parameters name, and the files that belong to them."""
    from onnxfq.documents.array_file import array_path

    for name, value in given.items():
        for text in value if isinstance(value, (list, tuple)) else (value,):
            if name in OUTPUTS or not isinstance(text, (str, Path)) or not str(text):
                continue
            if os.path.exists(text):  # unlike Path.exists, it raises for no name
                yield Path(text)
                if os.path.isfile(text) and array_path(text).exists():
                    yield array_path(text)
            elif ":" in str(text):
                yield from _module_files(str(text).partition(":")[0])


def _module_files(module: str) -> Iterator[Path]:
    """Yield the file of a module that the current folder or Python's path has, without importing it."""
    parts = module.split(".")
    for folder in chain([Path.cwd()], map(Path, sys.path)):
        for path in (folder.joinpath(*parts).with_suffix(".py"), folder.joinpath(*parts, "__init__.py")):
            if os.path.isfile(path):
                yield path
