"""The LeNet of pytorch-quantization's README with its imports changed: in flight, calibration, sensitivity.

python example.py
"""

import torch
from torch import nn
from torch.nn import functional as F

from onnxfq.torch import export_torch
from onnxfq.torch.compat.nvidia import (
    MaxCalibrator,
    QuantConv2d,
    QuantDescriptor,
    QuantLinear,
    TensorQuantizer,
)


class QuantLeNet(nn.Module):
    """The network of the README."""

    def __init__(self):
        super().__init__()
        self.conv1 = QuantConv2d(1, 10, kernel_size=5)
        self.conv2 = QuantConv2d(10, 20, kernel_size=5)
        self.fc1 = QuantLinear(320, 50)
        self.fc2 = QuantLinear(50, 10, quant_desc_input=QuantDescriptor(calib_method="histogram"))

    def forward(self, x):
        """Return the logarithms of the probabilities."""
        x = F.relu(F.max_pool2d(self.conv1(x), 2))
        x = F.relu(F.max_pool2d(self.conv2(x), 2))
        x = x.reshape(-1, 320)
        x = F.relu(self.fc1(x))
        x = F.dropout(x, training=self.training)
        return F.log_softmax(self.fc2(x), dim=1)


torch.manual_seed(0)
model = QuantLeNet().eval()
images = torch.rand(16, 1, 28, 28)
in_flight = model(images)  # uncalibrated: amax of each batch

quantizers = [module for module in model.modules() if isinstance(module, TensorQuantizer)]
for quantizer in quantizers:
    quantizer.disable_quant()
    quantizer.enable_calib()
with torch.no_grad():
    float_output = model(images)
for quantizer in quantizers:
    if isinstance(quantizer._calibrator, MaxCalibrator):
        quantizer.load_calib_amax()
    else:
        quantizer.load_calib_amax("entropy", stride=2, start_bin=256)
    quantizer.disable_calib()
    quantizer.enable_quant()
with torch.no_grad():
    print("calibrated, largest difference to float:", float((model(images) - float_output).abs().max()))

for name, layer in model.named_children():  # one layer quantized at a time
    for quantizer in quantizers:
        quantizer.disable()
    layer.input_quantizer.enable()
    layer.weight_quantizer.enable()
    with torch.no_grad():
        print("sensitivity of", name, float((model(images) - float_output).square().mean()))
for quantizer in quantizers:
    quantizer.enable()

export_torch(model, (images[:2],), "lenet.qdq.onnx")
