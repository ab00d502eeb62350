"""What an ONNX export is asked for: example inputs, names, dynamic batch and opset, checked."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from onnxfq.errors import DataError, ModelError

BATCH = "batch"  # name of the dynamic axis


@dataclass(frozen=True)
class Request:
    """What the ONNX model is to look like; `arguments` maps forward's parameters to the example inputs.

    A parameter `*xs` of forward maps to the tuple of the tensors it takes.
    """

    arguments: Mapping[str, Tensor | tuple[Tensor, ...]]
    input_names: Sequence[str]
    output_names: Sequence[str] | None
    dynamic_batch: bool
    opset: int | None

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """Return the example inputs in the order of forward's parameters."""
        values = self.arguments.values()
        return tuple(x for value in values for x in (value if isinstance(value, tuple) else (value,)))

    @property
    def dynamic_names(self) -> list[str]:
        """Return the inputs whose axis 0 is to be dynamic: all but the scalars, which have no axis."""
        pairs = zip(self.input_names, self.inputs, strict=True)
        return [name for name, x in pairs if self.dynamic_batch and x.ndim]


def bind(model: nn.Module, inputs: Sequence[Tensor]) -> dict[str, Tensor | tuple[Tensor, ...]]:
    """Return which parameter of forward each input goes to. Raises DataError when they do not fit it."""
    name = type(model).__name__
    kinds = [type(x).__name__ for x in inputs] if isinstance(inputs, (tuple, list)) else type(inputs).__name__
    if not isinstance(inputs, (tuple, list)) or not inputs or not all(isinstance(x, Tensor) for x in inputs):
        raise DataError(
            f"inputs of {name} must be a tuple of tensors, found {kinds}; pass one example tensor for each "
            "parameter of forward"
        )
    signature = inspect.signature(model.forward)
    try:
        return dict(signature.bind(*inputs).arguments)
    except TypeError as error:
        raise DataError(
            f"{name}.forward{signature} does not take {len(inputs)} inputs: {error}; pass one example tensor "
            "for each parameter"
        ) from error


def name_inputs(
    arguments: Mapping[str, Tensor | tuple[Tensor, ...]],
    input_names: Sequence[str] | None,
    output_names: Sequence[str] | None,
) -> list[str]:
    """Return a name for each input; all names, those of the outputs included, are different.

    Raises ModelError for given names that repeat or are too few or too many.
    """
    defaults: list[str] = []
    for name, value in arguments.items():
        defaults += [f"{name}_{i}" for i in range(len(value))] if isinstance(value, tuple) else [name]
    names = defaults if input_names is None else list(input_names)
    if len(names) != len(defaults):
        raise ModelError(f"{len(defaults)} inputs need as many input_names, found {names}; name each once")
    every = names + list(output_names or ())
    if twice := sorted({name for name in every if every.count(name) > 1}):
        raise ModelError(f"names of inputs and outputs must differ, found {twice[0]!r} twice; rename one")
    return names
