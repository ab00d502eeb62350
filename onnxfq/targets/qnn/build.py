"""Nodes that Qualcomm's HTP takes of a model, by onnxruntime-qnn; the only importer of onnxruntime_qnn.

Its wheel for Linux on x86-64 emulates the HTP. Its licence asks each user for consent, so that onnxfq does
not depend on it.
"""

from __future__ import annotations

from typing import Any

from onnxfq.errors import ModelError, RuntimeLibraryError
from onnxfq.runtime.optimized_graph import assign_nodes, register_library
from onnxfq.targets.findings import Finding, Verdict
from onnxfq.targets.reading.context import CheckContext
from onnxfq.targets.reading.marks import find_marks, mark_promises
from onnxfq.targets.reading.proof import Built, describe_node
from onnxfq.targets.target import BuildOptions

DEVICE = "HTP"
_PROVIDER = "QNNExecutionProvider"
_ARCHITECTURE = "75"


def load_library() -> Any:
    """Return the module onnxruntime_qnn. Raises RuntimeLibraryError with the remedy if it is missing."""
    try:
        import onnxruntime_qnn
    except ImportError:
        raise RuntimeLibraryError(
            "package onnxruntime-qnn is not installed, and it tells the nodes that the HTP takes; read its "
            "licence, pip install onnxruntime-qnn if you agree, or check by the rules without --build"
        ) from None
    return onnxruntime_qnn


def build_model(reading: CheckContext, options: BuildOptions) -> Built:
    """Open the model with the HTP and return which promised nodes it takes.

    Raises RuntimeLibraryError if onnxruntime-qnn is missing or does not load, DataError for shapes that do
    not fit.
    """
    library = load_library()
    register_library(_PROVIDER, library.get_library_path())
    builder = f"onnxruntime-qnn {library.__version__}"
    settings = {"backend_path": library.get_qnn_htp_path(), "htp_arch": _ARCHITECTURE}
    try:
        taken = assign_nodes(mark_promises(reading, options.shapes), _PROVIDER, settings)
    except ModelError as error:
        refusal = Finding(rule="build", severity="refused", node="", op_type="model", message=str(error))
        return Built(builder, (refusal,))
    providers = {number: provider for name, provider in taken.items() for number in find_marks([name])}
    return Built(
        builder,
        nodes=tuple(
            describe_node(promised, DEVICE, _judge(providers.get(number)))
            for number, promised in enumerate(reading.promises)
        ),
    )


def _judge(provider: str | None) -> Verdict:
    """Return the precision of a node on `provider`; None if no node that runs has its name."""
    if provider is None:
        return "missing"
    return "low" if provider == _PROVIDER else "float"
