"""The built-in recipes of TensorRT."""

from __future__ import annotations

from onnxfq.targets.recipes import make_block_recipe, make_recipe

# TensorRT takes symmetric int8 only (zero points must be 0). The calibrators lost least accuracy on the real
# networks of benchmarks/results.md: a symmetric grid is coarser and must not lose the many small values,
# which squared error weighs by size and `best_error` by count.
RECIPES = (
    make_recipe("tensorrt-int8", "tensorrt", {"qtype": "int8", "equalize": "depthwise"}),
    # SM89 and later. NVIDIA calibrates float8 by the maximum. TensorRT's float8 attention requires
    # scale 1/448 for the Softmax, which its mathematical range gives. A float8 has four digits: the
    # layers that gain nothing stay in float.
    make_recipe(
        "tensorrt-fp8",
        "tensorrt",
        {"qtype": "float8e4m3fn", "calibrator": "minmax", "known_ranges": ("Softmax",)},
        {"qtype": "float8e4m3fn"},
        small_shapes="convolutions",
        depthwise="float",
    ),
    # Weights only, SM80 and later: 64 and 128 are the block sizes that TensorRT documents.
    # The calibrator lost least on the language models and encoders of docs/llm.md.
    make_recipe(
        "tensorrt-int4",
        "tensorrt",
        None,
        {
            "qtype": "int4",
            "granularity": "blocked",
            "block_size": 128,
            "other_block_sizes": (64, 32),
            "calibrator": "mse",
        },
    ),
    # Weights only, in the one form that TensorRT keeps in int8: a constant, DequantizeLinear, MatMul.
    make_recipe("tensorrt-int8-weights", "tensorrt", None),
    make_block_recipe("tensorrt-mxfp8", "tensorrt", "float8e4m3fn", "e8m0"),
    # Kernels quantize each input, which a small product does not pay for (`placement.costly_parts`).
    make_block_recipe("tensorrt-nvfp4", "tensorrt", "float4e2m1", "e4m3", small_shapes="convolutions"),
)
