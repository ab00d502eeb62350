"""Inputs of every subcommand, one of them damaged in its structure or its bytes, by seed."""

from __future__ import annotations

import io
import json
import os
import shutil
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from builders import BUILDERS, feed_for
from checkpoint_graphs import CHECKPOINTS, FLOAT, builder_graph
from command_server import CommandServer, Ended
from command_table import SOUND, TABLE, add_value, values_of
from damage import BYTES, _mangled_field
from genai_folders import WORDS, decoder, write_folder
from onnx import TensorProto, helper, numpy_helper

from onnxfq.checkpoints.tensor_file import read_head, write_tensors

Rng = np.random.Generator

MODELS = tuple("conv_relu tied_embedding if_body attention downsample shared_weight two_branch".split())

COMMANDS: dict[str, tuple[str, str]] = {
    "quantize": ("quantize m.onnx --data d.npz -o out.onnx", "m.onnx d.npz"),
    "quantize.fp16": ("quantize m.onnx --data d.npz -o out.onnx --float fp16 --float-io", "m.onnx"),
    "quantize.recipe": ("quantize m.onnx --data d.npz -o out.onnx --recipe r.yaml", "r.yaml"),
    "quantize.statistics": ("quantize m.onnx --statistics s.npz -o out.onnx", "s.npz m.onnx"),
    "quantize.encodings": ("quantize m.onnx --data d.npz --encodings given.json -o out.onnx", "given.json"),
    "quantize.cache": (
        "quantize m.onnx --encodings given.cache --uncalibrated float -o out.onnx",
        "given.cache",
    ),
    "quantize.npy": ("quantize g.onnx --data d.npy -o out.onnx", "d.npy g.onnx"),
    "quantize.images": ("quantize c.onnx --data images -o out.onnx --scale 1/255", "images/0.png c.onnx"),
    "quantize.preprocessor": ("quantize c.onnx --data images --preprocessor h.json -o out.onnx", "h.json"),
    "quantize.example": ("quantize m.onnx --data d.npz --example e.npz -o out.onnx", "e.npz"),
    "quantize.again": ("quantize q.onnx --data d.npz --requantize -o out.onnx", "q.onnx"),
    "quantize.keep": ("quantize q.onnx --data d.npz --keep-existing -o out.onnx", "q.onnx"),
    "quantize.ort": ("quantize m.onnx --data d.npz --recipe onnxruntime-int8 -o out.onnx", "m.onnx"),
    "plan": ("plan m.onnx -o out.json --data d.npz", "m.onnx d.npz"),
    "plan.encodings": ("plan m.onnx -o out.json --encodings given.json", "given.json"),
    "observe": ("observe m.onnx --plan p.json --data d.npz -o out.npz", "p.json d.npz"),
    "observe.all": ("observe m.onnx --data d.npz -o out.npz", "m.onnx"),
    "merge": ("observe --merge s.npz t.npz -o out.npz", "s.npz"),
    "moments": ("observe --moments g.onnx --data d.npy --rounding gptq -o out.npz", "g.onnx d.npy"),
    "moments.ranges": (
        "observe --moments g.onnx --data d.npy --rounding gptq --ranges-from a.npz -o out.npz",
        "a.npz",
    ),
    "moments.merge": ("observe --merge b.npz b2.npz -o out.npz", "b.npz b2.npz"),
    "moments.quantize": ("quantize g.onnx --data d.npy --rounding gptq --moments a.npz -o out.onnx", "a.npz"),
    "calibrate": ("calibrate m.onnx --plan p.json --statistics s.npz -o out.json --table", "p.json s.npz"),
    "export": (
        "calibrate m.onnx --plan p.json --encodings k.json --format aimet-1.0.0 -o out.json",
        "p.json k.json",
    ),
    "insert": ("insert m.onnx --plan p.json --encodings k.json -o out.onnx", "p.json k.json m.onnx"),
    "insert.fake": (
        "insert m.onnx --plan p.json --encodings k.json --format fakequant -o out.onnx",
        "k.json",
    ),
    "sensitivity": ("sensitivity m.onnx --data d.npz", "m.onnx d.npz"),
    "recipes": ("recipes r.yaml", "r.yaml"),
    "evaluate": ("evaluate m.onnx q.onnx --data d.npz", "q.onnx m.onnx d.npz"),
    "evaluate.labels": ("evaluate g.onnx g.onnx --data d.npy --labels l.npy", "l.npy"),
    "evaluate.text": ("evaluate g.onnx g.onnx --data d.npy --labels l.txt", "l.txt"),
    "check": ("check q.onnx", "q.onnx"),
    "check.json": ("check q.onnx --json", "q.onnx"),
    "convert": ("convert o.onnx -o out.onnx --data d.npz", "o.onnx"),
    "diagnose": ("diagnose q.onnx --data d.npz", "q.onnx d.npz"),
    "diagnose.float": ("diagnose o.onnx --float m.onnx --data d.npz -o out.onnx", "o.onnx m.onnx"),
    "cast": ("cast m.onnx -o out.onnx --data d.npz", "m.onnx d.npz"),
    "folder": (
        "quantize genai --data texts.jsonl --recipe genai-int8 -o out",
        "genai/genai_config.json genai/tokenizer.json genai/model.onnx texts.jsonl",
    ),
    "folder.cache": (
        "quantize genai --data texts.jsonl --recipe genai-int8 --kv int8 --kv-granularity channel -o out",
        "genai/genai_config.json genai/model.onnx",
    ),
    "folder.evaluate": (
        "evaluate genai genai-cache --data texts.jsonl --metric perplexity",
        "genai-cache/genai_config.json genai-cache/model.onnx genai/genai_config.json",
    ),
    "checkpoint": (
        "convert llama-gptq --onto llama.onnx -o out.onnx",
        "llama-gptq/config.json llama-gptq/model.safetensors llama-gptq/model.safetensors llama.onnx",
    ),
    "checkpoint.folder": (
        "convert llama-nvfp4 --onto llama.onnx --target simulation -o out",
        "llama-nvfp4/config.json llama-nvfp4/model.safetensors llama-nvfp4/hf_quant_config.json",
    ),
    "checkpoint.shards": (
        "convert llama-int8 --onto llama.onnx --partial -o out.onnx",
        "llama-int8/config.json llama-int8/model.safetensors.index.json llama-int8/1.safetensors",
    ),
    "checkpoint.to": (
        "convert llama.q.onnx --onto llama --to compressed-tensors -o out",
        "llama.q.onnx llama/config.json llama/model.safetensors",
    ),
    "checkpoint.modelopt": (
        "convert llama.i.onnx --onto llama --to modelopt --partial -o out",
        "llama.i.onnx",
    ),
    "handoff": ("handoff q.onnx -o out --data d.npz", "q.onnx"),
    "compare": ("compare q.onnx --data d.npz", "q.onnx d.npz"),
    "compare.saved": ("compare q.onnx --data d.npz --candidate saved.json --feeds 2", "saved.json"),
    "report": (
        "report result.json ranked.json scores.json -o out.html",
        "result.json ranked.json scores.json",
    ),
    "evaluate.kernels": ("evaluate m.onnx q.onnx --data d.npz --kernels integer --per-tensor", "q.onnx"),
    "sensitivity.statistics": ("sensitivity m.onnx --data d.npz --statistics s.npz", "s.npz"),
    "quantize.labels": (
        "quantize g.onnx --data d.npy --labels l.npy --max-drop 9 -o out.onnx",
        "l.npy l.txt",
    ),
    "handoff.build": ("handoff q.onnx -o out --data d.npz --shape x:2x4", "q.onnx d.npz"),
    "inspect": ("inspect q.onnx", "q.onnx"),
    "inspect.two": ("inspect m.onnx q.onnx", "q.onnx"),
}
"""Command line, and the files that are damaged for it; all outputs are called out."""

MAKER = """import numpy as np
def feeds():
    return [dict(np.load("d.npz"))]
def metric(outputs, truth):
    return float(sum(np.abs(array).mean() for made in outputs for array in made.values()))
def raises(outputs, truth):
    raise SystemExit(3)
def nothing(outputs, truth):
    return None
"""
"""Functions of a user."""

_ODD_VALUES: list[Any] = [
    *(None, True, -1, 0, 1, 2**31, 2**63, -(2**70), 1e308, float("nan"), float("inf")),
    *("", "x", "\x00", "1", "é" * 3),
    *("x" * 5000, [], [[]], [1, [2]], {}, {"x": 1}, [None], "int8", "float8e4m3", [0] * 300),
]
_PAIRS = [(command, parameter) for command, parameters in TABLE.items() for parameter in parameters or [None]]
"""Every parameter of every command; a command without any is alone."""

OPTIONS = len(_PAIRS)
"""Number of these pairs."""


@dataclass(frozen=True)
class Case:
    """One command on damaged inputs.

    Attributes:
        what: the damage, in words.
        arguments: of the command.
    """

    what: str
    arguments: list[str]


def some(items: Any, rng: Rng) -> Any:
    """Return one of `items`."""
    items = list(items)
    return items[int(rng.integers(len(items)))]


def write_inputs(name: str, folder: Path, server: CommandServer) -> None:
    """Write sound inputs of all commands for the model `name`, made by the commands themselves."""
    folder.mkdir()
    proto, rng = BUILDERS[name](), np.random.default_rng(0)
    onnx.save(proto, folder / "m.onnx")
    onnx.save(BUILDERS["shared_weight"](), folder / "g.onnx")
    onnx.save(BUILDERS["conv_relu"](), folder / "c.onnx")
    # `quantize` compares two parts of fewer than eight samples, in twice the time.
    np.savez(folder / "d.npz", **feed_for(proto, count=12))
    np.savez(folder / "e.npz", **feed_for(proto, count=1))
    np.savez(folder / "d3.npz", **feed_for(proto, seed=7, count=4))
    values = rng.normal(size=(4, 4)).astype(np.float32)
    np.save(folder / "d.npy", values)
    np.save(folder / "d1.npy", values[:2])
    np.save(folder / "d2.npy", values[2:])
    np.save(folder / "l.npy", np.arange(4))
    (folder / "l.txt").write_text("0\n1\n2 # two\n3\n")
    (folder / "images").mkdir()
    from PIL import Image

    for number in range(2):
        Image.fromarray(rng.integers(0, 255, (8, 8, 3), np.uint8)).save(folder / f"images/{number}.png")
    step = {
        "size": {"shortest_edge": 8},
        "crop_size": 6,
        "resample": 2,
        "image_mean": [0.5],
        "image_std": [0.5],
    }
    (folder / "h.json").write_text(json.dumps({"image_processor_type": "CLIPImageProcessor"} | step))
    (folder / "r.yaml").write_text(
        "base: tensorrt-int8\nname: mine\nactivations: {calibrator: percentile}\n"
        "overrides:\n  - nodes: ['*']\n    activations: &a {symmetric: true}\n  - tensors: [x]\n"
        "    activations: *a\n    keep_float: false\n"
    )
    write_checkpoints(folder)
    onnx.save(decoder(), write_folder(folder / "genai") / "model.onnx")
    (folder / "genai" / "model.onnx.data").unlink()
    texts = [{"text": " ".join(rng.choice(WORDS, 32))} for _ in range(12)]
    (folder / "texts.jsonl").write_text("\n".join(map(json.dumps, texts)))
    x = proto.graph.input[0].name
    ranges = {"quant_type": "QInt8", "scale": 0.1, "zero_point": 0, "symmetric": True}
    (folder / "given.json").write_text(json.dumps({x: [ranges]}))
    timed = {"kind": "product", "groups": 1, "rows": 1, "columns": 4, "summed": 4}
    times = {"device": "a GPU", "how": "given", "date": "2026-01-01", "versions": {}, "float_type": "float16"}
    rows = [timed | {"seconds": {"float": 1e-6, "int8": 2e-6}, "crossing": [1, 1e-7]} for _ in range(3)]
    times |= {"errors": {"int8": [0.1, 0.2]}, "rows": rows}
    (folder / "times.json").write_text(json.dumps(times))
    (folder / "given.cache").write_text(f"TRT-8501-EntropyCalibration2\n{x}: 3c010a14\n")
    lines = (
        "quantize m.onnx --data d.npz -o q.onnx -q",
        "quantize m.onnx --data d.npz --recipe onnxruntime-int8 -o o.onnx -q",
        "plan m.onnx -o p.json -q --data d.npz",
        "observe m.onnx --plan p.json --data d.npz -o s.npz -q",
        "observe m.onnx --plan p.json --data d3.npz -o t.npz -q",
        "calibrate m.onnx --plan p.json --statistics s.npz -o k.json -q",
        "observe --moments g.onnx --data d.npy --rounding gptq -o a.npz -q",
        "observe --moments g.onnx --data d1.npy --rounding gptq --ranges-from a.npz -o b.npz -q",
        "observe --moments g.onnx --data d2.npy --rounding gptq --ranges-from a.npz -o b2.npz -q",
        "handoff q.onnx -o kit --data d.npz -q",
        "convert llama-gptq --onto llama.onnx -o llama.q.onnx -q",
        "convert llama-int8 --onto llama.onnx -o llama.i.onnx -q",
        "quantize genai --data texts.jsonl --recipe genai-int8 --kv int8 -o genai-cache -q",
    )
    for line in lines:
        ended = server.run(line.split(), folder)
        assert ended.code == 0, (name, line, ended.err)
    for line, file in (
        ("quantize m.onnx --data d.npz -o q.onnx --json", "result.json"),
        ("sensitivity m.onnx --data d.npz --json", "ranked.json"),
        ("evaluate m.onnx q.onnx --data d.npz --json", "scores.json"),
    ):
        ended = server.run(line.split(), folder)
        assert ended.code == 0, (name, line, ended.err)
        (folder / file).write_text(ended.out)
    (folder / "maker.py").write_text(MAKER)
    kit = [path for path in (folder / "kit").rglob("*.json") if "output" in path.name]
    content = kit[0].read_text() if kit else '{"lst": [["x", []]], "polygraphy_class": "RunResults"}'
    (folder / "saved.json").write_text(content)
    shutil.rmtree(folder / "kit")


def write_checkpoints(folder: Path) -> None:
    """Write checkpoints, one of them in two files, and the graph of their model."""
    onnx.save(builder_graph(), folder / "llama.onnx")
    for name, form in {"llama": FLOAT.name, "llama-gptq": "gptq", "llama-nvfp4": "modelopt-nvfp4"}.items():
        shutil.copytree(CHECKPOINTS / form, folder / name)
    place = folder / "llama-int8"
    shutil.copytree(CHECKPOINTS / "ct-int8", place)
    entries = read_head(place / "model.safetensors")
    names = sorted(entries)
    files = {"1.safetensors": names[::2], "2.safetensors": names[1::2]}
    for file, held in files.items():
        write_tensors(place / file, {name: entries[name].array() for name in held})
    placed = {name: file for file, held in files.items() for name in held}
    (place / "model.safetensors.index.json").write_text(json.dumps({"weight_map": placed}))
    (place / "model.safetensors").unlink()


def draw_options(rng: Rng, number: int | None = None) -> Case:
    """Return a command on sound inputs with up to three options of any kind, sound or odd.

    Args:
        rng: what draws.
        number: of the pair of command and first option, in order; drawn without it.
    """
    command, first = _PAIRS[int(rng.integers(len(_PAIRS))) if number is None else number % len(_PAIRS)]
    others = [one for one in TABLE[command] if one.option and one is not first]
    drawn = [first, *(some(others, rng) for _ in range(int(rng.integers(3))) if others)]
    words = SOUND[command].split()
    said = []
    for parameter in filter(None, drawn):
        value = str(some(values_of(parameter), rng))
        words = add_value(command, words, parameter, value)
        said.append(f"{parameter.option or parameter.name} {value}")
    return Case(f"{command}: {', '.join(said)}", words)


def damage(folder: Path, rng: Rng) -> Case:
    """Damage one input in `folder`, or draw options; return the case."""
    if rng.integers(4) == 0:
        return draw_options(rng)
    name = some(COMMANDS, rng)
    line, targets = COMMANDS[name]
    arguments = line.split()
    how = int(rng.integers(20))
    target = folder / some(targets.split(), rng)
    if how == 0:
        what = _replace(target, rng)
    else:
        kind = target.suffix
        damages = {
            ".onnx": _damage_model,
            ".json": _damage_json,
            ".npz": _damage_npz,
            ".npy": _damage_npy,
            ".yaml": _damage_yaml,
            ".safetensors": _damage_head,
        }
        bytewise = kind not in damages or rng.integers(6) == 0
        what = _damage_bytes(target, rng) if bytewise else damages[kind](target, rng)
    return Case(f"{name}: {target.name}: {what}", arguments)


def snapshot(folder: Path) -> dict[str, object]:
    """Return every path in `folder` with its content; a pipe, a link or a folder with its kind."""
    found: dict[str, object] = {}
    for path in sorted(folder.rglob("*")):
        plain = path.is_file() and not path.is_symlink()
        found[str(path.relative_to(folder))] = path.read_bytes() if plain else path.lstat().st_mode
    return found


def run_case(case: Case, folder: Path, server: CommandServer, seconds: float = 60) -> tuple[str, Ended]:
    """Run `case`; return what is wrong with how it ended, empty if nothing is, and the end."""
    before = snapshot(folder)
    ended = server.run(case.arguments, folder, seconds)
    after = snapshot(folder)
    changed = [name for name, content in before.items() if after.get(name) != content]
    made = [name for name in after if name not in before]
    fault = ended.fault
    if not fault and changed:
        fault = f"changes {changed}"
    made = [name for name in made if "__pycache__" not in name]
    # Some values of --artifacts and -o name the current folder.
    inside = "." in case.arguments
    left = [name for name in made if ended.code or not (inside or name.startswith("out"))]
    if not fault and left:
        fault = f"exit code {ended.code} leaves {left}"
    return fault, ended


def _replace(path: Path, rng: Rng) -> str:
    how = str(some(("missing", "empty", "folder", "pipe", "loop", "null", "zero", "text"), rng))
    path.unlink()
    if how == "empty":
        path.write_bytes(b"")
    elif how == "folder":
        path.mkdir()
    elif how == "pipe":
        os.mkfifo(path)
    elif how == "loop":
        path.symlink_to(path.name)
    elif how in ("null", "zero"):
        path.symlink_to(f"/dev/{how}")
    elif how == "text":
        path.write_text("hello\n" * 100)
    return how


def _damage_bytes(path: Path, rng: Rng) -> str:
    kind = some(BYTES, rng)
    content = bytearray(path.read_bytes())
    BYTES[kind](content, rng)
    path.write_bytes(content)
    return str(kind)


def _damage_head(path: Path, rng: Rng) -> str:
    """Change the head of a file of safetensors in its structure, or one of its tensors."""
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    head = json.loads(content[8 : 8 + size])
    name = str(some([one for one in head if one != "__metadata__"], rng))
    how = int(rng.integers(5))
    if how == 0:
        head[name] = some(_ODD_VALUES, rng)
    elif how == 1:
        del head[name]
    elif how == 2:
        head[str(some(("", "../x", "x" * 5000, "a.qweight", "lm_head.weight_scale"), rng))] = head[name]
    else:
        field = str(some(("dtype", "shape", "data_offsets"), rng))
        odd = [*_ODD_VALUES, "F32", "I32", "F8_E4M3", "BOOL", [32, 32], [2**40], [-1], [0, 2**62]]
        head[name][field] = some(odd, rng)
    text = json.dumps(head).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + size :])
    return f"head {name} {how}"


def _damage_model(path: Path, rng: Rng) -> str:
    """Change the structure; mostly into a model that ONNX's checker takes, to get further than reading."""
    sound = path.read_bytes()
    for _ in range(int(some((1, 20), rng))):
        path.write_bytes(sound)
        what = _change_model(path, rng)
        try:
            onnx.checker.check_model(path.read_bytes())
            return what
        except (onnx.checker.ValidationError, ValueError, UnicodeDecodeError):
            pass
    return what


_IMPOSSIBLE = (IndexError, ValueError, TypeError, StopIteration, AttributeError)
"""Errors of a change that a model has no place for."""


def _change_model(path: Path, rng: Rng) -> str:
    proto = onnx.load(path)
    done = []
    for _ in range(int(rng.integers(1, 3))):
        change = _mangled_field if rng.integers(3) == 0 else some(_MODEL_CHANGES, rng)
        try:
            change(proto, rng)
        except (*_IMPOSSIBLE, onnx.checker.ValidationError):
            continue
        done.append(change.__name__)
    path.write_bytes(proto.SerializeToString())
    return " ".join(done)


def _drop_input(proto: onnx.ModelProto, rng: Rng) -> None:
    node = some(proto.graph.node, rng)
    del node.input[int(rng.integers(len(node.input)))]


def _empty_input(proto: onnx.ModelProto, rng: Rng) -> None:
    node = some(proto.graph.node, rng)
    node.input[int(rng.integers(len(node.input)))] = ""


def _add_output(proto: onnx.ModelProto, rng: Rng) -> None:
    some(proto.graph.node, rng).output.append(some(("", "more"), rng))


def _empty_output(proto: onnx.ModelProto, rng: Rng) -> None:
    node = some(proto.graph.node, rng)
    node.output[int(rng.integers(len(node.output)))] = ""


def _swap_inputs(proto: onnx.ModelProto, rng: Rng) -> None:
    node = some(proto.graph.node, rng)
    node.input[:] = list(reversed(node.input))


def _other_op(proto: onnx.ModelProto, rng: Rng) -> None:
    names = sorted({schema.name for schema in onnx.defs.get_all_schemas() if not schema.domain})
    some(proto.graph.node, rng).op_type = str(some(names, rng))


def _other_domain(proto: onnx.ModelProto, rng: Rng) -> None:
    domain = str(some(("com.microsoft", "onnxfq", "trt", "own", "ai.onnx.ml"), rng))
    some(proto.graph.node, rng).domain = domain
    proto.opset_import.append(helper.make_opsetid(domain, 1))


def _local_function(proto: onnx.ModelProto, rng: Rng) -> None:
    node = some(proto.graph.node, rng)
    body = [helper.make_node("Constant", [], [f"o{i}"], value_float=1.0) for i in range(len(node.output))]
    inputs = [f"i{i}" for i in range(len(node.input))]
    outputs = [f"o{i}" for i in range(len(node.output))]
    if rng.integers(2):
        node.input[:], inputs = [], []
    made = helper.make_function("own", node.op_type, inputs, outputs, body, [helper.make_opsetid("", 17)])
    node.domain = "own"
    node.ClearField("attribute")
    proto.functions.append(made)
    proto.opset_import.append(helper.make_opsetid("own", 1))


def _drop_attribute(proto: onnx.ModelProto, rng: Rng) -> None:
    node = some([node for node in proto.graph.node if node.attribute], rng)
    del node.attribute[int(rng.integers(len(node.attribute)))]


def _other_attribute(proto: onnx.ModelProto, rng: Rng) -> None:
    node = some([node for node in proto.graph.node if node.attribute], rng)
    old = some(node.attribute, rng)
    value = some((0, -1, 2**62, 1.5, "x", [1, 2], [], [1.5], ["x"], [0] * 9), rng)
    kind = onnx.AttributeProto.INTS if value == [] else None
    old.CopyFrom(helper.make_attribute(old.name, value, attr_type=kind))


def _constant(proto: onnx.ModelProto, array: np.ndarray, name: str) -> None:
    for tensor in [tensor for tensor in proto.graph.initializer if tensor.name == name]:
        proto.graph.initializer.remove(tensor)
    proto.graph.initializer.append(numpy_helper.from_array(array, name))


def _values(tensor: onnx.TensorProto) -> np.ndarray | None:
    """The values of a tensor; None if an earlier change has damaged it."""
    try:
        return numpy_helper.to_array(tensor)
    except (KeyError, TypeError, ValueError):
        return None


def _other_rank(proto: onnx.ModelProto, rng: Rng) -> None:
    tensor = some(proto.graph.initializer, rng)
    array = _values(tensor)
    if array is None:
        return
    shapes = ((-1,), (1, -1), (-1, 1, 1, 1, 1), (1,) * 9 + (-1,))
    _constant(proto, array.reshape(some(shapes, rng)), tensor.name)


def _other_values(proto: onnx.ModelProto, rng: Rng) -> None:
    tensor = some(proto.graph.initializer, rng)
    array = _values(tensor)
    if array is None:
        return
    kind = str(some(("nan", "inf", "huge", "zero", "negative", "empty", "scalar"), rng))
    values = {"nan": np.nan, "inf": np.inf, "huge": 3e38, "zero": 0, "negative": -1}
    if kind in values:
        with np.errstate(all="ignore"):
            array = np.full_like(array, np.asarray(values[kind]).astype(array.dtype))
    else:
        array = array.reshape(-1)[:0] if kind == "empty" else array.reshape(-1)[0]
    _constant(proto, np.asarray(array), tensor.name)


def _other_type(proto: onnx.ModelProto, rng: Rng) -> None:
    tensor = some(proto.graph.initializer, rng)
    array = _values(tensor)
    if array is None:
        return
    dtype = some((np.float64, np.float16, np.int8, np.int64, np.bool_, np.uint8), rng)
    with np.errstate(all="ignore"):
        _constant(proto, array.astype(dtype), tensor.name)


def _sparse(proto: onnx.ModelProto, rng: Rng) -> None:
    tensor = some(proto.graph.initializer, rng)
    values = numpy_helper.from_array(np.float32([1, 2]), tensor.name)
    indices = some(([0, 1], [[0, 0], [0, 1]], [0, 2**40], [-1, 0], [1, 1], [[0]]), rng)
    dims = some((list(tensor.dims), [2**20, 2**20], [0], [-1], []), rng)
    made = helper.make_sparse_tensor(values, numpy_helper.from_array(np.asarray(indices, np.int64)), dims)
    proto.graph.initializer.remove(tensor)
    proto.graph.sparse_initializer.append(made)


def _unfold(proto: onnx.ModelProto, rng: Rng) -> None:
    tensor = some(proto.graph.initializer, rng)
    name = tensor.name
    proto.graph.initializer.remove(tensor)
    size = int(some((0, 3, 2**20, 2**34, 2**62, -1), rng))
    _constant(proto, np.asarray([size, 4], np.int64), "own_shape")
    op = str(some(("ConstantOfShape", "Expand", "Tile"), rng))
    _constant(proto, np.ones((1, 1), np.float32), "own_one")
    inputs = ["own_shape"] if op == "ConstantOfShape" else ["own_one", "own_shape"]
    proto.graph.node.insert(0, helper.make_node(op, inputs, [name]))


def _external(proto: onnx.ModelProto, rng: Rng) -> None:
    tensor = some(proto.graph.initializer, rng)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    location = str(some(("../d.npz", "/etc/passwd", "d.npz", "", "m.onnx", ".", "nowhere"), rng))
    tensor.external_data.add(key="location", value=location)


def _other_edge(proto: onnx.ModelProto, rng: Rng) -> None:
    names = [name for node in proto.graph.node for name in (*node.input, *node.output)]
    node = some(proto.graph.node, rng)
    node.input[int(rng.integers(len(node.input)))] = str(some(names, rng))


def _drop_node(proto: onnx.ModelProto, rng: Rng) -> None:
    del proto.graph.node[int(rng.integers(len(proto.graph.node)))]


def _open_shapes(proto: onnx.ModelProto, rng: Rng) -> None:
    for value in (*proto.graph.input, *proto.graph.output):
        for dim in value.type.tensor_type.shape.dim:
            dim.Clear()


def _other_input_kind(proto: onnx.ModelProto, rng: Rng) -> None:
    value = some((*proto.graph.input, *proto.graph.output), rng)
    kinds = (
        helper.make_sequence_type_proto(helper.make_tensor_type_proto(1, None)),
        helper.make_tensor_type_proto(TensorProto.STRING, [1]),
        helper.make_tensor_type_proto(TensorProto.FLOAT, []),
        helper.make_tensor_type_proto(TensorProto.FLOAT, [2**40, 3]),
        helper.make_tensor_type_proto(TensorProto.COMPLEX64, [3]),
    )
    value.type.CopyFrom(some(kinds, rng))


_MODEL_CHANGES: tuple[Callable[[onnx.ModelProto, Rng], None], ...] = (
    *(_drop_input, _empty_input, _add_output, _empty_output, _swap_inputs, _other_op, _other_domain),
    *(_local_function, _drop_attribute, _other_attribute, _other_rank, _other_values, _other_type),
    *(_sparse, _unfold, _external, _other_edge, _drop_node, _open_shapes, _other_input_kind),
)


def _places(content: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path of every value in a document."""
    keys = range(len(content)) if isinstance(content, list) else content if isinstance(content, dict) else ()
    return [path, *(place for key in list(keys)[:50] for place in _places(content[key], (*path, key)))]


def _damage_document(content: Any, rng: Rng) -> tuple[Any, str]:
    place = some(_places(content), rng)
    if not place:
        value = some(_ODD_VALUES, rng)
        return value, f"all = {value!r:.20}"
    parent = content
    for key in place[:-1]:
        parent = parent[key]
    how = int(rng.integers(4))
    if how == 0:
        del parent[place[-1]]
    elif how == 1 and isinstance(parent, dict):
        parent[str(some(("", "other", "x" * 2000), rng))] = parent.pop(place[-1])
    elif how == 2 and isinstance(parent, list):
        parent.append(parent[place[-1]])
    else:
        old = parent[place[-1]]
        alike = [value for value in _ODD_VALUES if isinstance(value, type(old))]
        parent[place[-1]] = some(alike if alike and rng.integers(2) else _ODD_VALUES, rng)
        return content, f"{place[-3:]} = {parent[place[-1]]!r:.20}"
    return content, f"{place[-3:]} {how}"


def _damage_json(path: Path, rng: Rng) -> str:
    content, what = _damage_document(json.loads(path.read_text()), rng)
    path.write_text(json.dumps(content))
    return what


def _damage_yaml(path: Path, rng: Rng) -> str:
    import yaml

    tags = (
        "!!int ''",
        "!!float ''",
        "!!bool maybe",
        "!!timestamp soon",
        "!!binary x",
        "!!set [a]",
        "*a",
        "&b [*b]",
    )
    if rng.integers(3) == 0:
        lines = path.read_text().splitlines()
        at = int(rng.integers(len(lines)))
        head, _, _ = lines[at].partition(":")
        lines[at] = f"{head}: {some(tags, rng)}"
        path.write_text("\n".join(lines))
        return lines[at]
    content, what = _damage_document(yaml.safe_load(path.read_text()), rng)
    path.write_text(yaml.safe_dump(content))
    return what


_HEADERS = (
    "{'descr': '<f4', 'fortran_order': False, 'shape': (4,), []: 1}",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000,), }",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999999,), }",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (-5,), }",
    "{'descr': '|O', 'fortran_order': False, 'shape': (5,), }",
    "{'descr': '|V0', 'fortran_order': False, 'shape': (5,), }",
    "{'descr': [('a', '<i4')], 'fortran_order': False, 'shape': (5,), }",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (5L,), }",
    "(" * 300,
    "{'descr': '<i8'",
)


def _odd_npy(rng: Rng) -> bytes:
    head = str(some(_HEADERS, rng)).encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head + bytes(40)


def _odd_array(array: np.ndarray, rng: Rng) -> np.ndarray:
    changes: list[Callable[[], Any]] = [
        lambda: array.reshape(-1),
        lambda: array[None],
        lambda: array[..., None],
        lambda: array[:0],
        lambda: array[:1],
        lambda: np.concatenate([array, array]),
        lambda: array.astype(np.float64) * np.nan,
        lambda: array.astype(np.float64) * 1e300,
        lambda: -array.astype(np.int64),
        lambda: array.astype(np.int64) + 2**40,
        lambda: array.astype(np.complex64),
        lambda: array.astype(str),
        lambda: array.astype(np.float16),
        lambda: np.asarray(5),
        lambda: np.asarray(["x"]),
        lambda: np.zeros((3, 0, 2)),
        lambda: array.astype(bool),
    ]
    with np.errstate(all="ignore"):
        try:
            return np.asarray(some(changes, rng)())
        except (ValueError, TypeError, IndexError):  # impossible for this array
            return np.zeros(3)


def _damage_npz(path: Path, rng: Rng) -> str:
    with np.load(path) as data:
        arrays = dict(data)
    name = some(arrays, rng)
    how = int(rng.integers(5))
    if how == 0:
        arrays[str(some(("other", "", "x" * 3000, "a/b"), rng))] = arrays.pop(name)
    elif how == 1:
        del arrays[name]
    elif how == 2:
        held = io.BytesIO()
        np.savez(held, **{key: value for key, value in arrays.items() if key != name})
        with zipfile.ZipFile(held, "a") as packed:
            packed.writestr(f"{name}.npy", _odd_npy(rng))
        path.write_bytes(held.getvalue())
        return f"header of {name}"
    else:
        arrays[name] = _odd_array(arrays[name], rng)
    np.savez(path, **arrays)
    return f"{name} {how} {arrays[name].dtype} {arrays[name].shape}" if name in arrays else f"{name} {how}"


def _damage_npy(path: Path, rng: Rng) -> str:
    if rng.integers(2):
        path.write_bytes(_odd_npy(rng))
        return "header"
    array = _odd_array(np.load(path), rng)
    np.save(path, array)
    return f"{array.dtype} {array.shape}"
