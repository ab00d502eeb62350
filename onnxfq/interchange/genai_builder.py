"""`built_folder`: a folder of ONNX Runtime GenAI from a checkpoint of transformers, by GenAI's own builder.

The builder needs torch and transformers, and runs in the Python of an environment that has them.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from onnxfq.errors import ModelError, join_lines
from onnxfq.interchange.genai_folder import CONFIG, HUB_CONFIG
from onnxfq.support.progress import announce
from onnxfq.support.temporary import room_for_scratch, scratch_folder

_BUILDER = "onnxruntime_genai.models.builder"

_OPTIONS = ("-c", "cache", "-p", "fp32", "-e", "cpu", "--extra_options", "hf_remote=false")
"""Options of the builder: float32 is quantized, and code of the checkpoint does not run."""


@contextmanager
def built_folder(checkpoint: Path, python: str, place: Path | None = None) -> Iterator[Path]:
    """Yield the float folder of a checkpoint, which is removed at the end.

    Args:
        checkpoint: a folder with config.json, safetensors and a tokenizer.
        python: path of a Python with onnxruntime-genai, torch and transformers.
        place: folder of the temporary files, which take the bytes of all weights in float32.

    Raises ModelError for another folder, for a Python that does not run, and with the last line of a builder
    that fails.
    """
    if (checkpoint / CONFIG).exists() or not (checkpoint / HUB_CONFIG).exists():
        raise ModelError(
            f"--python takes a checkpoint of transformers, and {checkpoint} has no {HUB_CONFIG}, or "
            f"{CONFIG} too; leave it out"
        )
    announce("build")
    with room_for_scratch(), scratch_folder(place) as scratch:
        made = scratch / checkpoint.absolute().name
        _build(checkpoint, python, made)
        yield made


def _build(checkpoint: Path, python: str, made: Path) -> None:
    # Isolated: no file of the working folder is imported; offline: the checkpoint has all that is needed.
    words = [python, "-I", "-m", _BUILDER, "-i", str(checkpoint.absolute()), "-o", str(made), *_OPTIONS]
    try:
        ended = subprocess.run(
            words,
            cwd=made.parent,
            env=os.environ | {"HF_HUB_OFFLINE": "1"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
    except OSError as fault:
        raise ModelError(f"cannot run {python!r} of --python: {fault.strerror}; give its path") from None
    if ended.returncode or not (made / CONFIG).exists():
        lines = [line for line in (ended.stdout + ended.stderr).splitlines() if line.strip()]
        why = join_lines(lines[-1])[:300] if lines else f"exit code {ended.returncode}"
        raise ModelError(
            f"GenAI's builder fails for checkpoint {checkpoint}: {why}; {python} needs onnxruntime-genai, "
            "torch and transformers, and an architecture that they know"
        )
