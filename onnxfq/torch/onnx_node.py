"""`onnxfq.FakeQuantize` as a node of an exported graph, for both exporters."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from onnxfq.errors import SpecError
from onnxfq.numerics.qtypes import qtype_of_integers
from onnxfq.torch.arithmetic import RoundingGrid

OPERATOR = "onnxfq::FakeQuantize"


def is_exporting() -> bool:
    """Tell whether torch is exporting to ONNX right now."""
    return bool(torch.onnx.is_in_onnx_export())


_expected = ContextVar("_expected", default=False)


@contextlib.contextmanager
def lowered_later() -> Iterator[None]:
    """Say that the nodes of the exports inside become Q/DQ pairs."""
    token = _expected.set(True)
    try:
        yield
    finally:
        _expected.reset(token)


def is_lowered_later() -> bool:
    """Tell whether the nodes of this export become Q/DQ pairs, as in `export_torch`."""
    return _expected.get()


def onnx_node(x: Tensor, scale: Tensor, zero_point: Tensor | None, grid: RoundingGrid) -> Tensor:
    """Return a tensor that stands for the output of the node, with x's shape and type.

    Raises SpecError for a float64 x.
    """
    if x.dtype == torch.float64:
        raise SpecError("x to export must be float32, float16 or bfloat16, got float64; convert the module")
    if not is_lowered_later():
        why = f"this export has {OPERATOR} nodes, which only onnxfq's custom-op library runs"
        warnings.warn(f"{why}; use onnxfq.torch.export_torch, or `onnxfq convert` the file", stacklevel=2)
    zeros, qtype = zero_point, grid.qtype
    if not qtype.qmin <= 0 <= qtype.qmax:
        # Only the distances of the limits from the zero point matter: a shift makes the limits hold 0.
        shift = int(qtype.qmin if qtype.qmin > 0 else qtype.qmax)
        grid = replace(grid, qtype=qtype_of_integers(int(qtype.qmin) - shift, int(qtype.qmax) - shift))
        zeros = (torch.zeros((), device=x.device) if zeros is None else zeros) - shift
    # The attributes of the node, as `docs/custom-ops.md` defines them.
    attributes = {
        "qtype": str(grid.qtype),
        "rounding": grid.rounding,
        "arithmetic": grid.arithmetic,
        "saturate": int(grid.saturate) if grid.qtype.is_float else 1,
        **grid.granularity.attributes,
    }
    return graph_node(OPERATOR, (x, scale) if zeros is None else (x, scale, zeros), attributes, x.dtype)


def has_node(grid: RoundingGrid) -> bool:
    """Tell whether a node can have this grid; warn if not: then the export holds plain arithmetic.

    Raises SpecError for a float format without a name.
    """
    if grid.qtype.is_float and not grid.qtype.has_kernel:
        raise SpecError(f"{grid.qtype} is for simulation only; export a type of ONNX, such as float8e4m3fn")
    width = grid.qtype.qmax - grid.qtype.qmin
    if grid.qtype.is_float or 0 < width < 1 << 16:
        return True
    why = f"{grid.qtype} has no ONNX integer type of up to 16 bits and is exported as float arithmetic"
    warnings.warn(f"{why}; no engine runs it in integers", stacklevel=2)
    return False


def graph_node(
    operator: str, inputs: tuple[Tensor, ...], attributes: dict[str, Any], dtype: torch.dtype
) -> Tensor:
    """Return a tensor of type `dtype` and the shape of the first input: a node in both exporters' graphs."""
    if torch.jit.is_tracing():
        output: Tensor = _Traced.apply(operator, attributes, dtype, *inputs)
        return output
    version = 1 if "::" in operator else None
    output = torch.onnx.ops.symbolic(
        operator, inputs, attributes, dtype=dtype, shape=inputs[0].shape, version=version
    )
    return output


class _Traced(torch.autograd.Function):
    """Node for the tracing exporter."""

    @staticmethod
    def forward(
        ctx: Any, operator: str, attributes: dict[str, Any], dtype: torch.dtype, *inputs: Tensor
    ) -> Tensor:
        return inputs[0].to(dtype, copy=True)

    @staticmethod
    def symbolic(g: Any, operator: str, attributes: dict[str, Any], dtype: torch.dtype, *inputs: Any) -> Any:
        kinds = {str: "s", int: "i", list: "i"}
        named = {f"{name}_{kinds[type(value)]}": value for name, value in attributes.items()}
        return g.op(operator, *inputs, **named).setType(inputs[0].type().with_dtype(dtype))
