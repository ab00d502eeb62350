"""Short form of `slow/check_large_decoder.py`: a decoder of the same form through the command line."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "slow"))

from check_large_decoder import quantize, sqnr_db  # noqa: E402  of the slow checks
from networks.decoder import DecoderShape  # noqa: E402

SHAPE = DecoderShape(width=128, layers=2, heads=4, key_heads=2, hidden=512, words=500, tokens=64)


@pytest.mark.whole
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads what a child process took")
def test_a_decoder_in_int4(tmp_path):
    """In onnxruntime, on tokens that calibration does not see, over the cache: GPTQ beats nearest numbers."""
    noise = {}
    for rounding in ("nearest", "gptq"):
        (folder := tmp_path / rounding).mkdir()
        run = quantize(folder, 16, SHAPE, rounding)
        noise[rounding] = sqnr_db(folder, SHAPE)
    assert any("gptq for 15 weights" in line for line in run.lines)
    assert noise["gptq"] > noise["nearest"] + 2
    # The embedding, which Gather reads, stays in float: a tenth of the file.
    assert (folder / "int4" / "model.onnx").stat().st_size < 0.3 * (
        folder / "float" / "model.onnx.data"
    ).stat().st_size
