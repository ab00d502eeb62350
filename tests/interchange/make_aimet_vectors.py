"""Write aimet_vectors.json: what AIMET itself makes of one small model, and what its Q/DQ models round to.

    python tests/interchange/make_aimet_vectors.py

It needs aimet-onnx (aimet_vectors.json names the release it was made with), which the tests do not.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aimet_onnx
import numpy as np
import onnx
import onnxruntime
from aimet_onnx import quantsim
from onnx import helper, numpy_helper, parser

VECTORS = Path(__file__).parent / "aimet_vectors.json"
TEXT = """<ir_version: 8, opset_import: ["": 17]>
small (float[N,4,8,8] image) => (float[N,6] logits) {
  [conv1] c = Conv <pads=[1,1,1,1]> (image, w1, b1)
  [relu] r = Relu (c)
  [depth] d = Conv <group=4, pads=[1,1,1,1]> (r, w2)
  [pool] p = GlobalAveragePool (d)
  [flat] f = Flatten (p)
  [fc1] g = Gemm <transB=1> (f, w3, b3)
  [act] s = Sigmoid (g)
  [fc2] logits = MatMul (s, w4)
}"""
SHAPES = {"w1": (4, 4, 3, 3), "b1": (4,), "w2": (4, 1, 3, 3), "w3": (8, 4), "b3": (8,), "w4": (8, 6)}
Sim = quantsim.QuantizationSimModel


def symmetric(sim: Sim, strict: bool = False, unsigned: bool = False) -> None:
    """Make every quantizer symmetric."""
    for quantizer in sum(sim.get_all_quantizers(), []):
        quantizer.use_symmetric_encodings = True
        quantizer.use_strict_symmetric = strict
        quantizer.use_unsigned_symmetric = unsigned


def asymmetric_weights(sim: Sim) -> None:
    """Give weights zero points."""
    for quantizer in sim.get_all_quantizers()[0]:
        quantizer.use_symmetric_encodings = False


def per_tensor(sim: Sim) -> None:
    """Give weights one scale."""
    for quantizer in sim.get_all_quantizers()[0]:
        quantizer.enable_per_channel_quantization(False)


def blocks(sim: Sim, *op_types: str) -> None:
    """Give weights a scale for each two input channels."""
    quantsim.set_blockwise_quantization_for_weights(sim, op_types, 4, True, 2)


def low_power_blocks(sim: Sim, *op_types: str) -> None:
    """Give weights an integer for each two input channels, times the scale of the output channel."""
    quantsim.set_grouped_blockwise_quantization_for_weights(sim, op_types, 4, 8, 2)


NARROW = {"param_type": "int4", "activation_type": "int16"}
VARIANTS: dict[str, tuple[dict[str, str], Callable[[Sim], None]]] = {
    "default": ({}, lambda sim: None),
    "int4 weights, int16 activations": (NARROW, lambda sim: None),
    "symmetric": ({}, symmetric),
    "unsigned symmetric": ({}, lambda sim: symmetric(sim, unsigned=True)),
    "strict symmetric": ({}, lambda sim: symmetric(sim, strict=True)),
    "asymmetric weights": ({}, asymmetric_weights),
    "per tensor": ({}, per_tensor),
    "blocks": (NARROW, lambda sim: blocks(sim, "Gemm", "MatMul")),
    "blocks of convolutions": (NARROW, lambda sim: blocks(sim, "Gemm", "MatMul", "Conv")),
    "LPBQ": (NARROW, lambda sim: low_power_blocks(sim, "Gemm", "MatMul")),
    "LPBQ of convolutions": (NARROW, lambda sim: low_power_blocks(sim, "Gemm", "MatMul", "Conv")),
}
VERSIONS = ("0.6.1", "1.0.0", "2.0.0")


def model(weights: dict[str, np.ndarray]) -> onnx.ModelProto:
    """Return the float model."""
    proto = parser.parse_model(TEXT)
    proto.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in weights.items())
    return proto


def files(sim: Sim, versions: tuple[str, ...]) -> dict[str, Any]:
    """Return the encodings that AIMET exports, by version."""
    with tempfile.TemporaryDirectory() as folder:
        for version in versions:
            sim.export(folder, version, encoding_version=version)
        return {v: json.loads((Path(folder) / f"{v}.encodings").read_text()) for v in versions}


def rounded(qdq: onnx.ModelProto, weights: dict[str, np.ndarray]) -> dict[str, Any]:
    """Return what the weights are behind the pairs of AIMET's Q/DQ model, run by onnxruntime."""
    sources = {node.output[0]: node.input[0] for node in qdq.graph.node if node.op_type == "QuantizeLinear"}
    found = {
        sources[node.input[0]]: node.output[0]
        for node in qdq.graph.node
        if node.op_type == "DequantizeLinear" and sources.get(node.input[0]) in weights
    }
    del qdq.graph.output[:]
    qdq.graph.output.extend(helper.make_tensor_value_info(name, 1, None) for name in found.values())
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(qdq.SerializeToString(), options)
    values = session.run(None, {"image": np.zeros((1, 4, 8, 8), np.float32)})
    return {name: value.tolist() for name, value in zip(found, values, strict=True)}


def parameters(qdq: onnx.ModelProto) -> dict[str, Any]:
    """Return scale, zero point and type that AIMET's Q/DQ model has for activations."""
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in qdq.graph.initializer}
    found = {}
    for node in qdq.graph.node:
        if node.op_type == "QuantizeLinear" and node.input[0] not in constants:
            scale, zero = (constants[name] for name in node.input[1:])
            found[node.input[0]] = {
                "scale": scale.tolist(),
                "zero_point": zero.tolist(),
                "type": str(zero.dtype),
            }
    return found


def main() -> None:
    """Write the file."""
    rng = np.random.default_rng(0)
    weights = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in SHAPES.items()}
    feeds = [{"image": rng.standard_normal((4, 4, 8, 8)).astype(np.float32)} for _ in range(4)]
    variants = {}
    for name, (types, change) in VARIANTS.items():
        sim = Sim(model(weights), **types)
        change(sim)
        sim.compute_encodings(feeds)
        has_blocks = name.startswith(("blocks", "LPBQ"))
        one: dict[str, Any] = {"files": files(sim, VERSIONS[1:] if has_blocks else VERSIONS)}
        if "convolutions" not in name:  # AIMET writes none that onnxruntime runs
            qdq = sim.to_onnx_qdq()
            one |= {"activations": parameters(qdq), "weights": rounded(qdq, weights)}
        variants[name] = one
    content = {
        "origin": f"aimet-onnx {aimet_onnx.__version__}, {Path(__file__).name}",
        "model": TEXT,
        "constants": {name: array.tolist() for name, array in weights.items()},
        "variants": variants,
    }
    parts = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in content.items()]
    VECTORS.write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
