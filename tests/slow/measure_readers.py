"""Measures the most memory that commands take for 100 MB of hostile input of each kind.

    python tests/slow/measure_readers.py [--megabytes 100]

Not a pytest. The exit code is 1 when a command takes over 1 GB, or ends in anything but results or one line.
"""

from __future__ import annotations

import argparse
import json
import struct
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "networks"))

from builders import conv_relu
from command_server import command_server
from PIL import Image

MOST = 1 << 30
"""Bytes that a reader may take, the imports with it."""


def write_bomb(path: Path, size: int) -> None:
    """Write a picture of few bytes, as many pixels as `size` has bytes, with as many bytes behind it."""
    side = int((size / 3) ** 0.5)
    Image.new("RGB", (side, side)).save(path)
    with path.open("ab") as stream:
        stream.write(bytes(size))


def write_head(path: Path, size: int) -> None:
    """Write a head of safetensors that has as many bytes."""
    text = b'{"a":' + b"[" * size
    path.write_bytes(struct.pack("<Q", len(text)) + text)


def write_names(path: Path, size: int) -> None:
    """Write an ONNX model of long names."""
    proto = conv_relu()
    proto.doc_string = "x" * (size // 2)
    proto.graph.node[0].name = "y" * (size // 2)
    onnx.save(proto, path)


READERS: dict[str, tuple[str, Callable[[Path, int], object], str]] = {
    "ONNX model": ("m.onnx", write_names, "inspect m.onnx"),
    "bytes as a model": ("m.onnx", lambda path, size: path.write_bytes(bytes(size)), "inspect m.onnx"),
    "brackets as JSON": (
        "e.json",
        lambda p, size: p.write_bytes(b"[" * size),
        "plan float.onnx -o p.json --encodings e.json",
    ),
    "YAML": ("r.yaml", lambda path, size: path.write_bytes(b"- a\n" * (size // 4)), "recipes r.yaml"),
    "safetensors": ("model.safetensors", write_head, "convert . --onto float.onnx -o made.onnx"),
    "picture": ("x.png", write_bomb, "observe float.onnx --data x.png --scale 1/255 -o s.npz"),
    "array": (
        "x.npy",
        lambda path, size: np.save(path, np.full((size // 432, 3, 6, 6), np.nan, np.float32)),
        "observe float.onnx --data x.npy -o s.npz",
    ),
    "archive of zeros": (
        "x.npz",
        lambda path, size: np.savez_compressed(path, x=np.zeros((size // 432, 3, 6, 6), np.float32)),
        "observe float.onnx --data x.npz --limit 1000 -o s.npz",
    ),
    "layers of an engine": (
        "l.json",
        lambda path, size: path.write_text(json.dumps({"Layers": ["x" * 90] * (size // 94)})),
        "check float.onnx --target tensorrt --layers l.json",
    ),
}
"""Kind -> name of its file, what writes it, and the command that reads it."""


def main() -> int:
    """Measure; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=100)
    size = parser.parse_args().megabytes << 20
    wrong = 0
    with command_server() as server:
        for kind, (name, write, command) in READERS.items():
            with tempfile.TemporaryDirectory() as folder:
                onnx.save(conv_relu(), Path(folder) / "float.onnx")
                (Path(folder) / "config.json").write_text('{"quantization_config": {"quant_method": "gptq"}}')
                write(Path(folder) / name, size)
                ended = server.run(command.split(), Path(folder), seconds=300)
            fault = ended.fault or ("takes over 1 GB" if ended.memory > MOST else "")
            wrong += bool(fault)
            said = (ended.errors or [f"exit code {ended.code}"])[0].removeprefix("onnxfq: error: ")
            print(f"{kind}: {ended.memory >> 20} MB, {ended.seconds:.1f} s: {fault or said:.100}", flush=True)
    print(f"{len(READERS)} readers, {wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
