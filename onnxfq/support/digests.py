"""Digests of data: sums that do not depend on the order of samples."""

from __future__ import annotations

DATA_MODULUS = 1 << 256
