"""Brings the schema of a PostgreSQL database to the newest version, while workers run.

One migrator at a time: it holds an advisory lock in a transaction of its own, on a connection of its own, for as long as it
works. (A READ COMMITTED transaction that only holds such a lock has no snapshot, so nobody has to wait for it.)

A migration is one transaction, with a short lock timeout: what would wait behind a long transaction, with every claim
waiting behind it, gives up and tries again. One that builds an index CONCURRENTLY cannot be a transaction: its statements are
run one by one, each must bear to be run again (IF NOT EXISTS), and it is recorded after the last. Killed in the middle, it is
taken up from its first statement; an index that was left half built is dropped first.

Functions are replaced whenever their text differs from what is there, which a comment on each tells.
"""

from __future__ import annotations

import hashlib
import logging
import random
import re
import time
from collections.abc import Callable, Sequence
from typing import Final

import psycopg

from queuert.postgres.dialect import POSTGRES
from queuert.postgres.repository import array
from queuert.postgres.session import Connection, PostgresSession
from queuert.storage import loader
from queuert.storage.loader import Script
from queuert.storage.migrations import status
from queuert.storage.names import Names

logger = logging.getLogger("queuert.migrations")

LOCK_TIMEOUT: Final = "500ms"  # how long claims can be held up by one try
PAUSE, LONGEST_PAUSE = 0.1, 2.0
GIVE_UP_AFTER: Final = 600.0

LOCK_NOT_AVAILABLE: Final = "55P03"
_INDEX = re.compile(r'CREATE (?:UNIQUE )?INDEX CONCURRENTLY IF NOT EXISTS "([^"]+)"', re.IGNORECASE)
CONCURRENTLY: Final = "CONCURRENTLY"
NOTE: Final = "queuert {}"  # with the version of a function


def migrate(connect: Callable[[], Connection], names: Names, known: Sequence[Script]) -> list[str]:
    """Apply what is pending; `connect` opens a connection of the caller's own, in autocommit."""
    with connect() as locking, connect() as conn:
        locking.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
        with locking.transaction():
            locking.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
            migrator = _Migrator(conn, names)
            # By asking again and again: a statement that waits has a snapshot, which an index that is being built waits for.
            while not PostgresSession(locking).run(migrator.queries["try_lock_migrations"], {})[0][0]:
                time.sleep(PAUSE)
            return migrator.run(known)


def is_current(session: PostgresSession, names: Names, known: Sequence[Script]) -> bool:
    """Whether there is nothing to do."""
    queries = loader.queries(POSTGRES, names)
    return not status(session, known, queries).pending and not outdated_functions(session, names)


def outdated_functions(session: PostgresSession, names: Names) -> list[tuple[str, str, str]]:
    """Name, version and statement of the functions that are missing, or not what this version has."""
    wanted = {}
    for script in loader.functions(POSTGRES, names):
        (statement,) = script.statements
        wanted[names.prefix + script.name] = hashlib.sha256(statement.encode()).hexdigest()[:16], statement
    params = {"schema": names.schema, "names": array(wanted)}
    found: dict[str, str] = dict(session.run(loader.queries(POSTGRES, names)["function_comments"], params))
    return [(name, *each) for name, each in wanted.items() if found.get(name) != NOTE.format(each[0])]


class _Migrator:
    """Works on one connection, with the lock held on another."""

    def __init__(self, conn: Connection, names: Names) -> None:
        self._conn = conn
        self._names = names
        self._session = PostgresSession(conn)
        self.queries = loader.queries(POSTGRES, names)
        # Nothing that a role or a database has set may end a migration in the middle, or hide what others have committed.
        conn.execute("SET statement_timeout = 0")
        conn.execute("SET default_transaction_isolation = 'read committed'")

    def run(self, known: Sequence[Script]) -> list[str]:
        pending = status(self._session, known, self.queries).pending
        if len(pending) == len(known):
            self._session.run(self.queries["create_migration_schema"], {})
            self._session.run(self.queries["create_migration_table"], {})
        for script in known:
            if script.name in pending:
                self._apply(script)
        for name, version, statement in outdated_functions(self._session, self._names):
            note = f'COMMENT ON FUNCTION "{self._names.schema}"."{name}" IS \'{NOTE.format(version)}\''
            self._insist([statement, note])
        return list(pending)

    def _apply(self, script: Script) -> None:
        if not any(CONCURRENTLY in statement for statement in script.statements):
            self._insist(script.statements, record=script.name)
            return
        for statement in script.statements:
            if CONCURRENTLY in statement:
                self._run_alone(statement)
            else:
                self._insist([statement])
        self._insist([], record=script.name)

    def _run_alone(self, statement: str) -> None:
        """Run a statement outside of transactions, and again until the index that it makes is whole.

        A migrator that was killed may have left a server process that builds it still: then either of the two can be the
        victim of a deadlock, and an index that is there can still turn out to be half built.
        """
        made = _INDEX.search(statement)
        self._conn.execute("SET lock_timeout = 0")  # it waits for transactions, and nobody waits for it
        while True:
            try:
                if made and self._is_half_built(made[1]):
                    self._conn.execute(f'DROP INDEX CONCURRENTLY IF EXISTS "{self._names.schema}"."{made[1]}"'.encode())
                self._conn.execute(statement.encode())
            except psycopg.errors.DeadlockDetected:
                logger.info("Somebody else builds the same index; trying again.", extra={"event": "migration_waits"})
            else:
                if not (made and self._is_half_built(made[1])):
                    return
            time.sleep(PAUSE)

    def _is_half_built(self, index: str) -> bool:
        params = {"schema": self._names.schema, "name": index}
        return bool(self._session.run(self.queries["half_built_index"], params)[0][0])

    def _insist(self, statements: Sequence[str], *, record: str | None = None) -> None:
        """Run statements in one transaction, and again while its locks cannot be had quickly."""
        pause, give_up_at = PAUSE, time.monotonic() + GIVE_UP_AFTER
        while True:
            try:
                with self._conn.transaction():
                    self._conn.execute(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'".encode())
                    for statement in statements:
                        self._conn.execute(statement.encode())  # without parameters, so a % is a %
                    if record is not None:
                        self._session.run(self.queries["record_migration"], {"name": record})
                return
            except psycopg.Error as error:
                if error.sqlstate != LOCK_NOT_AVAILABLE or time.monotonic() > give_up_at:
                    raise
                logger.info("A lock for the migration cannot be had; trying again.", extra={"event": "migration_waits"})
            time.sleep(pause * random.uniform(0.8, 1.2))
            pause = min(pause * 2, LONGEST_PAUSE)
