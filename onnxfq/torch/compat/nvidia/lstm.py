"""`QuantLSTM` and `QuantLSTMCell`: one quantizer for input and hidden state of a step, one for both weights.

A step is one product: [input, hidden] times [weight_ih, weight_hh]. Each of the two is quantized as a whole.
The recurrence is unrolled, since the hidden state is quantized at each step.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import PackedSequence

from onnxfq.errors import SpecError
from onnxfq.torch.arguments import checked_methods
from onnxfq.torch.compat.nvidia.layers import QuantLayer, QuantMixin, make_float
from onnxfq.torch.compat.nvidia.tensor_quant import QUANT_DESC_8BIT_LINEAR_WEIGHT_PER_ROW
from onnxfq.torch.compat.nvidia.tensor_quantizer import TensorQuantizer

State = tuple[Tensor, Tensor]


def _step(x: Tensor, state: State, weights: State, biases: Any, quantizer: TensorQuantizer) -> State:
    """Return (hidden, cell) after one step with quantized weights; gates are in torch's order i, f, g, o."""
    hidden, cell = state
    x, hidden = quantizer(torch.cat([x, hidden], 1)).split([x.shape[1], hidden.shape[1]], 1)
    gates = F.linear(x, weights[0], biases[0]) + F.linear(hidden, weights[1], biases[1])
    i, f, g, o = gates.chunk(4, 1)
    cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
    return o.sigmoid() * cell.tanh(), cell


def _weights(first: Tensor, second: Tensor, quantizer: TensorQuantizer) -> State:
    """Return the weights of input and hidden state, quantized as one."""
    parts = quantizer(torch.cat([first, second], 1)).split([first.shape[1], second.shape[1]], 1)
    return parts[0], parts[1]


class QuantLSTMCell(QuantLayer, nn.LSTMCell):
    """Quantized LSTMCell: `_input_quantizer` sees [input, hidden], `_weight_quantizer` both weights."""

    def forward(self, input: Tensor, hx: State | None = None) -> State:
        """Return (hidden, cell) after one step; `hx` is zeros by default."""
        if input.ndim not in (1, 2):
            raise SpecError(f"the input of an LSTMCell has 1 or 2 axes, got {list(input.shape)}; remove some")
        x = input if input.ndim == 2 else input[None]
        zeros = x.new_zeros(x.shape[0], self.hidden_size)
        state = (zeros, zeros) if hx is None else (hx[0].reshape(zeros.shape), hx[1].reshape(zeros.shape))
        weights = _weights(self.weight_ih, self.weight_hh, self._weight_quantizer)
        made = _step(x, state, weights, (self.bias_ih, self.bias_hh), self._input_quantizer)
        return made if input.ndim == 2 else (made[0][0], made[1][0])


@checked_methods("__init__")
class QuantLSTM(QuantMixin, nn.LSTM):
    """Quantized LSTM, with `_input_quantizers` and `_weight_quantizers` for each layer and direction.

    Raises SpecError for `proj_size`.
    """

    default_quant_desc_weight = QUANT_DESC_8BIT_LINEAR_WEIGHT_PER_ROW
    _input_quantizers: nn.ModuleList
    _weight_quantizers: nn.ModuleList

    def __init__(self, *args: Any, **keywords: Any) -> None:
        """Take the arguments of the float layer, `quant_desc_input` and `quant_desc_weight`."""
        found = make_float(self, args, keywords)
        if self.proj_size:
            raise SpecError(f"proj_size is not supported in QuantLSTM, got {self.proj_size}; leave it out")
        self.init_quantizer(found[0], found[1], self.num_layers * (1 + self.bidirectional))

    def forward(self, input: Any, hx: State | None = None) -> Any:
        """Return output and (hidden, cell) as torch.nn.LSTM does, also of packed and unbatched input."""
        if isinstance(input, PackedSequence):
            data, sizes, order, back = input
            hx = None if hx is None else self.permute_hidden(hx, order)
            y, state = self._run(data, sizes.tolist(), hx)
            return PackedSequence(y, sizes, order, back), self.permute_hidden(state, back)
        if input.ndim == 2:  # one sequence
            axis = int(not self.batch_first)
            start = None if hx is None else (hx[0].unsqueeze(1), hx[1].unsqueeze(1))
            y, state = self.forward(input.unsqueeze(axis), start)
            return y.squeeze(axis), (state[0].squeeze(1), state[1].squeeze(1))
        x = input.transpose(0, 1) if self.batch_first else input
        steps, batch = x.shape[:2]
        y, state = self._run(x.reshape(steps * batch, -1), [batch] * steps, hx)
        y = y.reshape(steps, batch, -1)
        return y.transpose(0, 1) if self.batch_first else y, state

    def _run(self, x: Tensor, sizes: list[int], hx: State | None) -> tuple[Tensor, State]:
        """Return (output, state) of steps that lie behind each other in x, the first of the full batch."""
        directions = 1 + self.bidirectional
        wanted = self.num_layers * directions, sizes[0], self.hidden_size
        if hx is None:
            hx = x.new_zeros(wanted), x.new_zeros(wanted)
        else:
            for state in hx:
                self.check_hidden_size(state, wanted)
        ends = []
        for layer in range(self.num_layers):
            outputs = []
            for reverse in range(directions):
                index = layer * directions + reverse
                y, end = self._run_direction(x, sizes, index, (hx[0][index], hx[1][index]))
                outputs.append(y)
                ends.append(end)
            x = torch.cat(outputs, 1)
            if self.dropout and layer + 1 < self.num_layers:
                x = F.dropout(x, self.dropout, self.training)
        return x, (torch.stack([end[0] for end in ends]), torch.stack([end[1] for end in ends]))

    def _run_direction(self, x: Tensor, sizes: list[int], index: int, state: State) -> tuple[Tensor, State]:
        first, second, *biases = self.all_weights[index]
        quantizer = self._input_quantizers[index]
        weights = _weights(first, second, self._weight_quantizers[index])
        parts = list(x.split(sizes))
        reverse = self.bidirectional and index % 2
        outputs = []
        for part in reversed(parts) if reverse else parts:
            # Sequences that ended keep their state; in reverse, those that did not begin do.
            n = part.shape[0]  # len() would fix it in an export
            made = _step(part, (state[0][:n], state[1][:n]), weights, biases or (None, None), quantizer)
            outputs.append(made[0])
            state = torch.cat([made[0], state[0][n:]]), torch.cat([made[1], state[1][n:]])
        return torch.cat(outputs[::-1] if reverse else outputs), state


LSTM, LSTMCell = QuantLSTM, QuantLSTMCell
