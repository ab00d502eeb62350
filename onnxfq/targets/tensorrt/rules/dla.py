"""Rules about DLA, the accelerator of Orin: sizes, open dimensions, and the forms of `dla_forms`.

Findings are warnings: the builder may leave these operators to the GPU, and without that permission it makes
no engine.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from onnxfq.targets.findings import Finding
from onnxfq.targets.reading.context import CheckContext, make_finding
from onnxfq.targets.reading.node_sites import NodeSite
from onnxfq.targets.tensorrt.rules.dla_forms import FEATURES, Limit, find_limits

MOST_SAMPLES = 4096
"""Largest product of the sizes in front of the last three axes (NVIDIA, DLA restrictions)."""

LARGEST = 8192
"""Largest size along one of the last three axes."""


def check_dla(reading: CheckContext) -> Iterator[Finding]:
    """Yield what DLA leaves to the GPU, what is unknown, and inputs with open dimensions: it refuses them."""
    graph = reading.proto.graph
    constants = {tensor.name for tensor in graph.initializer}
    for value in graph.input:
        dims = value.type.tensor_type.shape.dim
        if value.name not in constants and any(not dim.HasField("dim_value") for dim in dims):
            first = reading.sites[0]
            message = f"input {value.name!r} has open dimensions, and DLA builds fixed shapes only; fix them"
            yield make_finding("dla", "warning", first, message, value.name)
    for site in reading.sites:
        if all(reading.index.is_constant(name) for name in site.node.output if name):
            continue  # computed while building
        limits = [*_limit_sizes(site), *find_limits(site)]
        limit = min(limits, key=lambda one: not one.known, default=None)
        if limit is not None:
            yield make_finding("dla", "warning", site, _describe(limit))


def _describe(limit: Limit) -> str:
    if limit.known:
        return f"DLA leaves it to the GPU: {limit.why}; change it, or let the builder fall back to the GPU"
    return f"unknown whether DLA takes it: {limit.why}; build it with `trtexec --useDLACore=0` to see"


def _limit_sizes(site: NodeSite) -> Iterator[Limit]:
    """Yield tensors of too many samples, or too long along another axis."""
    for value in (*site.inputs, *site.outputs):
        if value.shape is None or site.index.is_constant(value.name):
            continue
        sizes = [size or 0 for size in value.shape]
        samples, features = prod(sizes[:-FEATURES]), sizes[-FEATURES:]
        if samples > MOST_SAMPLES:
            yield Limit(f"{value.name!r} has {samples:,} samples, and DLA takes up to {MOST_SAMPLES:,}")
        if max(features, default=0) > LARGEST:
            axis = len(sizes) - len(features) + features.index(max(features))
            size = f"size {max(features):,} along axis {axis}"
            yield Limit(f"{value.name!r} has {size}, and DLA takes up to {LARGEST:,}")
