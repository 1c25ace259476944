"""Log lines of a worker's process on stderr, unless the application has set up logging itself."""

from __future__ import annotations

import logging
import sys
from typing import Final

LEVELS: Final = ("debug", "info", "warning", "error")
FORMAT: Final = "%(asctime)s %(levelname)-7s %(process)d %(name)s: %(message)s"


def configure_logging(level: str) -> None:
    root = logging.getLogger()
    if root.handlers:
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(FORMAT))
    root.addHandler(handler)
    # Others than this library stay at their warnings.
    logging.getLogger("queuert").setLevel(level.upper())
