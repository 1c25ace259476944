"""What may be None, and must not be in this test."""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")


def found(value: T | None) -> T:
    """The value itself; AssertionError if there is none."""
    assert value is not None, "there is none"
    return value
