"""Networks whose plans for TensorRT are built: of models/, of the onnx package, and small ones of torch."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import onnx
from builders import build, weights

import onnxfq

ROOT = Path(__file__).parents[2]
LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"


def dense(blocks: int, size: int = 64) -> onnx.ModelProto:
    """Residual dense blocks, whose steps have 16 channels, and two convolutions behind, as of ESRGAN."""
    text, constants = "[stem] t0 = Conv <pads = [1,1,1,1]> (x, stem)", {"stem": weights(32, 3, 3, 3)}
    for i in range(blocks):
        parts = f"t{i}"
        for j in range(4):
            constants[f"s{i}{j}"] = weights(16, 32 + 16 * j, 3, 3)
            text += f" [step{i}{j}] r{i}{j} = Conv <pads = [1,1,1,1]> ({f'p{i}{j}' if j else parts}, s{i}{j})"
            text += f" a{i}{j} = LeakyRelu <alpha = 0.2> (r{i}{j})"
            joined = ", ".join([f"t{i}", *(f"a{i}{k}" for k in range(j + 1))])
            text += f" p{i}{j + 1} = Concat <axis = 1> ({joined})"
        constants[f"l{i}"] = weights(32, 96, 3, 3)
        text += f" [last{i}] o{i} = Conv <pads = [1,1,1,1]> (p{i}4, l{i})"
        text += f" f{i} = Mul (o{i}, fifth) t{i + 1} = Add (t{i}, f{i})"
    text += f" [body] b = Conv <pads = [1,1,1,1]> (t{blocks}, body) c = Resize (b, , twice)"
    text += " [up] u = Conv <pads = [1,1,1,1]> (c, up) e = LeakyRelu <alpha = 0.2> (u)"
    text += " [end] y = Conv (e, end)"
    constants |= {name: weights(32, 32, 3, 3, seed=1) for name in ("body", "up")}
    constants |= {"end": weights(3, 32, 3, 3), "fifth": np.float32(0.2)}
    constants["twice"] = np.asarray([1, 1, 2, 2], np.float32)
    return build(f"g (float[1,3,{size},{size}] x) => (float[] y) {{ {text} }}", constants, opset=18)


def _of_models(module: str, name: str, *sizes: int | str) -> onnx.ModelProto:
    """Return a network of models/networks."""
    if str(ROOT / "models") not in sys.path:
        sys.path.insert(0, str(ROOT / "models"))
    proto: onnx.ModelProto = getattr(importlib.import_module(module), name)(*sizes)
    return proto


def _of_torch(name: str, folder: Path) -> onnx.ModelProto:
    """Return a family of torch with an open batch."""
    family = importlib.import_module("torch_networks").FAMILIES[name]
    onnxfq.export_torch(family.build().eval(), family.inputs, folder / "torch.onnx")
    return onnx.load(folder / "torch.onnx")


def _of_structure(name: str, _: Path) -> onnx.ModelProto:
    """Return a small network whose structure decides what a runtime fuses."""
    made: onnx.ModelProto = importlib.import_module("structure_networks").structure(name)[0]
    return made


def open_encoder(layers: int = 6) -> onnx.ModelProto:
    """Return an encoder of the shape of MiniLM, with an open number of tokens."""
    return _of_models("networks.transformers", "small_encoder", "N", "T", 384, 12, layers)


_NAMES = ("resnet18", "resnet50", "mobilenetv2", "vit_b16", "bert", "unet", "detector")
_FAMILIES = (
    *("vision", "windows", "decoder", "encoder-decoder", "residual", "depthwise"),
    *("gated", "wide depthwise", "mixer", "conditioned", "sound", "lines", "grouped", "boxes", "branches"),
)
_STRUCTURES = (
    *("mixer", "einsum attention", "scaled gemms", "learned queries", "masked decoder"),
    *("shifted windows", "unet", "squeeze and excite"),
)
Maker = Callable[[Path], onnx.ModelProto]
NETWORKS: dict[str, Maker] = {
    **{name: lambda _, name=name: _of_models("networks", name, "N") for name in _NAMES},
    **{name: partial(_of_torch, name) for name in _FAMILIES},
    **{path.stem: lambda _, path=path: onnx.load(path) for path in sorted(LIGHT.glob("*.onnx"))},
    **{f"structure: {name}": partial(_of_structure, name) for name in _STRUCTURES},
    "dense": lambda _: dense(3),
    "open encoder": lambda _: open_encoder(),
}
"""Name -> function of a scratch folder to the network."""
