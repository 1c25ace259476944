"""What tests share."""

from support.finding import found
from support.waiting import eventually

__all__ = ["eventually", "found"]
