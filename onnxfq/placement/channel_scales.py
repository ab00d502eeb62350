"""A scale for each channel of an activation whose readers add no two channels.

Such a reader computes every channel apart, so the scale of the channel goes into its result. The target says
which operators have kernels for that.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_graphsurgeon as gs

from onnxfq.calibration.calibrators import BY_CHANNEL, Calibrator
from onnxfq.documents.plan import Placement
from onnxfq.numerics.granularity import CHANNELS, PER_TENSOR
from onnxfq.placement.target_policy import TargetPolicy

_NOTE = ", a scale for each channel"


def scale_channels(placements: Sequence[Placement], graph: gs.Graph, policy: TargetPolicy) -> list[Placement]:
    """Return `placements` with scales along axis 1 where all quantized readers take them.

    The activation has one static scale and a known number of channels; its range is not given.
    """
    nodes = {node.name: node for node in graph.nodes if policy.channel_scales(node)}
    return [
        with_channels(p, BY_CHANNEL, _NOTE) if nodes and _takes_scales(p, nodes) else p for p in placements
    ]


def with_channels(
    placement: Placement, calibrator: Calibrator, note: str, equalized: bool = False
) -> Placement:
    """Return `placement` with a range for each channel, and `note` behind its reason."""
    spec = placement.spec.model_copy(update={"granularity": CHANNELS, "equalized": equalized})
    return placement.model_copy(update={"spec": spec, "calibrator": calibrator, "why": placement.why + note})


def has_one_scale(placement: Placement) -> bool:
    """Tell whether this is an activation with one static scale."""
    spec = placement.spec
    static = not spec.dynamic and spec.scale_type == "float32" and spec.granularity == PER_TENSOR
    return placement.role == "activation" and static


def has_one_range(placement: Placement) -> bool:
    """Tell whether an activation has one static scale, whose range is not given."""
    return has_one_scale(placement) and not placement.calibrator.is_fixed


def _takes_scales(placement: Placement, nodes: dict[str, gs.Node]) -> bool:
    readers = [nodes.get(use.node) if use.input == 0 else None for use in placement.uses]
    return has_one_range(placement) and all(
        reader is not None and _has_channels(reader.inputs[0]) for reader in readers
    )


def _has_channels(tensor: gs.Tensor) -> bool:
    return tensor.shape is not None and len(tensor.shape) > 2 and isinstance(tensor.shape[1], int)
