"""Policies for models that are quantized already."""

from __future__ import annotations

from typing import Literal

Existing = Literal["refuse", "keep", "requantize"]
"""What is done with a model that is quantized already."""
