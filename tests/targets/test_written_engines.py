"""Rules about engines on files that `onnxfq quantize` wrote: kernels with each rule and without it.

TensorRT for RTX 1.7.1 counted the kernels, beside the same graph without pairs in a half type.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import build, weights
from engines import SECONDS, needs_builder
from numpy.typing import NDArray

from onnxfq.cli.main import main
from onnxfq.remedies import equalize
from onnxfq.stages import plan as stages_plan
from onnxfq.targets.engine_figures import EngineFigures
from onnxfq.targets.profiles import profiles
from onnxfq.targets.reading.context import read
from onnxfq.targets.tensorrt.builder.figures import count_layers
from onnxfq.targets.tensorrt.builder.jobs import Job, run_jobs
from onnxfq.targets.tensorrt.builder.layers import parse_layers
from onnxfq.targets.tensorrt.builder.without_pairs import without_pairs
from onnxfq.targets.tensorrt.rules.structure import EXTRA

pytestmark = needs_builder


def encoder(blocks: int, tokens: str, width: int = 128, heads: int = 4) -> onnx.ModelProto:
    """Attention and a perceptron, whose values have two channels 32 times as large as the others.

    The values are results too, as in a decoder that fills a cache, so their projection keeps its channels.
    """
    text = ""
    constants = {
        "heads": np.asarray([0, 0, heads, width // heads]),
        "whole": np.asarray([0, 0, width]),
        "scale": np.float32((width / heads) ** -0.5),
        "gain": np.ones(width, np.float32),
    }
    for i in range(blocks):
        parts = {part: weights(width, width, seed=9 * i + k) / 12 for k, part in enumerate("qkvo")}
        parts["v"][:, [3, 70]] *= 32
        parts["o"][[3, 70]] /= 32
        constants |= {f"{part}{i}": array for part, array in parts.items()}
        constants |= {f"u{i}": weights(width, 2 * width) / 12, f"d{i}": weights(2 * width, width) / 16}
        text += f" n{i} = LayerNormalization (x{i}, gain)"
        for part, order in zip("qkv", ("0,2,1,3", "0,2,3,1", "0,2,1,3"), strict=True):
            text += f" {part}a{i} = MatMul (n{i}, {part}{i}) {part}b{i} = Reshape ({part}a{i}, heads)"
            text += f" {part}c{i} = Transpose <perm = [{order}]> ({part}b{i})"
        text += f" s{i} = MatMul (qc{i}, kc{i}) t{i} = Mul (s{i}, scale) p{i} = Softmax <axis = -1> (t{i})"
        text += f" m{i} = MatMul (p{i}, vc{i}) h{i} = Transpose <perm = [0,2,1,3]> (m{i})"
        text += f" j{i} = Reshape (h{i}, whole) [out{i}] y{i} = MatMul (j{i}, o{i}) a{i} = Add (x{i}, y{i})"
        text += f" f{i} = MatMul (a{i}, u{i}) r{i} = Relu (f{i}) g{i} = MatMul (r{i}, d{i})"
        text += f" x{i + 1} = Add (a{i}, g{i})"
    results = ", ".join([f"float[] x{blocks}", *(f"float[] vc{i}" for i in range(blocks))])
    head = f"g (float[N,{tokens},{width}] x0) => ({results})"
    return build(f"{head} {{ {text} }}", constants, opset=18)


def write(proto: onnx.ModelProto, folder: Path, *options: str) -> onnx.ModelProto:
    """Return the file that the command writes with a float16 remainder, without repair."""
    onnx.save(proto, folder / "float.onnx")
    sizes = [dim.dim_value for dim in proto.graph.input[0].type.tensor_type.shape.dim]
    shape = [8, *(size or 64 for size in sizes[1:])]
    data = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    np.savez(folder / "d.npz", **{proto.graph.input[0].name: data})
    line = ["quantize", str(folder / "float.onnx"), "--data", str(folder / "d.npz")]
    line += ["-o", str(folder / "q.onnx"), "--float", "fp16", "--repair", "off", *options]
    assert main(line) == 0
    return onnx.load(folder / "q.onnx")


def figures(protos: dict[str, onnx.ModelProto], folder: Path) -> dict[str, EngineFigures]:
    """Return the counts of the engines for SM89 of files, and of the first without pairs, as `half`."""
    models = {name: read(proto, EXTRA) for name, proto in protos.items()}
    given = {name: reading.proto for name, reading in models.items()}
    given["half"] = without_pairs(next(iter(models.values())))
    jobs = []
    for name, proto in given.items():
        onnx.save(proto, folder / f"{name}.onnx")
        jobs.append(Job(folder / f"{name}.onnx", "SM89", profiles(proto, {})))
    found = {}
    for name, report in zip(given, run_jobs(jobs, SECONDS), strict=True):
        assert report.built, (name, report.faults, report.errors)
        op_types = {node.name: node.op_type for node in given[name].graph.node}
        found[name] = count_layers(parse_layers(report.layers), op_types)
    return found


@pytest.mark.share(2)
@pytest.mark.parametrize("tokens", ["T", "64"])
def test_smoothing_keeps_attention_in_one_kernel(
    tokens: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Smoothing that puts a Mul between an int8 attention and the pair behind it takes the kernel apart."""
    proto, options = encoder(2, tokens), ("--recipe", "tensorrt-int8", "--smooth", "0.5")
    kept = write(proto, tmp_path, *options)
    monkeypatch.setattr(equalize, "find_attentions", lambda nodes: ())
    found = figures({"kept": kept, "without": write(proto, tmp_path, *options)}, tmp_path)
    counts = {name: (one.kernels, one.attentions) for name, one in found.items()}
    assert counts == {"kept": (23, 2), "without": (29, 0), "half": (19, 2)}


def kernel(out: int, into: int, size: int = 1) -> NDArray[np.float32]:
    """Return the weights of a convolution that keeps the size of numbers."""
    return weights(out, into, size, size) / np.float32((into * size**2) ** 0.5)


def mobile(blocks: int) -> onnx.ModelProto:
    """Blocks of a depthwise convolution between two of one pixel, as of MobileNetV2."""
    text = "[stem] x0 = Conv <strides = [2,2], pads = [1,1,1,1]> (x, stem)"
    constants = {"stem": kernel(24, 3, 3), "head": kernel(256, 24), "out": kernel(64, 256, 3)}
    for i in range(blocks):
        text += f" [wide{i}] w{i} = Conv (x{i}, a{i}) u{i} = Relu (w{i})"
        text += f" [deep{i}] d{i} = Conv <group = 96, pads = [1,1,1,1]> (u{i}, b{i}) v{i} = Relu (d{i})"
        text += f" [thin{i}] t{i} = Conv (v{i}, c{i}) x{i + 1} = Add (x{i}, t{i})"
        constants |= {f"a{i}": kernel(96, 24), f"b{i}": kernel(96, 1, 3), f"c{i}": kernel(24, 96)}
    text += f" [head] h = Conv (x{blocks}, head) r = Relu (h) [out] y = Conv (r, out)"
    return build(f"g (float[1,3,64,64] x) => (float[] y) {{ {text} }}", constants, opset=18)


def heavy() -> onnx.ModelProto:
    """Four convolutions with large weights on small maps, behind a depthwise one."""
    text = "[stem] a = Conv <group = 512, pads = [1,1,1,1]> (x, stem)"
    constants = {"stem": kernel(512, 1, 3)}
    for i, name in enumerate("abcd"):
        text += f" [c{i}] {name}c = Conv <pads = [1,1,1,1]> ({name}, w{i}) {'bcdy'[i]} = Relu ({name}c)"
        constants[f"w{i}"] = kernel(512, 512, 3)
    return build(f"g (float[1,512,8,8] x) => (float[] y) {{ {text} }}", constants, opset=18)


NETWORKS: dict[str, Callable[[], onnx.ModelProto]] = {"mobile": lambda: mobile(4), "heavy": heavy}
KERNELS = {"mobile": {"without": 31, "half": 17}, "heavy": {"without": 11, "half": 7}}
"""Kernels without the rule, and of the graph without pairs."""


@pytest.mark.parametrize("name", NETWORKS)
def test_convolutions_stay_in_half(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By default no pair is written; without the rule they add kernels to the engine."""
    proto, options = NETWORKS[name](), ("--recipe", "tensorrt-fp8")
    ruled = write(proto, tmp_path, *options)
    assert "QuantizeLinear" not in {node.op_type for node in ruled.graph.node}
    monkeypatch.setattr(stages_plan, "leave_out_costly", lambda decisions, *_: decisions)
    found = figures({"without": write(proto, tmp_path, *options)}, tmp_path)
    assert {name: one.kernels for name, one in found.items()} == KERNELS[name]
