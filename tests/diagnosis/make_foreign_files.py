"""Write the files of ModelOpt, NNCF and AIMET in `files/`, each in an environment that has the tool.

`python make_foreign_files.py FLOATS TOOL FILES`: FLOATS has NETWORK.onnx, and NETWORK.npz with
32 samples `x`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx


def by_modelopt(source: Path, samples: Any, output: Path) -> None:
    """Write what ModelOpt 0.47 makes in int8 with the largest value as range."""
    from modelopt.onnx.quantization import quantize

    quantize(
        str(source),
        quantize_mode="int8",
        calibration_data={"x": samples},
        calibration_method="max",
        calibration_eps=["cpu"],
        high_precision_dtype="fp32",
        output_path=str(output),
    )


def by_nncf(source: Path, samples: Any, output: Path) -> None:
    """Write what NNCF 3.4 makes by default."""
    import nncf

    data = nncf.Dataset([{"x": sample[None]} for sample in samples])
    onnx.save(nncf.quantize(onnx.load(source), data, subset_size=len(samples)), output)


def by_aimet(source: Path, samples: Any, output: Path) -> None:
    """Write what AIMET exports as Q/DQ by default."""
    from aimet_onnx import QuantizationSimModel

    simulation = QuantizationSimModel(onnx.load(source))
    simulation.compute_encodings([{"x": sample[None]} for sample in samples])
    onnx.save(simulation.to_onnx_qdq(), output)


TOOLS = {
    "modelopt": (by_modelopt, ("conv", "depthwise", "transformer")),
    "nncf": (by_nncf, ("conv", "detector", "recurrent")),
    "aimet": (by_aimet, ("conv", "depthwise", "audio")),
}


if __name__ == "__main__":
    floats, tool, files = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
    write, names = TOOLS[tool]
    for name in names:
        write(floats / f"{name}.onnx", np.load(floats / f"{name}.npz")["x"], files / f"{tool}_{name}.onnx")
