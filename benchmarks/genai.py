"""Bytes, perplexity and speed of a language model's folders in ONNX Runtime GenAI.

    python benchmarks/genai.py MODEL TOKENS --python PYTHON [--cache] [--calibration 32] [--out FILE]

MODEL is `stories260k_ts_op17.onnx`, a Llama with heads of 8 numbers. PYTHON is of an environment with torch,
transformers and onnxruntime-genai. There the weights become a checkpoint with heads of 16, of which GenAI's
builder makes a float folder and its own int4. The first texts of TOKENS calibrate the others here. All are
scored twice: in ONNX Runtime as a whole, and in GenAI token by token, over the cache. Speed is tokens for
a second of processor time of one thread. Then GenAI goes on greedily from the beginnings of texts, up to
512 tokens. The table has the number of the first new token that the float folder does not
write, in the median. Its last column is the share of equal tokens at the same places. One other token changes
all behind it.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
from onnx.numpy_helper import to_array

import onnxfq
from onnxfq.metrics import perplexity
from onnxfq.runtime.session import Session

SIZE, WIDER = 8, 16
"""Numbers of a head, and of the head that GenAI's rotary attention takes instead."""

CHECKPOINT = """
import sys, numpy as np, torch, transformers
from tokenizers import Tokenizer, models
given, out = sys.argv[1:]
weights = {name: torch.from_numpy(value) for name, value in np.load(given).items()}
config = transformers.LlamaConfig(
    vocab_size=512, hidden_size=64, intermediate_size=172, num_hidden_layers=5, num_attention_heads=8,
    num_key_value_heads=4, head_dim=16, max_position_embeddings=512, rms_norm_eps=1e-5, bos_token_id=1,
    eos_token_id=2, tie_word_embeddings=False,
)
model = transformers.LlamaForCausalLM(config)
model.load_state_dict(weights)
model.save_pretrained(out)
words = Tokenizer(models.WordLevel({f"w{n}": n for n in range(512)}, unk_token="w0"))
names = dict(bos_token="w1", eos_token="w2", unk_token="w0", pad_token="w2")
transformers.PreTrainedTokenizerFast(tokenizer_object=words, **names).save_pretrained(out)
"""

SCORE = """
import sys, time, numpy as np, onnxruntime_genai as og
folder, given = sys.argv[1:]
config = og.Config(folder)
config.overlay('{"model": {"decoder": {"session_options": {"intra_op_num_threads": 1}}}}')
model, loss, count, spent = og.Model(config), 0.0, 0, 0.0
for text in np.load(given)["texts"].astype(np.int32):
    parameters = og.GeneratorParams(model)
    parameters.set_search_options(max_length=len(text) + 1, do_sample=False)
    generator = og.Generator(model, parameters)
    start = time.process_time()
    for at, token in enumerate(text[:-1]):
        generator.append_tokens(text[None, at : at + 1])
        logits = np.array(generator.get_logits())[0, -1].astype(np.float64)
        loss += np.log(np.exp(logits - logits.max()).sum()) + logits.max() - logits[text[at + 1]]
    spent += time.process_time() - start
    count += len(text) - 1
print(np.exp(loss / count), count / spent)
"""

BEGINNING, PROMPTS = 8, 16
"""Tokens from which GenAI goes on, and number of the texts that they begin."""

GENERATE = """
import sys, numpy as np, onnxruntime_genai as og
folder, given, out = sys.argv[1:]
model, made = og.Model(folder), []
for text in np.load(given)["beginnings"].astype(np.int32):
    parameters = og.GeneratorParams(model)
    parameters.set_search_options(max_length=512, min_length=512, do_sample=False)
    generator = og.Generator(model, parameters)
    generator.append_tokens(text[None])
    while not generator.is_done():
        generator.generate_next_token()
    made.append(generator.get_sequence(0)[len(text):])
np.save(out, made)
"""


class Row(NamedTuple):
    """A row of the table: the name of its folder, its recipe, changes of that, and a promise."""

    title: str
    recipe: str
    changes: dict[str, object] = {}
    promise: dict[str, object] = {}


HEAD = "| folder | MB | perplexity in onnxruntime | in GenAI | tokens a second | first other | equal tokens |"

CACHE = {"cache": {"qtype": "int8", "granularity": "per_axis"}}
LAST = {"overrides": [{"tensors": ["lm_head.MatMul.weight"], "weights": {"qtype": "int8"}}]}
BITS = {"weight_bits": 4.5, "fallback": "genai-int8"}
ALONE = [{"op_types": ["MatMul"], "keep_float": True}]
SIMULATED = "simulated.onnx"
NO_KERNEL = "float8"
"""Caches that ONNX Runtime's CPU does not run: the simulation gives their perplexity."""

BUILT = {
    "float": "default",
    "int4 of GenAI's builder": "default",
    "`k_quant` of GenAI's builder": "k_quant",
    "`k_quant_mixed` of GenAI's builder": "k_quant_mixed",
}
"""Folders of GenAI's builder, with its `algo_config`."""

ROWS = (
    Row("`genai-int8`", "genai-int8"),
    Row("`genai-int4`", "genai-int4"),
    Row("`genai-int4`, nearest", "genai-int4", {"weights": {"rounding": "nearest"}}),
    Row("`genai-uint4`", "genai-uint4"),
    Row("`genai-uint4`, nearest", "genai-uint4", {"weights": {"rounding": "nearest"}}),
    Row("`genai-int4`, `--weight-bits 4.5 --fallback genai-int8`", "genai-int4", {}, BITS),
    Row(
        "`genai-int4`, `--weight-bits 5.5 --fallback genai-int8`",
        "genai-int4",
        {},
        {**BITS, "weight_bits": 5.5},
    ),
    Row("`genai-int4`, the head in int8", "genai-int4", LAST),
    Row("`genai-int8`, cache in int8 by channel", "genai-int8", CACHE),
    Row("`genai-int4`, cache in int8 by channel", "genai-int4", CACHE),
)
CACHE_ROWS = tuple(
    Row(
        f"{qtype}, `{part}`",
        "genai-int8",
        {"overrides": ALONE, "cache": {"qtype": qtype, "granularity": way}},
    )
    for qtype in ("int8", "int4", "float8e4m3fn")
    for part, way in (("tensor", "per_tensor"), ("channel", "per_axis"))
)


def main() -> None:
    """Print the table, and write it to a file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("tokens", type=Path)
    parser.add_argument("--python", required=True, help="of an environment with onnxruntime-genai")
    parser.add_argument("--calibration", type=int, default=32, help="texts that calibrate")
    parser.add_argument("--cache", action="store_true", help="caches alone, with weights in float")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    with np.load(asked.tokens) as arrays:
        texts = next(iter(arrays.values())).astype(np.int64)
    with tempfile.TemporaryDirectory() as name:
        rows = measure(Path(name), asked, texts)
    lines = [HEAD, "|---" * HEAD.count(" | ") + "|---|"]
    table = "\n".join([*lines, *(f"| {' | '.join(cells)} |" for cells in rows)])
    print(table)
    if asked.out is not None:
        unseen = len(texts) - asked.calibration
        intro = f"{asked.model.stem} as folders, {asked.calibration} texts calibrate, {unseen} are scored."
        title = "Caches of a language model in GenAI" if asked.cache else "Language models in GenAI"
        asked.out.write_text(f"# {title}\n\n{intro}\n\n{table}\n", encoding="utf-8")


def measure(root: Path, asked: argparse.Namespace, texts: np.ndarray) -> list[list[str]]:
    """Return the rows: the builder's float and int4 folders, and one of each recipe."""
    np.savez(root / "weights.npz", **llama_weights(onnx.load(asked.model)))
    unseen = texts[asked.calibration :]
    np.savez(root / "texts.npz", texts=unseen, beginnings=unseen[:PROMPTS, :BEGINNING])
    run([asked.python, "-c", CHECKPOINT, str(root / "weights.npz"), str(root / "hf")])
    built = {"float": "default"} if asked.cache else BUILT
    folders = {name: root / ("fp32" if name == "float" else method) for name, method in built.items()}
    for name, method in built.items():
        words = [asked.python, "-m", "onnxruntime_genai.models.builder", "-i", str(root / "hf")]
        words += ["-o", str(folders[name]), "-p", "fp32" if name == "float" else "int4"]
        words += ["-e", "cpu", "-c", str(root / "cache")]
        run([*words, "--extra_options", "block_size=32", f"algo_config={method}"])
    known = [feed(root / "fp32" / "model.onnx", text) for text in texts[: asked.calibration]]
    for number, row in enumerate(CACHE_ROWS if asked.cache else ROWS):
        folders[row.title] = root / f"made_{number}"
        recipe = onnxfq.load_recipe(row.recipe).override(**row.changes)
        accuracy = onnxfq.AccuracyTarget(**row.promise) if row.promise else None
        result = onnxfq.quantize(root / "fp32", known, folders[row.title], recipe=recipe, accuracy=accuracy)
        if NO_KERNEL in row.title:
            onnx.save(result.simulation, folders[row.title] / SIMULATED)
    return [score(name, folder, root, asked.python) for name, folder in folders.items()]


def score(name: str, folder: Path, root: Path, python: str) -> list[str]:
    """Return the cells of a folder."""
    simulated = folder / SIMULATED
    model = simulated if simulated.exists() else folder / "model.onnx"
    bytes_ = sum(path.stat().st_size for path in folder.glob("model.onnx*"))
    with np.load(root / "texts.npz") as arrays:
        feeds = [feed(model, text) for text in arrays["texts"]]
    session = Session(model)
    logits = ({"logits": session.run(one)[0]} for one in feeds)
    if simulated.exists():
        return [name, f"{bytes_ / 1e6:.2f}", f"{perplexity(logits, feeds):.2f}", "no kernel", "", "", ""]
    in_genai, speed = run([python, "-c", SCORE, str(folder), str(root / "texts.npz")]).split()
    figures = [perplexity(logits, feeds), float(in_genai)]
    printed = [f"{bytes_ / 1e6:.2f}", *(f"{figure:.2f}" for figure in figures), f"{float(speed):.0f}"]
    return [
        name,
        *printed,
        *compare_tokens(generate(folder, root, python), generate(root / "fp32", root, python)),
    ]


def generate(folder: Path, root: Path, python: str) -> np.ndarray:
    """Return the new tokens [texts, tokens] of a folder, from a file if it generated before."""
    made = root / f"{folder.name}.npy"
    if not made.exists():
        run([python, "-c", GENERATE, str(folder), str(root / "texts.npz"), str(made)])
    return np.load(made)


def compare_tokens(found: np.ndarray, wanted: np.ndarray) -> tuple[str, str]:
    """Return the number of the first token that differs, from 1, in the median, and the share that is equal.

    A text without a difference counts as its length.
    """
    differs = found != wanted
    first = np.where(differs.any(axis=1), differs.argmax(axis=1) + 1, wanted.shape[1])
    return f"{np.median(first):.0f}", f"{1 - differs.mean():.0%}"


def feed(model: Path, text: np.ndarray) -> dict[str, np.ndarray]:
    """Return the inputs that read a text from empty caches."""
    given = {"input_ids": text[None], "attention_mask": np.ones((1, len(text)), np.int64)}
    for value in onnx.load(model, load_external_data=False).graph.input:
        if value.name not in given:
            kind = value.type.tensor_type
            dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
            _, heads, _, size = kind.shape.dim
            given[value.name] = np.zeros((1, heads.dim_value, 0, size.dim_value or WIDER), dtype)
    return given


def llama_weights(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    """Return the weights of a Llama of transformers with the function of stories260k.

    GenAI's rotary attention takes heads in multiples of 16. Pair i of 8 numbers, with angle base^(-2i/8),
    becomes pair 2i of 16, and the rest is 0. The query times the root of 2 makes up for the root of the size.
    """
    given = {one.name: to_array(one) for one in model.graph.initializer}
    whole = {"model.embed_tokens": "tok", "lm_head": "tok", "model.norm": "norm.weight"}
    made = {f"{name}.weight": given[short] for name, short in whole.items()}
    names = {"w1": "mlp.gate_proj", "w2": "mlp.down_proj", "w3": "mlp.up_proj"}
    names |= {"n1": "input_layernorm", "n2": "post_attention_layernorm"}
    pairs = np.arange(SIZE // 2)
    # Rows of a head are pairs side by side; transformers has first halves, then second halves.
    rotated = np.zeros(SIZE, np.int64)
    rotated[2 * pairs], rotated[2 * pairs + 1] = 2 * pairs, 2 * pairs + WIDER // 2
    plain = np.arange(SIZE)
    for layer in range(5):
        ours, theirs = f"layers.{layer}.", f"model.layers.{layer}."
        for short, name in names.items():
            made[f"{theirs}{name}.weight"] = given[f"{ours}{short}.weight"]
        for short, places in (("q", rotated), ("k", rotated), ("v", plain)):
            weight = given[f"{ours}{short}.weight"].reshape(-1, SIZE, 64)
            wider = np.zeros((len(weight), WIDER, 64), np.float32)
            wider[:, places] = weight * np.float32(2**0.5 if short == "q" else 1)
            made[f"{theirs}self_attn.{short}_proj.weight"] = wider.reshape(-1, 64)
        out = given[f"{ours}o.weight"].reshape(64, -1, SIZE)
        wider = np.zeros((64, out.shape[1], WIDER), np.float32)
        wider[..., plain] = out
        made[f"{theirs}self_attn.o_proj.weight"] = wider.reshape(64, -1)
    return made


def run(words: list[str]) -> str:
    """Run a command and return what it prints; raise with its output if it fails."""
    ended = subprocess.run(words, capture_output=True, text=True)
    if ended.returncode:
        raise RuntimeError(f"{words[:4]} ended with {ended.returncode}:\n{ended.stderr[-3000:]}")
    return ended.stdout


if __name__ == "__main__":
    main()
