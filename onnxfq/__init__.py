"""onnxfq: quantize ONNX models for TensorRT and measure them in ONNX Runtime.

    result = onnxfq.quantize("model.onnx", "calibration.npz", "model.int8.onnx")
    print(result.evaluation.table())
    onnxfq.write_report(result, "report.html")

`quantize` is `load`, `make_plan`, `collect_statistics`, `calibrate` and `insert_qdq` in a row; `evaluate`
measures, `check` asks what TensorRT would do, `handoff` packs for the machine with the GPU. Every error is an
`OnnxfqError` of one line.

The names here are the public API; everything else may change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from onnxfq.calibration.statistics import Statistics
from onnxfq.data import DataOptions
from onnxfq.documents.cast_plan import FloatOptions
from onnxfq.documents.encodings import Encoding, Encodings
from onnxfq.documents.plan import Plan
from onnxfq.documents.recipe import Override, Recipe, load_recipe
from onnxfq.documents.scores import Evaluation
from onnxfq.errors import OnnxfqError
from onnxfq.graph.io.load import load
from onnxfq.graph.io.save import save
from onnxfq.graph.model import Model
from onnxfq.numerics.aimet_range import adjust_min_max
from onnxfq.numerics.qparams import ParamRules, choose_qparams
from onnxfq.pipeline import QuantizeResult, quantize
from onnxfq.report.html import write_report
from onnxfq.runtime.custom_ops import custom_ops_path, register_custom_ops, use_custom_ops
from onnxfq.runtime.kernels import fake_quantize
from onnxfq.stages.calibrate import calibrate
from onnxfq.stages.check import check
from onnxfq.stages.compare import Comparison, compare
from onnxfq.stages.convert import Conversion, convert
from onnxfq.stages.evaluate import evaluate
from onnxfq.stages.handoff import Handoff, handoff
from onnxfq.stages.insert import insert_fake_quantize, insert_qdq
from onnxfq.stages.inspect import inspect_model
from onnxfq.stages.observe import collect_statistics
from onnxfq.stages.observers import ObserveOptions
from onnxfq.stages.options import RunOptions, open_feeds
from onnxfq.stages.plan import make_plan
from onnxfq.targets.build_options import BuildOptions
from onnxfq.targets.findings import CheckResult, Finding
from onnxfq.version import VERSION as __version__

if TYPE_CHECKING:
    from onnxfq.torch import export_torch

__all__ = [
    "BuildOptions",
    "CheckResult",
    "Comparison",
    "Conversion",
    "DataOptions",
    "Encoding",
    "Encodings",
    "Evaluation",
    "Finding",
    "FloatOptions",
    "Handoff",
    "Model",
    "ObserveOptions",
    "OnnxfqError",
    "Override",
    "ParamRules",
    "Plan",
    "QuantizeResult",
    "Recipe",
    "RunOptions",
    "Statistics",
    "__version__",
    "adjust_min_max",
    "calibrate",
    "check",
    "choose_qparams",
    "collect_statistics",
    "compare",
    "convert",
    "custom_ops_path",
    "evaluate",
    "export_torch",
    "fake_quantize",
    "handoff",
    "insert_fake_quantize",
    "insert_qdq",
    "inspect_model",
    "load",
    "load_recipe",
    "make_plan",
    "open_feeds",
    "quantize",
    "register_custom_ops",
    "save",
    "use_custom_ops",
    "write_report",
]


def __getattr__(name: str) -> Any:
    # torch is an optional extra and slow to import: it is touched only when asked for.
    if name == "export_torch":
        from onnxfq.torch import export_torch

        return export_torch
    raise AttributeError(f"module 'onnxfq' has no attribute {name!r}")
