"""`onnxfq evaluate`: error of a candidate model against its reference on the same data."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from onnxfq.choices import Kernels
from onnxfq.cli.build_options import TimeOption
from onnxfq.cli.console import Printing, exit_differing
from onnxfq.cli.data_options import DataOption
from onnxfq.cli.option import ACCURACY, RUNNING, argument, flag, option
from onnxfq.cli.options import CustomOpsOption, MetricOption
from onnxfq.cli.run_options import Running

_LABELS = option(
    "FILE",
    "Measure accuracy by classes, one per row (.npy, .npz, text), or what the metric reads.",
    panel=ACCURACY,
)
_PER_TENSOR = flag("Also score every quantized inner tensor.", "--per-tensor")
_KERNELS = option(
    "float|integer", "Sum int8 products in float, or in integers as TensorRT does.", panel=RUNNING
)
_RUNTIME = option("NAME", "Run the candidates in this runtime: {value_runtimes}.", panel=RUNNING)


def evaluate(
    reference: Annotated[Path, argument("REFERENCE", "The float model.")],
    candidates: Annotated[list[Path], argument("CANDIDATE...", "The Q/DQ or fake-quant models.")],
    data: DataOption,
    labels: Annotated[Path | None, _LABELS] = None,
    metric: MetricOption = None,
    per_tensor: Annotated[bool, _PER_TENSOR] = False,
    *,
    running: Running,
    kernels: Annotated[Kernels, _KERNELS] = "float",
    runtime: Annotated[str, _RUNTIME] = "onnxruntime",
    custom_ops: CustomOpsOption = None,
    time: TimeOption = False,
    printer: Printing,
) -> None:
    """Each output has SQNR, cosine, largest error and top-1 agreement.

    REFERENCE runs once for all candidates. With --limit the first labels count. Exits with 3 if outputs have
    other sizes.
    """
    from onnxfq.stages.evaluate import evaluate as evaluate_models
    from onnxfq.tools.time_models import time_on_data

    named = _name_candidates(candidates)
    with running.progress(printer) as options:
        result = evaluate_models(
            reference,
            named,
            data,
            labels=labels,
            per_tensor=per_tensor,
            kernels=kernels,
            runtime=runtime,
            metric=metric,
            options=options,
        )
    if time:  # without the thread that shows progress
        timing = time_on_data(reference, named, data, options)
        result = result.model_copy(update={"timing": timing})
    printer.show(result)
    exit_differing(result)


def _name_candidates(paths: Sequence[Path]) -> dict[str, Path]:
    """Return the candidates by file name, or by path where two files have one name.

    Raises BadParameter for a repeated path.
    """
    repeated = next((path for number, path in enumerate(paths) if path in paths[:number]), None)
    if repeated is not None:
        raise typer.BadParameter(f"candidate {repeated} appears twice; give it once")
    names = [path.name for path in paths]
    return {path.name if names.count(path.name) == 1 else str(path): path for path in paths}
