"""Files of other tools with damaged bytes: read with the same scales, or refused in one line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from damage import BYTES
from given_files import fitted, small, vectors

from onnxfq.errors import OnnxfqError

NAMES = ("image", "r", "f", "s")
CACHE = "TRT-8501-EntropyCalibration2\nimage: 3cf99020\nr: 3e17f254\nf: 3d83ee54\ns: 3c00fab6\n"
RANGE = {"CLS": "TensorData", "lowest": {"data": [-1.5]}, "highest": {"data": [2.5]}}
OVERRIDES = dict.fromkeys(NAMES, [{"quant_type": "QInt8", "scale": 0.5, "zero_point": 0}])
CONTENTS = {
    "cache": CACHE,
    "0.6.1": json.dumps(vectors()["variants"]["symmetric"]["files"]["0.6.1"]),
    "1.0.0": json.dumps(vectors()["variants"]["blocks"]["files"]["1.0.0"]),
    "2.0.0": json.dumps(vectors()["variants"]["LPBQ"]["files"]["2.0.0"]),
    "ranges": json.dumps({"CLS": "TensorsData", "data": dict.fromkeys(NAMES, RANGE)}),
    "overrides": json.dumps(OVERRIDES),
}


@pytest.mark.parametrize("name", CONTENTS)
@pytest.mark.parametrize("damage", BYTES)
def test_damaged_bytes(name: str, damage: str, tmp_path: Path) -> None:
    """No damage gives a traceback or a message of several lines; the undamaged file is read."""
    path = tmp_path / "given"
    path.write_text(CONTENTS[name], encoding="utf-8")
    _, whole = fitted(small(), path, "onnxruntime-int8")
    assert len(whole.encodings) >= 4
    rng = np.random.default_rng([len(name), len(damage)])
    for _ in range(8):
        content = bytearray(CONTENTS[name].encode())
        BYTES[damage](content, rng)
        path.write_bytes(content)
        try:
            fitted(small(), path, "onnxruntime-int8")
        except OnnxfqError as fault:
            assert str(fault).isprintable()
