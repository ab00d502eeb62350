"""Modules of the same parts are recorded once in a run of these tests."""

from __future__ import annotations

from importlib.util import find_spec

import pytest


@pytest.fixture(autouse=True)
def recorded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the plans of equal modules share an export, as recipes and types do in most files here."""
    if find_spec("torch.nn") and find_spec("onnxscript"):
        from quantized_modules import record_once

        monkeypatch.setattr("onnxfq.torch.unfinished.record_calls", record_once)
