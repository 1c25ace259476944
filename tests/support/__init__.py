"""What tests share."""

from support.waiting import eventually

__all__ = ["eventually"]
