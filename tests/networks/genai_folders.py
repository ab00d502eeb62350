"""A folder of ONNX Runtime GenAI with a small decoder of random weights, for tests."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
from builders import weights
from onnx import parser
from onnx.numpy_helper import from_array

VOCABULARY, WIDTH, HEADS, CACHE_HEADS, HEAD_SIZE, INNER, CONTEXT = 40, 32, 4, 2, 16, 44, 64
"""Sizes of the decoder. Its inner width is no multiple of a block."""

WORDS = "once upon a time there was little girl who liked to play outside with the lazy dog and fox".split()


def decoder() -> onnx.ModelProto:
    """Return one layer of a Llama in the operators and names of GenAI's own builder."""
    cache = f"batch, {CACHE_HEADS}, past, head"
    made = f"batch, {CACHE_HEADS}, total, head"
    parsed = parser.parse_model(f"""
        <ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>
        decoder (int64[batch, length] input_ids, int64[batch, total] attention_mask,
            float[{cache}] past_key_values__0__key, float[{cache}] past_key_values__0__value)
            => (float[batch, length, {VOCABULARY}] logits,
                float[{made}] present__0__key, float[{made}] present__0__value)
        <int64 one = {{1}}, int64[1] ones = {{1}}> {{
            counts = ReduceSum <keepdims = 0> (attention_mask, ones) ends = Sub (counts, ones)
            ends32 = Cast <to = 6> (ends) shape = Shape (attention_mask) total = Gather (shape, one)
            total32 = Cast <to = 6> (total)
            hidden = Gather (embed, input_ids)
            first = SimplifiedLayerNormalization <axis = -1, epsilon = 0.00001> (hidden, norm)
            qkv = MatMul (first, model__layers__0__attn__qkv_proj__MatMul__weight)
            mixed, present__0__key, present__0__value = com.microsoft.GroupQueryAttention
                <num_heads = {HEADS}, kv_num_heads = {CACHE_HEADS}, do_rotary = 1>
                (qkv, , , past_key_values__0__key, past_key_values__0__value, ends32, total32, cos, sin)
            projected = MatMul (mixed, model__layers__0__attn__o_proj__MatMul__weight)
            second, , , sum = com.microsoft.SkipSimplifiedLayerNormalization <epsilon = 0.00001>
                (hidden, projected, norm)
            gate = MatMul (second, model__layers__0__mlp__gate_proj__MatMul__weight)
            sigmoid = Sigmoid (gate) opened = Mul (gate, sigmoid)
            up = MatMul (second, model__layers__0__mlp__up_proj__MatMul__weight)
            inner = Mul (opened, up)
            down = MatMul (inner, model__layers__0__mlp__down_proj__MatMul__weight)
            last, , , _ = com.microsoft.SkipSimplifiedLayerNormalization <epsilon = 0.00001> (sum, down, norm)
            logits = MatMul (last, lm_head__MatMul__weight)
        }}""")
    # The text form of ONNX has no names with dots.
    proto = onnx.ModelProto.FromString(parsed.SerializeToString())
    for value in (*proto.graph.input, *proto.graph.output):
        value.name = value.name.replace("__", ".")
    for node in proto.graph.node:
        for names in (node.input, node.output):
            names[:] = [name.replace("__", ".") for name in names]
    angles = np.arange(CONTEXT)[:, None] * 10000.0 ** (-np.arange(HEAD_SIZE // 2) / (HEAD_SIZE // 2))
    proj = "model.layers.0.{}_proj.MatMul.weight".format
    constants = {
        "embed": weights(VOCABULARY, WIDTH),
        "norm": np.ones(WIDTH, np.float32),
        "cos": np.cos(angles).astype(np.float32),
        "sin": np.sin(angles).astype(np.float32),
        proj("attn.qkv"): weights(WIDTH, (HEADS + 2 * CACHE_HEADS) * HEAD_SIZE, seed=1),
        proj("attn.o"): weights(HEADS * HEAD_SIZE, WIDTH, seed=2),
        proj("mlp.gate"): weights(WIDTH, INNER, seed=3),
        proj("mlp.up"): weights(WIDTH, INNER, seed=4),
        proj("mlp.down"): weights(INNER, WIDTH, seed=5),
        "lm_head.MatMul.weight": weights(WIDTH, VOCABULARY, seed=6),
    }
    proto.graph.initializer.extend(from_array(array, name) for name, array in constants.items())
    return proto


def feeds(count: int, length: int = 12) -> list[dict[str, np.ndarray]]:
    """Return texts of random tokens with empty caches."""
    random = np.random.default_rng(7)
    empty = np.zeros((1, CACHE_HEADS, 0, HEAD_SIZE), np.float32)
    return [
        {
            "input_ids": random.integers(0, VOCABULARY, (1, length)),
            "attention_mask": np.ones((1, length), np.int64),
            "past_key_values.0.key": empty,
            "past_key_values.0.value": empty,
        }
        for _ in range(count)
    ]


def write_folder(folder: Path) -> Path:
    """Write the decoder, with a data file, its configuration and tokenizer; return the folder."""
    import tokenizers

    folder.mkdir()
    data = {"save_as_external_data": True, "location": "model.onnx.data", "size_threshold": 64}
    onnx.save_model(decoder(), folder / "model.onnx", **data)
    inputs = {name: name for name in ("input_ids", "attention_mask")}
    inputs |= {f"past_{one}_names": f"past_key_values.%d.{one}" for one in ("key", "value")}
    outputs = {"logits": "logits"} | {f"present_{one}_names": f"present.%d.{one}" for one in ("key", "value")}
    held = {"filename": "model.onnx", "num_hidden_layers": 1, "inputs": inputs, "outputs": outputs}
    held |= {"head_size": HEAD_SIZE, "hidden_size": WIDTH}
    held |= {"num_attention_heads": HEADS, "num_key_value_heads": CACHE_HEADS}
    model = {"type": "llama", "context_length": CONTEXT, "vocab_size": VOCABULARY, "decoder": held}
    config = {"model": model, "search": {"max_length": CONTEXT, "past_present_share_buffer": True}}
    (folder / "genai_config.json").write_text(json.dumps(config))
    words = {word: number for number, word in enumerate(["<unk>", *WORDS])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder
