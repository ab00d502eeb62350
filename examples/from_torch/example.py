"""Short training of a small torch module, its export, its quantization for TensorRT, and a comparison."""

import sys
from pathlib import Path

import torch

import onnxfq

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "models"))  # not an installed package
import digits
import train


def batches(images, size=100):
    """Split images [N, 1, 28, 28] into feeds, one {input name: array} for each batch."""
    return [{"image": images[start : start + size]} for start in range(0, len(images), size)]


module = train.train(train.RECIPES["residual_cnn"], epochs=3, seed=0)
calibration, _ = digits.load("calibration")
scoring, labels = digits.load("scoring")

onnxfq.export_torch(module, (torch.from_numpy(calibration[:2]),), "model.onnx", output_names=["logits"])
onnxfq.quantize("model.onnx", batches(calibration), "model.qdq.onnx", recipe="tensorrt-int8")
evaluation = onnxfq.evaluate("model.onnx", "model.qdq.onnx", batches(scoring), labels=labels)
print(evaluation.table())
