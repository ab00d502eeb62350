"""Which device to run on: `auto` is the GPU where all works that sessions need of it."""

from __future__ import annotations

import logging
from functools import cache
from typing import Literal, get_args

from onnxfq.errors import OnnxfqError, RuntimeLibraryError, SpecError, nearest
from onnxfq.runtime.device_memory import Device
from onnxfq.runtime.gpus import gpus, gpus_of_driver
from onnxfq.runtime.providers import cuda_problem
from onnxfq.runtime.self_test import self_test

log = logging.getLogger(__name__)

DeviceChoice = Literal["auto", "cpu", "cuda"]


def choose_device(wanted: DeviceChoice) -> Device:
    """Return the device to run on. "auto" tells once in one line of a GPU: that it is used, or why not.

    Raises RuntimeLibraryError with what is missing and the remedy when "cuda" is wanted and cannot be used,
    SpecError for an unknown name.
    """
    if wanted == "auto":
        return _auto()
    if wanted not in get_args(DeviceChoice):
        raise SpecError(f"unknown device {wanted!r}{nearest(wanted, get_args(DeviceChoice))}")
    if wanted == "cuda" and gpu_problem():
        raise RuntimeLibraryError(f"device 'cuda' cannot be used: {gpu_problem()}")
    return wanted


def fall_back(wanted: DeviceChoice, device: Device, error: OnnxfqError) -> Device:
    """Return the CPU in place of a GPU on which the first feed failed, with a note, where "auto" allows that.

    What fails there may run on the CPU: memory may be short, and the CUDA provider lacks forms of operators
    that the CPU's has. Raises `error` where the GPU was asked for by name, or `device` is the CPU.
    """
    if wanted != "auto" or device == "cpu":
        raise error
    log.warning("running on the CPU: %s", error)
    return "cpu"


@cache
def gpu_problem() -> str:
    """Return in one line what keeps sessions from a GPU, wrong bits included; empty when nothing does."""
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
    # Where there is no GPU nothing is lost, and nobody wants to hear of it at every command.
    level = logging.WARNING if gpus_of_driver() else logging.INFO
    log.log(level, "running on the CPU: %s", problem)
    return "cpu"
