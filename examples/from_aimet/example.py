"""The examples of AIMET's QuantizeDequantize page with the import changed, and an export.

python example.py
"""

import torch
from torch import nn

import onnxfq.torch.compat.aimet as Q
from onnxfq.torch import export_torch

torch.manual_seed(0)
x = torch.randn(5, 10)

qdq = Q.affine.QuantizeDequantize(shape=(5, 2), bitwidth=8, symmetric=False, block_size=(1, 5))
print("initialized:", qdq.is_initialized())
with qdq.compute_encodings():
    qdq(x)
print("initialized:", qdq.is_initialized())
print(qdq(x))

qdq = Q.affine.QuantizeDequantize(shape=(5, 2), bitwidth=8, symmetric=False, block_size=(1, 5))
qdq.min = nn.Parameter(-torch.ones_like(qdq.min))
qdq.max = nn.Parameter(torch.ones_like(qdq.max))
y = qdq(x)
print(y.encoding.scale.shape, y.quantize().quantized_repr().dtype)

module = nn.Sequential(Q.QuantizeDequantize((), 8, False), nn.Linear(10, 4))
with module[0].compute_encodings():
    module[0](x)
export_torch(module, (x,), "aimet.qdq.onnx")
