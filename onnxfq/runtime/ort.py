"""Single import of onnxruntime, without telemetry.

Importing onnxruntime 1.31 writes a telemetry store into the user's cache folder. A quantization tool must
leave no files there, so telemetry is switched off at once; versions without the switch have no telemetry.
"""

from __future__ import annotations

import onnxruntime

if hasattr(onnxruntime, "disable_telemetry_events"):
    onnxruntime.disable_telemetry_events()

__all__ = ["onnxruntime"]
