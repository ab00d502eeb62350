"""AIMET's documents: `aimet_torch.quantization`, its quantizers, analyzers, encodings and tensors.

`import onnxfq.torch.compat.aimet as Q` has what `import aimet_torch.v2.quantization as Q` has, in the same
modules: `Q.affine`, `Q.float`, `Q.encoding_analyzer`, `Q.tensor`; `nn` has the quantized modules.
"""

from onnxfq.torch.compat.aimet import affine, encoding_analyzer, float, nn, tensor
from onnxfq.torch.compat.aimet.affine import (
    AffineEncoding,
    AffineQuantizerBase,
    Dequantize,
    GroupedBlockEncoding,
    GroupedBlockQuantizeDequantize,
    Quantize,
    QuantizeDequantize,
    dequantize,
    quantize,
    quantize_dequantize,
)
from onnxfq.torch.compat.aimet.encoding_analyzer import (
    EncodingAnalyzer,
    MinMaxEncodingAnalyzer,
    PercentileEncodingAnalyzer,
    SqnrEncodingAnalyzer,
    TfEnhancedEncodingAnalyzer,
)
from onnxfq.torch.compat.aimet.encodings import EncodingBase, FloatEncoding
from onnxfq.torch.compat.aimet.float import FloatQuantizeDequantize
from onnxfq.torch.compat.aimet.nn import QuantizationMixin
from onnxfq.torch.compat.aimet.quantizer import QuantizerBase
from onnxfq.torch.compat.aimet.tensor import (
    DequantizedTensor,
    EncodingError,
    QuantizedTensor,
    QuantizedTensorBase,
)

__all__ = [
    "AffineEncoding",
    "AffineQuantizerBase",
    "Dequantize",
    "DequantizedTensor",
    "EncodingAnalyzer",
    "EncodingBase",
    "EncodingError",
    "FloatEncoding",
    "FloatQuantizeDequantize",
    "GroupedBlockEncoding",
    "GroupedBlockQuantizeDequantize",
    "MinMaxEncodingAnalyzer",
    "PercentileEncodingAnalyzer",
    "QuantizationMixin",
    "Quantize",
    "QuantizeDequantize",
    "QuantizedTensor",
    "QuantizedTensorBase",
    "QuantizerBase",
    "SqnrEncodingAnalyzer",
    "TfEnhancedEncodingAnalyzer",
    "affine",
    "dequantize",
    "encoding_analyzer",
    "float",
    "nn",
    "quantize",
    "quantize_dequantize",
    "tensor",
]
