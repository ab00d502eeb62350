"""Networks of well-known shapes with random weights: enough for times and placement, useless for accuracy."""

from networks.dense import detector, unet
from networks.mobilenet import mobilenetv2, mobilenetv3
from networks.resnet import resnet18, resnet50
from networks.transformers import bert, vit_b16

NETWORKS = {
    "resnet18": resnet18,
    "resnet50": resnet50,
    "mobilenetv2": mobilenetv2,
    "mobilenetv3": mobilenetv3,
    "vit_b16": vit_b16,
    "bert": bert,
    "unet": unet,
    "detector": detector,
}
"""Name -> function of the batch, a number or the name of an open dimension, to the model."""
