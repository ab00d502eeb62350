"""Calls of torch's functions in the forwards of modules: every tensor that one reads has a place.

A place is the module whose forward calls, the function, the number of that call in one run of the forward
among those that read floats, and the position of the tensor among the arguments. A `TorchFunctionMode` sees
the calls: while a plan is made it marks the tensors of the export, and later it quantizes them. Both see the
same calls, so each tensor is treated as it was planned.

Functions that the export writes in several steps are written out the same way, and the calls inside them have
places too: the functions of `WRITTEN_OUT`, and linear of more than two axes.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_unflatten

from onnxfq.errors import ModelError
from onnxfq.torch.onnx_node import is_exporting

Function = Callable[..., Any]


class Call(NamedTuple):
    """Call in a forward.

    Attributes:
        function: what is called.
        number: of the call among those of the function that read floats, in one run of the forward.
        outer: the call around it that is written out, another one of these; None for nothing.
    """

    function: Function
    number: int
    outer: Any


class CallPlace(NamedTuple):
    """Tensor that a call reads.

    Attributes:
        path: of the module whose forward calls.
        call: what reads it; None for a tensor of a module that is known by name.
        leaf: position of the tensor among all tensors in the arguments, or its name.
    """

    path: str
    call: Call | None
    leaf: int | str


Tensors = Mapping[int | str, str]


class Branch(NamedTuple):
    """Calls of one function in an export, if the forward makes others than in a run.

    Attributes:
        total: calls in the export.
        numbers: number in a run of each call that both make, by its number in the export.
    """

    total: int
    numbers: Mapping[int, int]

    def number(self, exported: int) -> int:
        """Return the number in a run of a call; below 0 if an export alone makes it."""
        return self.numbers.get(exported, -1 - exported)


class Planned(NamedTuple):
    """Quantizers of the calls of one function in a forward.

    Attributes:
        total: calls in one run.
        calls: names of the quantizers by call and leaf.
        inside: calls that are written out.
        branch: the calls in an export, if it has others.
    """

    total: int
    calls: Mapping[int, Tensors]
    inside: frozenset[int] = frozenset()
    branch: Branch | None = None

    @property
    def exported(self) -> Branch | None:
        """The calls in an export while there is one, if it has others than a run."""
        return self.branch if torch.compiler.is_exporting() else None


Table = Mapping[tuple[Call | None, Function], Planned]
"""Quantizers of a module, by the call around a call and the function itself."""

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
    """Block whose calls have no place, as inside of a quantizer; `owner` is a module that runs there."""

    def __init__(self, owner: nn.Module | None = None) -> None:
        self.owner = owner

    def __enter__(self) -> None:
        _running().append(self)

    def __exit__(self, *error: object) -> None:
        _running().pop()


def is_running(module: nn.Module) -> bool:
    """Tell whether a block of a module is entered, as by its forward."""
    return any(block.owner is module for block in _running())


class Calls(TorchFunctionMode):
    """Block in which the calls of one forward give their tensors to `change`; blocks inside have their own.

    Attributes:
        outer: as in `Call`.
        counts: calls so far, by function.
        counts_calls: tells whether calls of a function are counted.
        inside: returns the block for the steps of a call that may be written out, also from its arguments;
            None leaves it whole.
        change: returns what a call reads in place of a tensor, from the position of the tensor too.
        plans: whether a plan is being made.
    """

    counts_calls: Callable[[Function], bool]
    inside: Callable[[Call, Any], Calls | None]
    change: Callable[[Call, int, Tensor], Tensor]
    plans = False

    def __init__(self, outer: Call | None = None) -> None:
        super().__init__()
        self.outer = outer
        self.counts: dict[Function, int] = {}

    def __enter__(self) -> Any:
        _running().append(self)
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        _running().pop()

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call `function` with its tensors changed, if the call is of this forward and changes any."""
        given, function = {} if kwargs is None else kwargs, _native(function)
        if function is torch.baddbmm and not given and any(map(self.counts_calls, (torch.bmm, torch.add))):
            product = self.__torch_function__(torch.bmm, types, args[1:])
            return self.__torch_function__(torch.add, types, (product, args[0]))
        known = _running()[-1] is self and self.counts_calls(function)
        if not known or not _has_floats([*args, *given.values()]):
            return _call(function, args, given)
        number = self.counts.get(function, 0)
        self.counts[function] = number + 1
        call = Call(function, self.number(function, number), self.outer)
        inside = self.inside(call, args) if function in WRITTEN_OUT else None
        if inside is None:
            return self.run(call, args, given)
        if isinstance(args[0] if args else None, fx.Proxy):
            raise ModelError(
                f"torch.fx cannot trace {name_of(function)}, which is quantized between its steps; trace the "
                "float module, and quantize the result"
            )

        def written_out(*args: Any, **given: Any) -> Any:
            with inside:
                return WRITTEN_OUT[function](*args, **given)

        return self.run(call, args, given, written_out)

    def run(self, call: Call, args: Any, kwargs: Any, steps: Function | None = None) -> Any:
        """Return the result of the call, or of its steps, on the changed tensors."""
        leaves: list[tuple[Any, Any]] = []

        def changed(value: Any) -> Any:
            if isinstance(value, (Tensor, fx.Proxy)):
                # A function may ask whether two of its tensors are one.
                known = [made for leaf, made in leaves if leaf is value]
                made = known[0] if known else self.change(call, len(leaves), value)
                leaves.append((value, made))
                return made
            if type(value) in (tuple, list):
                return type(value)([changed(one) for one in value])
            return value

        args = changed(tuple(args))
        given = {name: value if name == "out" else changed(value) for name, value in kwargs.items()}
        return _call(steps or call.function, args, given)

    def number(self, function: Function, number: int) -> int:
        """Return the number in a run of a call that has this number here."""
        return number

    def has_step(self, name: str) -> bool:
        """Tell whether the plan has a place in a call of this name among these."""
        return False


def _call(function: Function, args: Any, kwargs: Any) -> Any:
    """Return the result of a function; methods of tensors refuse a proxy in the first place."""
    if args and isinstance(args[0], fx.Proxy):
        return fx.Proxy.__torch_function__(function, (), tuple(args), kwargs)
    return function(*args, **kwargs)


def _has_floats(value: Any) -> bool:
    """Tell whether a call reads floats: an export computes indices and masks in its own way."""
    if isinstance(value, (Tensor, fx.Proxy)):
        return isinstance(value, fx.Proxy) or value.is_floating_point()
    return type(value) in (tuple, list) and any(_has_floats(one) for one in value)


class QuantizedCalls(Calls):
    """Block that quantizes what the calls of a module read, by its table."""

    def __init__(self, owner: nn.Module, outer: Call | None = None) -> None:
        super().__init__(outer)
        self.owner = owner
        self.table: Table = owner.__dict__[TABLE]

    def counts_calls(self, function: Function) -> bool:
        """Tell whether the plan has a place among the calls of `function`."""
        return (self.outer, function) in self.table

    def number(self, function: Function, number: int) -> int:
        """Return the number in a run also where an export makes other calls."""
        branch = self.table[self.outer, function].exported
        return number if branch is None else branch.number(number)

    def has_step(self, name: str) -> bool:
        """Tell whether the plan has a place in a call of this name among these."""
        return any(around == self.outer and name_of(function) == name for around, function in self.table)

    def inside(self, call: Call, args: Any) -> Calls | None:
        """Return the block for the steps if one of them has a place."""
        is_planned = call.number in self.table[self.outer, call.function].inside
        return QuantizedCalls(self.owner, call) if is_planned else None

    def run(self, call: Call, args: Any, kwargs: Any, steps: Function | None = None) -> Any:
        """Quantize only if the call has a place."""
        if call.number in self.table[self.outer, call.function].calls:
            result = super().run(call, args, kwargs, steps)
        else:
            result = _call(steps or call.function, args, kwargs)
        return write_over(call.function, args, kwargs, result)

    def change(self, call: Call, leaf: int, tensor: Tensor) -> Tensor:
        """Return the tensor through its quantizer."""
        name = self.table[self.outer, call.function].calls[call.number].get(leaf)
        if name is None:
            return tensor
        quantized: Tensor = self.owner.__dict__["_modules"][name](tensor)
        return quantized

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        # A mask may be left out. Otherwise steps vary only by the inputs that an attention projects as one.
        whole = self.outer is None or self.outer.function is F.multi_head_attention_forward
        for (outer, function), planned in self.table.items() if error[0] is None and whole else ():
            found, wanted = self.counts.get(function, 0), (planned.exported or planned).total
            may_vary = outer is not None and function is torch.add
            if outer == self.outer and found != wanted and not may_vary:
                raise ModelError(
                    f"the forward of {type(self.owner).__name__} calls {name_of(function)} {found} times, "
                    f"and {wanted} times where it was planned; put the calls that vary into their own "
                    "module"
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
        # Each head is repeated for its group of query heads.
        key, value = (x.repeat_interleave(query.shape[-3] // x.shape[-3], -3) for x in (key, value))
    # The export turns keys of any rank by a Reshape to rank 3.
    turned = key.reshape(-1, *key.shape[-2:]).transpose(1, 2).reshape(*key.shape[:-2], *key.shape[:-3:-1])
    scores = torch.matmul(query * root, turned * root)
    if attn_mask is None and not is_causal and _running()[-1].has_step("add"):
        # A forward may leave out a mask that hides nothing, unless it is exported.
        attn_mask = torch.ones((), dtype=torch.bool, device=query.device)
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    masked = scores if attn_mask is None else scores + additive(attn_mask, scores)
    # Each row sees its first key, unless a mask was planned for such a call.
    is_open = is_causal and not _running()[-1].has_step("isnan")
    weights = _soften(masked, None if is_open else attn_mask)
    return torch.matmul(F.dropout(weights, dropout_p, dropout_p > 0), value)


def _soften(scores: Tensor, mask: Tensor | None) -> Tensor:
    """Return the Softmax, with 0 in the rows that a mask empties, where it would be NaN, or the same for all.

    For a bool mask the export has a Where there, and none for one of floats.
    """
    if mask is None:
        return torch.softmax(scores, -1)
    is_bool, is_planned = mask.dtype == torch.bool, _running()[-1].plans or is_exporting()
    empty = torch.zeros((), dtype=torch.bool, device=mask.device)
    if not is_planned:
        with aside():
            empty = ~mask.any(-1, keepdim=True) if is_bool else (mask == -math.inf).all(-1, keepdim=True)
            scores = scores.masked_fill(empty, 0.0)
    weights = torch.softmax(scores, -1)
    if is_bool:
        empty = torch.isnan(weights) if is_planned else torch.isnan(weights) | empty
        return torch.where(empty, 0.0, weights)
    with aside():
        return weights if is_planned else weights.masked_fill(empty, 0.0)


def additive(mask: Tensor, scores: Tensor) -> Tensor:
    """Return the summand of a mask: the lowest number where a bool mask is false."""
    if mask.dtype != torch.bool:
        return mask
    return torch.where(mask, 0.0, torch.finfo(scores.dtype).min).to(scores.dtype)


def multiply(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return `torch.nn.functional.linear` as a product and a sum."""
    product = torch.matmul(input, weight.t())
    return product if bias is None else product + bias


def _open(function: Any) -> Function:
    """Return a function of torch whose own calls reach a mode: it does not hand itself over as a whole."""
    asked = ("has_torch_function", "has_torch_function_variadic")
    names = function.__globals__ | dict.fromkeys(asked, lambda *tensors: False)
    return FunctionType(function.__code__, names, function.__name__, function.__defaults__)


_weigh = _open(F.multi_head_attention_forward)


def attend_heads(*args: Any, need_weights: bool = True, **given: Any) -> tuple[Tensor, Tensor | None]:
    """Return `torch.nn.functional.multi_head_attention_forward`, with the products that were planned."""
    block = _running()[-1]
    if need_weights and block.has_step("scaled_dot_product_attention"):
        raise ModelError("attention was planned without its weights; plan it by a run that asks for them")
    y, weights = _weigh(*args, need_weights=need_weights or block.has_step("bmm"), **given)
    return y, weights if need_weights else None


def separate(input: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
    """Return `torch.unbind` as a part and a squeezed axis for each."""
    return tuple(input.narrow(dim, i, 1).squeeze(dim) for i in range(input.shape[dim]))


def turn(input: Tensor, shifts: Any, dims: Any = None) -> Tensor:
    """Return `torch.roll` as two parts that change places, axis by axis."""
    if dims is None or dims == ():
        return turn(input.reshape(-1), shifts, 0).reshape(input.shape)
    pairs = [(shifts, dims)] if isinstance(dims, int) else zip(shifts, dims, strict=True)
    for shift, dim in pairs:
        at = -shift % input.shape[dim]
        parts = input.narrow(dim, at, input.shape[dim] - at), input.narrow(dim, 0, at)
        input = torch.cat(parts, dim)
    return input


def pile(tensors: Any, dim: int = 0) -> Tensor:
    """Return `torch.stack` as a new axis for each part, and their sequence."""
    return torch.cat([one.unsqueeze(dim) for one in tensors], dim)


def invert_root(input: Tensor) -> Tensor:
    """Return `torch.rsqrt` as a root and its reciprocal."""
    return torch.reciprocal(torch.sqrt(input))


def gate(input: Tensor, inplace: bool = False) -> Tensor:
    """Return `torch.nn.functional.silu` as a Sigmoid and a product."""
    kept = input.clone() if inplace else input  # a gradient reads it after the call
    return kept * torch.sigmoid(kept)


_aten = torch.ops.aten
_STEPS: dict[Function, tuple[Function, ...]] = {
    attend: (F.scaled_dot_product_attention, _aten.scaled_dot_product_attention.default),
    multiply: (F.linear, _aten.linear.default),
    attend_heads: (F.multi_head_attention_forward,),
    separate: (torch.unbind, Tensor.unbind, _aten.unbind.int),
    pile: (torch.stack, _aten.stack.default),
    turn: (torch.roll, Tensor.roll, _aten.roll.default),
    invert_root: (torch.rsqrt, Tensor.rsqrt, _aten.rsqrt.default),
    gate: (F.silu, _aten.silu.default),
    _open(F.normalize): (F.normalize,),
}
WRITTEN_OUT = {function: steps for steps, functions in _STEPS.items() for function in functions}
"""Steps of the functions that the export writes in several nodes."""


def name_of(function: Function) -> str:
    """Return the name of a function, a method or an operator of torch.export."""
    return str(getattr(function, "__name__", "call")).partition(".")[0]


ASSIGNMENTS = ("__setitem__", "copy_")
"""Functions that write without reading what was there."""


def find_written(function: Function, args: Any, kwargs: Any) -> Any:
    """Return the tensor that a call writes over; None if it writes over none.

    torch's rule for names tells; other functions write with inplace=True, which torch gives to modes by its
    name, or to `out`.
    """
    name = name_of(function)
    over = name.endswith("_") and not name.endswith("__") or kwargs.get("inplace") is True
    if not over and name not in ASSIGNMENTS:
        return kwargs.get("out")
    return args[0] if args else kwargs["input"]


def write_over(function: Function, args: Any, kwargs: Any, result: Any) -> Any:
    """Return the result of a call, written over its first tensor if the function does that.

    The caller may read on from the tensor, though rounding or a mark has made another one.
    """
    first = find_written(function, args, kwargs)
    if first is None or result is None or result is first:
        return result
    if isinstance(result, fx.Proxy):
        return first.copy_(result)
    return first.copy_(result) if result.shape == first.shape else function(*args, **kwargs)


def _native(function: Function) -> Function:
    """Return the function behind a method that torch writes in Python.

    torch.compile 2.13 cannot trace such a method inside of a mode, nor look it up in a table.
    """
    unflatten: Function = torch.unflatten
    split: Function = torch.ops.aten.split
    return unflatten if function is Tensor.unflatten else split if function is Tensor.split else function


def change_outputs(result: Any, change: Callable[[int, Tensor], Tensor]) -> Any:
    """Return what a forward returned, with each float tensor in it changed, by its position among them."""
    leaves, form = tree_flatten(result)
    floats = [i for i, leaf in enumerate(leaves) if _has_floats(leaf)]
    for position, i in enumerate(floats):
        leaves[i] = change(position, leaves[i])
    return tree_unflatten(leaves, form)
