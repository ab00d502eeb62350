"""Reasons for which tests are skipped, and what runs them."""

from __future__ import annotations

import re

REMEDIES: dict[str, str] = {
    r"\bGPU\b|CUDA": "make gpu",
    r"onnxruntime.qnn": "make qnn, behind the licence of onnxruntime-qnn",
    r"ONNXFQ_MODELS|trained networks|real models": "ONNXFQ_MODELS=FOLDER",
    r"Chromium": "apt-get install chromium",
    r"--all-cases": "make slow CHECKS=cases",
    r"is not installed|could not import|needs tensorrt_rtx|its package|extra": "make install",
    r"no CMake|no C\+\+ compiler|no C compiler|needs bash": "a compiler, CMake and a shell",
    r"processor|VNNI|AMX|saturate": "",
    r"Linux|/proc|file system|no locks|/dev/full|child process|tomllib": "",
    r"release|1\.31\.1|opset 20": "",
}
"""Commands that run skipped tests, by a pattern of the reason; empty where a machine or a release does."""

CASES = re.compile(
    "channels do not survive a Reshape|it cannot be quantized|its axes are an input|its inputs are rounded"
    "|numbers that are made up do not run|of a model in float16 rules say|onnxruntime has no kernel for it"
    "|the scores of the second choice lie|this process has loaded the library itself"
)
"""Reasons of cases that have no answer, whatever the machine."""


def remedy_of(reason: str) -> str:
    """Return how to run a test that was skipped for `reason`; empty if only another machine or case does."""
    return next((how for pattern, how in REMEDIES.items() if re.search(pattern, reason)), "")
