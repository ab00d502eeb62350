"""Writing a quantized model: it is read back, checked and tried before it takes its name."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx

from onnxfq.data import Feed
from onnxfq.graph.io.load import read_model
from onnxfq.graph.io.save import save
from onnxfq.graph.signature import output_names
from onnxfq.runtime.session import Session
from onnxfq.runtime.unsupported_ops import cannot_run

log = logging.getLogger(__name__)


def write_model(
    proto: onnx.ModelProto, output: str | Path | None, feeds: Sequence[Feed] = (), threads: int = 0
) -> None:
    """Write `proto` to `output`, if there is one, once it has run on the first of `feeds`.

    A form that ONNX Runtime has no kernels for is checked by ONNX's rules alone. Raises ModelError or
    OutputError; then nothing is written.
    """

    def try_out(path: Path, weights: Path | None) -> None:
        read, _, _ = read_model(path, weights)
        if not feeds or cannot_run(read):
            return
        found = Session(read, threads, exact=True).run(feeds[0])
        for name, array in zip(output_names(read), found, strict=True):
            if isinstance(array, np.ndarray) and array.dtype.kind == "f" and np.isnan(array).any():
                log.warning("output %s of the quantized model is NaN on the first feed", name)

    if output is not None:
        save(proto, output, try_out)
