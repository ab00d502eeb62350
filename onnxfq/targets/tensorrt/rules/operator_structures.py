"""Forms of operators that TensorRT refuses for their ranks, their bodies, or inputs that are computed.

Each was tried on TensorRT for RTX 1.7.1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from onnxfq.graph.model import bodies
from onnxfq.graph.normalize.node_sites import NodeSite
from onnxfq.targets.reading.quantizer_reader import DEQUANTIZE_OPS

MOST_AXES = 8
RANKS: Mapping[str, tuple[int, int]] = {
    **dict.fromkeys(("InstanceNormalization", "GroupNormalization"), (3, MOST_AXES)),
    **dict.fromkeys(("Conv", "ConvTranspose", "AveragePool", "LpPool", "MaxPool"), (3, 5)),
}
"""Op type -> least and largest rank of its input; others take all up to MOST_AXES."""

SIZED = ("Squeeze", "Unsqueeze")
"""Operators whose axes may be computed from constants."""

REDUCTIONS = tuple(
    f"Reduce{kind}" for kind in "L1 L2 LogSum LogSumExp Max Mean Min Prod Sum SumSquare".split()
)

_INSIDE = {"linear": 3, "cubic": 2}
"""Mode of Resize -> the axes at the end that it may change."""


def find_rank(site: NodeSite) -> str:
    """Return why TensorRT refuses the rank of a tensor of `site`; empty if it takes it."""
    low, high = RANKS.get(site.op, (0, MOST_AXES))
    for value in (*site.inputs[:1], *site.outputs):
        rank = len(value.shape) if value.shape is not None else low
        if not low <= rank <= high:
            return (
                f"{value.name!r} has {rank} axes, and TensorRT takes {low} to {high} in {site.op}; reshape it"
            )
    return ""


def _find_condition(site: NodeSite) -> str:
    return "" if site.input(1) else "its condition is left out, and TensorRT reads it; give it true"


def _find_stateless(site: NodeSite) -> str:
    scanned = len(site.node.input) == site.attrs.get("num_scan_inputs")
    return (
        "it carries no state, which TensorRT's Scan does; carry one, or write it as a Loop" if scanned else ""
    )


def _find_branches(site: NodeSite) -> str:
    for values in zip(*(body.output for body in bodies(site.node)), strict=True):
        ranks = {
            None if shape is None else len(shape) for shape in (site.index.shape(v.name) for v in values)
        }
        if len(ranks - {None}) > 1:
            names = " and ".join(repr(value.name) for value in values)
            return f"its results {names} have unequal ranks, and TensorRT takes equal ones; reshape one"
    return ""


def _find_axes(site: NodeSite) -> str:
    axes = site.input(1)
    if not axes or axes in site.index.stored or (site.op in SIZED and site.index.is_constant(axes)):
        return ""
    return f"its axes {axes!r} are computed, and TensorRT reads constants; store them"


def _find_joined(site: NodeSite) -> str:
    makers = [site.index.maker(name) for name in site.node.input if site.index.is_constant(name)]
    if len(makers) < len(site.node.input) or not any(one and one.op in DEQUANTIZE_OPS for one in makers):
        return ""
    return "it joins dequantized constants, which TensorRT's builder does not; store them joined"


def _find_resized(site: NodeSite) -> str:
    inside = _INSIDE.get(site.attrs.get("mode", "nearest"))
    if site.input(2) and not site.index.is_constant(site.input(2)):
        return f"its scales {site.input(2)!r} are computed, and TensorRT reads constants; give sizes"
    scales = site.index.value(site.input(2)) if site.input(2) else None
    if (
        inside is None
        or scales is None
        or site.attrs.get("axes") is not None
        or np.all(scales[:-inside] == 1)
    ):
        return _find_floored(site)
    mode = site.attrs["mode"]
    return f"it is {mode} beyond the last {inside} axes, and TensorRT takes these only; resize in two steps"


def _find_floored(site: NodeSite) -> str:
    modes = [
        site.attrs.get(name, usual)
        for name, usual in (
            ("mode", "nearest"),
            ("coordinate_transformation_mode", "half_pixel"),
            ("nearest_mode", "round_prefer_floor"),
        )
    ]
    if modes != ["nearest", "tf_half_pixel_for_nn", "floor"]:
        return ""
    return "it is tf_half_pixel_for_nn with floor, which TensorRT lacks; export it as asymmetric with floor"


STRUCTURES: Mapping[str, Callable[[NodeSite], str]] = {
    "Concat": _find_joined,
    "If": _find_branches,
    "Loop": _find_condition,
    "Resize": _find_resized,
    "Scan": _find_stateless,
    **dict.fromkeys((*SIZED, *REDUCTIONS), _find_axes),
}
"""Op type -> why TensorRT refuses a form, with the remedy; empty if it takes it."""
