"""Calls on proxies of torch.fx, given to function modes: its operators and methods bypass these."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, fx
from torch.overrides import TorchFunctionMode, _get_current_function_mode, handle_torch_function
from torch.utils._pytree import tree_leaves, tree_map

_IN_PLACE = {f"__{name}__": getattr(operator, name) for name in ("iadd", "isub", "imul", "itruediv")}


class _Noted(TorchFunctionMode):
    """Block that notes the first function that an operator of Python calls, and what it gives it."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Callable[..., Any], Any]] = []

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls.append((function, args))
        return args[0]


def _as_of_tensors(target: Callable[..., Any], args: Any) -> tuple[Callable[..., Any], Any]:
    """Return the function of torch that an operator is for tensors, with its arguments."""
    made = tree_map(lambda one: torch.ones(1) if isinstance(one, fx.Proxy) else one, args)
    proxies = {id(tensor): one for tensor, one in zip(tree_leaves(made), tree_leaves(args), strict=True)}
    with _Noted() as seen:
        target(*made)
    function, given = seen.calls[0]
    return function, tree_map(lambda one: proxies.get(id(one), one), given)


@contextlib.contextmanager
def calling(block: TorchFunctionMode, args: Any) -> Iterator[None]:
    """Let operators and methods of proxies reach `block`, as on tensors.

    Args:
        block: the mode.
        args: what may hold a proxy; without one nothing changes.
    """
    tracer: Any = next((one.tracer for one in tree_leaves(args) if isinstance(one, fx.Proxy)), None)
    if tracer is None:
        yield
        return
    create = tracer.create_proxy

    def call(kind: str, target: Any, args: Any, kwargs: Any, *others: Any, **named: Any) -> Any:
        is_reached = _get_current_function_mode() is block
        if is_reached and kind == "call_method" and callable(getattr(Tensor, target, None)):
            return handle_torch_function(getattr(Tensor, target), args, *args, **kwargs)
        if is_reached and kind == "call_function" and getattr(target, "__module__", "") == "_operator":
            function, args = _as_of_tensors(target, args)
            return handle_torch_function(function, args, *args)
        return create(kind, target, args, kwargs, *others, **named)

    missing = [name for name in _IN_PLACE if not hasattr(fx.Proxy, name)]
    tracer.create_proxy = call
    for name in missing:
        function = _IN_PLACE[name]
        setattr(
            fx.Proxy, name, lambda x, y, f=function: x.tracer.create_proxy("call_function", f, (x, y), {})
        )
    try:
        yield
    finally:
        tracer.create_proxy = create
        for name in missing:
            delattr(fx.Proxy, name)
