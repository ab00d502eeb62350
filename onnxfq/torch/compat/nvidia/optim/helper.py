"""`pytorch_quantization.optim.helper`: groups of parameters by name, and rounding of weights in place."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn

from onnxfq.errors import ArgumentError
from onnxfq.torch.arguments import check_functions

Patterns = Sequence[str]


def match_parameters(model: nn.Module, patterns: Patterns) -> Iterator[nn.Parameter]:
    """Yield the parameters in whose name one of the regular expressions is found, each once."""
    for name, parameter in model.named_parameters():
        if any(re.search(pattern, name) for pattern in patterns):
            yield parameter


def group_parameters(
    model: nn.Module,
    patterns_list: Sequence[Patterns],
    lrs: Sequence[float] | None = None,
    momentums: Sequence[float] | None = None,
    weight_decays: Sequence[float] | None = None,
) -> list[dict[str, Any]]:
    """Return one group for an optimizer of torch for each list of patterns.

    Args:
        model: the module.
        patterns_list: lists of regular expressions; a parameter should match one list only.
        lrs: learning rate of each group.
        momentums: momentum of each group.
        weight_decays: weight decay of each group.

    Raises ArgumentError for patterns that are not a list, and for another number of settings than of groups.
    """
    if wrong := [one for one in patterns_list if not isinstance(one, list)]:
        raise ArgumentError(f"patterns_list must be list of list of patterns, got {wrong[0]!r} in it")
    settings = {"lr": lrs, "momentum": momentums, "weight_decay": weight_decays}
    for name, values in settings.items():
        if values is not None and len(values) != len(patterns_list):
            raise ArgumentError(f"{name}s must match the {len(patterns_list)} groups, got {len(values)}")
    given = {name: values for name, values in settings.items() if values is not None}
    return [
        {"params": match_parameters(model, patterns)} | {name: values[i] for name, values in given.items()}
        for i, patterns in enumerate(patterns_list)
    ]


def freeze_parameters(model: nn.Module, patterns: Patterns) -> None:
    """Let the parameters that match have no gradient."""
    for parameter in match_parameters(model, patterns):
        parameter.requires_grad = False


@torch.no_grad()  # type: ignore[untyped-decorator]
def quant_weight_inplace(model: nn.Module) -> None:
    """Replace the weight of each quantized layer by its quantized values."""
    for module in model.modules():
        quantizer = getattr(module, "_weight_quantizer", None)
        if quantizer is not None and isinstance(getattr(module, "weight", None), nn.Parameter):
            module.weight.data.copy_(quantizer(module.weight))


check_functions(globals())
