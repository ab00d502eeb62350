"""Code of the user: functions named `module:function`, calibrators, and their faults in one line."""

from __future__ import annotations

import importlib
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from onnxfq.errors import DataError, OnnxfqError, nearest
from onnxfq.support.records import join_lines

FUNCTION_NAME = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")

_PACKAGE = str(Path(__file__).parents[1])
_LIBRARIES = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "purelib", "platlib"))


def import_function(text: str, option: str) -> Any:
    """Import `module:name`, with the current folder first on the path, and last afterwards.

    Args:
        text: the module and the name.
        option: what names it, for the message.

    Raises DataError for a module that cannot be imported, or that lacks the name.
    """
    module_name, _, name = text.partition(":")
    if module_name.endswith(".py"):
        raise DataError(f"{option} {text} names a file; write the module, {module_name[:-3]}:{name}")
    here = os.getcwd()
    is_new = here not in sys.path
    if is_new:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except BaseException as fault:  # the module is the user's and may raise anything
        if _passes(fault):
            raise
        what = f"cannot import {module_name!r} of {option} {text}"
        raise DataError(f"{what} {_describe(fault)}; run from its folder, or repair it") from fault
    finally:
        if is_new:  # later imports of the module find it, and it hides no library
            sys.path.remove(here)
            sys.path.append(here)
    if not hasattr(module, name):
        known = [key for key, value in vars(module).items() if callable(value) and key[:1] != "_"]
        raise DataError(
            f"module {module_name!r} has no {name!r}{nearest(name, known) or '; name a function of it'}"
        )
    return getattr(module, name)


@contextmanager
def faults_of(name: str, error: type[OnnxfqError] = DataError, takes: str = "") -> Iterator[None]:
    """Turn an exception of the user's code `name`, which `takes` that, into an `error` of one line.

    SystemExit and all others; Ctrl-C and errors of this package pass unchanged.
    """
    try:
        yield
    except BaseException as fault:
        if _passes(fault):
            raise
        raise error(f"{name} failed {_describe(fault)}; repair it{takes}") from fault


def _passes(fault: BaseException) -> bool:
    return isinstance(fault, OnnxfqError) or type(fault) is KeyboardInterrupt


def _describe(fault: BaseException) -> str:
    """Return type, message and place of an exception."""
    try:
        text = f": {join_lines(fault)}"
    except Exception:  # the message is code of the user too
        text = ""
    return f"({type(fault).__name__}{text}){_place(fault)}"


def _place(fault: BaseException) -> str:
    """Return the last line of the user that the exception came through; empty if there is none."""
    if isinstance(fault, SyntaxError) and fault.filename:
        return f" in line {fault.lineno} of {fault.filename}"
    frames = traceback.extract_tb(fault.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith((_PACKAGE, "<", *_LIBRARIES))]
    return f" in line {own[-1].lineno} of {own[-1].filename}" if own else ""
