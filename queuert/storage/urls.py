"""Which database a target means, and how to show it without its password."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote

from queuert.errors import UnsupportedDatabaseError

MEMORY = ":memory:"
MASK = "***"

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_KEY_VALUE = re.compile(r"\s*[A-Za-z_]\w*\s*=")
_SECRET_KEY = r"[A-Za-z_]*(?:passw|pwd|secret)[A-Za-z_]*"
# What is surely no secret: a path without anything that separates the parts of a URL.
_PLAIN_PATH = re.compile(r"[\w./\\-]+")
_CREDENTIALS = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*://[^/?#@:]*):([^/?#]*)@")
_LOOSE_CREDENTIALS = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*://[^/?#@:]*):(.*)@", re.DOTALL)
_QUERY_SECRET = re.compile(rf"([?&]{_SECRET_KEY}=)([^&#]*)", re.IGNORECASE)
_PAIR_SECRET = re.compile(rf"(\b{_SECRET_KEY}\s*=\s*)('(?:[^'\\]|\\.)*'?|[^\s]*)", re.IGNORECASE)


@dataclass(frozen=True)
class Target:
    """A target, understood: the path of a SQLite file (or `:memory:`), a libpq URL, or the user's own pool."""

    dialect: Literal["sqlite", "postgres"]
    path: str | None = None
    url: str | None = None
    pool: Any = None

    def __repr__(self) -> str:
        return f"Target({self.dialect!r}, {self})"

    def __str__(self) -> str:
        """How to name it in a message: never with a password."""
        if self.path is not None:
            return self.path
        return safe_url(self.url) if self.url is not None else repr(self.pool)


def parse_target(target: object) -> Target:
    """Understand what the user passed as a database; UnsupportedDatabaseError if it is none."""
    if isinstance(target, Target):
        return target
    if isinstance(target, Path):
        return Target("sqlite", path=str(target))
    if isinstance(target, str):
        return _parse_text(target)
    modules = {base.__module__.partition(".")[0] for base in type(target).__mro__}
    if "psycopg_pool" in modules and hasattr(target, "getconn"):
        if type(target).__name__.startswith("Async") or any(b.__name__.startswith("Async") for b in type(target).__mro__):
            raise UnsupportedDatabaseError("This library is synchronous: pass a psycopg_pool.ConnectionPool.")
        return Target("postgres", pool=target)
    raise UnsupportedDatabaseError(
        f"A target is a URL, a pathlib.Path or a psycopg_pool.ConnectionPool, not {type(target).__name__}."
    )


def _parse_text(text: str) -> Target:
    if not text.strip() or "\x00" in text:
        raise UnsupportedDatabaseError("The target is empty: pass sqlite:///file.db or postgresql://host/database.")
    scheme = _SCHEME.match(text)
    name = scheme[1].lower() if scheme else ""
    if name == "sqlite":
        return Target("sqlite", path=_sqlite_path(text[len("sqlite:") :]))
    if name in ("postgresql", "postgres", "postgresql+psycopg") and text[len(name) :].startswith("://"):
        return Target("postgres", url="postgresql" + text[len(name) :])
    if scheme is None and _KEY_VALUE.match(text):
        return Target("postgres", url=text)
    # What could not be understood is not repeated: a password may be anywhere in it.
    if scheme is None and _PLAIN_PATH.fullmatch(text):
        raise UnsupportedDatabaseError(
            f"{text!r} is not a URL: for a SQLite file write 'sqlite:///{text}' or pass a pathlib.Path."
        )
    if scheme is not None and text[scheme.end() :].startswith("//"):
        raise UnsupportedDatabaseError(
            f"{scheme[1]!r} is not a database this library knows: use sqlite:///file.db or postgresql://host/database."
        )
    stray = " It begins with a space or a quote." if text[0] in " \t\r\n'\"" else ""
    raise UnsupportedDatabaseError(
        f"The target is not a URL: write sqlite:///file.db or postgresql://user:password@host/database.{stray}"
    )


def _sqlite_path(rest: str) -> str:
    if rest in ("//", f"///{MEMORY}", f"//{MEMORY}"):
        return MEMORY
    path = rest.removeprefix("///")
    if path == rest or not path or path.startswith("?"):
        raise UnsupportedDatabaseError(
            "This SQLite URL names no file: write three slashes and a relative path (sqlite:///file.db), or four for an "
            "absolute one (sqlite:////var/lib/file.db)."
        )
    if "?" in path:
        raise UnsupportedDatabaseError("This SQLite URL has options after '?': pass them to Queuert(...) instead.")
    return path


def absolute(path: str) -> str:
    """The path as seen from here and now, so that a later chdir does not change which file is meant."""
    return path if path == MEMORY else os.path.abspath(path)


def safe_url(url: str) -> str:
    """The URL or key=value string with every password replaced by `***`."""
    if _SCHEME.match(url):
        if _CREDENTIALS.match(url):
            url = _CREDENTIALS.sub(rf"\1:{MASK}@", url)
        else:
            url = _LOOSE_CREDENTIALS.sub(rf"\1:{MASK}@", url)  # a password with a raw slash in it: hide too much
        return _QUERY_SECRET.sub(rf"\1{MASK}", url)
    return _PAIR_SECRET.sub(rf"\1{MASK}", url)


def scrub(message: str, url: str) -> str:
    """A message of the driver without the passwords of this URL."""
    message = message.replace(url, safe_url(url))
    for secret in _secrets(url):
        message = message.replace(secret, MASK)
    return message


def _secrets(url: str) -> list[str]:
    found = [match[2] for match in _PAIR_SECRET.finditer(url)] + [match[2] for match in _QUERY_SECRET.finditer(url)]
    credentials = _CREDENTIALS.match(url) or _LOOSE_CREDENTIALS.match(url)
    if credentials:
        found.append(credentials[2])
        found.extend(re.split("[/@:?#]", credentials[2]))
    found.extend([unquote(secret) for secret in found] + [secret.strip("'") for secret in found])
    # A secret of one or two characters would blank out half of the message, and hides nothing.
    return sorted({secret for secret in found if len(secret) > 2}, key=len, reverse=True)
