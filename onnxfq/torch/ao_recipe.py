"""torch.ao's QConfig, QConfigMapping and qconfig dictionaries as recipes of `quantize_module`.

torch.ao observes outputs of layers, and `quantize_module` inputs: here the activation of a layer's QConfig is
the format of its inputs. Entries for operators without weights name nothing that is quantized.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.ao.quantization.fake_quantize import FusedMovingAvgObsFakeQuantize
from torch.ao.quantization.fx.qconfig_mapping_utils import (
    _maybe_adjust_qconfig_for_module_type_or_name as find_qconfig,
)
from torch.ao.quantization.qconfig import QConfig
from torch.ao.quantization.qconfig_mapping import QConfigMapping

from onnxfq.documents.override import Override
from onnxfq.documents.recipe import Recipe
from onnxfq.errors import ArgumentError, RecipeError, nearest
from onnxfq.numerics.qtypes import qtype_of_integers
from onnxfq.torch.layers import layer_kind

_SECTIONS = ("", "object_type", "module_name_regex", "module_name", "module_name_object_type_order")
_SYMMETRIC = (torch.per_tensor_symmetric, torch.per_channel_symmetric)
_CALIBRATORS = {"MinMaxObserver": "minmax", "PerChannelMinMaxObserver": "minmax", "HistogramObserver": "mse"}
"""Calibrators in place of torch.ao's observers; HistogramObserver searches the least error as well."""


def recipe_of(given: Any, model: nn.Module) -> Recipe:
    """Return the recipe for the layers of `model`, of target simulation.

    Args:
        given: a QConfig for all layers, a QConfigMapping, or a dictionary with its sections: "", object_type,
            module_name_regex, module_name.
        model: the module. Its layers are looked up as torch.ao does: by name first, then by pattern, by type,
            and the rest by "".

    Raises RecipeError for an unknown section or a QConfig that no quantizer can follow, ArgumentError for
    anything else.
    """
    mapping = _mapping(given)
    common = mapping.global_qconfig
    modules = dict(model.named_modules())
    layers = {p: m for p, m in modules.items() if isinstance(m, nn.MultiheadAttention) or layer_kind(m)}
    found = {path: find_qconfig(mapping, type(module), path, common) for path, module in layers.items()}
    schemes = {path: None if one is None else _schemes(one) for path, one in found.items()}
    usual = None if common is None else _schemes(common)
    if usual is None:
        counts = Counter(repr(scheme) for scheme in schemes.values() if scheme is not None).most_common(1)
        usual = next((s for s in schemes.values() if s is not None and repr(s) == counts[0][0]), None)
    if usual is None:
        raise RecipeError("every QConfig is None, which leaves all layers in float; give one to some layer")
    overrides = [
        Override(nodes=(path,), keep_float=True, why="its QConfig is None")
        if scheme is None
        else Override(nodes=(path,), activations=scheme[0], weights=scheme[1])
        for path, scheme in schemes.items()
        if scheme != usual
    ]
    fields = {"activations": usual[0], "weights": usual[1], "overrides": tuple(overrides)}
    return Recipe.model_validate({"name": type(given).__name__, "target": "simulation", **fields})


def scale_rule_of(given: Any) -> str:
    """Return how the QConfigs compute symmetric scales: "ends" if they fuse observing and rounding."""
    one = _mapping(given).global_qconfig
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = () if one is None else (one.activation(), one.weight())
    return "ends" if any(isinstance(module, FusedMovingAvgObsFakeQuantize) for module in made) else "width"


def _mapping(given: Any) -> QConfigMapping:
    """Return the QConfigs of layers by their paths and classes."""
    if isinstance(given, QConfig):
        return QConfigMapping().set_global(given)
    if isinstance(given, Mapping):
        if unknown := [str(key) for key in given if key not in _SECTIONS]:
            hint = nearest(unknown[0], _SECTIONS)
            raise RecipeError(f"a qconfig dictionary has no section {unknown[0]!r}{hint}")
        given = QConfigMapping.from_dict(dict(given))
    if not isinstance(given, QConfigMapping):
        raise ArgumentError(
            f"a recipe is a name, a file, a Recipe or a QConfig of torch.ao, found {type(given).__name__}"
        )
    if given.module_name_object_type_order_qconfigs:
        raise RecipeError("module_name_object_type_order is not read; name the modules in module_name")
    return given


def _schemes(qconfig: Any) -> tuple[dict[str, Any] | None, dict[str, Any]]:
    """Return the fields of activations and weights of one QConfig."""
    if not isinstance(qconfig, QConfig):
        raise RecipeError(f"{qconfig!r:.60} is not a QConfig of torch.ao; give one, or None for float")
    activation, weight = _scheme(qconfig.activation), _scheme(qconfig.weight)
    if weight is None:
        raise RecipeError("a QConfig without a weight of integers quantizes nothing; give None for float")
    if activation is not None and activation.pop("granularity") != "per_tensor":
        raise RecipeError("a QConfig has channels for activations; use a per-tensor observer for them")
    return activation, weight


def _scheme(factory: Callable[[], Any]) -> dict[str, Any] | None:
    """Return the fields that the observer of a factory asks for; None if it leaves floats."""
    with warnings.catch_warnings():  # torch.ao's classes warn of their own defaults
        warnings.simplefilter("ignore")
        made = factory()
    if isinstance(made, nn.Identity) or getattr(made, "dtype", None) in (torch.float, torch.float16):
        return None
    observer = getattr(made, "activation_post_process", made)
    low, high = getattr(made, "quant_min", None), getattr(made, "quant_max", None)
    scheme = getattr(observer, "qscheme", None)
    if low is None or high is None or scheme is None:
        raise RecipeError(f"a QConfig has {type(observer).__name__}, which has no integers; use another one")
    symmetric = scheme in _SYMMETRIC
    if symmetric and low >= 0:  # unsigned integers around their middle: the same numbers
        middle = (low + high + 1) // 2
        low, high = low - middle, high - middle
    constant = getattr(observer, "averaging_constant", None)
    calibrator = _CALIBRATORS.get(type(observer).__name__)
    if constant is not None:
        calibrator = f"moving_average:{constant}"
    if calibrator is None:
        raise RecipeError(f"a QConfig has {type(observer).__name__}, which has no calibrator; use observer=")
    channels = scheme in (torch.per_channel_symmetric, torch.per_channel_affine)
    return {
        "qtype": str(qtype_of_integers(int(low), int(high))),
        "symmetric": symmetric,
        "granularity": "per_axis" if channels else "per_tensor",
        "calibrator": calibrator,
    }
