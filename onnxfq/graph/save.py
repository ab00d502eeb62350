"""Saving a model: checked, deterministic, whole or not at all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx

from onnxfq.documents import one_line
from onnxfq.errors import ModelError, OutputError
from onnxfq.files import replacing

_LIMIT = (1 << 31) - 1


def save(proto: onnx.ModelProto, path: str | Path, verify: Callable[[Path], None] | None = None) -> None:
    """Write `proto` to `path`; equal models give equal bytes.

    verify is called with the finished temporary file; if it raises, nothing is left behind.
    Raises ModelError when the model is invalid, OutputError when it cannot be written.
    """
    if proto.ByteSize() > _LIMIT:
        raise OutputError(f"cannot write {path}: the model is over 2 GB, which one ONNX file cannot hold")
    try:
        onnx.checker.check_model(proto, full_check=False)
    except onnx.checker.ValidationError as fault:
        raise ModelError(f"the model for {path} is not valid: {one_line(fault)[:200]}") from None
    with replacing(path) as temporary:
        temporary.write_bytes(proto.SerializeToString(deterministic=True))
        if verify is not None:
            verify(temporary)


def refuse_overwriting_input(output: str | Path, *inputs: object) -> None:
    """Raise OutputError when `output` is the same file as one of `inputs` that are paths."""
    for source in inputs:
        if isinstance(source, (str, Path)) and Path(output).resolve() == Path(source).resolve():
            raise OutputError(f"output {output} is the input itself; give another file name")
