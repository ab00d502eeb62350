"""The 10,000 MNIST test digits and their split, as used by every model and example here.

The recipes learn from the part "train", images 0..7999; ranges of activations are measured on
"calibration", 8000..8499; every accuracy quoted here is measured on "scoring", 8500..9999.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

PATH = Path(__file__).parent / "digits" / "mnist_t10k.npz"

SPLIT = {"train": slice(0, 8000), "calibration": slice(8000, 8500), "scoring": slice(8500, 10000)}


def load(part: str) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return images [N, 1, 28, 28] float32 in 0..1 and labels [N] int64 of one part of the split.

    Raises ValueError if `part` is not a key of SPLIT.
    """
    if part not in SPLIT:
        raise ValueError(f"digits have no part {part!r}; known: {', '.join(SPLIT)}")
    with np.load(PATH) as archive:
        images, labels = archive["images"][SPLIT[part]], archive["labels"][SPLIT[part]]
    return images[:, None].astype(np.float32) / np.float32(255), labels.astype(np.int64)
