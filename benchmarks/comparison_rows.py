"""Rows of the comparison: the tools with their options, and the digest by which a row is of today's form."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, NamedTuple

from forms import form_of

HERE = Path(__file__).resolve().parent
ROWS = HERE / "results" / "comparison.json"

OF_ONNXFQ = tuple(
    f"onnxfq/{room}"
    for room in (
        *(
            "calibration",
            "data",
            "documents",
            "execution",
            "graph",
            "judging",
            "layers",
            "metrics",
            "numerics",
        ),
        *(
            "passes",
            "placement",
            "quantized",
            "quantizing",
            "remedies",
            "runtime",
            "stages",
            "support",
            "targets",
        ),
    )
)
"""Rooms that `quantize` runs, with the files of the library."""

OF_LIBRARY = ("custom_ops/include", "custom_ops/src/cpu", "custom_ops/src/ops")
OF_SAMPLES = ("benchmarks/comparison_networks.py", "benchmarks/drawn_samples.py")
OF_JOBS = ("benchmarks/planted_damage.py", "benchmarks/scorers/figure.py")


class Way(NamedTuple):
    """A tool with options: `task` of peers/by_TOOL.py; `default`: as the tool comes, else its best option."""

    tool: str
    title: str
    task: str = "quantize"
    options: dict[str, Any] = {}
    default: bool = True


WAYS = (
    Way("float", "as it is"),
    Way("onnxfq", "default", "repair"),
    Way("onnxfq", "repair off", "repair", {"way": None}, False),
    Way("onnxfq", "repair thorough", "repair", {"way": "thorough"}, False),
    Way("onnxfq", "onnxruntime-int8", "repair", {"recipe": "onnxruntime-int8"}, False),
    Way("onnxruntime", "default"),
    Way(
        "onnxruntime",
        "prepared, channels, entropy",
        options={"prepared": True, "per_channel": True, "method": "Entropy"},
        default=False,
    ),
    Way("onnxsim", "default"),
    Way("onnxsim", "quantize_auto", options={"auto": True}, default=False),
    Way("nncf", "default"),
    Way("nncf", "bias correction in full", options={"bias_correction": "full"}, default=False),
    Way("aimet", "default"),
    Way("aimet", "cross-layer equalization", "repair", {"equalize": True, "iterations": 0}, False),
    Way("modelopt", "default (entropy)"),
    Way("modelopt", "max", options={"method": "max"}, default=False),
)
"""Tools and options that run on each network, in the order of the tables."""

TOOLS = {
    "onnxfq": "onnxfq",
    "onnxruntime": "onnxruntime",
    "onnxsim": "onnxsim",
    "nncf": "NNCF",
    "aimet": "AIMET",
    "modelopt": "ModelOpt",
}
"""Tools as they are called, by the names of their environments."""

PACKAGES = {"modelopt": "nvidia-modelopt", "aimet": "aimet-onnx"}
"""Packages that are called otherwise than their environment."""


REPORTING = ("PP-LCNet orientation", "PP-OCRv4 recognizer", "PP-OCRv4 detector", "Magika")
"""Networks that no constant and no rule of onnxfq was chosen with. The others are the tuning set.

Another export of a network belongs to the same set as it.
"""


def releases() -> dict[str, str]:
    """Return the pinned release of each tool but onnxfq."""
    found = {}
    for tool in TOOLS:
        file = HERE / "peers" / "constraints" / f"{tool}.txt"
        if file.exists():
            pinned = dict(
                line.split("==") for line in file.read_text(encoding="utf-8").split() if "==" in line
            )
            found[tool] = pinned[PACKAGES.get(tool, tool)]
    return found


def digest_of(network: str, way: Way) -> str:
    """Return the digest of a row: network, data, how they are read and scored, tool, release and options."""
    from comparison_networks import NETWORKS
    from inputs import INPUTS

    entry = NETWORKS[network]
    parts = [
        json.dumps([way.task, way.options], sort_keys=True),
        *(INPUTS[name]["sha256"] for name in (entry.model, *entry.data)),
    ]
    files = (f"benchmarks/scorers/{entry.scorer}.py", *OF_SAMPLES, *OF_JOBS)
    if way.tool == "onnxfq":
        files += (*OF_ONNXFQ, *OF_LIBRARY, "benchmarks/peers/by_onnxfq.py")
    elif way.tool != "float":
        files += (f"benchmarks/peers/by_{way.tool}.py", f"benchmarks/peers/constraints/{way.tool}.txt")
    parts.append(form_of(files))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def read_rows() -> dict[tuple[str, str, str], dict[str, Any]]:
    """Return the rows that were run, by network, tool and way."""
    rows = json.loads(ROWS.read_text(encoding="utf-8")) if ROWS.exists() else []
    return {(row["network"], row["tool"], row["way"]): row for row in rows}


def is_older_row(row: dict[str, Any]) -> bool:
    """Tell whether a row is of another form of its network, data, tool, options or scorer than today's."""
    from comparison_networks import NETWORKS

    ways = {(way.tool, way.title): way for way in WAYS}
    way = ways.get((row["tool"], row["way"]))
    return way is None or row["network"] not in NETWORKS or digest_of(row["network"], way) != row["digest"]
