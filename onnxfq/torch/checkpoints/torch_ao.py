"""State dicts of torch.ao's eager QAT: `weight_fake_quant` of layers, `activation_post_process` behind them.

torch.ao quantizes the outputs of layers, `quantize_module` the inputs of the next ones. A trace by torch.fx
finds the layer that makes an input, through operations that keep numbers on their grid. A fused convolution
has its BatchNorm inside, as `bn`.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from onnxfq.errors import ModelError
from onnxfq.torch.checkpoints import ao_keys
from onnxfq.torch.layers import SUFFIX, Swapped
from onnxfq.torch.quantizer import FakeQuantize, quantizers

_WEIGHT = "weight_fake_quant."
_KEEPING = (
    *(nn.ReLU, nn.Identity, nn.Dropout, nn.Dropout2d, nn.Flatten, nn.Unflatten, nn.PixelShuffle),
    *(nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, FakeQuantize),
)
_KEEPING_CALLS = (F.relu, torch.relu, torch.flatten, torch.reshape, F.max_pool2d, F.dropout, operator.getitem)
_KEEPING_METHODS = ("relu", "flatten", "reshape", "view", "contiguous", "permute", "transpose")


def read(model: nn.Module, theirs: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the state with our keys, and the quantizers of theirs that have none of ours."""
    if any(re.match(r"activation_post_process_\d+\.", key) for key in theirs):
        raise ModelError("a state dict of prepare_qat_fx lacks its graph and names; give one of prepare_qat")
    left, ours = dict(theirs), dict[str, Any]()
    for path, norm in _folded(model).items():
        inside = [key for key in left if key.startswith(f"{path}.bn.")]
        ours |= {f"{norm}.{key.removeprefix(f'{path}.bn.')}": left.pop(key) for key in inside}
    sources = _sources(model)
    used: set[str] = set()
    for path, quantizer in quantizers(model).items():
        names = list(_keys_of(path, sources))
        found = next((name for name in names if name + "scale" in left), None)
        if found is None:
            raise ModelError(
                f"the checkpoint has no quantizer for {path!r}, looked for {', '.join(names) or 'a layer'}; "
                "quantize the module as the checkpoint's was"
            )
        prefix = path + "."
        state = {prefix + key.removeprefix(found): left[key] for key in left if key.startswith(found)}
        ao_keys.read(quantizer, state, prefix)
        ours |= state
        used.add(found)
    told = {key.removesuffix("scale") for key in left if key.endswith((_WEIGHT + "scale", "process.scale"))}
    rest = sorted(name.rstrip(".") for name in told - used)
    known = {key for key in left if not any(key.startswith(name) for name in told)}
    return ours | {key: left[key] for key in known}, rest


def write(model: nn.Module) -> tuple[dict[str, Any], list[str]]:
    """Return the state with torch.ao's keys, and our quantizers that have none."""
    sources, rest = _sources(model), []
    state = {
        key: value
        for key, value in model.state_dict().items()
        if not any(key.startswith(path + ".") for path in quantizers(model))
    }
    for path, norm in _folded(model).items():
        inside = [key for key in state if key.startswith(norm + ".")]
        state |= {f"{path}.bn.{key.removeprefix(norm + '.')}": state.pop(key) for key in inside}
    for path, quantizer in quantizers(model).items():
        name = next(_keys_of(path, sources), None)
        if name is None:
            rest.append(path)
        else:
            state |= _state_of(path, quantizer, name)
    return state, rest


def _state_of(path: str, quantizer: FakeQuantize, prefix: str) -> dict[str, Tensor]:
    if not quantizer.is_initialized:
        raise ModelError(f"quantizer {path!r} has no scale yet; calibrate or train before saving")
    scale, zeros = quantizer.qparams()
    low, high = _range_of(quantizer, scale, zeros)
    on = torch.ones(1, dtype=torch.uint8)
    state = {
        "scale": scale.reshape(-1),
        "zero_point": zeros.reshape(-1),
        "fake_quant_enabled": on * int(quantizer.is_rounding),
        "observer_enabled": on * int(quantizer.is_observing),
        ao_keys.OBSERVER + "eps": torch.tensor([ao_keys.EPS]),
    }
    state |= {ao_keys.OBSERVER + "min_val": low, ao_keys.OBSERVER + "max_val": high}
    return {prefix + name: value for name, value in state.items()}


def _range_of(quantizer: FakeQuantize, scale: Tensor, zeros: Tensor) -> tuple[Tensor, Tensor]:
    """Return the range that was observed, or one that gives the scale: torch.ao may compute it once more."""
    observer = quantizer.observer
    if observer is not None and observer.seen and torch.equal(quantizer.calculate_qparams()[0], scale):
        inner = quantizer.activation_post_process
        return inner.min_val.clone(), inner.max_val.clone()  # type: ignore[union-attr]
    low, high = ((end - zeros) * scale for end in (quantizer.quant_min, quantizer.quant_max))
    if quantizer.spec.symmetric:  # twice the largest magnitude, or the larger of both ends, gives the scale
        low = -scale * (quantizer.quant_max - quantizer.quant_min) / 2
    return low, high


def _keys_of(path: str, sources: dict[str, list[str]]) -> Iterator[str]:
    """Yield the prefixes that a quantizer of ours may have in torch.ao's state, the likeliest first."""
    owner, _, name = path.rpartition(".")
    dot = owner + "." if owner else ""
    if name == "weight" + SUFFIX:
        yield dot + _WEIGHT
    elif name == "input" + SUFFIX:
        yield from (f"{source}.{ao_keys.OBSERVER}" for source in sources.get(owner, ()))


def _folded(model: nn.Module) -> dict[str, str]:
    """Return the path of the BatchNorm that each convolution has folded in."""
    paths = {module: path for path, module in model.named_modules()}
    norms = ((path, module.__dict__.get("folded_norm")) for module, path in paths.items())
    return {path: paths[norm] for path, norm in norms if norm is not None}


def _sources(model: nn.Module) -> dict[str, list[str]]:
    """Return for each quantized layer the module before it whose output has its input's grid, if any.

    Raises ModelError if torch.fx cannot trace the module.
    """
    try:
        graph = _LayerTracer().trace(model)
    except Exception as error:  # tracing runs the user's code, which may raise anything
        line = (str(error) or type(error).__name__).splitlines()[0]
        raise ModelError(f"torch.fx cannot trace {type(model).__name__}: {line}; remove conditions") from None
    sources = {}
    for node in graph.nodes:
        if node.op == "call_module" and isinstance(model.get_submodule(str(node.target)), Swapped):
            sources[str(node.target)] = list(_walk_back(model, node.args[0]))
    return sources


def _walk_back(model: nn.Module, node: Any) -> Iterator[str]:
    """Yield the module whose output `node` is, on the same grid."""
    while isinstance(node, fx.Node):
        if node.op == "call_module":
            module = model.get_submodule(str(node.target))
            # A BatchNorm that is folded has its place in the convolution.
            if not (isinstance(module, _KEEPING) or "frozen" in module.__dict__):
                yield str(node.target)
                return
        elif not (
            (node.op == "call_function" and node.target in _KEEPING_CALLS)
            or (node.op == "call_method" and node.target in _KEEPING_METHODS)
        ):
            return
        node = node.args[0] if node.args else None


class _LayerTracer(fx.Tracer):
    """Tracer that looks into modules of the user only."""

    def is_leaf_module(self, module: nn.Module, qualified_name: str) -> bool:
        return type(module).__module__.startswith("torch.") and not isinstance(module, nn.Sequential)
