"""The table of functions of torch's exporter, made once in a process: half of the time of a small export."""

from __future__ import annotations

import copy
import functools

from torch._export import utils
from torch.onnx._internal.exporter import _registration


def keep_functions() -> None:
    """Let each export take a copy of one table; torch would read the sources of 500 functions again.

    Nor does it ask 54 times for the operators of all libraries, of which tests add none.
    """
    for name in ("_materialize_cpp_cia_ops", "_collect_all_valid_cia_ops_for_namespace"):
        setattr(utils, name, functools.cache(getattr(utils, name)))
    table = _registration.ONNXRegistry
    made = functools.cache(table.from_torchlib)

    def from_torchlib(**version: int) -> _registration.ONNXRegistry:
        kept = copy.copy(made(**version))
        kept.functions = {target: list(found) for target, found in kept.functions.items()}
        return kept

    table.from_torchlib = staticmethod(from_torchlib)


def export_once() -> None:
    """Keep the functions and all else that a first export makes, for processes that are forked later."""
    import torch

    from onnxfq.torch import export_torch

    keep_functions()
    export_torch(torch.nn.Linear(1, 1), (torch.ones(1, 1),))
