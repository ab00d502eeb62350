"""Writes the small checkpoints of `checkpoints/` with the packing of the libraries that define their forms.

    python tests/interchange/make_checkpoints.py [FORM ...]

It needs torch, transformers, compressed-tensors 0.20, gptqmodel 7.7, auto-round 0.16 and modelopt 0.47. Each
folder has, beside the checkpoint, expected.json: of each layer the SHA-256 of the values that the library
itself makes, in the type that it makes them, and of the scales and zero points that were packed.
"""

from __future__ import annotations

import copy
import hashlib
import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

FOLDER = Path(__file__).parent / "checkpoints"
SIZE, BLOCK = 32, 16
Parts = dict[str, Tensor]


def make_model() -> LlamaForCausalLM:
    """Return a Llama of one layer with random weights, a few of them large."""
    torch.manual_seed(49)
    sizes = {"vocab_size": 16, "hidden_size": SIZE, "intermediate_size": SIZE, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16}
    more = {"max_position_embeddings": 64, "tie_word_embeddings": False, "dtype": "bfloat16"}
    config = LlamaConfig(**sizes, **heads, **more)
    model = LlamaForCausalLM(config).to(torch.bfloat16)
    for parameter in model.parameters():
        values = torch.randn(parameter.shape) * (0.3 if parameter.ndim == 1 else 0.05)
        values.view(-1)[::37] *= 4
        parameter.data = (values + (parameter.ndim == 1)).to(torch.bfloat16)
    return model.eval()


def layers_of(model: nn.Module) -> dict[str, nn.Linear]:
    """Return the linear modules but the head."""
    return {n: m for n, m in model.named_modules() if isinstance(m, nn.Linear) and n != "lm_head"}


def digest(values: Tensor) -> str:
    """Return the SHA-256 of the bytes of `values`."""
    return hashlib.sha256(values.detach().contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()


def describe(values: Tensor, scale: Tensor, zero: Tensor | None = None) -> dict[str, str]:
    """Return the record of a layer in expected.json; `values` are [N, K]."""
    zero = torch.zeros_like(scale) if zero is None else zero
    return {
        "dtype": str(values.dtype).removeprefix("torch."),
        "values": digest(values.detach().clone()),
        "scale": digest(scale.detach().float().reshape(-1)),
        "zero": digest(zero.detach().to(torch.int32).reshape(-1)),
    }


def save(name: str, layers: dict[str, Parts], quantization: dict, expected: dict, **others: object) -> None:
    """Write a folder: the model with `layers` in place of their weights."""
    folder = FOLDER / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    model = make_model()
    state = {n: t for n, t in model.state_dict().items() if n.removesuffix(".weight") not in layers}
    for module, parts in layers.items():
        state |= {f"{module}.{part}": tensor for part, tensor in parts.items()}
    copies = {n: t.detach().contiguous().clone() for n, t in state.items()}
    save_file(copies, folder / "model.safetensors", {"format": "pt"})
    config = model.config.to_dict() | {"architectures": ["LlamaForCausalLM"]}
    config |= {"quantization_config": quantization} if quantization else {}
    for file, content in {"config.json": config, "expected.json": expected, **others}.items():
        if content:
            (folder / file).write_text(json.dumps(content, indent=1, sort_keys=True, default=str) + "\n")


def affine(weight: Tensor, bits: int, block: int, symmetric: bool) -> tuple[Tensor, Tensor]:
    """Return scales float16 and unsigned zero points, [N, groups], by the range of each group."""
    groups = weight.detach().float().reshape(len(weight), -1, block)
    most = (1 << bits) - 1
    if symmetric:
        scale = (2 * groups.abs().amax(2) / most).half().float()
        return scale, torch.full_like(scale, (most + 1) // 2)
    low, high = groups.amin(2).clamp(max=0), groups.amax(2).clamp(min=0)
    low[::3] = 0  # a zero point of 0, which borrows from its neighbour in GPTQ's first format
    scale = ((high - low) / most).clamp(min=1e-4).half().float()
    return scale, (-low / scale).round().clamp(0, most)


def gptq(name: str, bits: int, block: int, symmetric: bool, version: str, act_order: bool = False) -> None:
    """Write GPTQ by gptqmodel."""
    from gptqmodel.nn_modules.qlinear.torch import TorchLinear
    from gptqmodel.utils.model import convert_gptq_v2_to_v1_format_module

    layers, expected = {}, {}
    group = block if block < SIZE else -1
    said = {"bits": bits, "group_size": group, "sym": symmetric, "desc_act": act_order}
    for module, linear in layers_of(make_model()).items():
        float_linear = copy.deepcopy(linear).float()
        made = TorchLinear(
            **said, in_features=SIZE, out_features=len(linear.weight), bias=False, register_buffers=True
        )
        scale, zero = affine(linear.weight, bits, block, symmetric)
        order = torch.arange(SIZE, dtype=torch.int32) // block
        if act_order:
            order = order[torch.randperm(SIZE, generator=torch.Generator().manual_seed(1))].int()
        made.pack_original(float_linear, scale, zero, order)
        made.qzero_format(format=2)
        made.post_init()
        made.eval()
        values = made.dequantize_weight().T  # its own reader has zeros as they are
        expected[module] = describe(values.contiguous(), scale, zero)
        if version == "gptq":
            given = SimpleNamespace(bits=bits, runtime_bits=bits, pack_dtype=torch.int32)
            convert_gptq_v2_to_v1_format_module(made, given)
        layers[module] = {part: getattr(made, part) for part in ("qweight", "qzeros", "scales", "g_idx")}
    save(name, layers, said | {"quant_method": "gptq", "checkpoint_format": version}, expected)


def autoround(name: str) -> None:
    """Write GPTQ's packing by AutoRound, whose symmetric scales may be negative."""
    from auto_round_extension.torch.qlinear_torch_zp import QuantLinear

    layers, expected = {}, {}
    for module, linear in layers_of(make_model()).items():
        made = QuantLinear(4, BLOCK, SIZE, len(linear.weight), bias=False)
        groups = linear.weight.float().reshape(len(linear.weight), -1, BLOCK)
        peak = groups.gather(2, groups.abs().argmax(2, keepdim=True))[..., 0]
        scale = (-peak / 8).half().float()  # the largest magnitude is number 0
        made.pack(copy.deepcopy(linear).float(), scale, 8, None, device="cpu")
        numbers = (groups / scale[..., None]).round().clamp(-8, 7)
        values = (numbers.half() * scale.half()[..., None]).reshape(linear.weight.shape) + 0.0
        turned = scale < 0
        zero = torch.where(turned, 7, 8)
        expected[module] = describe(values, scale.abs(), zero)
        layers[module] = {part: getattr(made, part) for part in ("qweight", "qzeros", "scales")}
    said = {"quant_method": "auto-round", "packing_format": "auto_round:auto_gptq", "bits": 4}
    save(name, layers, said | {"group_size": BLOCK, "sym": True}, expected)


def awq(name: str) -> None:
    """Write AWQ by gptqmodel."""
    from gptqmodel.nn_modules.qlinear.torch_awq import AwqTorchLinear
    from gptqmodel.quantization.awq.utils.packing_utils import dequantize_gemm

    layers, expected = {}, {}
    said = {"bits": 4, "group_size": BLOCK}
    for module, linear in layers_of(make_model()).items():
        form = said | {"sym": False, "desc_act": False, "register_buffers": True}
        made = AwqTorchLinear(**form, in_features=SIZE, out_features=len(linear.weight))
        scale, zero = affine(linear.weight, 4, BLOCK, False)
        made.pack(copy.deepcopy(linear).float(), scale.clone(), zero.clone())
        made.scales = made.scales.half()  # as its post_init has them
        values = dequantize_gemm(made.qweight, made.qzeros, made.scales, 4, BLOCK).T.contiguous()
        expected[module] = describe(values, scale, zero)
        layers[module] = {part: getattr(made, part) for part in ("qweight", "qzeros", "scales")}
    save(name, layers, said | {"quant_method": "awq", "version": "gemm", "zero_point": True}, expected)


def compressed(name: str, weights: dict, inputs: dict | None = None) -> None:
    """Write compressed-tensors by its own compressor."""
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam

    scheme = QuantizationScheme(
        targets=["Linear"],
        weights=QuantizationArgs(**weights),
        input_activations=None if inputs is None else QuantizationArgs(**inputs),
    )
    args, layers, expected = scheme.weights, {}, {}
    form = name_of_form(scheme)
    compressor = BaseCompressor.get_value_from_registry(form)
    for module, linear in layers_of(make_model()).items():
        weight, state = linear.weight.detach(), {}
        strategy = str(getattr(args.strategy, "value", args.strategy))
        shared = None
        if strategy in ("group", "tensor_group"):
            groups = weight.reshape(len(weight), -1, args.group_size)
            low, high = groups.amin(2), groups.amax(2)
        elif strategy == "block":
            blocks = weight.reshape(SIZE // 16, 16, SIZE // 16, 16)
            low, high = blocks.amin((1, 3)), blocks.amax((1, 3))
        elif strategy == "channel":
            low, high = weight.amin(1, keepdim=True), weight.amax(1, keepdim=True)
        else:
            low, high = weight.amin().reshape(1), weight.amax().reshape(1)
        if strategy == "tensor_group":
            shared = generate_gparam(weight.amin().reshape(1), weight.amax().reshape(1))
            state["weight_global_scale"] = shared
        scale, zero = calculate_qparams(low, high, args, global_scale=shared)
        state |= {"weight": weight, "weight_scale": scale, "weight_zero_point": zero}
        if inputs is not None and not inputs.get("dynamic", False):
            state["input_scale"] = torch.tensor([0.031], dtype=torch.bfloat16)
        if inputs is not None and inputs.get("strategy") == "tensor_group":
            state["input_global_scale"] = torch.tensor([331.5])
        packed = compressor.compress(state, scheme)
        values = compressor.decompress(dict(packed), scheme)["weight"]
        real = scale.float() / shared if shared is not None else scale
        expected[module] = describe(values, real, zero if not args.symmetric else None)
        layers[module] = packed
    config = {
        "quant_method": "compressed-tensors",
        "format": form,
        "config_groups": {"group_0": json.loads(scheme.model_dump_json())},
        "ignore": ["lm_head"],
        "quantization_status": "compressed",
    }
    save(name, layers, config, expected)


def name_of_form(scheme: object) -> str:
    """Return the form that compressed-tensors itself chooses for a scheme."""
    from compressed_tensors.compressors.format import infer_module_format
    from compressed_tensors.config import CompressionFormat

    return str(CompressionFormat(infer_module_format(nn.Linear, scheme)).value)


def modelopt(name: str, config: str, **changes: object) -> None:
    """Write ModelOpt's unified form by its own exporter."""
    import modelopt.torch.quantization as mtq
    from modelopt.torch.export import export_hf_checkpoint

    model = make_model()
    model.config.architectures = ["LlamaForCausalLM"]
    chosen = copy.deepcopy(getattr(mtq, config))
    for entry in chosen["quant_cfg"]:
        cfg = entry.get("cfg")
        for one in cfg if isinstance(cfg, list) else [cfg]:
            if isinstance(one, dict) and one.get("block_sizes", {}).get(-1) == 128:
                one["block_sizes"][-1] = BLOCK
    tokens = torch.arange(32).reshape(2, 16) % 16
    torch.manual_seed(0)
    mtq.quantize(model, chosen, lambda m: m(tokens))
    folder = FOLDER / name
    shutil.rmtree(folder, ignore_errors=True)
    export_hf_checkpoint(model, export_dir=folder)
    for extra in folder.iterdir():
        if extra.name not in ("config.json", "hf_quant_config.json", "model.safetensors"):
            extra.unlink()
    expected = {n: {"dtype": "float32", "values": digest(v)} for n, v in dequantized(folder)}
    (folder / "expected.json").write_text(json.dumps(expected, indent=1, sort_keys=True) + "\n")


def dequantized(folder: Path) -> Iterator[tuple[str, Tensor]]:
    """Yield the weights of an exported checkpoint as ModelOpt's own tensors dequantize them, in float32."""
    from modelopt.torch.export.quant_utils import from_quantized_weight
    from modelopt.torch.quantization.qtensor import MXFP8QTensor, NVFP4QTensor
    from safetensors.torch import load_file

    state, floats = load_file(folder / "model.safetensors"), make_model().state_dict()
    for name, scale in state.items():
        module, _, part = name.rpartition(".")
        if part != "weight_scale":
            continue
        packed, shape = state[f"{module}.weight"], floats[f"{module}.weight"].shape
        if scale.dtype == torch.float8_e4m3fn:
            how = {"scale": scale, "double_scale": state[f"{module}.weight_scale_2"], "block_sizes": {-1: 16}}
            yield module, NVFP4QTensor(shape, torch.float32, packed).dequantize(**how)
        elif scale.dtype == torch.uint8:
            yield module, MXFP8QTensor(shape, torch.float32, packed).dequantize(scale=scale)
        elif packed.dtype == torch.uint8:  # no tensor of theirs reads it: the formula of pack_int4_in_uint8
            steps = scale.float().repeat_interleave(BLOCK, 1)
            numbers = (floats[f"{module}.weight"] / scale.repeat_interleave(BLOCK, 1)).round().clamp(-8, 7)
            yield module, numbers.float() * steps + 0.0
        else:
            kind = "fp8" if packed.dtype == torch.float8_e4m3fn else "int8_sq"
            yield module, from_quantized_weight(packed, scale, kind, torch.float32)


_INT4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": BLOCK}
_INT8 = {"num_bits": 8, "type": "int", "strategy": "channel"}
_FP8 = {"num_bits": 8, "type": "float"}
_NVFP4 = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16, "symmetric": True}

_GROUPS = _FP8 | {"strategy": "group"}
_BLOCKS = _FP8 | {"strategy": "block", "block_structure": [16, 16]}

FORMS: dict[str, Callable[[str], None]] = {
    "float": lambda name: save(name, {}, {}, {}),
    "gptq": lambda name: gptq(name, 4, BLOCK, False, "gptq"),
    "gptq-3bit": lambda name: gptq(name, 3, BLOCK, False, "gptq"),
    "gptq-v2-8bit": lambda name: gptq(name, 8, SIZE, True, "gptq_v2"),
    "gptq-act-order": lambda name: gptq(name, 4, BLOCK, True, "gptq", act_order=True),
    "autoround": autoround,
    "awq": awq,
    "ct-pack-int4": lambda name: compressed(name, _INT4),
    "ct-pack-asymmetric": lambda name: compressed(name, _INT4 | {"symmetric": False}),
    "ct-pack-int3": lambda name: compressed(name, _INT4 | {"num_bits": 3}),
    "ct-int8": lambda name: compressed(name, _INT8, _INT8 | {"strategy": "tensor"}),
    "ct-int8-token": lambda name: compressed(name, _INT8, _INT8 | {"strategy": "token", "dynamic": True}),
    "ct-float8": lambda name: compressed(name, *[_FP8 | {"strategy": "tensor"}] * 2),
    "ct-float8-block": lambda name: compressed(name, _BLOCKS, _GROUPS | {"group_size": 16, "dynamic": True}),
    "ct-mxfp8": lambda name: compressed(name, _GROUPS | {"group_size": 32, "scale_dtype": torch.uint8}),
    "ct-nvfp4": lambda name: compressed(name, _NVFP4, _NVFP4 | {"dynamic": "local"}),
    "modelopt-fp8": lambda name: modelopt(name, "FP8_DEFAULT_CFG"),
    "modelopt-nvfp4": lambda name: modelopt(name, "NVFP4_DEFAULT_CFG"),
    "modelopt-int4": lambda name: modelopt(name, "INT4_BLOCKWISE_WEIGHT_ONLY_CFG"),
    "modelopt-int8": lambda name: modelopt(name, "INT8_DEFAULT_CFG"),
    "modelopt-mxfp8": lambda name: modelopt(name, "MXFP8_DEFAULT_CFG"),
}

if __name__ == "__main__":
    for form in sys.argv[1:] or FORMS:
        print(form, flush=True)
        FORMS[form](form)
