"""Job ids: what they look like, how new ones are made, which are accepted.

By default UUIDs of version 7, made here: they grow with time, so that inserts append to the index instead of scattering
over it.
"""

from __future__ import annotations

import os
import re
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from struct import unpack
from typing import Union

from queuert.errors import InvalidJobIdError

Id = Union[str, int, uuid.UUID]
"""What is taken for an id. Records have them as strings."""

_lock = threading.Lock()
_last = 0
_random: list[int] = []

_INTEGER_BITS = {
    "smallint": 16,
    "integer": 32,
    "int": 32,
    "int4": 32,
    "serial": 32,
    "bigint": 64,
    "int8": 64,
    "bigserial": 64,
}


def uuid7() -> str:
    """A new UUID of version 7, greater than every one this process made before."""
    global _last
    stamp = time.time_ns()
    # 48 bits of milliseconds, then 12 bits of the millisecond's fraction, so that ids made in one millisecond sort too.
    ticks = (stamp // 1_000_000) << 12 | (stamp % 1_000_000) * 4096 // 1_000_000
    with _lock:
        ticks = _last = max(ticks, _last + 1)
        if not _random:
            _random.extend(unpack("128Q", os.urandom(1024)))  # a call for each would cost a microsecond
        number = _random.pop()
    tail = number & 0x3FFF_FFFF_FFFF_FFFF | 0x8000_0000_0000_0000
    text = f"{ticks >> 12:012x}7{ticks & 0xFFF:03x}{tail:016x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def _in_child() -> None:
    """A child does not inherit the lock as another thread left it, nor the numbers its parent goes on to use."""
    global _lock
    _lock = threading.Lock()
    _random.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)


class Ids:
    """Makes and checks the ids of one app; to users they are always strings."""

    def __init__(
        self,
        id_type: str | None = None,
        generate: Callable[[], Id] | None = None,
        validate: Callable[[str], bool] | None = None,
    ) -> None:
        for name, function in (("generate_id", generate), ("validate_id", validate)):
            if function is not None and not callable(function):
                raise TypeError(f"{name} must be callable.")
        self._kind = (id_type or "uuid").lower()
        self._generate = generate
        self._validate = validate
        if self._kind in _INTEGER_BITS and generate is None:
            raise ValueError(f"id_type={id_type!r} needs generate_id=, since only UUIDs and text ids are made by default.")

    @property
    def are_unique(self) -> bool:
        """Whether what `new` gives exists nowhere yet; a function of the user's may repeat itself."""
        return self._generate is None

    @property
    def are_uuids(self) -> bool:
        return self._kind == "uuid"

    def new(self) -> str:
        if self._generate is None:
            return uuid7()
        return self.check(self._generate())

    def check(self, value: object) -> str:
        """The id in its canonical spelling."""
        if self._kind == "uuid":
            text = _uuid(value)
        elif self._kind in _INTEGER_BITS:
            text = _integer(value, _INTEGER_BITS[self._kind])
        else:
            if isinstance(value, uuid.UUID):
                value = str(value)
            if not isinstance(value, str) or not value or len(value) > 255 or not value.isprintable():
                raise InvalidJobIdError(value, "1 to 255 printable characters")
            text = value
        if self._validate is not None and not self._validate(text):
            raise InvalidJobIdError(value, "what validate_id accepts")
        return text


def _uuid(value: object) -> str:
    if isinstance(value, uuid.UUID):
        return str(value)
    if isinstance(value, str):
        # The common case costs one match; other spellings take the slow road.
        if _CANONICAL.fullmatch(value):
            return value
        if _ANY_SPELLING.fullmatch(value):  # UUID() itself takes spaces, signs and underscores for digits
            with suppress(ValueError):
                return str(uuid.UUID(value.lower()))
    raise InvalidJobIdError(value)


def _integer(value: object, bits: int) -> str:
    if not isinstance(value, bool) and isinstance(value, (int, str)) and _DIGITS.fullmatch(str(value)):
        number = int(value)
        if -(1 << bits - 1) <= number < 1 << bits - 1:
            return str(number)
    raise InvalidJobIdError(value, f"a whole number of {bits} bits")


_CANONICAL = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_ANY_SPELLING = re.compile(r"(?:urn:uuid:)?\{?[0-9a-f-]{32,40}\}?", re.ASCII | re.IGNORECASE)
_DIGITS = re.compile(r"-?[0-9]{1,19}")
