"""Which database a target means, and that its password is never shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from queuert.errors import UnsupportedDatabaseError
from queuert.storage.urls import parse_target, safe_url, scrub

SECRET = "s3cr3t-pass"


@pytest.mark.parametrize(
    ("target", "path"),
    [
        ("sqlite:///shop.db", "shop.db"),
        ("sqlite:////var/lib/shop.db", "/var/lib/shop.db"),
        ("sqlite:///sub dir/ä%20.db", "sub dir/ä%20.db"),
        ("sqlite:///:memory:", ":memory:"),
        ("sqlite://", ":memory:"),
        (Path("/tmp/shop.db"), "/tmp/shop.db"),
    ],
)
def test_sqlite_targets(target: object, path: str) -> None:
    parsed = parse_target(target)
    assert (parsed.dialect, parsed.path) == ("sqlite", path)


@pytest.mark.parametrize(
    ("target", "url"),
    [
        ("postgresql://localhost/shop", "postgresql://localhost/shop"),
        ("postgres://u:p@h:5/shop", "postgresql://u:p@h:5/shop"),
        ("postgresql+psycopg://h/shop", "postgresql://h/shop"),
        ("host=localhost dbname=shop", "host=localhost dbname=shop"),
    ],
)
def test_postgres_targets(target: str, url: str) -> None:
    parsed = parse_target(target)
    assert (parsed.dialect, parsed.url) == ("postgres", url)


def test_a_parsed_target_stays_as_it_is() -> None:
    parsed = parse_target("sqlite:///shop.db")
    assert parse_target(parsed) is parsed


def test_a_users_pool_is_a_target() -> None:
    psycopg_pool = pytest.importorskip("psycopg_pool")
    pool = psycopg_pool.ConnectionPool("", open=False)
    assert parse_target(pool).pool is pool
    with pytest.raises(UnsupportedDatabaseError, match="synchronous"):
        parse_target(psycopg_pool.AsyncConnectionPool("", open=False))


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("", "empty"),
        ("shop.db", "sqlite:///shop.db"),
        ("sqlite://shop.db", "three slashes"),
        ("sqlite:shop.db", "three slashes"),
        ("sqlite:///", "names no file"),
        ("sqlite:///shop.db?mode=ro", "options"),
        ("mysql://localhost/shop", "mysql"),
        ("postgresql+psycopg2://localhost/shop", "psycopg2"),
        (42, "int"),
        (None, "NoneType"),
    ],
)
def test_what_is_no_target_is_refused(target: object, says: str) -> None:
    with pytest.raises(UnsupportedDatabaseError, match=says):
        parse_target(target)


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://user:{SECRET}@host/db",
        f"postgresql://user:{SECRET}@host:5432/db?sslmode=require",
        f"postgresql://:{SECRET}@host/db",
        f"postgresql://host/db?user=u&password={SECRET}",
        f"postgresql://host/db?PASSWORD={SECRET}&x=1",
        f"postgresql://host/db?sslpassword={SECRET}",
        f"postgresql://u:a/{SECRET}@host/db",
        f"postgresql://u:a@{SECRET}@host/db",
        f"postgresql://u:{SECRET}#x?@host/db",
        f"host=h password={SECRET} dbname=d",
        f"host=h password = '{SECRET} with spaces' dbname=d",
        rf"host=h password='it\'s {SECRET}' dbname=d",
        f"host=h password='{SECRET} unclosed",
        f"mysql://u:{SECRET}@host/db",
        f"oauth_client_secret={SECRET} host=h",
    ],
)
def test_no_password_is_shown(url: str) -> None:
    assert SECRET not in safe_url(url)
    assert SECRET not in scrub(f'invalid URI: "{url}"', url)
    try:
        parsed = parse_target(url)
    except UnsupportedDatabaseError as error:
        assert SECRET not in str(error)  # noqa: PT017 - most of them are fine
    else:
        assert SECRET not in f"{parsed} {parsed!r}"


@pytest.mark.parametrize(
    "url",
    ["postgresql://localhost/shop", "postgresql://user@host:5432/db?sslmode=require", "host=h dbname=d", "sqlite:///x.db"],
)
def test_a_url_without_a_password_is_shown_as_it_is(url: str) -> None:
    assert safe_url(url) == url


def test_an_escaped_password_is_hidden_in_both_spellings() -> None:
    url = "postgresql://u:p%40ssw%3Ard@h/d"
    assert "p@ssw:rd" not in scrub("refused p@ssw:rd and p%40ssw%3Ard", url)
