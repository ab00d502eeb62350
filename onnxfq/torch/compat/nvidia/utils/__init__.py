"""`pytorch_quantization.utils`: the largest magnitude of a tensor."""

from __future__ import annotations

# The module of this name comes first: its import would take the name from the function later.
from onnxfq.torch.compat.nvidia.utils.reduce_amax import reduce_amax as reduce_amax
