"""The decoder of `decoder.py` in the operators and names of ONNX Runtime GenAI's builder, as its folder."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from networks.decoder import DecoderShape, _Decoder
from networks.external_weights import ExternalWeights


def write_genai_decoder(folder: Path, shape: DecoderShape) -> Path:
    """Write the folder of a decoder with a cache, for texts of up to `shape.tokens`; return the folder."""
    folder.mkdir()
    with closing(ExternalWeights(folder / "model.onnx.data")) as weights:
        decoder = _GenaiDecoder(shape, weights)
        logits = decoder.build()
    decoder.nodes.append(helper.make_node("Identity", [logits], ["logits"]))
    size, number = shape.width // shape.heads, TensorProto.FLOAT
    caches = [(layer, kind) for layer in range(shape.layers) for kind in ("key", "value")]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        decoder.nodes,
        "decoder",
        [
            value("input_ids", TensorProto.INT64, ["batch", "length"]),
            value("attention_mask", TensorProto.INT64, ["batch", "total"]),
            *(
                value(f"past_key_values.{n}.{kind}", number, ["batch", shape.key_heads, "past", size])
                for n, kind in caches
            ),
        ],
        [
            value("logits", number, ["batch", "length", shape.words]),
            *(
                value(f"present.{n}.{kind}", number, ["batch", shape.key_heads, "total", size])
                for n, kind in caches
            ),
        ],
        [
            *(numpy_helper.from_array(array, name) for name, array in decoder.weights.items()),
            *decoder.matrices,
        ],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), folder / "model.onnx")
    write_config(folder, shape)
    return folder


def write_config(folder: Path, shape: DecoderShape) -> None:
    """Write `genai_config.json` for a decoder of this shape and these names in `model.onnx`."""
    decoder = {
        "filename": "model.onnx",
        "head_size": shape.width // shape.heads,
        "hidden_size": shape.width,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.key_heads,
        "num_hidden_layers": shape.layers,
        "inputs": {
            "input_ids": "input_ids",
            "attention_mask": "attention_mask",
            "past_key_names": "past_key_values.%d.key",
            "past_value_names": "past_key_values.%d.value",
        },
        "outputs": {
            "logits": "logits",
            "present_key_names": "present.%d.key",
            "present_value_names": "present.%d.value",
        },
    }
    tokens = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}
    sizes = {"context_length": shape.tokens, "vocab_size": shape.words}
    model = {"type": "llama", **tokens, **sizes, "decoder": decoder}
    config = {"model": model, "search": {"max_length": shape.tokens, "past_present_share_buffer": True}}
    (folder / "genai_config.json").write_text(json.dumps(config, indent=2))


class _GenaiDecoder(_Decoder):
    """Nodes of the decoder, its attention and norms in one operator each."""

    def __init__(self, shape: DecoderShape, weights: ExternalWeights) -> None:
        super().__init__(shape, weights)
        size = shape.width // shape.heads
        angles = np.outer(np.arange(shape.tokens), 10_000.0 ** (-np.arange(0, size, 2) / size))
        self._cos = self.constant(np.cos(angles).astype(np.float32))
        self._sin = self.constant(np.sin(angles).astype(np.float32))
        one, axis = self.constant(np.int64(1)), self.constant(np.array([1], np.int64))
        counts = self.node("ReduceSum", ["attention_mask", axis], keepdims=0)
        self._ends = self.node("Cast", [self.node("Sub", [counts, axis])], to=TensorProto.INT32)
        length = self.node("Gather", [self.node("Shape", ["attention_mask"]), one])
        self._length = self.node("Cast", [length], to=TensorProto.INT32)
        self._layer = 0

    def _norm(self, x: str) -> str:
        gains = 1 + 0.1 * self.rng.standard_normal(self._shape.width)
        operands = [x, self.constant(gains.astype(np.float32))]
        return self.node("SimplifiedLayerNormalization", operands, axis=-1, epsilon=1e-6)

    def _attention(self, x: str) -> str:
        shape, layer = self._shape, self._layer
        keys = shape.width // shape.heads * shape.key_heads
        operands = [self._project(x, shape.width, width) for width in (shape.width, keys, keys)]
        caches = [f"past_key_values.{layer}.{kind}" for kind in ("key", "value")]
        operands += [*caches, self._ends, self._length, self._cos, self._sin]
        made = [f"attention_{layer}", *(f"present.{layer}.{kind}" for kind in ("key", "value"))]
        heads = {"num_heads": shape.heads, "kv_num_heads": shape.key_heads, "do_rotary": 1}
        node = helper.make_node(
            "GroupQueryAttention", operands, made, name=made[0], domain="com.microsoft", **heads
        )
        self.nodes.append(node)
        self._layer += 1
        return self._project(made[0], shape.width, shape.width)
