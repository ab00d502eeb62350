"""Calls of torch's functions in the forwards of modules: every tensor that one reads has a place.

A place is the module whose forward calls, the function, the number of the call among those of the function in
one run of that forward, and the position of the tensor among the arguments. A `TorchFunctionMode` sees the
calls: while a plan is made it marks the tensors of the export, and later it quantizes them. Both see the same
calls, so what was planned for a tensor is done to that tensor.

scaled_dot_product_attention is written out as the export writes it, and the calls inside it have places too.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from onnxfq.errors import ModelError
from onnxfq.torch.onnx_node import is_exporting

Function = Callable[..., Any]

WHOLE = -1
"""Number of the attention around a call that is in none."""


class Place(NamedTuple):
    """Tensor that a call reads.

    Attributes:
        path: of the module whose forward calls.
        attention: number of the scaled_dot_product_attention around the call, or `WHOLE`.
        function: what is called; None for a tensor of a module that is known by name.
        number: of the call among those of the function in one run of the forward.
        leaf: position of the tensor among all tensors in the arguments, or its name.
    """

    path: str
    attention: int
    function: Function | None
    number: int
    leaf: int | str


Tensors = Mapping[int | str, str]


class Planned(NamedTuple):
    """Quantizers of the calls of one function in a forward.

    Attributes:
        count: calls in one run.
        writes: whether a call writes its result over its first tensor.
        calls: names of the quantizers by call and leaf.
    """

    count: int
    writes: bool
    calls: Mapping[int, Tensors]


Table = Mapping[tuple[int, Function], Planned]
"""Quantizers of a module, by attention and function."""

TABLE = "quantized_calls"
"""Attribute of a module with its `Table`."""

OUTPUTS = "output_"
"""Attribute of a model with the quantizers of its outputs by position, and the beginning of their names."""

_threads = threading.local()
_compiled: list[Any] = []


def _running() -> list[Any]:
    """Return the blocks that are entered, the innermost last; each thread has its own."""
    if torch.compiler.is_compiling():  # traces one thread, and knows no other
        return _compiled
    running: list[Any] = _threads.__dict__.setdefault("running", [])
    return running


class aside:
    """Block whose calls are nobody's: those of quantizers and of layers with a place of their own."""

    def __enter__(self) -> None:
        _running().append(None)

    def __exit__(self, *error: object) -> None:
        _running().pop()


class Calls(TorchFunctionMode):
    """Block in which the calls of one forward give their tensors to `change`, but not those of other blocks.

    Attributes:
        attention: as in `Place`.
        counts: calls so far, by function.
    """

    def __init__(self, attention: int = WHOLE) -> None:
        super().__init__()
        self.attention = attention
        self.counts: dict[Function, int] = {}

    def __enter__(self) -> Any:
        _running().append(self)
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        _running().pop()

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call `function` with its tensors changed, if the call is of this forward and changes any."""
        given = {} if kwargs is None else kwargs
        if _running()[-1] is not self or not self.counts_calls(function):
            return function(*args, **given)
        number = self.counts.get(function, 0)
        self.counts[function] = number + 1
        if function is F.scaled_dot_product_attention:
            inside = self.inside(number)
            if inside is None:
                return function(*args, **given)
            with inside:
                return attend(*args, **given)
        return self.call(function, number, args, given)

    def call(self, function: Function, number: int, args: Any, kwargs: Any) -> Any:
        """Return the result of `function` on the changed tensors."""
        leaves = [0]

        def changed(value: Any) -> Any:
            if isinstance(value, Tensor):
                leaf, leaves[0] = leaves[0], leaves[0] + 1
                return self.change(function, number, leaf, value)
            if type(value) in (tuple, list):
                return type(value)([changed(one) for one in value])
            return value

        args = changed(tuple(args))
        return function(*args, **{name: changed(value) for name, value in kwargs.items()})

    def counts_calls(self, function: Function) -> bool:
        """Tell whether calls of `function` are counted."""
        raise NotImplementedError

    def inside(self, number: int) -> Calls | None:
        """Return the block for the calls inside an attention; None leaves it whole."""
        raise NotImplementedError

    def change(self, function: Function, number: int, leaf: int, tensor: Tensor) -> Tensor:
        """Return what the call reads in place of `tensor`."""
        raise NotImplementedError


class QuantizedCalls(Calls):
    """Block that quantizes what the calls of a module read, by its table."""

    def __init__(self, owner: nn.Module, attention: int = WHOLE) -> None:
        super().__init__(attention)
        self.owner = owner
        self.table: Table = owner.__dict__[TABLE]

    def counts_calls(self, function: Function) -> bool:
        """Tell whether the plan has a place among the calls of `function`."""
        return (self.attention, function) in self.table

    def inside(self, number: int) -> Calls | None:
        """Return the block for an attention with a place inside."""
        planned = self.table[self.attention, F.scaled_dot_product_attention]
        return QuantizedCalls(self.owner, number) if number in planned.calls else None

    def call(self, function: Function, number: int, args: Any, kwargs: Any) -> Any:
        """Quantize only if the call has a place."""
        planned = self.table[self.attention, function]
        if number not in planned.calls:
            return function(*args, **kwargs)
        result = super().call(function, number, args, kwargs)
        # The caller may read on from the tensor, not from the result.
        return args[0].copy_(result) if planned.writes else result

    def change(self, function: Function, number: int, leaf: int, tensor: Tensor) -> Tensor:
        """Return the tensor through its quantizer."""
        name = self.table[self.attention, function].calls[number].get(leaf)
        if name is None:
            return tensor
        quantized: Tensor = self.owner._modules[name](tensor)  # type: ignore[misc]
        return quantized

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        if error[0] is not None:
            return
        for (attention, function), planned in self.table.items():
            found = self.counts.get(function, 0)
            if attention == self.attention and found != planned.count:
                name = getattr(function, "__name__", function)
                raise ModelError(
                    f"the forward of {type(self.owner).__name__} calls {name} {found} times, and {planned.count} "
                    "times where it was planned: its tensors have no place; put the calls that vary into a "
                    "module of their own"
                )


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Return scaled_dot_product_attention in the steps of the export: both factors scaled, then the product.

    Source: torch.nn.functional.scaled_dot_product_attention.
    """
    root = math.sqrt(1.0 / math.sqrt(query.shape[-1]) if scale is None else scale)
    if enable_gqa:
        key, value = (heads_for(each, query) for each in (key, value))
    scores = torch.matmul(query * root, key.transpose(-2, -1) * root)
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    masked = scores if attn_mask is None else scores + additive(attn_mask, scores)
    weights = clear_empty_rows(torch.softmax(masked, -1), masked, attn_mask)
    return torch.matmul(F.dropout(weights, dropout_p, dropout_p > 0), value)


def heads_for(value: Tensor, query: Tensor) -> Tensor:
    """Return keys or values with each head repeated for its group of query heads."""
    return value.repeat_interleave(query.shape[-3] // value.shape[-3], -3)


def additive(mask: Tensor, scores: Tensor) -> Tensor:
    """Return the summand of a mask: -inf where a bool mask is false."""
    if mask.dtype != torch.bool:
        return mask
    if is_exporting():
        return torch.where(mask, 0.0, -math.inf).to(scores.dtype)
    return torch.zeros_like(mask, dtype=scores.dtype).masked_fill(~mask, -math.inf)


def clear_empty_rows(weights: Tensor, scores: Tensor, mask: Tensor | None) -> Tensor:
    """Return weights with 0 in fully masked rows, for which the Softmax is NaN, and so is its gradient."""
    if mask is None:
        return weights
    if is_exporting():
        return torch.where(torch.isnan(weights), 0.0, weights) if mask.dtype == torch.bool else weights
    return weights.masked_fill((scores == -math.inf).all(-1, keepdim=True), 0.0)


def change_outputs(result: Any, change: Callable[[int, Tensor], Tensor]) -> Any:
    """Return what a forward returned, with each float tensor changed, by its position among them."""
    count = [0]

    def changed(value: Any) -> Any:
        if isinstance(value, Tensor) and value.is_floating_point():
            count[0] += 1
            return change(count[0] - 1, value)
        if type(value) in (tuple, list):
            return type(value)([changed(one) for one in value])
        return value

    return changed(result)
