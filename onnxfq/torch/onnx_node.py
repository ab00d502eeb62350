"""A fake quantization as one node of an exported graph, `onnxfq.FakeQuantize`, for both exporters."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from onnxfq.errors import SpecError
from onnxfq.numerics.granularity import Granularity
from onnxfq.torch.arithmetic import Grid

OPERATOR = "onnxfq::FakeQuantize"


def exporting() -> bool:
    """Tell whether torch is exporting to ONNX right now."""
    return bool(torch.onnx.is_in_onnx_export())


def onnx_node(
    x: Tensor, scale: Tensor, zero_point: Tensor | None, grid: Grid, granularity: Granularity
) -> Tensor:
    """Return a tensor that stands for the node's output; it has x's shape and type.

    Raises SpecError for a float64 x.
    """
    if x.dtype == torch.float64:
        raise SpecError(
            "x must be float32, float16 or bfloat16 to be exported, got float64; convert the module"
        )
    zeros = torch.zeros((), device=x.device) if zero_point is None else zero_point
    attributes = node_attributes(grid, granularity)
    if torch.jit.is_tracing():
        traced: Tensor = _Traced.apply(x, scale, zeros, attributes)
        return traced
    made: Tensor = torch.onnx.ops.symbolic(
        OPERATOR, (x, scale, zeros), attributes, dtype=x.dtype, shape=x.shape, version=1
    )
    return made


def node_attributes(grid: Grid, granularity: Granularity) -> dict[str, Any]:
    """Return the attributes of the node, as `docs/custom-ops.md` defines them."""
    return {
        "qtype": str(grid.qtype),
        "rounding": grid.rounding,
        "arithmetic": grid.arithmetic,
        "saturate": int(grid.saturate) if grid.qtype.is_float else 1,
        **granularity.attributes,
    }


class _Traced(torch.autograd.Function):
    """The node for the exporter that traces."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor, zero_point: Tensor, attributes: dict[str, Any]) -> Tensor:
        return x.clone()

    @staticmethod
    def symbolic(g: Any, x: Any, scale: Any, zero_point: Any, attributes: dict[str, Any]) -> Any:
        kinds = {str: "s", int: "i", list: "i"}
        named = {f"{name}_{kinds[type(value)]}": value for name, value in attributes.items()}
        return g.op(OPERATOR, x, scale, zero_point, **named).setType(x.type())
