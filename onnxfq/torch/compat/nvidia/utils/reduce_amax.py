"""`pytorch_quantization.utils.reduce_amax`: the largest magnitude of a tensor."""

from __future__ import annotations

from onnxfq.torch.compat.nvidia.amax import reduce_amax as reduce_amax
