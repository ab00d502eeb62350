"""Shell scripts of a hand-over folder, and the program that lists an engine's layers without trtexec."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

LAYERS_FILE, PROFILE_FILE = "layers.json", "profile.json"
"""Files of an engine's layers and of their times, which `onnxfq check --layers --profile` reads."""

NO_TRTEXEC = (
    "trtexec is not installed: it comes with TensorRT's container, .deb and .tar packages, not with its pip "
    "package. Polygraphy builds in its place, and layers.py lists the layers, without times."
)
"""Note of the scripts."""

LIST_LAYERS = f'''"""List the layers of model.plan in {LAYERS_FILE}, by TensorRT's inspector."""

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

trt = import_module("tensorrt" if find_spec("tensorrt") else "tensorrt_rtx")
logger = trt.Logger(trt.Logger.WARNING)
engine = trt.Runtime(logger).deserialize_cuda_engine(Path("model.plan").read_bytes())
inspector, context = engine.create_engine_inspector(), engine.create_execution_context()
for name in map(engine.get_tensor_name, range(engine.num_io_tensors)):
    if engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT and -1 in tuple(engine.get_tensor_shape(name)):
        context.set_input_shape(name, engine.get_tensor_profile_shape(name, 0)[1])
inspector.execution_context = context  # without one the types of open shapes are unknown
Path("{LAYERS_FILE}").write_text(inspector.get_engine_information(trt.LayerInformationFormat.JSON))
'''
"""Program of the folder that does without trtexec."""

LIST_COMMAND = ("python3", "layers.py")


def script(commands: Sequence[Sequence[str]], instead: Sequence[Sequence[str]] = ()) -> str:
    """Return a POSIX shell script that runs `commands` in its own folder until one fails.

    Args:
        commands: words of each command.
        instead: what runs in place of the first one, with a note, where its program is not installed.
    """
    lines = ["#!/bin/sh", "set -e", 'cd "$(dirname "$0")"']
    first, *rest = (shlex.join(words) for words in commands)
    if instead:
        others = [f"  {shlex.join(words)}" for words in instead]
        note = f'  echo "{NO_TRTEXEC}" >&2'
        test = f"if command -v {commands[0][0]} > /dev/null; then"
        lines += [test, f"  {first}", "else", note, *others, "fi"]
    else:
        lines.append(first)
    return "\n".join([*lines, *rest]) + "\n"
