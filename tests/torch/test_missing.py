"""onnxfq.torch without torch: one line that tells what to install."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "onnxfq" / "torch" / "__init__.py"


@pytest.mark.sample
@pytest.mark.parametrize("missing", ["torch", "onnxscript"])
def test_missing_package_names_the_remedy(missing, monkeypatch):
    """The import fails as for any missing package, and says which and how to install it."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == missing else object())
    line = rf'needs {missing}.*pip install "onnxfq\[torch\]"'
    with pytest.raises(ModuleNotFoundError, match=line) as raised:
        exec(compile(SOURCE.read_text(), str(SOURCE), "exec"), {})
    assert raised.value.name == missing
