"""`pytorch_quantization.nn.modules.quant_rnn`: LSTM."""

from __future__ import annotations

from onnxfq.torch.compat.nvidia.lstm import LSTM as LSTM
from onnxfq.torch.compat.nvidia.lstm import LSTMCell as LSTMCell
from onnxfq.torch.compat.nvidia.lstm import QuantLSTM as QuantLSTM
from onnxfq.torch.compat.nvidia.lstm import QuantLSTMCell as QuantLSTMCell
