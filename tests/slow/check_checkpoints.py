"""Converts checkpoints both ways, and lets transformers and ONNX Runtime compute with both.

    python tests/slow/check_checkpoints.py [--python PATH]

Not a pytest. An environment of its own, or that of PATH, has torch, transformers, compressed-tensors and
onnxruntime-genai, whose builder makes the graph. For each small checkpoint of tests/interchange the logits of
the converted model in ONNX Runtime must equal those of transformers to float32 rounding. A checkpoint written
from the model must have the same weights in transformers, bit by bit.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnxruntime

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "networks"))

from checkpoint_graphs import CHECKPOINTS, FLOAT

from onnxfq.tools.checkpoints.apply_checkpoint import apply_checkpoint
from onnxfq.tools.checkpoints.export_checkpoint import export_checkpoint

PACKAGES = (
    *("torch==2.13.0", "transformers", "compressed-tensors==0.20.0"),
    *("onnxruntime", "onnxruntime-genai", "onnx_ir"),
)
READ_BY_TRANSFORMERS = ("ct-pack-int4", "ct-pack-asymmetric", "ct-pack-int3", "ct-nvfp4", "ct-mxfp8")
"""Checkpoints whose weights transformers reads without other packages; their inputs stay in float here."""
OTHERS = ("gptq", "gptq-3bit", "gptq-v2-8bit", "autoround", "awq", "modelopt-int4", "modelopt-mxfp8")
"""Checkpoints that transformers reads once they are written as compressed-tensors."""
TOLERANCE = 2e-5
"""Of logits, relative to the largest: two orders of float32 sums."""

TOKENIZER = """
import sys
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast
words = {word: number for number, word in enumerate("<unk> a b c d e f g h i j k l m n o".split())}
made = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
PreTrainedTokenizerFast(tokenizer_object=made, unk_token="<unk>").save_pretrained(sys.argv[1])
"""

READ = """
import sys, numpy as np, torch
from transformers import AutoModelForCausalLM, CompressedTensorsConfig
config = CompressedTensorsConfig(run_compressed=False)
options = dict(quantization_config=config, dtype=torch.float32)
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], **options).eval()
for module in model.modules():  # inputs stay in float: the graph has them so
    scheme = getattr(module, "quantization_scheme", None)
    if scheme is not None:
        scheme.input_activations = None
weights = {n: p.detach().float() for n, p in model.named_parameters() if p.ndim == 2}
rounded = all(torch.equal(w, w.bfloat16().float()) for w in weights.values())
model.float()
with torch.no_grad():
    logits = model(torch.tensor([[3, 1, 4, 15, 9, 2, 6, 5]])).logits.numpy()
np.savez(sys.argv[2], logits=logits, rounded=rounded, **weights)
"""


def main() -> int:
    """Convert and compare; return 1 if a rule does not hold."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", help="Use this environment.")
    python = parser.parse_args().python
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        if python is None:
            venv.create(root / "env", with_pip=True)
            python = str(root / "env" / "bin" / "python")
            run([python, "-m", "pip", "install", "-q", *PACKAGES])
        graph = build(root, python)
        faults = [
            fault for one in (*READ_BY_TRANSFORMERS, *OTHERS) for fault in check(one, graph, root, python)
        ]
    print("\n".join(faults) or "all rules hold")
    return int(bool(faults))


def run(words: list[str]) -> None:
    """Run a command; raise with its output if it fails."""
    ended = subprocess.run(words, capture_output=True, text=True)
    if ended.returncode:
        raise RuntimeError(f"{words[:4]} ended with {ended.returncode}:\n{ended.stderr[-3000:]}")


def build(root: Path, python: str) -> Path:
    """Return the float graph of the small Llama, by GenAI's builder."""
    source = root / "source"
    source.mkdir()
    for path in FLOAT.iterdir():
        (source / path.name).write_bytes(path.read_bytes())
    run([python, "-c", TOKENIZER, str(source)])
    words = ["-m", "onnxruntime_genai.models.builder", "-i", str(source), "-o", str(root / "built")]
    run([python, *words, "-p", "fp32", "-e", "cpu", "-c", str(root / "cache")])
    return root / "built" / "model.onnx"


def check(name: str, graph: Path, root: Path, python: str) -> list[str]:
    """Return what is wrong with one checkpoint."""
    model, back, encodings = root / f"{name}.onnx", root / f"{name}-back", root / f"{name}-encodings"
    target = "simulation" if "nvfp4" in name else "onnxruntime"
    apply_checkpoint(CHECKPOINTS / name, graph, encodings, target=target)
    plain = encodings / "model.onnx"
    # A library whose scales are bfloat16 rounds the weights to it.
    wanted = {False: read(plain), True: read(round_weights(plain, root / "rounded.onnx"))}
    faults = []
    if name in READ_BY_TRANSFORMERS:
        theirs = read_by_transformers(CHECKPOINTS / name, root, python)
        faults += compare(f"{name}: logits", wanted[bool(theirs["rounded"])], theirs["logits"])
    if "nvfp4" in name:  # ONNX Runtime has no such weights, and TensorRT none of three joined global scales
        return faults
    apply_checkpoint(CHECKPOINTS / name, graph, model)
    faults += compare(f"{name}: logits of the quantized model", read(model), wanted[False])
    export_checkpoint(model, FLOAT, back, "compressed-tensors")
    again = read_by_transformers(back, root, python)
    made = wanted[bool(again["rounded"])]
    faults += compare(f"{name}: logits of the written checkpoint", again["logits"], made)
    if name in READ_BY_TRANSFORMERS:
        other = [key for key in theirs if key != "logits" and theirs[key].tobytes() != again[key].tobytes()]
        faults += [f"{name}: {key} has other bits" for key in other]
    print(f"{name}: {len(faults)} faults", flush=True)
    return faults


def round_weights(model: Path, output: Path) -> Path:
    """Write a model with its matrices rounded to bfloat16; return its path."""
    proto = onnx.load(model)
    for tensor in proto.graph.initializer:
        if tensor.name.endswith(".MatMul.weight"):
            values = onnx.numpy_helper.to_array(tensor).astype(ml_dtypes.bfloat16).astype(np.float32)
            tensor.CopyFrom(onnx.numpy_helper.from_array(values, tensor.name))
    onnx.save(proto, output)
    return output


def read(model: Path) -> np.ndarray:
    """Return the logits of a model in ONNX Runtime."""
    options = (
        onnxruntime.SessionOptions()
    )  # optimised, MatMulNBits takes the place of pairs, with an input of int8
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    tokens = np.asarray([[3, 1, 4, 15, 9, 2, 6, 5]], np.int64)
    feed = {"input_ids": tokens, "attention_mask": np.ones_like(tokens)}
    for value in session.get_inputs():
        if value.name.startswith("past_key_values"):
            feed[value.name] = np.zeros((1, 2, 0, 16), np.float32)
    return session.run(["logits"], feed)[0]


def read_by_transformers(folder: Path, root: Path, python: str) -> dict[str, np.ndarray]:
    """Return logits and weights of a checkpoint in transformers."""
    run([python, "-c", READ, str(folder), str(root / "read.npz")])
    with np.load(root / "read.npz") as arrays:
        return dict(arrays)


def compare(what: str, made: np.ndarray, wanted: np.ndarray) -> list[str]:
    """Return a fault if two arrays differ by more than TOLERANCE of the largest."""
    error = float(np.abs(made - wanted).max() / np.abs(wanted).max())
    return [] if error < TOLERANCE else [f"{what} differ by {error:.1e} of the largest"]


if __name__ == "__main__":
    raise SystemExit(main())
