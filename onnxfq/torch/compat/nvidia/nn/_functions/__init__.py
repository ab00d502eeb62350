"""`pytorch_quantization.nn._functions`: private; its LSTM is in `nn.modules.quant_rnn` here."""
