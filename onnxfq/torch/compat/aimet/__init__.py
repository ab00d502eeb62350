"""AIMET's documents: `aimet_torch.quantization`, its quantizers, analyzers, encodings and tensors.

`import onnxfq.torch.compat.aimet as Q` has what `import aimet_torch.v2.quantization as Q` has, in the same
modules: `Q.affine`, `Q.float`, `Q.encoding_analyzer`, `Q.tensor`; `nn` has the quantized modules.
"""

from onnxfq.torch.compat.aimet import affine as affine
from onnxfq.torch.compat.aimet import encoding_analyzer as encoding_analyzer
from onnxfq.torch.compat.aimet import float as float
from onnxfq.torch.compat.aimet import nn as nn
from onnxfq.torch.compat.aimet import tensor as tensor
from onnxfq.torch.compat.aimet.affine import AffineEncoding as AffineEncoding
from onnxfq.torch.compat.aimet.affine import AffineQuantizerBase as AffineQuantizerBase
from onnxfq.torch.compat.aimet.affine import Dequantize as Dequantize
from onnxfq.torch.compat.aimet.affine import GroupedBlockEncoding as GroupedBlockEncoding
from onnxfq.torch.compat.aimet.affine import GroupedBlockQuantizeDequantize as GroupedBlockQuantizeDequantize
from onnxfq.torch.compat.aimet.affine import Quantize as Quantize
from onnxfq.torch.compat.aimet.affine import QuantizeDequantize as QuantizeDequantize
from onnxfq.torch.compat.aimet.affine import dequantize as dequantize
from onnxfq.torch.compat.aimet.affine import quantize as quantize
from onnxfq.torch.compat.aimet.affine import quantize_dequantize as quantize_dequantize
from onnxfq.torch.compat.aimet.encoding_analyzer import EncodingAnalyzer as EncodingAnalyzer
from onnxfq.torch.compat.aimet.encoding_analyzer import MinMaxEncodingAnalyzer as MinMaxEncodingAnalyzer
from onnxfq.torch.compat.aimet.encoding_analyzer import (
    PercentileEncodingAnalyzer as PercentileEncodingAnalyzer,
)
from onnxfq.torch.compat.aimet.encoding_analyzer import SqnrEncodingAnalyzer as SqnrEncodingAnalyzer
from onnxfq.torch.compat.aimet.encoding_analyzer import (
    TfEnhancedEncodingAnalyzer as TfEnhancedEncodingAnalyzer,
)
from onnxfq.torch.compat.aimet.encodings import EncodingBase as EncodingBase
from onnxfq.torch.compat.aimet.encodings import FloatEncoding as FloatEncoding
from onnxfq.torch.compat.aimet.float import FloatQuantizeDequantize as FloatQuantizeDequantize
from onnxfq.torch.compat.aimet.nn import QuantizationMixin as QuantizationMixin
from onnxfq.torch.compat.aimet.quantizer import QuantizerBase as QuantizerBase
from onnxfq.torch.compat.aimet.tensor import DequantizedTensor as DequantizedTensor
from onnxfq.torch.compat.aimet.tensor import EncodingError as EncodingError
from onnxfq.torch.compat.aimet.tensor import QuantizedTensor as QuantizedTensor
from onnxfq.torch.compat.aimet.tensor import QuantizedTensorBase as QuantizedTensorBase
