"""Output of a quantized model: read back, checked and run before it takes its name."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from onnxfq.data import Feed
from onnxfq.data.model_inputs import input_specs
from onnxfq.errors import DataError
from onnxfq.graph.io.load import read_model
from onnxfq.graph.io.save import save
from onnxfq.graph.signature import output_names
from onnxfq.passes.float_caches import with_float_caches
from onnxfq.runtime.float32_emulation import HALVES, holds_types
from onnxfq.runtime.segmented_session import open_in_segments
from onnxfq.runtime.session import NoKernelError, Session
from onnxfq.runtime.unsupported_ops import explain_unsupported
from onnxfq.support.progress import announce

log = logging.getLogger(__name__)


def write_model(
    proto: onnx.ModelProto, output: str | Path | None, feeds: Sequence[Feed] = (), threads: int = 0
) -> None:
    """Write `proto` to `output`, unless that is None, once it has run on the first of `feeds`, if any.

    It is loaded and runs in the types of the file, or in float32 where ONNX Runtime lacks float16 kernels.
    A form that ONNX Runtime cannot load at all is checked by ONNX's rules alone. Raises ModelError or
    OutputError; then nothing is written.
    """

    def try_out(path: Path, weights: Path | None) -> None:
        read = with_float_caches(read_model(path, weights)[0])
        if explain_unsupported(read, as_written=False):
            return
        if not feeds:
            _run(read, None, threads)
            return
        # Its inputs have another float type than the feed where they are cast with the rest of the model.
        feed = {spec.name: feeds[0][spec.name].astype(spec.dtype, copy=False) for spec in input_specs(read)}
        for name, array in _run(read, feed, threads).items():
            if isinstance(array, np.ndarray) and array.dtype.kind == "f" and np.isnan(array).any():
                log.warning("output %s of the quantized model is NaN on the first feed", name)

    announce("write")
    if output is not None:
        save(proto, output, try_out)


def _run(proto: onnx.ModelProto, feed: Feed | None, threads: int) -> dict[str, Any]:
    """Return the outputs by name; none without a feed and for bfloat16, which is loaded but cannot be fed."""

    def run(emulated: bool) -> dict[str, Any]:
        open_session = partial(Session, threads=threads, exact=True, emulated=emulated, pooled=False)
        if explain_unsupported(proto):
            open_session(proto)
            return {}
        names = output_names(proto)
        session = open_in_segments(proto, open_session, names, kept=feed is None)
        if feed is None:
            return {}
        return dict(zip(names, session.run(feed), strict=True))

    try:
        return run(emulated=False)
    except (NoKernelError, DataError):
        # Some kernels tell only when they run that they lack float16.
        if not holds_types(proto, HALVES):
            raise
    return run(emulated=True)
