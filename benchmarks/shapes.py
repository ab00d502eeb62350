"""Networks of models/networks, for the benchmarks."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "models"))

from networks import NETWORKS  # noqa: E402  (the path comes first)
from networks.matmul_chain import write_matmul_chain  # noqa: E402

__all__ = ["NETWORKS", "write_matmul_chain"]
