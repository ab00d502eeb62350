"""Functions of the user, named `module:function`, and their faults in one line."""

from __future__ import annotations

import importlib
import os
import re
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from onnxfq.errors import DataError, OnnxfqError, nearest
from onnxfq.support.records import join_lines

FUNCTION_NAME = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


def import_function(text: str, option: str) -> Any:
    """Import `module:name`, with the current folder on the path as for `python -m`.

    Args:
        text: the module and the name.
        option: what names it, for the message.

    Raises DataError for a module that cannot be imported, or that lacks the name.
    """
    module_name, _, name = text.partition(":")
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as fault:  # the module is the user's and may raise anything
        raise DataError(
            f"cannot import {module_name!r} of {option} {text} ({type(fault).__name__}: {join_lines(fault)});"
            " run from its folder, or repair it"
        ) from fault
    if not hasattr(module, name):
        known = [known for known in vars(module) if not known.startswith("_")]
        raise DataError(
            f"module {module_name!r} has no {name!r}{nearest(name, known) or '; name a function of it'}"
        )
    return getattr(module, name)


@contextmanager
def faults_of(name: str) -> Iterator[None]:
    """Turn an exception of the user's function `name` into a DataError of one line."""
    try:
        yield
    except OnnxfqError:
        raise
    except KeyboardInterrupt:
        raise
    except BaseException as fault:  # the function is the user's
        place = traceback.extract_tb(fault.__traceback__)[-1]
        raise DataError(
            f"{name} failed ({type(fault).__name__}: {join_lines(fault)}) in line {place.lineno} of "
            f"{place.filename}; repair it"
        ) from fault
