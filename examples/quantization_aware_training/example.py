"""Train a digit network, lose accuracy at 3 bits, win it back by training with fake quantization, export."""

import sys
from pathlib import Path

import torch
from torch.nn import functional as F

import onnxfq
from onnxfq.torch import (
    compute_encodings,
    export_torch,
    freeze_batchnorm,
    learn_grids,
    quantize_module,
)

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "models"))  # not an installed package
import digits
import train

HERE = Path(__file__).resolve().parent
STEPS, BATCH = 120, 100
seed = int(sys.argv[1]) if len(sys.argv) > 1 else 0


def accuracy(module):
    """Return the share of the scoring digits that the module gets right, in percent."""
    correct, count = train.count_correct(module)
    return 100 * correct / count


# 1. A trained float network.
module = train.train(train.RECIPES["depthwise_cnn"], epochs=2, seed=seed)
scores = {"float32": accuracy(module)}
calibration = torch.from_numpy(digits.load("calibration")[0])
export_torch(module, (calibration[:2],), "model.onnx", output_names=["logits"])

# 2. Fake quantizers where the recipe wants them, and their scales from 500 digits.
print(*quantize_module(module, HERE / "recipe.yaml").coverage(), sep=", ")
with torch.no_grad(), compute_encodings(module):
    for batch in calibration.split(BATCH):
        module(batch)
scores["after calibration"] = accuracy(module)

# 3. A few hundred steps in which weights and scales learn; BatchNorm stands still for the last third.
learn_grids(module, "scale")
images, labels = (torch.from_numpy(array) for array in digits.load("train"))
optimizer = torch.optim.AdamW(module.parameters(), weight_decay=0.0)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=STEPS)
module.train()
for step in range(STEPS):
    if step == 2 * STEPS // 3:
        freeze_batchnorm(module)
    batch = torch.randint(len(images), (BATCH,))
    optimizer.zero_grad()
    F.cross_entropy(module(images[batch]), labels[batch]).backward()
    optimizer.step()
    schedule.step()
module.eval()
scores["after training"] = accuracy(module)

# 4. The Q/DQ file against the float one, both in ONNX Runtime.
export_torch(module, (calibration[:2],), "model.qdq.onnx", output_names=["logits"])
scoring, expected = digits.load("scoring")
feeds = [{"image": scoring[start : start + BATCH]} for start in range(0, len(scoring), BATCH)]
evaluation = onnxfq.evaluate("model.onnx", "model.qdq.onnx", feeds, labels=expected)
(exported,) = evaluation.candidates
scores["Q/DQ model in ONNX Runtime"] = 100 * exported.accuracy
for name, score in scores.items():
    print(f"{name:<28}{score:6.2f} %")
