"""Number formats by GPU: the least compute capability that multiplies in each.

Source: NVIDIA's support matrices of TensorRT 10 and 11, and builds of TensorRT for RTX for each capability: a
product in a format that the GPU lacks does not build.
"""

from __future__ import annotations

LEAST_CAPABILITY: dict[str, int] = {
    "int8": 75,
    "int4": 80,
    "float8e4m3fn": 89,
    "float4e2m1": 100,
}
"""Compute capability, ten times the number that NVIDIA prints: 89 for 8.9."""
