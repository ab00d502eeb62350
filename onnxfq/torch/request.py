"""Request of an ONNX export: example inputs, names, dynamic axes and opset, validated."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from onnxfq.errors import DataError, ModelError

BATCH = "batch"  # name of the dynamic axis


@dataclass(frozen=True)
class Request:
    """Requested form of the ONNX model.

    Attributes:
        arguments: forward's parameters with example inputs, as `bind` returns them.
        input_names: one name for each example input.
        output_names: None leaves them to the exporter.
        dynamic_batch: whether axis 0 of the inputs is dynamic; without `dynamic_shapes` only.
        opset: None leaves it to the exporter.
        dynamic_shapes: dynamic axes of each input, as {axis: torch.export.Dim, name or size}; None for none.
    """

    arguments: inspect.BoundArguments
    input_names: Sequence[str]
    output_names: Sequence[str] | None
    dynamic_batch: bool
    opset: int | None
    dynamic_shapes: Sequence[Mapping[int, Any]] | None = None

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """Return the example inputs in the order of forward's parameters."""
        return tuple(x for _, x in _flatten(self.arguments.arguments))

    @property
    def settings(self) -> dict[str, Any]:
        """Return what both of torch's exporters take by name."""
        names = {"input_names": self.input_names, "output_names": self.output_names}
        return names | {"kwargs": self.arguments.kwargs or None, "opset_version": self.opset}

    @property
    def dynamic_names(self) -> list[str]:
        """Return the inputs with a dynamic batch: all except scalars, which have no axis."""
        pairs = zip(self.input_names, self.inputs, strict=True)
        return [name for name, x in pairs if self.dynamic_batch and self.dynamic_shapes is None and x.ndim]

    def map_inputs(self, change: Callable[[str, Tensor], Any]) -> inspect.BoundArguments:
        """Return forward's parameters with `change(name, input)` in place of each example input."""
        leaves, form = tree_flatten(dict(self.arguments.arguments))
        changed = tree_unflatten(map(change, self.input_names, leaves), form)
        return inspect.BoundArguments(self.arguments.signature, changed)


def bind(
    model: nn.Module, inputs: Sequence[Tensor], kwargs: Mapping[str, Tensor] | None = None
) -> inspect.BoundArguments:
    """Return the inputs by parameter of forward. Raises DataError if forward does not take them."""
    name, kwargs = type(model).__name__, kwargs or {}
    listed = isinstance(inputs, (tuple, list))
    kinds = [type(x).__name__ for x in inputs] if listed else type(inputs).__name__
    if not (listed and (inputs or kwargs) and all(isinstance(x, Tensor) for x in inputs)):
        raise DataError(f"inputs of {name} must be a tuple of tensors, found {kinds}; pass a tuple")
    for key, value in kwargs.items():
        if not isinstance(value, Tensor):
            raise DataError(f"keyword input {key!r} of {name} must be a tensor, found {type(value).__name__}")
    signature = inspect.signature(model.forward)
    try:
        bound = signature.bind(*inputs, **kwargs)
    except TypeError as error:
        counted = f"{len(inputs)} inputs" + (f" and {', '.join(kwargs)}" if kwargs else "")
        raise DataError(
            f"{name}.forward{signature} does not take {counted}: {error}; pass one tensor for each parameter"
        ) from error
    for parameter, value in bound.arguments.items():
        if isinstance(value, dict):  # torch.export takes no dynamic axes of them
            raise DataError(
                f"torch exports input {next(iter(value))!r}, by **{parameter}, with fixed shapes; name it"
            )
    return bound


def _flatten(arguments: Mapping[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """Yield each input with its default name: its parameter's, and parts_0, parts_1, ... for *parts."""
    for name, value in arguments.items():
        if isinstance(value, tuple):
            yield from ((f"{name}_{i}", x) for i, x in enumerate(value))
        else:
            yield name, value


def read_dynamic_shapes(arguments: inspect.BoundArguments, given: Any) -> list[dict[int, Any]] | None:
    """Return the dynamic axes of each input; None for None.

    Args:
        arguments: forward's parameters with example inputs.
        given: as `torch.onnx.export` takes it: a dictionary by parameter or a tuple in their order. A tensor
            has {axis: dimension}, a dimension for each axis, or None; parameters left out have None.

    Raises ModelError for an unknown parameter, a wrong number of entries and an axis that an input lacks.
    """
    return None if given is None else list(_read_axes(arguments.arguments, given, "forward"))


def _read_axes(value: Any, given: Any, name: str) -> Iterator[dict[int, Any]]:
    """Yield the dynamic axes of each input in `value`, which is one or has several, from its entry."""
    several = value.shape if isinstance(value, Tensor) else value
    parts = several if isinstance(several, Mapping) else dict(enumerate(several))
    if given is None:
        given = {}
    elif isinstance(given, (tuple, list)) and len(given) == len(parts):
        given = dict(zip(parts, given, strict=True))
    elif not isinstance(given, Mapping):
        raise ModelError(f"dynamic_shapes has {given!r:.80} for {name} of {len(parts)} entries; give as many")
    if unknown := [key for key in given if key not in parts]:
        held = ", ".join(map(str, parts)) or "none"
        raise ModelError(f"dynamic_shapes names {unknown[0]!r} of {name}, which has {held}; rename it")
    if isinstance(value, Tensor):
        yield {axis: dim for axis, dim in given.items() if dim is not None}
    else:
        for key, part in parts.items():
            yield from _read_axes(part, given.get(key), str(key))


def name_inputs(
    arguments: inspect.BoundArguments, input_names: Sequence[str] | None, output_names: Sequence[str] | None
) -> list[str]:
    """Return a unique name for each input, different from the names of outputs.

    Raises ModelError for repeated names and for too few or too many.
    """
    defaults = [name for name, _ in _flatten(arguments.arguments)]
    names = defaults if input_names is None else list(input_names)
    if len(names) != len(defaults):
        raise ModelError(f"{len(defaults)} inputs need as many input_names, found {names}; name each once")
    every = names + list(output_names or ())
    if twice := sorted({name for name in every if every.count(name) > 1}):
        raise ModelError(f"names of inputs and outputs must differ, found {twice[0]!r} twice; rename one")
    return names
