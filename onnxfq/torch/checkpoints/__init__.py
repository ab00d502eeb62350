"""Checkpoints of other libraries, one format a file: `load_checkpoint` and `save_checkpoint`.

| format   | written by                                                      |
|----------|-----------------------------------------------------------------|
| torch-ao | torch.ao's eager QAT: `prepare_qat`, with or without fusion      |
| horizon  | Horizon's plugin, whose documented keys are torch.ao's           |
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from torch import Tensor, nn

from onnxfq.errors import ModelError, nearest
from onnxfq.torch.arguments import checked
from onnxfq.torch.checkpoints import horizon, torch_ao
from onnxfq.torch.checkpoints.files import read_state, write_state
from onnxfq.torch.quantizer import quantizers

__all__ = ["FORMATS", "load_checkpoint", "save_checkpoint"]

log = logging.getLogger(__name__)

State = dict[str, Any]


class CheckpointFormat(NamedTuple):
    """Keys of one library.

    Attributes:
        read: (module, its state) -> (state of ours, keys that no quantizer needs).
        write: module -> (state of theirs, quantizers that it cannot hold).
    """

    read: Callable[[nn.Module, State], tuple[State, list[str]]]
    write: Callable[[nn.Module], tuple[State, list[str]]]


FORMATS: dict[str, CheckpointFormat] = {
    "torch-ao": CheckpointFormat(torch_ao.read, torch_ao.write),
    "horizon": CheckpointFormat(horizon.read, horizon.write),
}


@checked
def load_checkpoint(
    model: nn.Module, source: str | os.PathLike[str] | Mapping[str, Tensor], format: str
) -> tuple[str, ...]:
    """Load a checkpoint of another library into a module of `quantize_module`.

    Args:
        model: the module, quantized with the number formats of the checkpoint.
        source: a state dict, a file of `torch.save`, which is read without unpickling code, or .safetensors.
        format: a key of `FORMATS`.

    Returns the names of quantizers in the checkpoint that the module does not have, for example
    quantizers of outputs.
    Raises ModelError for an unknown format, an unreadable file, and a module that is not quantized or lacks
    values; SpecError for another number format. After an error the module may hold a part.
    """
    chosen = _format(format)
    if not quantizers(model):
        raise ModelError(f"{type(model).__name__} has no quantizers; call quantize_module first")
    ours, rest = chosen.read(model, read_state(source))
    try:
        model.load_state_dict(ours)
    except RuntimeError as error:
        if isinstance(error, ValueError):  # a state dict of ours in another number format
            raise
        line = " ".join(str(error).split())
        raise ModelError(f"the checkpoint does not fit {type(model).__name__}: {line[:300]}") from None
    if rest:
        log.warning("the module has no quantizers for %d of the checkpoint: %s", len(rest), ", ".join(rest))
    return tuple(rest)


@checked
def save_checkpoint(model: nn.Module, path: str | os.PathLike[str] | None, format: str) -> dict[str, Tensor]:
    """Return the state of a module of `quantize_module` with the keys of another library.

    Args:
        model: the module, with all scales.
        path: the file to write, by `torch.save`, or as .safetensors by its suffix; None writes none.
        format: a key of `FORMATS`.

    Quantizers for which the library has no key, for example the module's own inputs, are left out, and a
    log line names them. Raises ModelError for an unknown format or a missing scale.
    """
    state, rest = _format(format).write(model)
    if rest:
        log.warning("format %s has no key for %d quantizers: %s", format, len(rest), ", ".join(rest))
    write_state(state, path)
    return state


def _format(name: str) -> CheckpointFormat:
    if name not in FORMATS:
        raise ModelError(f"unknown format of checkpoints {name!r}{nearest(str(name), FORMATS)}")
    return FORMATS[name]
