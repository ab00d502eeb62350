"""Graphs over the tensors of `interchange/checkpoints/float`, named as exporters name them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from onnxfq.checkpoints.folder import Checkpoint
from onnxfq.graph.node_notes import SCOPES_KEY

CHECKPOINTS = Path(__file__).parents[1] / "interchange" / "checkpoints"
FLOAT = CHECKPOINTS / "float"
QUANTIZED = sorted(p.name for p in CHECKPOINTS.iterdir() if p != FLOAT)
_LAYER = "model.layers.0"


def float_tensors() -> dict[str, NDArray[np.float32]]:
    """Return the tensors of the float checkpoint as float32."""
    opened = Checkpoint.open(FLOAT)
    return {name: opened.floats(name) for name in opened.entries}


class _Graph:
    """Nodes and constants of a graph as they are added."""

    def __init__(self, state: Mapping[str, Any]) -> None:
        self.state, self.nodes, self.constants = state, [], []

    def add(self, op: str, inputs: list[str], output: str, scope: str = "", **attrs: Any) -> str:
        node = helper.make_node(op, inputs, [output], output.removesuffix("/out"), **attrs)
        if scope:
            node.metadata_props.add(key=SCOPES_KEY, value=repr(["", scope, output]))
        self.nodes.append(node)
        return output

    def constant(self, name: str, values: NDArray[np.float32]) -> str:
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(values), name))
        return name

    def model(self) -> onnx.ModelProto:
        ids = helper.make_tensor_value_info("input_ids", TensorProto.INT64, [1, "length"])
        logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, [1, "length", 16])
        graph = helper.make_graph(self.nodes, "decoder", [ids], [logits], self.constants)
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
        onnx.checker.check_model(made, full_check=True)
        return made


def builder_graph(joined: bool = True) -> onnx.ModelProto:
    """Return a graph with the names of ONNX Runtime GenAI's builder, of q, k and v joined or apart."""
    state = float_tensors()
    graph = _Graph(state)

    def linear(x: str, module: str, *sources: str) -> str:
        weight = np.concatenate([state[f"{_LAYER}.{one}.weight"] for one in sources])
        name = graph.constant(f"{_LAYER}.{module}.MatMul.weight", weight.T)
        return graph.add("MatMul", [x, name], f"/model/layers.0/{module.replace('.', '/')}/MatMul/out")

    def norm(x: str, name: str, source: str) -> str:
        return graph.add("Mul", [x, graph.constant(name, state[source])], f"{name}/out")

    table = graph.constant("model.embed_tokens.weight", state["model.embed_tokens.weight"])
    x = graph.add("Gather", [table, "input_ids"], "/model/embed_tokens/Gather/out")
    y = norm(x, f"{_LAYER}.input_layernorm.weight", f"{_LAYER}.input_layernorm.weight")
    projections = [f"self_attn.{one}_proj" for one in "qkv"]
    if joined:
        whole = linear(y, "attn.qkv_proj", *projections)
        parts = ["q", "k", "v"]
        graph.nodes.append(helper.make_node("Split", [whole], parts, "split", axis=-1, num_outputs=3))
    else:
        parts = [linear(y, one.replace("self_attn", "attn"), one) for one in projections]
    mixed = linear(graph.add("Sum", parts, "mixed/out"), "attn.o_proj", "self_attn.o_proj")
    x = graph.add("Add", [x, mixed], "add1/out")
    y = norm(x, f"{_LAYER}.post_attention_layernorm.weight", f"{_LAYER}.post_attention_layernorm.weight")
    gated = [linear(y, f"mlp.{one}", f"mlp.{one}") for one in ("gate_proj", "up_proj")]
    down = linear(graph.add("Mul", gated, "gated/out"), "mlp.down_proj", "mlp.down_proj")
    x = graph.add("Add", [x, down], "add2/out")
    y = norm(x, "model.layers.1.final_norm_layernorm.weight", "model.norm.weight")
    head = graph.constant("lm_head.MatMul.weight", state["lm_head.weight"].T)
    graph.add("MatMul", [y, head], "logits")
    graph.nodes[-1].name = "/lm_head/MatMul"
    return graph.model()


def noted_graph() -> onnx.ModelProto:
    """Return a graph as torch's exporter writes it: nodes note their module, constants have any name."""
    state = float_tensors()
    graph = _Graph(state)
    numbers = iter(range(1000))

    def linear(x: str, module: str) -> str:
        name, weight = f"val_{next(numbers)}", state[f"{module}.weight"]
        if next(numbers) % 4 == 1:  # some behind a Transpose
            turned = graph.add("Transpose", [graph.constant(name, weight)], f"{name}/turned/out", perm=[1, 0])
        else:
            turned = graph.constant(name, weight.T)
        return graph.add("MatMul", [x, turned], f"node_{name}/out", module)

    def norm(x: str, name: str) -> str:
        return graph.add("Mul", [x, graph.constant(name, state[name])], f"{name}/out")

    table = graph.constant("model.embed_tokens.weight", state["model.embed_tokens.weight"])
    x = graph.add("Gather", [table, "input_ids"], "embedding/out")
    y = norm(x, f"{_LAYER}.input_layernorm.weight")
    parts = [linear(y, f"{_LAYER}.self_attn.{one}_proj") for one in "qkv"]
    mixed = linear(graph.add("Sum", parts, "mixed/out"), f"{_LAYER}.self_attn.o_proj")
    x = graph.add("Add", [x, mixed], "add1/out")
    y = norm(x, f"{_LAYER}.post_attention_layernorm.weight")
    gated = [linear(y, f"{_LAYER}.mlp.{one}") for one in ("gate_proj", "up_proj")]
    down = linear(graph.add("Mul", gated, "gated/out"), f"{_LAYER}.mlp.down_proj")
    x = graph.add("Add", [x, down], "add2/out")
    y = norm(x, "model.norm.weight")
    head = graph.constant("lm_head.weight", state["lm_head.weight"])
    flat = graph.add("Reshape", [y, graph.constant("rows", np.asarray([-1, 32], np.int64))], "flat/out")
    product = graph.add("Gemm", [flat, head], "product/out", "lm_head", transB=1)
    graph.add("Reshape", [product, graph.constant("shape", np.asarray([1, -1, 16], np.int64))], "logits")
    return graph.model()
