"""`python -m onnxfq`: the console command."""

from __future__ import annotations

import sys

from onnxfq.cli.main import main

sys.exit(main())
