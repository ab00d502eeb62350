"""pytorch-quantization: its names and paths, with this package in the place of `pytorch_quantization`.

Users import `nn`, `calib`, `quant_modules` and `tensor_quant` from here, or use the original's deeper paths,
such as `nn.modules.quant_conv`. Their classes are names of this package, too.
"""

from __future__ import annotations

from onnxfq.torch.compat.nvidia import calib as calib
from onnxfq.torch.compat.nvidia import layers as layers
from onnxfq.torch.compat.nvidia import nn as nn
from onnxfq.torch.compat.nvidia import optim as optim
from onnxfq.torch.compat.nvidia import quant_modules as quant_modules
from onnxfq.torch.compat.nvidia import tensor_quant as tensor_quant
from onnxfq.torch.compat.nvidia import utils as utils
from onnxfq.torch.compat.nvidia.calibrators import HistogramCalibrator as HistogramCalibrator
from onnxfq.torch.compat.nvidia.calibrators import MaxCalibrator as MaxCalibrator
from onnxfq.torch.compat.nvidia.calibrators import calibrate_weights as calibrate_weights
from onnxfq.torch.compat.nvidia.clip import Clip as Clip
from onnxfq.torch.compat.nvidia.descriptor import QuantDescriptor as QuantDescriptor
from onnxfq.torch.compat.nvidia.layers import __getattr__ as __getattr__
from onnxfq.torch.compat.nvidia.lstm import QuantLSTM as QuantLSTM
from onnxfq.torch.compat.nvidia.lstm import QuantLSTMCell as QuantLSTMCell
from onnxfq.torch.compat.nvidia.optim import helper as helper
from onnxfq.torch.compat.nvidia.quant_modules import deactivate as deactivate
from onnxfq.torch.compat.nvidia.quant_modules import enable_onnx_export as enable_onnx_export
from onnxfq.torch.compat.nvidia.quant_modules import initialize as initialize
from onnxfq.torch.compat.nvidia.tensor_quantizer import TensorQuantizer as TensorQuantizer

globals().update(layers.LAYERS)  # for `import *`, as the other names
