"""Quantization-aware training of a digit network at 4 bits, and its export.

python example.py [--seeds 0 1 2] [--epochs 2] [--steps 120] [--out table.md]
"""

import argparse
import copy
import sys
from pathlib import Path

import torch
from torch.nn import functional as F

import onnxfq
from onnxfq.torch import compute_encodings, export_torch, freeze_batchnorm, learn_grids, quantize_module

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "models"))  # not an installed package
import digits
import train

HERE = Path(__file__).resolve().parent
BATCH = 100
TITLE = """# Training with fake quantization

Accuracy on the scoring digits of `models/` in percent: the depthwise network, int4 for all weights, uint4 for
all activations, by `examples/quantization_aware_training/example.py --seeds 0 1 2`.
Epochs of the float network: {epochs}. Steps with fake quantization after them, or as many in float: {steps}.
"""
calibration = torch.from_numpy(digits.load("calibration")[0])


def accuracy(module):
    """Return the share of scoring digits that the module classifies correctly, in percent."""
    correct, count = train.count_correct(module.eval())
    return 100 * correct / count


def train_on(module, seed, steps):
    """Train for `steps` batches; freeze folded BatchNorm for the last third."""
    torch.manual_seed(seed)
    images, labels = (torch.from_numpy(array) for array in digits.load("train"))
    optimizer = torch.optim.AdamW(module.parameters(), weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=steps)
    module.train()
    for step in range(steps):
        if step == 2 * steps // 3:
            freeze_batchnorm(module)
        batch = torch.randint(len(images), (BATCH,))
        optimizer.zero_grad()
        F.cross_entropy(module(images[batch]), labels[batch]).backward()
        optimizer.step()
        schedule.step()
    return module


def run(seed, epochs, steps):
    """Run all steps from training to the Q/DQ file; return the accuracy of each."""
    # 1. A trained float network.
    module = train.train(train.RECIPES["depthwise_cnn"], epochs=epochs, seed=seed)
    scores = {"float32": accuracy(module)}
    export_torch(module, (calibration[:2],), "model.onnx", output_names=["logits"])
    scores["float32, same extra training"] = accuracy(train_on(copy.deepcopy(module), seed, steps))
    # 2. Fake quantizers where the recipe wants them, and their scales from 500 digits.
    print(*quantize_module(module.eval(), HERE / "recipe.yaml").coverage(), sep=", ")
    with torch.no_grad(), compute_encodings(module):
        for batch in calibration.split(BATCH):
            module(batch)
    scores["after calibration"] = accuracy(module)
    # 3. Weights and scales learn.
    learn_grids(module, "scale")
    scores["after training"] = accuracy(train_on(module, seed, steps))
    # 4. The Q/DQ file against the float one, both in ONNX Runtime.
    export_torch(module, (calibration[:2],), "model.qdq.onnx", output_names=["logits"])
    scoring, expected = digits.load("scoring")
    feeds = [{"image": scoring[start : start + BATCH]} for start in range(0, len(scoring), BATCH)]
    (exported,) = onnxfq.evaluate("model.onnx", "model.qdq.onnx", feeds, labels=expected).candidates
    scores["Q/DQ in ONNX Runtime"] = 100 * exported.accuracy
    start, lost = scores["after calibration"], scores["float32"] - scores["after calibration"]
    scores["recovered loss"] = 100 * (scores["after training"] - start) / lost if lost else 0.0
    return scores


parser = argparse.ArgumentParser()
parser.add_argument("--seeds", type=int, nargs="+", default=[0])
parser.add_argument("--epochs", type=int, default=2, help="of the float network")
parser.add_argument("--steps", type=int, default=120, help="of training with fake quantization")
parser.add_argument("--out", type=Path, help="a Markdown file for the table")
options = parser.parse_args()
results = [run(seed, options.epochs, options.steps) for seed in options.seeds]
rows = [["%", *(f"seed {seed}" for seed in options.seeds)], ["---"] * (len(results) + 1)]
rows += [[name, *(f"{scores[name]:.2f}" for scores in results)] for name in results[0]]
table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
print(table)
if options.out:
    later = options.out.read_text().partition("\n## ")[1:] if options.out.exists() else ()
    title = TITLE.format(epochs=options.epochs, steps=options.steps)
    options.out.write_text(f"{title}\n{table}\n{''.join(later)}")
