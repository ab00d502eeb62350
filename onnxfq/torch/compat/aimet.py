"""AIMET's document, `aimet_torch.quantization.affine`, its encoding analyzers, LPBQ and float quantizers."""

from onnxfq.torch.compat.aimet_analyzers import (
    EncodingAnalyzer,
    MinMaxEncodingAnalyzer,
    PercentileEncodingAnalyzer,
    SqnrEncodingAnalyzer,
)
from onnxfq.torch.compat.aimet_encoding import AffineEncoding
from onnxfq.torch.compat.aimet_formats import FloatQuantizeDequantize, GroupedBlockQuantizeDequantize
from onnxfq.torch.compat.aimet_quantizers import Dequantize, Quantize, QuantizeDequantize
from onnxfq.torch.compat.aimet_tensor import DequantizedTensor, QuantizedTensor

__all__ = [
    "AffineEncoding",
    "Dequantize",
    "DequantizedTensor",
    "EncodingAnalyzer",
    "FloatQuantizeDequantize",
    "GroupedBlockQuantizeDequantize",
    "MinMaxEncodingAnalyzer",
    "PercentileEncodingAnalyzer",
    "Quantize",
    "QuantizeDequantize",
    "QuantizedTensor",
    "SqnrEncodingAnalyzer",
]
