"""What must be refused, and with which code."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from queuert import JobTypeValidationError


@contextmanager
def refused(code: str) -> Iterator[None]:
    """The block raises a JobTypeValidationError with this code."""
    with pytest.raises(JobTypeValidationError) as raised:
        yield
    assert raised.value.code == code, raised.value
