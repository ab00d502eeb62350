"""The notebook of the PyTorch tensor-quantization guide, with its helper functions imported from onnxfq.

python example.py
"""

import torch

from onnxfq import plot_quantization_errors
from onnxfq.torch.compat.guide import (
    get_q_scale_and_zero_point,
    get_q_scale_symmetric,
    linear_dequantization,
    linear_q_symmetric,
    linear_q_symmetric_per_channel,
    linear_quantization,
    quantization_error,
)

test_tensor = torch.tensor(
    [
        [-539.7578, -559.8864, 615.4858, -677.5037, -481.3652, 557.0392],
        [-761.4703, 502.1984, 623.5497, 277.9323, 183.5344, 395.8571],
        [774.6538, 83.3037, -737.2340, 944.8324, 750.8967, -23.7258],
        [-598.6270, -396.6147, -904.1458, 678.6168, -88.8622, 705.5219],
        [385.5581, -203.1455, -654.7877, 356.3862, -657.0405, -227.5714],
        [608.7488, -557.6073, -50.0951, -138.9851, 117.3401, 985.9318],
    ]
)

scale, zero_point = get_q_scale_and_zero_point(test_tensor)
print(f"Scale: {scale}, Zero-Point: {zero_point}")
quantized_tensor, scale, zero_point = linear_quantization(test_tensor)
dequantized_tensor = linear_dequantization(quantized_tensor, scale, zero_point)
plot_quantization_errors(test_tensor, quantized_tensor, dequantized_tensor, "asymmetric.png")
print(f"Asymmetric: {quantization_error(test_tensor, dequantized_tensor):.4f}")

print(f"Symmetric scale: {get_q_scale_symmetric(test_tensor)}")
quantized_tensor, scale = linear_q_symmetric(test_tensor)
dequantized_tensor = linear_dequantization(quantized_tensor, scale, 0)
plot_quantization_errors(test_tensor, quantized_tensor, dequantized_tensor, "symmetric.png")
print(f"Symmetric: {quantization_error(test_tensor, dequantized_tensor):.4f}")

for dim in (0, 1):
    quantized_tensor, scale = linear_q_symmetric_per_channel(test_tensor, dim=dim)
    dequantized_tensor = linear_dequantization(quantized_tensor, scale, 0)
    plot_quantization_errors(test_tensor, quantized_tensor, dequantized_tensor, f"channels_{dim}.png")
    print(f"Per channel of axis {dim}: {quantization_error(test_tensor, dequantized_tensor):.4f}")
