"""Builder process of TensorRT for RTX, isolated so that a crash ends nothing else.

A worker runs this file alone, because the package would take longer to import than an engine to build; it is
the only importer of tensorrt_rtx.
"""

from __future__ import annotations

from typing import Any

LAYERS = "Layers:"
"""First word of the message that lists the engine; without it the format has changed."""


def build(job: dict[str, Any]) -> dict[str, Any]:
    """Parse and build one model.

    Args:
        job: the fields of `Job`.

    Returns version, parsed, built, errors of the parser as [node, operator, text], errors of the log, and the
    layers, empty for none.
    """
    import tensorrt_rtx as trt

    class Log(trt.ILogger):  # type: ignore[misc]
        """Logger that keeps errors, and the message that lists the layers."""

        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            self.errors: list[str] = []
            self.layers = ""

        def log(self, severity: Any, message: str) -> None:
            if severity <= trt.ILogger.Severity.ERROR:
                self.errors.append(message)
            if message.startswith(LAYERS):
                self.layers = message

    log = Log()
    builder = trt.Builder(log)
    network = builder.create_network(0)
    parser = trt.OnnxParser(network, log)
    parsed = bool(parser.parse_from_file(job["path"]))
    faults = [parser.get_error(index) for index in range(parser.num_errors)]
    report = {
        "version": str(trt.__version__),
        "parsed": parsed,
        "built": False,
        "faults": [[fault.node_name(), fault.node_operator(), fault.desc()] for fault in faults],
        "errors": log.errors,
        "layers": "",
    }
    if not parsed or not job["build"]:
        return report
    config = builder.create_builder_config()
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    config.num_compute_capabilities = 1
    config.set_compute_capability(getattr(trt.ComputeCapability, job["capability"]), 0)
    inputs = [network.get_input(index) for index in range(network.num_inputs)]
    values = {tensor.name: job["values"].get(tensor.name) for tensor in inputs if tensor.is_shape_tensor}
    if job["profiles"] or any(values.values()):
        profile = builder.create_optimization_profile()
        for name, (low, usual, high) in job["profiles"].items():
            profile.set_shape(name, low, usual, high)
        for name, numbers in values.items():
            if numbers:
                profile.set_shape_input(name, numbers, numbers, numbers)
        config.add_optimization_profile(profile)
    report["built"] = builder.build_serialized_network(network, config) is not None
    report["layers"] = log.layers
    return report
