"""Request of an ONNX export: example inputs, names, dynamic batch and opset, validated."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from onnxfq.errors import DataError, ModelError

BATCH = "batch"  # name of the dynamic axis


@dataclass(frozen=True)
class Request:
    """Requested form of the ONNX model.

    Attributes:
        arguments: forward's parameters -> example inputs; `*xs` maps to the tuple of its tensors.
        input_names: one name for each example input.
        output_names: None leaves them to the exporter.
        dynamic_batch: whether axis 0 of the inputs is dynamic.
        opset: None leaves it to the exporter.
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
        """Return the inputs with a dynamic axis 0: all except scalars, which have no axis."""
        pairs = zip(self.input_names, self.inputs, strict=True)
        return [name for name, x in pairs if self.dynamic_batch and x.ndim]


def bind(model: nn.Module, inputs: Sequence[Tensor]) -> dict[str, Tensor | tuple[Tensor, ...]]:
    """Return the inputs by parameter of forward. Raises DataError if forward does not take them."""
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
    """Return a unique name for each input, different from the names of outputs.

    Raises ModelError for repeated names and for too few or too many.
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
