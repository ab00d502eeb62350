"""Rules about DLA, the accelerator of Orin: operators and sizes that it takes.

Sources: NVIDIA's page "DLA supported layers and restrictions" in the documentation of TensorRT for operators,
sizes, windows and strides of convolutions; NvInfer.h of TensorRT 11.1 for pads, dilations, groups and pools.
Findings are warnings: the builder may leave these operators to the GPU, and without that permission it makes
no engine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from onnxfq.graph.node_fields import attributes_of
from onnxfq.targets.findings import Finding
from onnxfq.targets.reading.context import CheckContext, make_finding
from onnxfq.targets.reading.node_sites import NodeSite

TAKEN = frozenset(
    "Add AveragePool BatchNormalization Clip Concat Conv ConvTranspose DequantizeLinear Div Equal Flatten "
    "GlobalAveragePool Greater Identity LeakyRelu Less LRN Max MaxPool Min Mul Pow PRelu QuantizeLinear Relu "
    "Reshape Resize Sigmoid Slice Softmax Sub Sum Tanh Transpose Unsqueeze Squeeze Constant".split()
)
"""Operators with a layer that DLA takes in some form."""

PLANES = 2
"""Spatial dimensions of convolutions and pools."""

LARGEST = (4096, 8192)
"""Largest number of samples, and largest other size of a tensor."""


@dataclass(frozen=True)
class Bound:
    """Limits of an attribute of an operator."""

    low: int
    high: int


_BOUNDS: Mapping[str, Mapping[str, Bound]] = {
    "Conv": {
        "kernel_shape": Bound(1, 32),
        "pads": Bound(0, 31),
        "strides": Bound(1, 8),
        "dilations": Bound(1, 32),
        "group": Bound(1, 8192),
    },
    "MaxPool": {"kernel_shape": Bound(1, 8), "pads": Bound(0, 7), "strides": Bound(1, 16)},
    "AveragePool": {"kernel_shape": Bound(1, 8), "pads": Bound(0, 7), "strides": Bound(1, 16)},
    "ConvTranspose": {"pads": Bound(0, 0), "dilations": Bound(1, 1), "group": Bound(1, 1)},
    "Concat": {"axis": Bound(1, 1)},
    "LRN": {"size": Bound(3, 9)},
}


def check_dla(reading: CheckContext) -> Iterator[Finding]:
    """Yield what DLA leaves to the GPU, and inputs with open dimensions, which it refuses."""
    graph = reading.proto.graph
    constants = {tensor.name for tensor in graph.initializer}
    for value in graph.input:
        dims = value.type.tensor_type.shape.dim
        if value.name not in constants and any(not dim.HasField("dim_value") for dim in dims):
            first = reading.sites[0]
            message = f"input {value.name!r} has open dimensions, and DLA builds fixed shapes only; fix them"
            yield make_finding("dla", "warning", first, message, value.name)
    for site in reading.sites:
        reason = _explain(site)
        if reason:
            message = (
                f"DLA leaves it to the GPU: {reason}; change it, or let the builder fall back to the GPU"
            )
            yield make_finding("dla", "warning", site, message)


def _explain(site: NodeSite) -> str:
    if site.op not in TAKEN:
        return f"it has no {site.op}"
    sizes = [
        (name, at, size or 0)
        for name in site.node.output
        for at, size in enumerate(site.index.shape(name) or ())
    ]
    for name, at, size in sizes:
        most = LARGEST[min(at, 1)]
        if size > most:
            return f"{name!r} has size {size} along axis {at}, and DLA takes up to {most}"
    attributes = attributes_of(site.node)
    kernel = attributes.get("kernel_shape", ())
    if site.op in _BOUNDS and kernel and len(kernel) != PLANES:
        return f"it has {len(kernel)} spatial dimensions, and DLA takes {PLANES}"
    for name, bound in _BOUNDS.get(site.op, {}).items():
        given = attributes.get(name)
        values = [given] if isinstance(given, int) else list(given or ())
        wrong = next((value for value in values if not bound.low <= value <= bound.high), None)
        if wrong is not None:
            return f"{name} is {wrong}, and DLA takes {bound.low} to {bound.high}"
    return ""
