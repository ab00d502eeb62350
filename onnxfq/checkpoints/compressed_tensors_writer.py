"""Layers in the forms of compressed-tensors, and their configuration; `compressed_tensors` has a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from onnxfq.checkpoints.layer import InputFormat, QuantizedLayer
from onnxfq.checkpoints.packing import pack_nibbles, pack_words
from onnxfq.checkpoints.rows import note_last_bits
from onnxfq.checkpoints.writing import (
    Parts,
    WrittenLayer,
    fit_scale,
    mx_exponents,
    split_scales,
)
from onnxfq.numerics.float_types import FloatType, block_format_name

_VERSION = "0.20.0"
"""The release of compressed-tensors whose forms these are."""


def write_layer(layer: QuantizedLayer, kind: FloatType) -> WrittenLayer | str:
    """Return a layer in the form that has its numbers, or the reason why none has."""
    inputs = _describe_input(layer.input)
    if isinstance(inputs, str):
        return inputs
    name = block_format_name(layer.qtype, layer.scale_type)
    if name == "NVFP4" and layer.block_size == 16 and layer.numbers.shape[1] % 16 == 0:
        return _write_nvfp4(layer, inputs, kind)
    if name == "MXFP8" and layer.block_size == 32:
        return _write_mxfp8(layer, inputs)
    if layer.qtype.name == "float8e4m3fn":
        return _write_plain(layer, inputs, kind)
    if layer.qtype.is_float or not 2 <= layer.qtype.bits <= 8:
        return f"compressed-tensors has no {layer.qtype} weights in {layer.granularity}"
    if inputs is not None and layer.input is not None and layer.input.qtype.is_float:
        return "compressed-tensors has no integer weights with float inputs"
    return _write_plain(layer, inputs, kind) if inputs is not None else _write_packed(layer, kind)


def _strategy(layer: QuantizedLayer) -> dict[str, Any]:
    """Return the fields of a scheme that tell which numbers share a scale."""
    if layer.block_size is not None:
        return {"strategy": "group", "group_size": layer.block_size}
    return {"strategy": "channel" if layer.scale.ndim else "tensor", "group_size": None}


def _scheme(form: str, layer: QuantizedLayer, inputs: dict[str, Any] | None, **fields: Any) -> dict[str, Any]:
    kind = "float" if layer.qtype.is_float else "int"
    weights = {"num_bits": layer.qtype.bits, "type": kind, "symmetric": layer.is_symmetric, "dynamic": False}
    weights |= _strategy(layer) | fields
    return {"format": form, "weights": weights, "input_activations": inputs, "output_activations": None}


def _column(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return parameters as the form has them: [1], [N, 1] or [N, groups]."""
    return values.reshape(-1, 1) if values.ndim == 1 else values.reshape(1) if not values.ndim else values


def _signed(layer: QuantizedLayer) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return (numbers, zero points) on the signed grid of the same width; small floats as they are."""
    if layer.qtype.is_float:
        return layer.numbers, layer.zero_point
    offset = 0 if layer.qtype.signed else 1 << (layer.qtype.bits - 1)
    numbers = (layer.numbers.astype(np.int16) - offset).astype(np.int8)
    return numbers, (layer.zero_point - offset).astype(np.int8)


def _write_packed(layer: QuantizedLayer, kind: FloatType) -> WrittenLayer:
    bits = layer.qtype.bits
    half = 1 << (bits - 1)
    numbers, zero = _signed(layer)
    parts: Parts = {
        "weight_packed": pack_words(numbers.astype(np.int16) + half, bits),
        "weight_scale": fit_scale(_column(layer.scale), kind),
        "weight_shape": np.asarray(numbers.shape, np.int64),
    }
    symmetric = not zero.any()
    if not symmetric:
        if not layer.scale.ndim:  # the form packs zero points of channels and groups only
            zero = np.full(len(numbers), zero)
            parts["weight_scale"] = np.repeat(parts["weight_scale"].reshape(1, 1), len(numbers), axis=0)
        parts["weight_zero_point"] = np.ascontiguousarray(
            pack_words(_column(zero).T.astype(np.int16) + half, bits).T
        )
    scheme = _scheme("pack-quantized", layer, None, symmetric=symmetric)
    if not symmetric and not layer.scale.ndim:
        scheme["weights"]["strategy"] = "channel"
    return WrittenLayer(parts, scheme)


def _write_plain(layer: QuantizedLayer, inputs: dict[str, Any] | None, kind: FloatType) -> WrittenLayer:
    numbers, zero = _signed(layer)
    kinds = "float-quantized" if layer.qtype.is_float else "int-quantized"
    form = "naive-quantized" if inputs is None else kinds
    parts: Parts = {"weight": numbers, "weight_scale": fit_scale(_column(layer.scale), kind)}
    symmetric = not zero.any()
    if not symmetric:
        parts["weight_zero_point"] = _column(zero).astype(np.int8)
    return WrittenLayer(
        parts | _input_parts(layer.input, kind), _scheme(form, layer, inputs, symmetric=symmetric)
    )


def _write_mxfp8(layer: QuantizedLayer, inputs: dict[str, Any] | None) -> WrittenLayer:
    scheme = _scheme("mxfp8-quantized", layer, inputs, scale_dtype="torch.uint8")
    return WrittenLayer({"weight": layer.numbers, "weight_scale": mx_exponents(layer)}, scheme)


def _write_nvfp4(layer: QuantizedLayer, inputs: dict[str, Any] | None, kind: FloatType) -> WrittenLayer:
    """Return NVFP4, whose form divides by its global scale; the note counts values that 1 / it changes."""
    stored, factor = split_scales(layer)
    divisor = np.float32(1) / factor
    parts: Parts = {
        "weight_packed": pack_nibbles(layer.numbers.view(np.uint8)),
        "weight_scale": stored,
        "weight_global_scale": np.asarray([divisor], np.float32),
    }
    note = note_last_bits(layer, stored.astype(np.float32) / divisor, kind)
    scheme = _scheme(
        "nvfp4-pack-quantized", layer, inputs, strategy="tensor_group", scale_dtype="torch.float8_e4m3fn"
    )
    return WrittenLayer(parts | _input_parts(layer.input, kind), scheme, note)


def _describe_input(given: InputFormat | None) -> dict[str, Any] | None | str:
    """Return the scheme of an input, or the reason why the form has none."""
    if given is None:
        return None
    if given.qtype.name not in ("int8", "uint8", "float8e4m3fn", "float4e2m1"):
        return f"compressed-tensors has no {given.qtype} inputs"
    kind = "float" if given.qtype.is_float else "int"
    symmetric = given.zero_point == (0 if given.qtype.signed else 128)
    fields: dict[str, Any] = {"num_bits": given.qtype.bits, "type": kind, "symmetric": symmetric}
    if given.is_static:
        return fields | {"strategy": "tensor", "dynamic": False}
    if given.scale is not None:
        return fields | {"strategy": "tensor_group", "group_size": given.block_size, "dynamic": "local"}
    if given.block_size:
        scale_type = {"scale_dtype": "torch.uint8"} if given.scale_type == "e8m0" else {}
        return fields | {"strategy": "group", "group_size": given.block_size, "dynamic": True} | scale_type
    return fields | {"strategy": "token", "dynamic": True}


def _input_parts(given: InputFormat | None, kind: FloatType) -> Parts:
    """Return the tensors of a static input, or of the global scale of a dynamic one."""
    if given is None or given.scale is None:
        return {}
    if not given.is_static:
        return {"input_global_scale": np.asarray([np.float32(1) / np.float32(given.scale)], np.float32)}
    zero = given.zero_point - (0 if given.qtype.signed else 128)
    parts: Parts = {"input_scale": fit_scale(np.asarray([given.scale], np.float32), kind)}
    return parts | ({"input_zero_point": np.asarray([zero], np.int8)} if zero else {})


def write_config(schemes: Mapping[str, dict[str, Any]], in_float: list[str]) -> dict[str, dict[str, Any]]:
    """Return what is added to config.json: a group for each scheme, which names its modules."""
    groups: dict[str, dict[str, Any]] = {}
    for module, scheme in schemes.items():
        groups.setdefault(repr(scheme), scheme | {"targets": []})["targets"].append(module)
    forms = {group["format"] for group in groups.values()}
    said = {
        "quant_method": "compressed-tensors",
        "format": forms.pop() if len(forms) == 1 else "mixed-precision",
        "config_groups": {f"group_{number}": group for number, group in enumerate(groups.values())},
        "ignore": in_float,
        "kv_cache_scheme": None,
        "quantization_status": "compressed",
        "version": _VERSION,
    }
    return {"config.json": {"quantization_config": said}}
