"""Every command with its parameters as the command line itself declares them, and sound values of them."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from onnxfq.cli.guard import OUTPUTS
from onnxfq.cli.main import COMMANDS, build_app

LEFT_OUT = ("context",)
"""Parameters that no user gives."""

NAMED_PATHS = ("data", "example", "recipe", "a", "b", "name", "fallback")
"""Parameters of text that may name a file."""


@dataclass(frozen=True)
class Parameter:
    """One argument or option of a command.

    Attributes:
        name: in the function.
        option: its longest spelling; empty for an argument.
        kind: type of one value.
        required: whether the command needs it.
        several: whether it takes many values.
    """

    name: str
    option: str
    kind: Any
    required: bool
    several: bool

    @property
    def is_flag(self) -> bool:
        """Whether it takes no value."""
        return self.kind is bool

    @property
    def is_path(self) -> bool:
        """Whether it may name a file or a folder."""
        return self.kind is Path or self.name in NAMED_PATHS

    @property
    def is_output(self) -> bool:
        """Whether it names what the command writes."""
        return self.name in OUTPUTS

    def words(self, value: str) -> list[str]:
        """Return it with `value` as words of a command line."""
        return [self.option] if self.is_flag else [self.option, value] if self.option else [value]


def list_parameters(command: str) -> list[Parameter]:
    """Return the parameters of `command` in its order."""
    app = build_app([command])
    callback = app.registered_commands[0].callback
    assert callback is not None
    found = []
    for name, parameter in inspect.signature(callback).parameters.items():
        if name in LEFT_OUT:
            continue
        kind, mark = get_args(parameter.annotation)
        if get_origin(kind) in (Union, UnionType):
            kind = next(one for one in get_args(kind) if one is not type(None))
        several = get_origin(kind) is list
        spelled = [one for one in (mark.default, *(mark.param_decls or ())) if isinstance(one, str)]
        long = max((one for one in spelled if one.startswith("-")), key=len, default="")
        option = long or (f"--{name.replace('_', '-')}" if type(mark).__name__ == "OptionInfo" else "")
        required = parameter.default is inspect.Parameter.empty
        found.append(Parameter(name, option, get_args(kind)[0] if several else kind, required, several))
    return found


TABLE = {command: list_parameters(command) for command in COMMANDS}
"""Parameters of every command."""

SOUND: dict[str, str] = {
    "quantize": "quantize m.onnx --data d.npz -o out.onnx",
    "sensitivity": "sensitivity m.onnx --data d.npz",
    "evaluate": "evaluate m.onnx q.onnx --data d.npz",
    "check": "check q.onnx",
    "handoff": "handoff q.onnx -o out --data d.npz",
    "plan": "plan m.onnx -o out.json",
    "observe": "observe m.onnx --data d.npz -o out.npz",
    "calibrate": "calibrate m.onnx --plan p.json --statistics s.npz -o out.json",
    "insert": "insert m.onnx --plan p.json --encodings k.json -o out.onnx",
    "recipes": "recipes",
    "inspect": "inspect q.onnx",
    "compare": "compare q.onnx --data d.npz",
    "convert": "convert o.onnx -o out.onnx",
    "cast": "cast m.onnx -o out.onnx",
    "report": "report result.json -o out.html",
    "demo": "demo -o out",
    "diagnose": "diagnose q.onnx --float m.onnx --data d.npz",
    "doctor": "doctor",
}
"""A line of each command that ends well on the inputs of `fuzzed_inputs.write_inputs`."""

VALUES: dict[str, tuple[str, ...]] = {
    "model": ("m.onnx", "g.onnx", "q.onnx", "o.onnx"),
    "reference": ("m.onnx", "q.onnx", "onnxruntime", "integer", "saved.json"),
    "candidates": ("q.onnx", "m.onnx"),
    "other": ("q.onnx", "o.onnx"),
    "data": ("d.npz", "d.npy", "images", "maker:feeds", "."),
    "output": ("out",),
    "report": ("out.html",),
    "artifacts": ("out-folder", "."),
    "node_data": ("out.nodes.json",),
    "table_csv": ("out.csv",),
    "recipe_out": ("out.yaml",),
    "statistics": ("s.npz", "d.npz"),
    "moments": ("a.npz", "s.npz"),
    "ranges_from": ("a.npz", "s.npz"),
    "encodings": ("k.json", "given.json", "given.cache"),
    "plan": ("p.json", "k.json"),
    "files": ("m.onnx", "s.npz"),
    "results": ("result.json", "ranked.json", "scores.json"),
    "name": ("tensorrt-int8", "r.yaml"),
    "recipe": ("tensorrt-int8", "onnxruntime-int8", "tensorrt-fp8", "r.yaml", "nothing"),
    "calibrator": ("entropy", "percentile:99", "percentile:200", "range:1", "known:Relu", "mine:x"),
    "rounding": ("gptq", "nearest", "auto", "qronos", "nothing"),
    "smooth": ("none", "auto", "0.5", "nan", "-1", "x"),
    "pays": ("times.json", "k.json", "SM90x", ""),
    "kv": ("int8", "int4", "nothing"),
    "python": ("python3", "none"),
    "custom_ops": ("m.onnx", "none.so"),
    "labels": ("l.npy", "l.txt", "m.onnx"),
    "metric": ("maker:metric", "maker:raises", "maker:nothing", "maker"),
    "fallback": ("float", "weights", "int16,float", "tensorrt-int8-weights", "nothing"),
    "repair": ("auto", "thorough", "off", "20", "nan", "1e400"),
    "ignore": ("saturation", "zero-point", "nothing"),
    "explain": ("saturation", "nothing"),
    "gpu": ("8.9", "SM75", "l4", "dla", "l5", ""),
    "min_sqnr": ("5", "60", "1e400", "nan"),
    "max_drop": ("1", "0", "-1", "inf"),
    "weight_bits": ("6", "0", "nan"),
    "max_bytes": ("99999", "0", "-1"),
    "runtime": ("onnxruntime==1.20.1", "onnxruntime==0.1", "x"),
    "ray": ("127.0.0.1:1", ""),
    "scale": ("1/255", "nan", "1e400", "1/0", "x"),
    "mean": ("0.5", "1,2,3", "1e400", ","),
    "std": ("0.5", "0", "1,2,3", "x"),
    "resize": ("8", "8x8", "9x", "99999999x9"),
    "crop": ("4x4", "0x0", "99x99", "x"),
    "resample": ("bilinear", "nothing"),
    "preprocessor": ("h.json", "k.json"),
    "layout": ("nchw", "nhwc", "x"),
    "color": ("rgb", "bgr", "gray", "x"),
    "example": ("e.npz", "d.npy"),
    "limit": ("1", "2", "0", "99999999999"),
    "samples": ("1", "3", "0"),
    "batch": ("0", "1", "3", "-1", "99999999999"),
    "threads": ("1", "2", "-1"),
    "memory": ("1", "64", "0", "99999999999"),
    "tolerance": ("0", "1e-3", "40", "-1", "nan"),
    "feeds": ("1", "2", "0"),
    "candidate": ("integer", "onnxruntime", "saved.json", "nothing"),
    "layers": ("layers.json", "k.json"),
    "profile": ("profile.json", "k.json"),
    "engine": ("ran.json", "k.json"),
    "target": ("tensorrt", "onnxruntime", "nothing"),
    "onto": ("llama.onnx", "llama", "m.onnx", "."),
    "form": ("aimet-1.0.0", "tensorrt-cache", "nothing"),
    "shape": ("x:2x4", "x:0x1", "x:99999999x9", "nothing", "y:1"),
    "min_shapes": ("x:1x4", "x:9x4", "x"),
    "opt_shapes": ("x:2x4", "x:0x4", "x"),
    "max_shapes": ("x:8x4", "x:1x4", "x"),
}
"""Values of parameters that are neither flags nor choices, by name: sound ones first, then odd ones."""

NEEDS = {
    "labels": "--max-drop 1",
    "metric": "--max-drop 1",
    "fallback": "--min-sqnr 5",
    "moments": "--table --rounding gptq",
    "preprocessor": "--data images",
    "ranges": "--moments --rounding gptq",
    "ranges_from": "--moments --rounding gptq",
    "float_io": "--float fp16",
    "shape": "--build",
}
"""Options that another one has no effect without, where the command has them."""


def values_of(parameter: Parameter) -> tuple[str, ...]:
    """Return values of `parameter`, sound and odd. Raises KeyError for one that this file lacks."""
    if parameter.is_flag:
        return ("",)
    if get_origin(parameter.kind) is Literal:
        return tuple(map(str, get_args(parameter.kind)))
    if hasattr(parameter.kind, "__members__"):
        return tuple(one.value for one in parameter.kind)
    return VALUES[parameter.name]


def with_value(command: str, parameter: Parameter, value: str) -> list[str]:
    """Return the sound line of `command` with `value` for `parameter` and what that needs."""
    words = SOUND[command].split()
    options = {one.option for one in TABLE[command]}
    needed = NEEDS.get(parameter.name, "").split()
    if needed and needed[0] in options and needed[0] not in words:
        words += [word for word in needed if not word.startswith("--") or word in options]
    return add_value(command, words, parameter, value)


def add_value(command: str, words: list[str], parameter: Parameter, value: str) -> list[str]:
    """Return the line `words` of `command` with `value` for `parameter`."""
    words = list(words)
    spelled = {"--output": "-o"}.get(parameter.option, parameter.option)
    if not parameter.option:
        place = 1 + [one.name for one in TABLE[command] if not one.option].index(parameter.name)
        words[place : place + 1] = [value]
    elif spelled in words:
        at = words.index(spelled)
        words[at : at + (1 if parameter.is_flag else 2)] = parameter.words(value)
    else:
        words += parameter.words(value)
    return words
