"""Two checked TensorRT packages of a float torch model: post-training and quantization-aware."""

import argparse
import copy
import sys
from importlib.util import find_spec
from pathlib import Path

import torch
from torch.nn import functional as F

import onnxfq
from onnxfq.torch import compute_encodings, export_torch, freeze_batchnorm, learn_grids, quantize_module

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "models"))  # not an installed package
import digits
import train

BATCH = 100
parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=2, help="of the float network")
parser.add_argument("--steps", type=int, default=30, help="of training with fake quantization")
options = parser.parse_args()
calibration = torch.from_numpy(digits.load("calibration")[0])
scoring, expected = digits.load("scoring")
feeds = [{"image": scoring[start : start + BATCH]} for start in range(0, len(scoring), BATCH)]
# With TensorRT for RTX installed a real build gives the findings; it needs no GPU.
build = onnxfq.BuildOptions() if find_spec("tensorrt_rtx") else None


def quantized(module):
    """Return a copy with fake quantizers for TensorRT and scales from 500 digits."""
    module = copy.deepcopy(module).eval()
    quantize_module(module, "tensorrt-int8")
    with torch.no_grad(), compute_encodings(module):
        for images in calibration.split(BATCH):
            module(images)
    return module


def train_on(module):
    """Train weights and scales with fake quantization and frozen BatchNorm."""
    learn_grids(module, "scale")
    freeze_batchnorm(module.train())
    images, labels = (torch.from_numpy(array) for array in digits.load("train"))
    optimizer = torch.optim.AdamW(module.parameters(), 2e-4, weight_decay=0.0)
    for _ in range(options.steps):
        batch = torch.randint(len(images), (BATCH,))
        optimizer.zero_grad()
        F.cross_entropy(module(images[batch]), labels[batch]).backward()
        optimizer.step()
    return module.eval()


def hand_over(module, name):
    """Export, measure in ONNX Runtime, check, and write the folder for the machine with the GPU."""
    export_torch(module, (calibration[:2],), f"{name}.onnx", output_names=["logits"])
    evaluation = onnxfq.evaluate("float.onnx", f"{name}.onnx", feeds, labels=expected)
    package = onnxfq.handoff(f"{name}.onnx", name, data=feeds[:4], build=build)
    errors = [finding for finding in package.check.findings if finding.severity == "error"]
    (candidate,) = evaluation.candidates
    print(f"{name}: accuracy {candidate.accuracy:.2%}, {len(errors)} errors, {len(package.files)} files")
    print(package.check.table())
    if errors:
        sys.exit(1)


trained = train.train(train.RECIPES["residual_cnn"], epochs=options.epochs, seed=0).eval()
export_torch(trained, (calibration[:2],), "float.onnx", output_names=["logits"])
hand_over(quantized(trained), "post-training")
hand_over(train_on(quantized(trained)), "trained")
