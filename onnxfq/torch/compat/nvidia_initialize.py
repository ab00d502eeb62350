"""NVIDIA's document, pytorch-quantization: `initialize()`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from torch import nn

from onnxfq.errors import ModelError, nearest
from onnxfq.torch.compat.nvidia_modules import FLOAT, QUANTIZED


@contextlib.contextmanager
def initialize(
    float_module_list: Sequence[str] = (), custom_quant_modules: Sequence[tuple[Any, str, type]] = ()
) -> Iterator[None]:
    """Let models that are built inside the block have quantized layers.

    Args:
        float_module_list: names of torch.nn that stay float, such as "MaxPool2d".
        custom_quant_modules: (module, name, class): the class takes the place of module.name.

    Raises ModelError for an unknown name.
    """
    for name in float_module_list:
        if name not in FLOAT:
            raise ModelError(f"no quantized layer {name!r} to leave in float{nearest(name, FLOAT)}")
    changes = [(nn, name, made) for name, made in QUANTIZED.items() if name not in float_module_list]
    with contextlib.ExitStack() as stack:
        for home, name, made in [*changes, *custom_quant_modules]:
            stack.callback(setattr, home, name, getattr(home, name))
            setattr(home, name, made)
        yield
