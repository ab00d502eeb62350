"""Nodes that Qualcomm's HTP takes of a model, by onnxruntime-qnn; the only importer of onnxruntime_qnn.

Its wheel for Linux on x86-64 emulates the HTP. Its licence asks each user for consent, so that onnxfq does
not depend on it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from functools import lru_cache
from pathlib import Path
from typing import Any

import onnx

from onnxfq.data import Feed
from onnxfq.errors import DataError, ModelError, RuntimeLibraryError
from onnxfq.graph.external.weightless import with_weights
from onnxfq.graph.model import bodies
from onnxfq.graph.ops import MOVES, REPEATS
from onnxfq.runtime.optimized_graph import assign_nodes, open_with_provider, register_library
from onnxfq.runtime.ort import new_options
from onnxfq.runtime.plain_session import as_function
from onnxfq.targets.findings import Verdict, about_model
from onnxfq.targets.profiles import fix_sizes, profiles
from onnxfq.targets.reading.context import CheckContext
from onnxfq.targets.reading.marks import find_marks, mark_promises
from onnxfq.targets.reading.proof import Built, describe_node
from onnxfq.targets.target import AnyModel, BuildOptions, Values

DEVICE = "HTP"
PROVIDER = "QNNExecutionProvider"
ARCHITECTURE, CHIP = "75", "57"
"""A Snapdragon 8 Gen 3 has them. The emulation of an unknown chip refuses much that runs in float."""

_KEPT = 4
"""Most sessions of one model, for feeds of other sizes."""


def load_library() -> Any:
    """Return the module onnxruntime_qnn. Raises RuntimeLibraryError with the remedy if it is missing."""
    try:
        import onnxruntime_qnn
    except ImportError:
        raise RuntimeLibraryError(
            "package onnxruntime-qnn is not installed, and it emulates the HTP; read its licence, pip "
            "install onnxruntime-qnn if you agree, or do without --build"
        ) from None
    return onnxruntime_qnn


def name_release() -> str:
    """Return the name and release of the emulated HTP. Raises RuntimeLibraryError without the package."""
    return f"onnxruntime-qnn {load_library().__version__}"


def open_model(model: AnyModel, threads: int = 0) -> Callable[[Feed], Values]:
    """Return a function from a feed to the outputs of `model`, with the HTP's emulation and the CPU.

    The HTP takes fixed sizes alone. A model with open sizes has a session for each shape of its feeds.

    Raises RuntimeLibraryError if onnxruntime-qnn is missing or does not load, ModelError if the session
    refuses the model; the function raises DataError if a run fails.
    """
    settings = register()
    given = with_weights(onnx.load(model) if isinstance(model, Path) else model)

    def open_fixed(shapes: Mapping[str, Sequence[int]]) -> Callable[[Feed], Values]:
        fixed = _with_sizes(given, shapes)
        return as_function(open_with_provider(fixed, PROVIDER, settings, new_options(threads)))

    if not profiles(given, {}):
        return open_fixed({})
    opened = lru_cache(_KEPT)(lambda shapes: open_fixed(dict(shapes)))

    def run(feed: Feed) -> Values:
        try:
            session = opened(tuple((name, array.shape) for name, array in feed.items()))
        except ModelError as error:
            raise DataError(f"the model does not open with the sizes of a sample: {error}") from None
        return session(feed)

    return run


def register() -> dict[str, str]:
    """Register the provider of QNN, and return its options. Raises RuntimeLibraryError as `load_library`."""
    library = load_library()
    register_library(PROVIDER, library.get_library_path())
    return {"backend_path": library.get_qnn_htp_path(), "htp_arch": ARCHITECTURE, "soc_model": CHIP}


def _with_sizes(proto: onnx.ModelProto, shapes: Mapping[str, Sequence[int]]) -> onnx.ModelProto:
    """Return a copy of `proto` with these sizes of inputs; the model itself without any or with bodies left.

    ONNX Runtime 1.31.1 and 1.32.0 end the process if they decide an If between pairs by fixed sizes.
    """
    if not shapes:
        return proto
    fixed = deepcopy(proto)
    fix_sizes(fixed, shapes)
    return proto if any(map(bodies, fixed.graph.node)) else fixed


def build_model(reading: CheckContext, options: BuildOptions) -> Built:
    """Open the model with the HTP and return which promised nodes it takes.

    Raises RuntimeLibraryError if onnxruntime-qnn is missing or does not load, DataError for shapes that do
    not fit.
    """
    settings, builder = register(), name_release()
    try:
        # A device has fixed sizes; smallest ones stand for those that are not given.
        found = profiles(reading.proto, options.shapes).items()
        shapes = {name: usual if name in options.shapes else least for name, (least, usual, _) in found}
        taken = assign_nodes(_with_sizes(mark_promises(reading, {}), shapes), PROVIDER, settings)
    except ModelError as error:
        return Built(builder, (about_model("build", str(error)),))
    providers = {number: provider for name, provider in taken.items() for number in find_marks([name])}
    nodes = (
        describe_node(promised, DEVICE, _judge(providers.get(number), promised.site.op))
        for number, promised in enumerate(reading.promises)
    )
    return Built(builder, nodes=tuple(nodes))


def _judge(provider: str | None, op: str) -> Verdict:
    """Return the precision of a node on `provider`; None if no node that runs has its name.

    ONNX Runtime joins moves of data with those around them, or with a product, and repeats constants itself.
    """
    if provider is None:
        return "low" if op in MOVES | REPEATS else "missing"
    return "low" if provider == PROVIDER else "float"
