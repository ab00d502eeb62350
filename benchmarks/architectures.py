"""What exporters write: networks of torchvision, timm and transformers, exported, quantized and checked.

Random weights, small inputs: it is about graphs. Beside torch it needs torchvision, timm and transformers.

    PYTHONPATH=. python benchmarks/architectures.py resnet18 timm:levit_128s hf:BertModel --build
"""

from __future__ import annotations

import argparse
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

import onnxfq

RECIPES = ("tensorrt-int8", "tensorrt-fp8", "tensorrt-int4", "onnxruntime-int8")
SIZES = (64, 224, 256)
"""Sides of images that are tried in turn; some networks have one size only."""
TEXT = {
    "vocab_size": 100,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
}
DEFAULT = (
    *("resnet18", "mobilenet_v3_small", "convnext_tiny", "swin_t", "vit_b_32", "densenet121"),
    *("timm:levit_128s", "timm:edgenext_xx_small", "timm:tf_efficientnet_b0", "timm:repvgg_a0"),
    *("hf:BertModel", "hf:RobertaModel", "hf:LlamaForCausalLM", "hf:MistralForCausalLM", "hf:ViTModel"),
)


class Tensors(torch.nn.Module):
    """A model of transformers as a function from tensors to a tensor."""

    def __init__(self, model: torch.nn.Module, names: tuple[str, ...]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *inputs: torch.Tensor) -> Any:
        """Return the first output."""
        return self.model(**dict(zip(self.names, inputs, strict=True)))[0]


def network(name: str) -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    """Return a network and its inputs: `timm:NAME`, `hf:CLASS` of transformers, or a NAME of torchvision."""
    library, _, model = name.rpartition(":")
    if library == "hf":
        return _text_or_image(model)
    if library == "timm":
        import timm

        made = timm.create_model(model, pretrained=False)
    else:
        from torchvision import models

        made = getattr(models, model)(weights=None)
    for size in SIZES:
        images = torch.randn(2, 3, size, size)
        try:
            made.train()(images)  # so that BatchNormalization has the statistics of something
        except (RuntimeError, ValueError, AssertionError):
            continue
        return made.eval(), (images,)
    raise SystemExit(f"{name} takes no image of {', '.join(map(str, SIZES))}")


def _text_or_image(model: str) -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    import transformers

    kind = getattr(transformers, model)
    config = kind.config_class
    if kind.main_input_name == "pixel_values":
        fields = {k: v for k, v in TEXT.items() if k != "vocab_size"} | {"image_size": 32, "patch_size": 8}
        return Tensors(kind(config(**fields)).eval(), ("pixel_values",)), (torch.randn(2, 3, 32, 32),)
    text, seen = torch.randint(3, 100, (2, 16)), torch.ones(2, 16, dtype=torch.long)
    seen[1, 11:] = 0
    return Tensors(kind(config(**TEXT)).eval(), ("input_ids", "attention_mask")), (text, seen)


def rows(name: str, folder: Path, exporter: str, opset: int, build: bool) -> Iterator[tuple[str, ...]]:
    """Yield a row for each recipe: coverage, least SQNR of an output in dB, and what the check found."""
    module, inputs = network(name)
    path = folder / "float.onnx"
    names = [f"in{number}" for number in range(len(inputs))]
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # of the exporters, which are not under test
        torch.onnx.export(
            module, inputs, str(path), dynamo=exporter == "dynamo", opset_version=opset, input_names=names
        )
    feeds = [
        {n: x.numpy() if x.ndim == 2 else _noise(x) for n, x in zip(names, inputs, strict=True)}
        for _ in "abc"
    ]
    for recipe in RECIPES:
        out = folder / "quantized.onnx"
        try:
            made = onnxfq.quantize(path, feeds, out, recipe=recipe, options=onnxfq.RunOptions(batch=0))
        except onnxfq.OnnxfqError as refusal:
            yield name, exporter, recipe, "refused", "", str(refusal)[:90]
            continue
        sqnr = min(s.sqnr_db for c in made.evaluation.candidates for s in c.outputs)
        found = ""
        if recipe.startswith("tensorrt"):
            result = onnxfq.check(out, build=onnxfq.BuildOptions() if build else None)
            found = (
                "passed" if result.passed else f"{len(result.findings)} findings: {result.findings[0].rule}"
            )
        yield name, exporter, recipe, ", ".join(map(str, made.plan.coverage())), f"{sqnr:.1f}", found


def _noise(like: torch.Tensor) -> Any:
    return np.random.default_rng().normal(size=tuple(like.shape)).astype(np.float32)


def main() -> None:
    """Print one line for each network, exporter and recipe."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("networks", nargs="*", default=DEFAULT)
    parser.add_argument("--opset", type=int, default=18)
    parser.add_argument("--build", action="store_true", help="build with TensorRT for RTX as well")
    options = parser.parse_args()
    torch.manual_seed(0)
    for name in options.networks:
        for exporter in ("torchscript", "dynamo"):
            with tempfile.TemporaryDirectory() as folder:
                for row in rows(name, Path(folder), exporter, options.opset, options.build):
                    print(" | ".join(row), flush=True)


if __name__ == "__main__":
    main()
