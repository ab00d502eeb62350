"""Compares both roads on ten public networks: quantize_module and the plan of the exported model.

    python tests/slow/check_torch_networks.py [NETWORK ...]

Needs torchvision, timm and transformers, which nothing else here needs; the networks have random weights. For
each network and recipe the module is quantized, calibrated on one batch and exported. Its QuantizeLinear must
be as many as the activations that `make_plan` places in the export of the float module, or as many as
`EXPECTED` says with the reason. The exit code is 1 where a number differs, and 2 without the packages.
"""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Callable

import torch
from torch import nn

import onnxfq
from onnxfq.errors import OnnxfqError
from onnxfq.torch import compute_encodings, export_torch, plan_of, quantize_module

RECIPES = ("tensorrt-int8", "tensorrt-fp8", "onnxruntime-int8", "openvino-int8", "qnn-int8")
Made = tuple[nn.Module, tuple[torch.Tensor, ...]]

# The operators of torchvision are built for CUDA, and none of these networks calls one.
_register = torch.library.register_fake
torch.library.register_fake = lambda op, *rest, **more: (
    (lambda function: function) if str(op).startswith("torchvision::") else _register(op, *rest, **more)
)


class Output(nn.Module):
    """One output of a network of transformers, from tensors by name."""

    def __init__(self, network: nn.Module, output: str, names: tuple[str, ...], **fixed: bool) -> None:
        super().__init__()
        self.network, self.output, self.names, self.fixed = network, output, names, fixed

    def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
        """Return the output."""
        given = dict(zip(self.names, tensors, strict=True))
        result: torch.Tensor = getattr(self.network(**given, **self.fixed), self.output)
        return result


def pictures(size: int = 64) -> tuple[torch.Tensor, ...]:
    """Return two pictures."""
    return (torch.randn(2, 3, size, size),)


def tokens(length: int = 16) -> torch.Tensor:
    """Return two texts."""
    return torch.randint(0, 100, (2, length))


def make_torchvision(name: str) -> Made:
    """Return a network of torchvision."""
    import torchvision

    return getattr(torchvision.models, name)(weights=None), pictures()


def make_timm(name: str, size: int, **options: object) -> Made:
    """Return a network of timm."""
    import timm

    return timm.create_model(name, pretrained=False, **options), pictures(size)


def make_bert() -> Made:
    """Return an encoder of texts."""
    from transformers import BertConfig, BertModel

    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
    network = BertModel(BertConfig(vocab_size=100, **sizes))
    return Output(network, "last_hidden_state", ("input_ids",)), (tokens(),)


def make_gpt2() -> Made:
    """Return a decoder of texts with layers of type Conv1D."""
    from transformers import GPT2Config, GPT2LMHeadModel

    network = GPT2LMHeadModel(GPT2Config(vocab_size=100, n_positions=64, n_embd=64, n_layer=2, n_head=4))
    return Output(network, "logits", ("input_ids",), use_cache=False), (tokens(),)


def make_llama() -> Made:
    """Return a decoder of texts with rotations and grouped heads."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    network = LlamaForCausalLM(LlamaConfig(vocab_size=100, **sizes, **heads))
    return Output(network, "logits", ("input_ids",), use_cache=False), (tokens(),)


def make_whisper() -> Made:
    """Return an encoder of sound with a decoder of texts."""
    from transformers import WhisperConfig, WhisperModel

    parts = {"layers": 2, "attention_heads": 4, "ffn_dim": 128}
    sizes = {f"{part}_{name}": size for part in ("encoder", "decoder") for name, size in parts.items()}
    marks = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    lengths = {"max_source_positions": 32, "max_target_positions": 32}
    config = WhisperConfig(vocab_size=100, num_mel_bins=16, d_model=64, **sizes, **marks, **lengths)
    names = ("input_features", "decoder_input_ids")
    inputs = torch.randn(2, 16, 64), tokens(8)
    return Output(WhisperModel(config), "last_hidden_state", names, use_cache=False), inputs


def make_detr() -> Made:
    """Return a detector with learned queries."""
    from transformers import DetrConfig, DetrForObjectDetection, ResNetConfig

    stem = {"embedding_size": 16, "hidden_sizes": [16, 32], "depths": [1, 1], "layer_type": "basic"}
    backbone = ResNetConfig(**stem, out_features=["stage2"])
    parts = {"layers": 2, "attention_heads": 4, "ffn_dim": 128}
    sizes = {f"{part}_{name}": size for part in ("encoder", "decoder") for name, size in parts.items()}
    config = DetrConfig(
        use_timm_backbone=False,
        use_pretrained_backbone=False,
        backbone=None,
        backbone_config=backbone,
        d_model=64,
        num_queries=10,
        **sizes,
    )
    return Output(DetrForObjectDetection(config), "logits", ("pixel_values",)), pictures()


SWIN = {"img_size": 56, "window_size": 7, "depths": (2, 2), "num_heads": (2, 4), "embed_dim": 32}
NETWORKS: dict[str, Callable[[], Made]] = {
    "resnet18": lambda: make_torchvision("resnet18"),
    "mobilenet_v3": lambda: make_torchvision("mobilenet_v3_small"),
    "vit": lambda: make_timm("vit_tiny_patch16_224", 64, img_size=64, depth=2),
    "swin": lambda: make_timm("swin_tiny_patch4_window7_224", 56, **SWIN),
    "convnext": lambda: make_timm("convnext_atto", 64),
    "bert": make_bert,
    "gpt2": make_gpt2,
    "llama": make_llama,
    "whisper": make_whisper,
    "detr": make_detr,
}


EXPECTED: dict[tuple[str, str], tuple[int, int, str]] = {
    ("convnext", "qnn-int8"): (
        119,
        121,
        "torch exports the pooling of channels last with a Gather, unless a quantizer stands before it",
    ),
}
"""Numbers of both roads where they differ, and why, by network and recipe."""


def build(name: str) -> Made:
    """Return a network with the same random weights at each call, and its inputs."""
    torch.manual_seed(0)
    network, inputs = NETWORKS[name]()
    return network.eval(), inputs


def compare(name: str, recipe: str, plain: onnxfq.Model) -> bool:
    """Print the numbers of both roads, and tell whether they are equal."""
    expected = {p.tensor for p in onnxfq.make_plan(plain, onnxfq.load_recipe(recipe)).activations}
    network, inputs = build(name)
    try:
        quantize_module(network, recipe, example_inputs=inputs)
        with torch.no_grad(), compute_encodings(network):
            network(*inputs)
        graph = export_torch(network, inputs).graph
    except OnnxfqError as error:
        print(f"{name} {recipe}: {error}", flush=True)
        return False
    # Values that no input reaches, such as the positions of tokens, are stored as integers. The exporter's
    # names tell nothing: a weight of one model may have that of a tensor of the other.
    reached = {value.name for value in plain.proto.graph.input}
    for node in plain.proto.graph.node:
        reached |= set(node.output) if reached.intersection(node.input) else set()
    constants = {f"{name}/q" for name in expected - reached}
    stored = sum(one.name in constants for one in graph.initializer)
    found = sum(node.op_type == "QuantizeLinear" for node in graph.node) + stored
    rows = ", ".join(map(str, plan_of(network).coverage()))
    *known, why = EXPECTED.get((name, recipe), (len(expected), len(expected), "as many"))
    as_known = [found, len(expected)] == known
    told = why if as_known else f"{known[0]} for {known[1]} is known"
    print(f"{name} {recipe}: {found} for {len(expected)}, {told}; {rows}", flush=True)
    return as_known


def main() -> int:
    """Compare the networks that are named, or all."""
    warnings.simplefilter("ignore")
    logging.disable(logging.ERROR)
    equal = []
    for name in sys.argv[1:] or NETWORKS:
        try:
            network, inputs = build(name)
        except ImportError as error:
            print(f"{error}; pip install torchvision timm transformers")
            return 2
        plain = onnxfq.load(export_torch(network, inputs))
        equal += [compare(name, recipe, plain) for recipe in RECIPES]
    print(f"{sum(equal)} of {len(equal)} are as expected")
    return 0 if all(equal) else 1


if __name__ == "__main__":
    sys.exit(main())
