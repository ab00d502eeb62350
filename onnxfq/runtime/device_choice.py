"""Device choice: `auto` selects a GPU that passes every check."""

from __future__ import annotations

import logging
from functools import cache
from typing import get_args

from onnxfq.choices import DeviceChoice
from onnxfq.errors import OnnxfqError, RuntimeLibraryError, SpecError, nearest
from onnxfq.runtime.devices import Device, gpus, gpus_of_driver
from onnxfq.runtime.providers import cuda_problem
from onnxfq.runtime.self_test import self_test

log = logging.getLogger(__name__)


def choose_device(wanted: DeviceChoice) -> Device:
    """Return the device to run on. "auto" logs once, in one line, whether it uses a GPU, or why not.

    Raises RuntimeLibraryError with cause and remedy if "cuda" is requested and cannot be used, SpecError for
    an unknown name.
    """
    if wanted == "auto":
        return _auto()
    if wanted not in get_args(DeviceChoice):
        raise SpecError(f"unknown device {wanted!r}{nearest(wanted, get_args(DeviceChoice))}")
    if wanted == "cuda" and gpu_problem():
        raise RuntimeLibraryError(f"device 'cuda' cannot be used: {gpu_problem()}")
    return wanted


def fall_back(wanted: DeviceChoice, device: Device, error: OnnxfqError) -> Device:
    """Return the CPU after the first feed failed on a GPU, with a note, if "auto" chose the GPU.

    A model that fails on a GPU may run on the CPU: memory may be short, or the CUDA provider may lack a form
    of an operator. Raises `error` if the GPU was requested by name, or `device` is the CPU.
    """
    if wanted != "auto" or device == "cpu":
        raise error
    log.warning("running on the CPU: %s", error)
    return "cpu"


@cache
def gpu_problem() -> str:
    """Return in one line why sessions cannot use a GPU, wrong results included; empty if they can."""
    problem = cuda_problem()
    if problem:
        return problem
    wrong = [outcome for outcome in self_test("cuda") if outcome.fault]
    return f"{wrong[0].kernel} fails its self-test there: {wrong[0].fault}" if wrong else ""


@cache
def _auto() -> Device:
    problem = gpu_problem()
    if not problem:
        log.warning("running on %s; choose device cpu for the CPU", gpus()[0])
        return "cuda"
    # A machine without a GPU loses nothing, so commands do not report it.
    level = logging.WARNING if gpus_of_driver() else logging.INFO
    log.log(level, "running on the CPU: %s", problem)
    return "cpu"
