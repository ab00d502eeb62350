"""Layers in ModelOpt's unified form, and its configuration; `modelopt.py` has the table.

Source: modelopt 0.47, torch/export/quant_utils.py (process_layer_quant_config) and convert_hf_config.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from onnxfq.checkpoints.folder import MODELOPT_CONFIG
from onnxfq.checkpoints.layer import InputFormat, QuantizedLayer
from onnxfq.checkpoints.packing import pack_nibbles
from onnxfq.checkpoints.writing import (
    Parts,
    WrittenLayer,
    fit_scale,
    mx_exponents,
    split_scales,
)
from onnxfq.numerics.float_types import FloatType, block_format_name

_PRODUCER = {"name": "modelopt", "version": "0.47.0"}
"""The release of ModelOpt whose form this is; readers look here."""


def write_layer(layer: QuantizedLayer, kind: FloatType) -> WrittenLayer | str:
    """Return a layer in the form, or the reason why the form cannot hold it."""
    if not layer.is_symmetric:
        return "ModelOpt's form has no zero points"
    rows, columns = layer.numbers.shape
    name = block_format_name(layer.qtype, layer.scale_type)
    if name == "NVFP4" and layer.block_size == 16 and columns % 16 == 0:
        return _write_nvfp4(layer)
    if name == "MXFP8" and layer.block_size == 32:
        if layer.input is None or layer.input.scale_type != "e8m0":
            return "ModelOpt's MXFP8 has inputs in MXFP8 too"
        parts: Parts = {"weight": layer.numbers, "weight_scale": mx_exponents(layer)}
        return WrittenLayer(parts, _algo("MXFP8", 32))
    if layer.qtype.name == "float8e4m3fn" and layer.block_size is None:
        return _write_fp8(layer)
    if layer.qtype.name == "int8" and layer.block_size is None:
        return _write_int8(layer, kind)
    if layer.qtype.name == "int4" and layer.input is None:
        size = layer.block_size or columns
        if rows % 2 or columns % size:
            return (
                f"ModelOpt's int4 packs pairs of rows in whole blocks, and this layer is {rows} x {columns}"
            )
        scale = layer.scale if layer.block_size else np.broadcast_to(layer.scale.reshape(-1, 1), (rows, 1))
        packed = pack_nibbles(np.ascontiguousarray(layer.numbers.T).view(np.uint8)).T
        parts = {"weight": np.ascontiguousarray(packed), "weight_scale": fit_scale(scale, kind)}
        return WrittenLayer(parts, _algo("W4A16_AWQ", size, has_zero_point=False, pre_quant_scale=True))
    return f"ModelOpt's form has no {layer.qtype} weights in {layer.granularity} with such inputs"


def _algo(name: str, group_size: int | None = None, **fields: Any) -> dict[str, Any]:
    return {"quant_algo": name} | ({} if group_size is None else {"group_size": group_size}) | fields


def _write_nvfp4(layer: QuantizedLayer) -> WrittenLayer | str:
    given = layer.input
    if given is not None and given.scale_type != "e4m3":
        return f"ModelOpt's NVFP4 has inputs in NVFP4 or in float, not {given}"
    small, factor = split_scales(layer)
    codes = pack_nibbles(layer.numbers.view(np.uint8))
    parts: Parts = {"weight": codes, "weight_scale": small, "weight_scale_2": np.asarray(factor)}
    return WrittenLayer(parts | _input(given), _algo("W4A16_NVFP4" if given is None else "NVFP4", 16))


def _input(given: InputFormat | None) -> Parts:
    return {} if given is None else {"input_scale": np.asarray(given.scale, np.float32)}


def _write_fp8(layer: QuantizedLayer) -> WrittenLayer | str:
    given = layer.input
    parts: Parts = {"weight": layer.numbers, "weight_scale": layer.scale}
    if given is None or given.qtype.name != "float8e4m3fn" or given.block_size:
        return "ModelOpt's FP8 has inputs in float8e4m3fn too, with one scale or one for each token"
    if not given.is_static:
        scale = np.broadcast_to(layer.scale, (len(layer.numbers),))
        return WrittenLayer(parts | {"weight_scale": scale}, _algo("FP8_PER_CHANNEL_PER_TOKEN"))
    return WrittenLayer(parts | _input(given), _algo("FP8"))


def _write_int8(layer: QuantizedLayer, kind: FloatType) -> WrittenLayer | str:
    given, scale = layer.input, np.broadcast_to(layer.scale, (len(layer.numbers),))
    parts: Parts = {"weight": layer.numbers, "weight_scale": fit_scale(scale, kind)}
    if given is not None and (given.qtype.name != "int8" or given.zero_point or not given.is_static):
        return f"ModelOpt's int8 has inputs in int8 with one scale and no zero point, not {given}"
    return WrittenLayer(parts | _input(given), _algo("W8A16" if given is None else "W8A8_SQ_PER_CHANNEL"))


def write_config(schemes: Mapping[str, dict[str, Any]], in_float: list[str]) -> dict[str, dict[str, Any]]:
    """Return the content of hf_quant_config.json, and what is added to config.json."""
    kinds = {repr(scheme): scheme for scheme in schemes.values()}
    said: dict[str, Any] = {"kv_cache_quant_algo": None}
    own: dict[str, Any] = {"ignore": in_float, "producer": _PRODUCER, "quant_method": "modelopt"}
    if len(kinds) == 1:
        (scheme,) = kinds.values()
        said |= scheme | {"exclude_modules": in_float}
        if scheme["quant_algo"] in _GROUPED:
            own["config_groups"] = {"group_0": _group(scheme) | {"targets": ["Linear"]}}
    else:
        said |= {"quant_algo": "MIXED_PRECISION", "quantized_layers": dict(schemes)}
        own["quantized_layers"] = dict(schemes)
        own["config_groups"] = {
            f"group_{number}": _group(scheme)
            | {"targets": sorted(m for m, s in schemes.items() if repr(s) == kind)}
            for number, (kind, scheme) in enumerate(kinds.items())
        }
    own["quant_algo"] = said["quant_algo"]
    return {
        MODELOPT_CONFIG: {"producer": _PRODUCER, "quantization": said},
        "config.json": {"quantization_config": own},
    }


class _Numbers(NamedTuple):
    """Numbers of an algorithm: bits, kind, whether inputs have them too, whether scales go by channel."""

    bits: int
    kind: str
    inputs: bool = True
    channel: bool = False


_ALGOS = {
    "FP8": _Numbers(8, "float"),
    "FP8_PER_CHANNEL_PER_TOKEN": _Numbers(8, "float", channel=True),
    "NVFP4": _Numbers(4, "float"),
    "W4A16_NVFP4": _Numbers(4, "float", inputs=False),
    "W4A16_AWQ": _Numbers(4, "int", inputs=False),
    "W8A16": _Numbers(8, "int", inputs=False),
    "W8A8_SQ_PER_CHANNEL": _Numbers(8, "int", channel=True),
    "MXFP8": _Numbers(8, "float"),
}
_GROUPED = ("FP8", "NVFP4", "W4A16_NVFP4")
"""Algorithms of a whole checkpoint that ModelOpt writes as a group too."""


def _group(scheme: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of weights and inputs for a group of layers."""
    numbers = _ALGOS[str(scheme["quant_algo"])]
    fields: dict[str, Any] = {"dynamic": False, "num_bits": numbers.bits, "type": numbers.kind}
    fields |= {"group_size": scheme["group_size"]} if "group_size" in scheme else {}
    group = {"weights": fields | ({"strategy": "channel"} if numbers.channel else {})}
    return {"input_activations": fields} | group if numbers.inputs else group
