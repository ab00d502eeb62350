"""Simulation as a target: it accepts every number format, for fake-quant models only."""

from __future__ import annotations

from onnxfq.placement.target_policy import TargetPolicy
from onnxfq.targets.recipes import make_block_recipe
from onnxfq.targets.target import DEFAULT_TARGET, Target

SIMULATION = Target(
    "simulation",
    TargetPolicy(channel_blocks=True),
    recipes=(
        make_block_recipe("mxfp8", "simulation", "float8e4m3fn", "e8m0"),
        # OCP MX also defines float6e3m2; e2m3 has finer steps, and a block needs no wide range.
        make_block_recipe("mxfp6", "simulation", "float6e2m3", "e8m0"),
        make_block_recipe("mxfp4", "simulation", "float4e2m1", "e8m0"),
        make_block_recipe("mxint8", "simulation", "int8", "e8m0"),
        make_block_recipe("nvfp4", "simulation", "float4e2m1", "e4m3"),
    ),
    has_pairs=False,
    rules=DEFAULT_TARGET,
)
