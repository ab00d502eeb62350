"""A chain of products in which some layers read a channel 2000 times as large: int8 loses all others."""

from __future__ import annotations

import numpy as np
import onnx
from builders import build

from onnxfq.documents.recipe import Recipe
from onnxfq.graph.node_notes import SCOPES_KEY
from onnxfq.targets.recipes import load_recipe

LAYERS, WIDTH, FACTOR = 8, 24, 2000.0


def chain(planted: tuple[int, ...] = (), layers: int = LAYERS) -> onnx.ModelProto:
    """MatMul with Relu between; planted layers read a channel times 2000, the function is the same."""
    rng = np.random.default_rng(5)
    made = [rng.normal(0, 1.4 / np.sqrt(WIDTH), (WIDTH, WIDTH)).astype(np.float32) for _ in range(layers)]
    for layer in planted:
        made[layer - 1][:, 3] *= FACTOR
        made[layer][3] /= FACTOR
    lines = ["h0 = Identity (x)"]
    for layer in range(layers):
        lines += [f"[m{layer}] a{layer} = MatMul (h{layer}, w{layer})", f"h{layer + 1} = Relu (a{layer})"]
    text = (
        f"g (float[N,{WIDTH}] x) => (float[N,{WIDTH}] y) {{ {' '.join(lines)} y = Softmax (a{layers - 1}) }}"
    )
    return build(text, {f"w{layer}": made[layer] for layer in range(layers)})


def unequalized() -> Recipe:
    """Return the default recipe without equalization, which would make the planted channels small again."""
    return load_recipe("tensorrt-int8").override(activations={"equalize": "none"})


def with_modules(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Note module paths on the products, as torch's exporter does: `blocks.0.fc3` for the fourth."""
    for number, node in enumerate(node for node in proto.graph.node if node.op_type == "MatMul"):
        scopes = ["", f"blocks.{number // 4}", f"blocks.{number // 4}.fc{number}", f"linear_{number}"]
        node.metadata_props.add(key=SCOPES_KEY, value=repr(scopes))
    return proto
