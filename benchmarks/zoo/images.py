"""Networks of torchvision and timm: those named here by default, any of theirs by name."""

from __future__ import annotations

import torch

from zoo.from_torch import Network

SIZES = (64, 224, 256)
"""Sides of images that are tried in turn; some networks have one size only."""
TORCHVISION = ("resnet18", "mobilenet_v3_small", "convnext_tiny", "swin_t", "vit_b_32", "densenet121")
TIMM = ("levit_128s", "edgenext_xx_small", "tf_efficientnet_b0", "repvgg_a0")


def network(library: str, name: str) -> Network:
    """Return `name` of `library` for images of the first size that it takes. Raises ValueError for none."""
    if library == "timm":
        import timm

        made = timm.create_model(name, pretrained=False)
    else:
        from torchvision import models

        made = getattr(models, name)(weights=None)
    for size in SIZES:
        images = torch.randn(2, 3, size, size)
        try:
            made.train()(images)
        except (RuntimeError, ValueError, AssertionError):
            continue
        return Network(made.eval(), (images,))
    raise ValueError(f"{name} takes no image of {', '.join(map(str, SIZES))}")
