"""Quantizes folders of GenAI's own builder, and generates from them in ONNX Runtime GenAI.

    python tests/slow/check_genai.py [--python PYTHON] [--kinds Llama Qwen2 Phi3 Lfm2Moe]

Not a pytest. An environment of its own has torch, transformers and onnxruntime-genai, which brings the CPU's
onnxruntime. It builds a Llama, a Qwen, a Phi and a Lfm2 with experts, of random weights, and generates. Along
the 32 greedy tokens of the float model int8 weights must keep 30 dB of the logits. They must keep the first
token wherever the two best of the float model differ by more than four times the noise. The same holds with a
cache in int8. In the mean int4 must be better than the builder's own. Its logits must equal the simulation's:
to float32 rounding where inputs stay in float, and up to steps of int8 where they are rounded. The file
read back must compute them too. The way from a checkpoint to tokens in docs/llm.md must work as written.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

import numpy as np
import onnx

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "networks"))

from pages import BLOCK, ROOT

import onnxfq
from onnxfq.quantized.existing import load_existing
from onnxfq.runtime.session import Session

PACKAGES = ("torch==2.13.0", "onnxruntime", "onnxruntime-genai", "transformers", "onnx_ir")
KINDS = ("Llama", "Qwen2", "Phi3", "Lfm2Moe")
EIGHT_BITS = ("genai-int8", "int8-cache")
PROMPT, HEAD_SIZE = [1, 40, 50, 60], 32

AGREEMENT_DB = {"genai-int4": 40.0, "int4-float-inputs": 90.0}
"""Least SQNR of the simulation's logits in GenAI: a last bit can turn a rounded input by a step."""

READ_DB = {"genai-int4": 25.0, "int4-float-inputs": 90.0}
"""The same of the file read back, in which inputs are not rounded."""

BUILD = """
import sys, torch, transformers
from tokenizers import Tokenizer, models, trainers, pre_tokenizers
kind, out = sys.argv[1:]
text = ["The quick brown fox jumps over the lazy dog.", "Once upon a time there was a little girl."]
tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
alphabet = pre_tokenizers.ByteLevel.alphabet()
special = ["<unk>", "<s>", "</s>"]
trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=special, initial_alphabet=alphabet)
tokenizer.train_from_iterator(text, trainer)
names = dict(bos_token="<s>", eos_token="</s>", unk_token="<unk>", pad_token="</s>")
tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)
torch.manual_seed(0)
experts = dict(
    num_experts=4, num_experts_per_tok=2, moe_intermediate_size=64, num_dense_layers=1,
    layer_types=["full_attention"] * 3,
)
config = getattr(transformers, kind + "Config")(
    **(experts if kind == "Lfm2Moe" else {}),
    vocab_size=len(tokenizer), hidden_size=128, intermediate_size=272, num_hidden_layers=3,
    num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512,
    original_max_position_embeddings=512,
    bos_token_id=1, eos_token_id=2, pad_token_id=2, tie_word_embeddings=False,
)
model = getattr(transformers, kind + "ForCausalLM")(config)
for name, weight in model.named_parameters():
    if name.endswith("feed_forward.gate.weight"):
        torch.nn.init.normal_(weight, std=0.3)  # a router that is sure, as trained ones are
model.save_pretrained(out)
tokenizer.save_pretrained(out)
"""

GENERATE = """
import sys, json, numpy as np, onnxruntime_genai as og
folder, given = sys.argv[1], json.loads(sys.argv[2])
model = og.Model(folder)
parameters = og.GeneratorParams(model)
parameters.set_search_options(max_length=64, do_sample=False)
generator = og.Generator(model, parameters)
generator.append_tokens(np.array([[1, 40, 50, 60]], np.int32))
logits, tokens = [], []
for step in range(32):
    logits.append(np.array(generator.get_logits())[0, -1])
    if given:
        token = given[step]
        generator.append_tokens(np.array([[token]], np.int32))
    else:
        generator.generate_next_token()
        token = int(generator.get_next_tokens()[0])
    tokens.append(token)
np.savez(sys.argv[3], logits=np.array(logits), tokens=tokens)
"""


def main() -> int:
    """Build, quantize and generate; return 1 if a rule does not hold."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", help="of an environment that has the packages")
    parser.add_argument("--kinds", nargs="+", default=KINDS)
    asked, faults = parser.parse_args(), []
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        python = asked.python or str(root / "env" / "bin" / "python")
        if asked.python is None:
            venv.create(root / "env", with_pip=True)
            run([python, "-m", "pip", "install", "-q", *PACKAGES])
        follow_page(root / "page", python)
        found = {kind: check(kind, root / kind, python) for kind in asked.kinds}
    for kind, figures in found.items():
        for folder in EIGHT_BITS:
            if figures[folder] < 30 or figures[f"{folder}: other tokens"]:
                faults.append(f"{kind}: {folder} has {figures[folder]:.1f} dB, or another first token")
        for folder, least in AGREEMENT_DB.items():
            if figures[f"{folder}: simulated"] < least:
                faults.append(f"{kind}: {folder} has other logits in GenAI than in the simulation")
            # Read back, weights have their numbers and inputs are in float.
            if figures[f"{folder}: read back"] < READ_DB[folder]:
                faults.append(f"{kind}: {folder} has other logits in GenAI than when it is read back")
    ours, theirs = (np.mean([one[name] for one in found.values()]) for name in ("genai-int4", "int4"))
    if ours <= theirs:
        faults.append(f"int4 has {ours:.1f} dB in the mean, the builder's {theirs:.1f}")
    print("\n".join(faults) or "all rules hold")
    return int(bool(faults))


def follow_page(folder: Path, python: str) -> None:
    """Run the commands of docs/llm.md from a checkpoint to tokens; raise unless they generate text."""
    page = (ROOT / "docs" / "llm.md").read_text(encoding="utf-8")
    way = page.partition("## From a checkpoint to tokens\n")[2].partition("\n## ")[0]
    blocks = dict(BLOCK.findall(way))
    folder.mkdir()
    (folder / "generate.py").write_text(blocks["python"])
    (folder / "texts.txt").write_text("the lazy dog jumps over a little girl and the quick brown fox " * 40)
    run([python, "-c", BUILD, "Llama", str(folder / "llama")])
    for line in blocks["sh"].splitlines():
        program, *arguments = shlex.split(line)
        start = {"python": [python], "onnxfq": [sys.executable, "-m", "onnxfq"]}[program]
        printed = run([*start, *arguments], folder)
        print(f"docs/llm.md: {line}")
    if not printed.startswith("Once upon a time"):
        raise RuntimeError(f"the last command of docs/llm.md printed {printed!r}")
    at_once = "quantize llama --data texts.txt -o at-once --recipe genai-int4 --python"
    run([sys.executable, "-m", "onnxfq", *at_once.split(), python], folder)
    if (folder / "at-once" / "model.onnx").read_bytes() != (folder / "int4" / "model.onnx").read_bytes():
        raise RuntimeError("--python made another decoder than the builder and quantize one after the other")


def run(words: list[str], folder: Path | None = None) -> str:
    """Run a command in `folder` and return what it prints; raise with its output if it fails."""
    ended = subprocess.run(words, capture_output=True, text=True, cwd=folder)
    if ended.returncode:
        raise RuntimeError(
            f"{words[:4]} ended with {ended.returncode}:\n{ended.stdout[-2000:]}{ended.stderr[-3000:]}"
        )
    return ended.stdout


def check(kind: str, root: Path, python: str) -> dict[str, float]:
    """Return the dB of one kind of network by folder, and how often int8 has another clear first token."""
    root.mkdir()
    run([python, "-c", BUILD, kind, str(root / "hf")])
    for precision in ("fp32", "int4"):
        words = [
            "-m",
            "onnxruntime_genai.models.builder",
            "-i",
            str(root / "hf"),
            "-o",
            str(root / precision),
        ]
        words += ["-p", precision, "-e", "cpu", "-c", str(root / "cache")]
        run([python, *words, "--extra_options", "block_size=32"])
    # A network of random weights writes any token, and a token that no text has may exceed the ranges of a
    # cache: texts of letters lack most of them, and left 28.6 dB of a Qwen2 with a cache in int8.
    float_model = onnx.load(root / "fp32" / "model.onnx", load_external_data=False)
    words = next(one for one in float_model.graph.output if one.name == "logits").type.tensor_type.shape.dim[
        2
    ]
    random = np.random.default_rng(0)
    texts = [feed_for(float_model, random.integers(0, words.dim_value, (1, 256))) for _ in range(32)]
    onnxfq.quantize(root / "fp32", texts, root / "genai-int8", recipe="genai-int8")
    int4 = onnxfq.load_recipe("genai-int4")
    simulated = {
        name: onnxfq.quantize(root / "fp32", texts, root / name, recipe=recipe).simulation
        for name, recipe in (("genai-int4", int4), ("int4-float-inputs", int4.override(activations=None)))
    }
    cached = onnxfq.load_recipe("genai-int8").override(cache={"qtype": "int8", "granularity": "per_axis"})
    onnxfq.quantize(root / "fp32", texts, root / "int8-cache", recipe=cached)
    wanted, tokens = generate(root / "fp32", root, python, [])
    second, best = np.sort(wanted, axis=-1)[:, -2:].T
    found = {}
    for folder in (*EIGHT_BITS, *simulated, "int4"):
        logits, _ = generate(root / folder, root, python, tokens)
        noise = np.sqrt(np.mean((logits - wanted) ** 2))
        found[folder] = decibels(wanted, logits)
        print(f"{kind} {folder}: {found[folder]:.1f} dB along 32 tokens", flush=True)
        if folder in simulated:
            computed = simulate(simulated[folder], tokens)
            found[f"{folder}: simulated"] = decibels(computed, logits)
            read = load_existing(root / folder / "model.onnx", "requantize").proto
            found[f"{folder}: read back"] = decibels(simulate(read, tokens), logits)
            print(f"{kind} {folder}: {found[f'{folder}: simulated']:.1f} dB of the simulation", flush=True)
        if folder in EIGHT_BITS:
            other = (logits.argmax(-1) != wanted.argmax(-1)) & (best - second > 4 * noise)
            found[f"{folder}: other tokens"] = float(other.sum())
    return found


def decibels(wanted: np.ndarray, found: np.ndarray) -> float:
    """Return the SQNR of `found`, in dB."""
    return float(10 * np.log10(np.mean(wanted**2) / np.mean((found - wanted) ** 2)))


def simulate(model: onnx.ModelProto, tokens: list[int]) -> np.ndarray:
    """Return the logits of a simulation in front of each of `tokens`, which follow PROMPT, read at once."""
    feed = feed_for(model, np.array([[*PROMPT, *tokens[:-1]]]))
    return Session(model, exact=True).run(feed)[0][0, len(PROMPT) - 1 :]


def feed_for(model: onnx.ModelProto, text: np.ndarray) -> dict[str, np.ndarray]:
    """Return the inputs of a decoder that read `text` from empty caches."""
    feed = {"input_ids": text, "attention_mask": np.ones_like(text)}
    for value in model.graph.input:
        if value.name not in feed:
            heads = value.type.tensor_type.shape.dim[1].dim_value
            feed[value.name] = np.zeros((1, heads, 0, HEAD_SIZE), np.float32)
    return feed


def generate(folder: Path, root: Path, python: str, tokens: list[int]) -> tuple[np.ndarray, list[int]]:
    """Return the logits of 32 steps, and their tokens: the given ones, or the best by greedy search."""
    out = root / "steps.npz"
    run([python, "-c", GENERATE, str(folder), json.dumps(tokens), str(out)])
    with np.load(out) as steps:
        return steps["logits"], steps["tokens"].tolist()


if __name__ == "__main__":
    raise SystemExit(main())
