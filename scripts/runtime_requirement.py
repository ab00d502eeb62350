"""The requirement on ONNX Runtime, which the builder of a wheel chooses; pyproject.toml has all others.

Two packages install the module `onnxruntime`. The one for GPUs also runs on machines without a GPU.
ONNXFQ_RUNTIME=cpu requires the smaller one everywhere, so that `pip check` finds what it looks for.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

OLDEST = "1.20"
GPU_MACHINES = (
    "(sys_platform == 'linux' and platform_machine == 'x86_64')"
    " or (sys_platform == 'win32' and platform_machine == 'AMD64')"
)
OTHER_MACHINES = (
    "(sys_platform != 'linux' or platform_machine != 'x86_64')"
    " and (sys_platform != 'win32' or platform_machine != 'AMD64')"
)
REQUIREMENTS = {
    "gpu": [f"onnxruntime-gpu>={OLDEST}; {GPU_MACHINES}", f"onnxruntime>={OLDEST}; {OTHER_MACHINES}"],
    "cpu": [f"onnxruntime>={OLDEST}"],
}


def dynamic_metadata(settings: Mapping[str, Any], project: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the requirement that the environment asks for; the build backend adds it to the others.

    Raises:
        ValueError: ONNXFQ_RUNTIME is neither gpu nor cpu.
    """
    asked = os.environ.get("ONNXFQ_RUNTIME", "gpu")
    if asked not in REQUIREMENTS:
        raise ValueError(f"ONNXFQ_RUNTIME is {asked!r}: set it to gpu or cpu, or leave it out for gpu")
    return {"dependencies": REQUIREMENTS[asked]}


def dynamic_wheel(settings: Mapping[str, Any]) -> dict[str, bool]:
    """Tell that a wheel may have another requirement than the archive of sources."""
    return {"dependencies": True}
