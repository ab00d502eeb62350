"""Check of one Q/DQ model by all rules and the builder: refusals, float nodes, wrong results."""

from __future__ import annotations

from functools import partial

import onnx

from onnxfq.placement.residual_adds import RESIDUAL
from onnxfq.targets.findings import CheckResult
from onnxfq.targets.reading.context import Rule, read
from onnxfq.targets.reading.proof import prove
from onnxfq.targets.reading.residual_sums import with_sums
from onnxfq.targets.target import BuildOptions
from onnxfq.targets.tensorrt.builder.build import build_model
from onnxfq.targets.tensorrt.rules import (
    attention,
    blocks,
    classic,
    float4,
    number_types,
    operator_forms,
    placement,
    recurrent,
    refused_forms,
    scales_and_zero_points,
    structure,
)
from onnxfq.targets.tensorrt.rules.structure import EXTRA

# The builder of TensorRT for RTX has no kernel of low precision, others may have one. It fuses no sum into a
# convolution, and adds the results of two in a float kernel.
_TOLD_BY_RULE = frozenset({"ConvTranspose", RESIDUAL})


def check_model(proto: onnx.ModelProto, source: str, build: BuildOptions | None) -> CheckResult:
    """Return the deviations of TensorRT from a Q/DQ model; the rules need nothing installed.

    Args:
        proto: the model.
        source: its name for messages.
        build: options to also parse and build with TensorRT for RTX (extra `tensorrt`; no GPU), which gives
            the precision of each node; None for the rules alone.

    Raises RuntimeLibraryError and DataError as `build_model` does.
    """
    building = None if build is None else partial(build_model, options=build)
    return prove(with_sums(read(proto, EXTRA)), source, "tensorrt", RULES, building, _TOLD_BY_RULE)


RULES: tuple[Rule, ...] = (
    *structure.RULES,
    *operator_forms.RULES,
    *refused_forms.RULES,
    *number_types.RULES,
    *scales_and_zero_points.RULES,
    *blocks.RULES,
    *float4.RULES,
    *placement.RULES,
    *recurrent.RULES,
    *attention.RULES,
    *classic.RULES,
    structure.skip_branches,
)
