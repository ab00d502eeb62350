"""`pytorch_quantization.utils.quant_logging`: the handlers of the root logger."""

from __future__ import annotations

import logging


def reset_logger_handler() -> None:
    """Remove all handlers of the root logger, as the original does."""
    logging.getLogger().handlers.clear()
